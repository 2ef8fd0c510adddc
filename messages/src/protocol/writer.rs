use bytes::Bytes;
use ractor::RpcReplyPort;

use crate::{chunk::Failure, event::Seq};

/// To a session's persistence writer. It reads the log itself, from its own mark on, so a nudge
/// that is lost or repeated does no harm.
#[derive(Debug)]
pub enum WriterMessage {
    /// The log has grown.
    Append,
    /// Add to the stored stream of the running attempt.
    Tail {
        /// The attempt.
        attempt: u64,
        /// The encoded part.
        part: Bytes,
        /// Answered once written.
        reply: RpcReplyPort<Result<(), Failure>>,
    },
    /// Make the log durable as it is now.
    Flush {
        /// Up to which seq, exclusive, the log is durable.
        reply: RpcReplyPort<Result<Seq, Failure>>,
    },
    /// Flush, then give the claim back.
    Close {
        /// Answered once the claim is free, also if the flush failed.
        reply: RpcReplyPort<Result<(), Failure>>,
    },
    /// A physical write is done.
    Written {
        /// Up to which seq, exclusive.
        through: Seq,
        /// Whether it is also durable.
        durable: bool,
        /// Why not, if it failed.
        failure: Option<Failure>,
    },
}
