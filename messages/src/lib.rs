//! What Playhouse's actors say.
//!
//! This crate holds the vocabulary (content, messages, chunks, events), the folds that turn a log
//! into state, the pure machines that decide, and in [`protocol`] the message enums of the actors.
//! It does no I/O, starts no task and reads no clock: every decision is a function of its input.

pub mod admission;
pub mod assembler;
pub mod attachment;
pub mod batch;
pub mod boundary;
pub mod candidate;
pub mod chunk;
pub mod chunked;
pub mod config;
pub mod consumed;
pub mod content;
pub mod event;
pub mod frame;
pub mod gate;
pub mod header;
pub mod history;
pub mod id;
pub mod inbox;
pub mod invariants;
pub mod json;
pub mod log;
pub mod machine;
pub mod message;
pub mod outcome;
pub mod packed;
pub mod prepared;
pub mod protocol;
pub mod repair;
pub mod request;
pub mod request_folds;
pub mod retry;
pub mod runtime_context;
pub mod selection;
pub mod session;
pub mod session_state;
pub mod settlement;
mod shared_set;
pub mod surface;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tool_history;
pub mod validate;
pub mod validator;
