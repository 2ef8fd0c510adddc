//! An answer's body: steps put on the wire.

use std::{collections::VecDeque, io, sync::Arc};

use bytes::Bytes;
use futures::Stream;
use hyper::body::Frame;
use playhouse_messages::chunk::{Failure, StreamChunk};

use super::{Outcome, Shared, wire::Encoder};
use crate::scripted::{FaultKind, Step, Wire};

/// An answer being sent. What becomes of it is recorded when it is dropped, at the latest.
pub(super) struct Answer {
    shared: Arc<Shared>,
    request: usize,
    steps: VecDeque<Step>,
    wire: Wire,
    encoder: Box<dyn Encoder>,
    pending: Bytes,
    chunks_sent: usize,
    outcome: Outcome,
}

impl Answer {
    pub(super) fn new(
        shared: Arc<Shared>,
        request: usize,
        steps: Vec<Step>,
        wire: Wire,
        encoder: Box<dyn Encoder>,
    ) -> Self {
        Self {
            shared,
            request,
            steps: if wire.empty_body { VecDeque::new() } else { steps.into() },
            wire,
            encoder,
            pending: Bytes::new(),
            chunks_sent: 0,
            outcome: Outcome::ClientClosed,
        }
    }

    pub(super) fn into_stream(self) -> impl Stream<Item = io::Result<Frame<Bytes>>> {
        futures::stream::unfold(self, |mut answer| async move {
            let frame = answer.next().await?;
            Some((frame.map(Frame::data), answer))
        })
    }

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if !self.pending.is_empty() {
                let size = self.wire.split_bytes.unwrap_or(usize::MAX).max(1);
                return Some(Ok(self.pending.split_to(size.min(self.pending.len()))));
            }
            let Some(step) = self.steps.pop_front() else {
                if self.outcome == Outcome::ClientClosed {
                    self.outcome = Outcome::Completed;
                }
                return None;
            };
            match step {
                Step::Wait(duration) => tokio::time::sleep(duration).await,
                Step::Gate(name) => self.shared.stage.gate(&name).pass().await,
                Step::Chunk(chunk) => {
                    self.chunks_sent += usize::from(is_delta(&chunk));
                    let events = self.encoder.chunk(&chunk);
                    self.send(&events);
                }
                Step::Fault(kind, failure) => {
                    if let Some(error) = self.fault(kind, &failure).await {
                        return Some(Err(error));
                    }
                }
            }
        }
    }

    async fn fault(&mut self, kind: FaultKind, failure: &Failure) -> Option<io::Error> {
        match kind {
            FaultKind::Stall => {
                self.outcome = Outcome::Stalled;
                std::future::pending().await
            }
            FaultKind::Cut => {}
            FaultKind::Malformed => {
                let end = self.encoder.end();
                self.send(&["data: {oops\n\n".to_owned(), end]);
            }
            FaultKind::Error => {
                let event = self.encoder.error(failure);
                self.send(&[event]);
            }
            _ => {
                self.outcome = Outcome::Reset;
                // What was sent before should arrive: a pending body lets the connection flush.
                tokio::task::yield_now().await;
                return Some(io::Error::from(io::ErrorKind::ConnectionReset));
            }
        }
        None
    }

    fn send(&mut self, events: &[String]) {
        let mut text = String::new();
        for event in events {
            if self.wire.comments {
                text.push_str(": mock\n\n");
            }
            text.push_str(event);
        }
        self.pending = text.into();
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let (outcome, chunks_sent) = (self.outcome, self.chunks_sent);
        self.shared.update(self.request, |request| {
            request.outcome = outcome;
            request.chunks_sent = chunks_sent;
        });
    }
}

fn is_delta(chunk: &StreamChunk) -> bool {
    matches!(
        chunk,
        StreamChunk::TextDelta { .. }
            | StreamChunk::ReasoningDelta { .. }
            | StreamChunk::ToolCallDelta { .. }
    )
}
