//! What Playhouse's actors say.
//!
//! This crate holds the vocabulary (content, messages, chunks, events), the folds that turn a log
//! into state, the pure machines that decide, and the message enums of the actors (`protocol`).
//! It does no I/O, starts no task and reads no clock: every decision is a function of its input.

pub mod batch;
pub mod chunk;
pub mod config;
pub mod content;
pub mod event;
pub mod header;
pub mod id;
pub mod json;
pub mod log;
pub mod message;
pub mod packed;
pub mod protocol;
