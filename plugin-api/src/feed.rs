//! The live stream of an agent's attempts: process-local, coalesced for slow readers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::watch;
use playhouse_messages::{
    config::Route,
    event::StepAt,
    frame::{Frame, FrameOutcome},
    packed::{TimedChunk, pack},
    repair::UnsettledTail,
};

/// Where an agent's attempts are shown.
#[derive(Debug)]
pub struct LiveFeed {
    shown: watch::Sender<Shown>,
}

/// What a feed shows.
#[derive(Debug, Clone, Default)]
struct Shown {
    /// The attempt that runs, or ran last.
    attempt: Option<Arc<Attempt>>,
    /// There will be no other.
    closed: bool,
}

/// One attempt, while it runs and after.
#[derive(Debug)]
pub struct Attempt {
    id: String,
    at: StepAt,
    route: Route,
    state: Mutex<AttemptState>,
    grown: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct AttemptState {
    chunks: Vec<TimedChunk>,
    end: Option<FrameOutcome>,
}

impl Attempt {
    fn state(&self) -> MutexGuard<'_, AttemptState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        self.grown.send_modify(|revision| *revision += 1);
    }

    /// Shows chunks.
    pub fn show(&self, chunks: impl IntoIterator<Item = TimedChunk>) {
        self.state().chunks.extend(chunks);
        self.touch();
    }

    /// What was shown of an attempt that has not ended, as a crash would have left it in the store.
    /// `attempt` is its number within its step.
    pub fn unsettled(&self, attempt: u32) -> Option<UnsettledTail> {
        let state = self.state();
        if state.end.is_some() {
            return None;
        }
        Some(UnsettledTail {
            turn: self.at.turn,
            step: self.at.step,
            attempt,
            provider: self.route.provider.clone(),
            model: self.route.model.clone(),
            records: pack(state.chunks.iter().cloned()),
        })
    }

    /// Shows the end; a second one changes nothing.
    pub fn end(&self, outcome: FrameOutcome) {
        self.state().end.get_or_insert(outcome);
        self.touch();
    }
}

impl LiveFeed {
    /// A feed that shows nothing yet.
    pub fn new() -> Self {
        Self { shown: watch::Sender::default() }
    }

    /// Shows the start of an attempt. One that was open before is abandoned.
    pub fn start(&self, id: String, at: StepAt, route: Route) -> Arc<Attempt> {
        let attempt = Arc::new(Attempt {
            id,
            at,
            route,
            state: Mutex::default(),
            grown: watch::Sender::new(0),
        });
        let mut before = None;
        self.shown.send_modify(|shown| before = shown.attempt.replace(attempt.clone()));
        if let Some(before) = before {
            before.end(FrameOutcome::Abandoned);
        }
        attempt
    }

    /// The attempt that is shown, or was last.
    pub fn current(&self) -> Option<Arc<Attempt>> {
        self.shown.borrow().attempt.clone()
    }

    /// The agent is gone: readers come to their end.
    pub fn close(&self) {
        if let Some(open) = self.current() {
            open.end(FrameOutcome::Abandoned);
        }
        self.shown.send_modify(|shown| shown.closed = true);
    }

    /// Reads along from here: an open attempt is caught up with in one frame, one that has ended is
    /// not shown again.
    pub fn subscribe(self: &Arc<Self>) -> Frames {
        let shown = self.shown.subscribe();
        let last = shown.borrow().attempt.clone();
        let last = last.filter(|attempt| attempt.state().end.is_some());
        Frames { shown, reading: None, last }
    }
}

impl Default for LiveFeed {
    fn default() -> Self {
        Self::new()
    }
}

/// A reader of the live stream. It makes no producer wait: what it misses of an open attempt comes
/// in one frame, and whole attempts that came and went meanwhile are left out (the log has them).
#[derive(Debug)]
pub struct Frames {
    shown: watch::Receiver<Shown>,
    reading: Option<Reading>,
    /// The attempt that was read to its end.
    last: Option<Arc<Attempt>>,
}

#[derive(Debug)]
struct Reading {
    attempt: Arc<Attempt>,
    grown: watch::Receiver<u64>,
    index: usize,
}

impl Frames {
    /// The next frame; `None` once the agent is gone. Safe to drop and call again.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(reading) = &mut self.reading {
                let attempt = reading.attempt.clone();
                reading.grown.borrow_and_update();
                let attempt_id = attempt.id.clone();
                let ended = {
                    let state = attempt.state();
                    let fresh = &state.chunks[reading.index..];
                    if !fresh.is_empty() {
                        let (index, chunks) = (reading.index as u64, fresh.to_vec());
                        reading.index = state.chunks.len();
                        return Some(Frame::Chunks { attempt_id, index, chunks });
                    }
                    state.end.clone()
                };
                if let Some(outcome) = ended {
                    let index = reading.index as u64;
                    self.last = Some(attempt);
                    self.reading = None;
                    return Some(Frame::End { attempt_id, index, outcome });
                }
                // A newer attempt ends this one; the feed's own end ends the reader.
                tokio::select! {
                    _ = reading.grown.changed() => {}
                    change = self.shown.changed() => change.ok()?,
                }
                continue;
            }
            let last = self.last.clone();
            let unread = |shown: &Shown| match (&shown.attempt, &last) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(attempt), Some(last)) => !Arc::ptr_eq(attempt, last),
            };
            let shown = self.shown.wait_for(|shown| shown.closed || unread(shown)).await.ok()?;
            let attempt = if unread(&shown) { shown.attempt.clone()? } else { return None };
            drop(shown);
            let start = Frame::Start { attempt_id: attempt.id.clone(), at: attempt.at };
            let grown = attempt.grown.subscribe();
            self.reading = Some(Reading { attempt, grown, index: 0 });
            return Some(start);
        }
    }
}

#[cfg(test)]
mod tests {
    use playhouse_messages::chunk::StreamChunk;

    use super::*;

    fn chunk(text: &str) -> TimedChunk {
        TimedChunk { time: 0, chunk: StreamChunk::TextDelta { index: 0, text: text.into() } }
    }

    #[tokio::test]
    async fn a_slow_reader_gets_one_catch_up_and_exactly_one_end() {
        let feed = Arc::new(LiveFeed::new());
        let mut frames = feed.subscribe();
        let at = StepAt { turn: 1, step: 1 };
        let attempt = feed.start("s:1".into(), at, Route::new("p", "m"));
        attempt.show([chunk("a")]);
        attempt.show([chunk("b"), chunk("c")]);
        assert!(matches!(frames.next().await, Some(Frame::Start { .. })));
        let Some(Frame::Chunks { index: 0, chunks, .. }) = frames.next().await else { panic!() };
        assert_eq!(chunks.len(), 3);
        attempt.end(FrameOutcome::Abandoned);
        let Some(Frame::End { index: 3, .. }) = frames.next().await else { panic!() };
        feed.start("s:2".into(), at, Route::new("p", "m"));
        feed.start("s:3".into(), at, Route::new("p", "m"));
        let Some(Frame::Start { attempt_id, .. }) = frames.next().await else { panic!() };
        assert_eq!(attempt_id, "s:3");
        drop(feed);
        assert_eq!(frames.next().await, None);
    }
}
