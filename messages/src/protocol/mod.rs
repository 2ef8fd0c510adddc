//! The message enums of the actors: the one module of this crate that knows ractor.
//!
//! Mailboxes are unbounded, so flow control is explicit: streams run on the credits of a bounded
//! channel, undurable bytes delay replies, and work runs under permits. No message waits for long
//! work: its outcome comes back as another message.

mod agent;
mod plugin_host;
mod provider;
mod session;
mod supervision;
mod tool_executor;
mod writer;

pub use agent::AgentMessage;
pub use plugin_host::PluginHostMessage;
pub use provider::{ProviderMessage, StreamRequest};
pub use session::{CommandNo, SessionMessage};
pub use supervision::{AgentSupervisorMessage, AgentsRootMessage, Part};
pub use tool_executor::ToolExecutorMessage;
pub use writer::WriterMessage;
