//! What a workflow and its host say to each other.
//!
//! The *guest* is what runs the workflow: a script's thread, or the task of a native one. It may
//! die at any moment, and a script cannot be trusted; so the host alone starts and disposes
//! children, counts them, and tells of their starts and ends.

use futures::{
    FutureExt,
    future::{BoxFuture, pending},
};
use playhouse_messages::chunk::Failure;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::AgentRequest;

/// How many messages of a guest may wait for its host; a guest that says more waits.
pub(crate) const GUEST_MESSAGES_MAX: usize = 64;

/// A call of `agent`, numbered by the guest from 1.
pub(crate) type CallNo = u64;

/// From the guest to the host.
#[derive(Debug)]
pub(crate) enum GuestMessage {
    /// The script is parsed; nothing of it has run. Asked for before there is a run.
    Ready,
    /// The workflow enters a phase.
    Phase(String),
    /// The workflow has something to say to people.
    Log(String),
    /// The workflow asks for a child.
    Agent { call: CallNo, request: AgentRequest },
    /// The workflow has ended. Failures that no workflow can make or catch come like this too.
    Result(Result<Value, Failure>),
    /// The guest broke.
    Died(String),
}

/// From the host to the guest. At most one a call beside the first two.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum HostMessage {
    /// The workflow may run.
    Go,
    /// Nobody wants the result any more.
    Cancel(String),
    /// What became of a child: its answer, null if it failed; or why there will be none.
    Settled { call: CallNo, answer: Result<Value, Failure> },
}

/// The host's end of a guest. Dropping it kills the guest.
pub(crate) trait Guest: Send + 'static {
    /// Never waits.
    fn tell(&mut self, message: HostMessage);

    /// Ends it as soon as it can be ended. Idempotent.
    fn kill(&mut self);

    /// Resolves with the reason once it is known that the guest does not end though its time is over.
    fn stuck(&self) -> BoxFuture<'static, Failure> {
        pending().boxed()
    }
}

/// What the host hears of its guest. When the guest has ended, its sender is gone.
pub(crate) type FromGuest = mpsc::Receiver<GuestMessage>;
