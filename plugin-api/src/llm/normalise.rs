//! The boundary behind which a model stream can no longer fail, only finish.

use std::{any::Any, panic::AssertUnwindSafe};

use futures::{FutureExt, StreamExt, stream::BoxStream};
use playhouse_messages::chunk::{Failure, FinishReason, StreamChunk};

use super::protocol_check;
use crate::cancel::CancelToken;

/// A model's answer as the loop sees it: whatever goes wrong is a `Finish` chunk, then the end.
pub type ChunkStream = BoxStream<'static, StreamChunk>;

/// Turns an adapter's stream into one that always ends in a `Finish` chunk.
///
/// An `Err` item or a panic becomes one terminal `Finish`; a stream that ends without one gets an
/// error finish with code `STREAM_CLOSED`. The finish is `aborted` if `cancel` has fired or the code
/// is `ABORTED`, else `error`. Debug builds also check the order of chunks
/// ([`protocol_check`]).
pub fn normalise(
    stream: BoxStream<'static, Result<StreamChunk, Failure>>,
    cancel: CancelToken,
) -> ChunkStream {
    let stream = if cfg!(debug_assertions) { protocol_check::checked(stream) } else { stream };
    finished(stream, cancel)
}

/// As [`normalise`], for a stream whose chunks may come in any order.
pub(super) fn finished(
    stream: BoxStream<'static, Result<StreamChunk, Failure>>,
    cancel: CancelToken,
) -> ChunkStream {
    let state = Boundary { stream: Some(stream), cancel, finished: false };
    futures::stream::unfold(state, |mut state| async move {
        let chunk = state.next().await?;
        Some((chunk, state))
    })
    .boxed()
}

struct Boundary {
    /// `None` once a terminal chunk was made here.
    stream: Option<BoxStream<'static, Result<StreamChunk, Failure>>>,
    cancel: CancelToken,
    finished: bool,
}

impl Boundary {
    async fn next(&mut self) -> Option<StreamChunk> {
        let stream = self.stream.as_mut()?;
        // Unwind safe: a stream that panicked is dropped and never polled again.
        let failure = match AssertUnwindSafe(stream.next()).catch_unwind().await {
            Ok(Some(Ok(chunk))) => return Some(self.pass(chunk)),
            Ok(Some(Err(failure))) => failure,
            Ok(None) if self.finished => {
                self.stream = None;
                return None;
            }
            Ok(None) => Failure::new("STREAM_CLOSED", "the model stream ended without a finish"),
            Err(panic) => panicked(panic.as_ref()),
        };
        self.stream = None;
        Some(terminal_chunk(failure, &self.cancel))
    }

    fn pass(&mut self, mut chunk: StreamChunk) -> StreamChunk {
        if let StreamChunk::Finish { reason, .. } = &mut chunk {
            self.finished = true;
            if let FinishReason::Error { failure } | FinishReason::Aborted { failure } = reason {
                mend(failure);
            }
        }
        chunk
    }
}

/// The `Finish` chunk that stands for a failure.
pub fn terminal_chunk(mut failure: Failure, cancel: &CancelToken) -> StreamChunk {
    mend(&mut failure);
    let reason = if cancel.is_cancelled() || failure.code == "ABORTED" {
        FinishReason::Aborted { failure }
    } else {
        FinishReason::Error { failure }
    };
    StreamChunk::Finish { reason, replay_state: None }
}

pub(super) fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Failure::unknown(format!("the model adapter panicked: {}", text.unwrap_or("no message")))
}

/// A failure goes into the log, so facts that the log refuses are dropped here.
fn mend(failure: &mut Failure) {
    if failure.code.is_empty() {
        failure.code = "UNKNOWN".to_owned();
    }
    if failure.message.is_empty() {
        failure.message = "LLM adapter failed".to_owned();
    }
    failure.status = failure.status.filter(|status| (100..=599).contains(status));
    failure.provider_retry_after_ms = failure.provider_retry_after_ms.filter(|&ms| ms > 0);
    failure.request_id = failure.request_id.take().filter(|id| !id.is_empty());
}
