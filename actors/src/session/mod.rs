//! The session's actor: the right to append.
//!
//! It owns nothing but that right. The log lives in the world as a value that is swapped whole with
//! each command's answer, so its death costs a refold: a successor takes over the same log, answers
//! commands that were run already from the record, and runs none twice.

mod actor;

pub use actor::{SessionActor, SessionArgs};
