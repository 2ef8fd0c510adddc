//! Who speaks in Playhouse: the actor shells.

pub mod tool_executor;
