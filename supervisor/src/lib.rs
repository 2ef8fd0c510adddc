//! Who watches in Playhouse: the tree, restarts, creation, plugin hosting and the harness.

pub mod agents;
mod children;
mod death;
pub mod harness;
pub mod hibernation;
pub mod plugin_host;
pub mod providers;
pub mod restart_policy;
