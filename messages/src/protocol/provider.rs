use ractor::RpcReplyPort;
use tokio::sync::mpsc;

use crate::{
    chunk::{Failure, StreamChunk},
    config::CallConfig,
    id::SessionId,
    prepared::{Prepared, Ticket},
    request::FrozenRequest,
};

/// To the actor of one provider route.
#[derive(Debug)]
pub enum ProviderMessage {
    /// Resolve a call and bind the adapter of this moment to it.
    Prepare {
        /// The proposed configuration.
        config: CallConfig,
        /// The bound call.
        reply: RpcReplyPort<Result<Prepared, Failure>>,
    },
    /// Send a bound call.
    Stream(Box<StreamRequest>),
}

/// A bound call on its way out.
#[derive(Debug)]
pub struct StreamRequest {
    /// The call that `Prepare` bound. Good for once.
    pub ticket: Ticket,
    /// The request.
    pub request: FrozenRequest,
    /// The session, for attribution.
    pub session_id: SessionId,
    /// Where the chunks go. Its capacity is the stream's credit; dropping the receiver aborts the
    /// stream. Closing without a finish chunk means that the provider's actor died.
    pub chunks: mpsc::Sender<StreamChunk>,
}
