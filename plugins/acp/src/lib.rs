//! The Agent Client Protocol for Playhouse: agents of other programs as children, and an agent served.

#![warn(missing_docs)]

pub mod provider;
pub mod server;
pub mod wire;

pub use self::{
    provider::{AcpConfig, AcpProvider, Permission},
    server::AcpServer,
};
