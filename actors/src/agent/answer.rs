//! The answer to a request, chunk by chunk: from the provider's actor, through the listeners of the
//! stream point if there are any.

use std::sync::Arc;

use futures::{
    StreamExt,
    stream::{ReadyChunks, unfold},
};
use playhouse_messages::{
    chunk::{Failure, StreamChunk},
    event::StepAt,
    prepared::Prepared,
    protocol::{ProviderMessage, StreamRequest},
    request::FrozenRequest,
    settlement::StreamEnd,
};
use playhouse_plugin_api::{
    cancel::CancelToken,
    llm::{ModelStream, StepCall, terminal_chunk},
};
use tokio::sync::mpsc;

use super::work::Job;

/// Chunks that a provider may be ahead of the attempt that consumes them: the stream's credit.
pub(super) const CHUNKS_AHEAD_MAX: usize = 64;

/// An answer on its way. Dropping it aborts the request, through whatever wraps it.
pub(super) enum Answer {
    /// Nothing stands between the provider's actor and the attempt.
    Plain { chunks: mpsc::Receiver<StreamChunk>, cancel: CancelToken },
    /// Listeners do, and may fail.
    Wrapped { chunks: ReadyChunks<ModelStream>, thrown: Option<Failure> },
}

impl Answer {
    /// Sends the request.
    ///
    /// # Errors
    ///
    /// A listener failed before there was a stream, or the turn was cancelled.
    pub(super) async fn open(
        job: &Job,
        at: StepAt,
        prepared: &Arc<Prepared>,
        request: FrozenRequest,
    ) -> Result<Self, Failure> {
        let (models, cancel) = (&job.world.models, job.cancel.clone());
        if models.on_stream().is_empty_for(job.agent.scope()) {
            return Ok(Self::Plain { chunks: send(job, prepared, request), cancel });
        }
        let config = prepared.config.clone();
        let call = StepCall::new(job.agent.clone(), at, config, request.clone(), cancel);
        let (sender, prepared) = (job.clone(), prepared.clone());
        let send = move || received(send(&sender, &prepared, request), sender.cancel);
        let stream = job.until_cancelled(models.stream_step(call, send)).await?;
        Ok(Self::Wrapped { chunks: stream.ready_chunks(CHUNKS_AHEAD_MAX), thrown: None })
    }

    /// Waits for chunks and takes all that are ready, up to the finish; `Some` once no more come.
    /// Safe to drop.
    pub(super) async fn next(&mut self, into: &mut Vec<StreamChunk>) -> Option<StreamEnd> {
        match self {
            Self::Plain { chunks, cancel } => {
                if chunks.recv_many(into, CHUNKS_AHEAD_MAX).await == 0 {
                    into.push(lost(cancel));
                }
            }
            Self::Wrapped { thrown, .. } if thrown.is_some() => {
                return thrown.take().map(StreamEnd::Thrown);
            }
            Self::Wrapped { chunks, thrown } => {
                // A stream that is always ready would never leave the thread to anybody else.
                tokio::task::consume_budget().await;
                let Some(ready) = chunks.next().await else { return Some(StreamEnd::Ended) };
                for item in ready {
                    match item {
                        Ok(chunk) => {
                            let finished = is_finish(&chunk);
                            into.push(chunk);
                            if finished {
                                break;
                            }
                        }
                        // What came before it is shown first.
                        Err(failure) => {
                            *thrown = Some(failure);
                            break;
                        }
                    }
                }
            }
        }
        into.last().is_some_and(is_finish).then_some(StreamEnd::Ended)
    }
}

/// Hands the bound call to its provider's actor.
fn send(job: &Job, prepared: &Prepared, request: FrozenRequest) -> mpsc::Receiver<StreamChunk> {
    let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD_MAX);
    let provider = &prepared.config.provider;
    let Some(ticket) = prepared.ticket.clone() else {
        let failure = Failure::new(
            "NO_ADAPTER",
            format!("no adapter registered for provider \"{provider}\""),
        );
        // A fresh channel has room for one.
        let _ = sender.try_send(terminal_chunk(failure, &job.cancel));
        return receiver;
    };
    let session_id = job.agent.id().clone();
    let request = StreamRequest { ticket, request, session_id, chunks: sender };
    // If the actor is gone, the channel closes, which is how its death looks anyway.
    let _ = job.world.providers.slot(provider).cast(ProviderMessage::Stream(Box::new(request)));
    receiver
}

/// What the provider's actor sends, as a stream that ends after the finish.
fn received(chunks: mpsc::Receiver<StreamChunk>, cancel: CancelToken) -> ModelStream {
    let more = (chunks, cancel, false);
    unfold(more, |(mut chunks, cancel, finished)| async move {
        if finished {
            return None;
        }
        let chunk = chunks.recv().await.unwrap_or_else(|| lost(&cancel));
        let finished = is_finish(&chunk);
        Some((Ok(chunk), (chunks, cancel, finished)))
    })
    .boxed()
}

/// The finish of a stream whose provider's actor died with it.
fn lost(cancel: &CancelToken) -> StreamChunk {
    let failure = Failure::new("TRANSPORT", "the provider's actor ended before its stream");
    terminal_chunk(failure, cancel)
}

fn is_finish(chunk: &StreamChunk) -> bool {
    matches!(chunk, StreamChunk::Finish { .. })
}
