//! Who speaks in Playhouse: the actor shells, and nothing else.
//!
//! An actor carries messages to the pure machines of `playhouse-messages` and performs the effects
//! that they return. Any of them may be killed at any moment: each module says what that costs.

pub mod agent;
pub mod persistence;
pub mod provider;
pub mod session;
pub mod tool_executor;
