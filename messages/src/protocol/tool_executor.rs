//! What a tool executor is told.

use ractor::RpcReplyPort;

use crate::chunk::Failure;

/// The mailbox of a tool executor. `C` is what its tasks report with: values that hold running
/// calls, which this crate does not know.
#[derive(Debug)]
pub enum ToolExecutorMessage<C> {
    /// Run the batch; the reply says whether a result ends the turn. Sent once.
    Start {
        /// Answered when the batch has ended; dropped if the executor dies.
        reply: RpcReplyPort<Result<bool, Failure>>,
    },
    /// The turn's token has fired.
    Abort,
    /// A task has reported.
    Completed {
        /// Which; an unknown number is stale and ignored.
        task: u64,
        /// With what.
        outcome: C,
    },
    /// The grace time of a task is over.
    Overdue {
        /// Which; an unknown number is stale and ignored.
        task: u64,
    },
}
