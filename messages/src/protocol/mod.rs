//! The message enums of the actors. The one module of this crate that knows ractor.

pub mod tool_executor;
