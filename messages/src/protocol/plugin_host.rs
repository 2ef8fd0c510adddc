use ractor::RpcReplyPort;

use crate::chunk::Failure;

/// To the host of one plugin.
#[derive(Debug)]
pub enum PluginHostMessage {
    /// Drop the plugin's scope and set it up again.
    Reload {
        /// Answered once it is set up, or has failed to.
        reply: RpcReplyPort<Result<(), Failure>>,
    },
    /// Drop the plugin's scope for good.
    Stop {
        /// Answered once everything that it registered is gone.
        reply: RpcReplyPort<()>,
    },
    /// The set of available services changed.
    ServicesChanged,
    /// A setup is done.
    SetUp {
        /// Which setup; an older one is stale.
        attempt: u64,
        /// Whether it succeeded.
        outcome: Result<(), Failure>,
    },
}
