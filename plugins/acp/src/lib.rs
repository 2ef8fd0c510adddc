//! The Agent Client Protocol for Playhouse: agents of other programs as children, and an agent served.
//!
//! - [`provider`]: an agent of another program as a child, and the end of all its processes.
//! - [`plugin`]: such agents as tools for models.
//! - [`server`]: an agent served to an editor, or to another agent.
//! - [`wire`]: the pipes under both.

#![warn(missing_docs)]

pub mod plugin;
pub mod provider;
pub mod server;
pub mod wire;

pub use self::{
    plugin::AcpAgents,
    provider::{AcpConfig, AcpProvider, Permission},
    server::AcpServer,
};
