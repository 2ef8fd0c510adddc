//! The stored stream of an attempt that has not settled: a crash keeps what was seen of it.

use std::{collections::VecDeque, future::Future, pin::pin};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    config::CallConfig,
    event::StepAt,
    packed::{StreamPacker, TimedChunk},
    protocol::WriterMessage,
    repair::UnsettledTail,
};
use playhouse_plugin_api::{agent::Agent, options::Durability};

/// Writes an attempt's stream before it is shown or right behind, or not at all.
pub(super) struct Tail {
    agent: Agent,
    policy: Durability,
    /// Tells the attempt apart for the store, also from those of earlier lives of the process: each
    /// attempt follows an event that no other one follows.
    key: u64,
    /// A part without its records.
    part: UnsettledTail,
    /// What was shown, and is not yet on its way.
    shown: VecDeque<TimedChunk>,
    /// The one write under way of what was shown; says whether it worked.
    writing: Option<BoxFuture<'static, bool>>,
}

impl Tail {
    /// Of the attempt that begins now.
    pub(super) fn new(agent: &Agent, at: StepAt, config: &CallConfig) -> Self {
        let session = agent.session();
        let part = UnsettledTail {
            turn: at.turn,
            step: at.step,
            attempt: session.view().failed_attempts + 1,
            provider: config.provider.clone(),
            model: config.model.clone(),
            records: Vec::new(),
        };
        Self {
            agent: agent.clone(),
            policy: agent.durability(),
            key: session.log().len(),
            part,
            shown: VecDeque::new(),
            writing: None,
        }
    }

    /// Writes what is about to be shown, if it must be written first.
    pub(super) async fn about_to_show(&mut self, batch: &[TimedChunk]) {
        match self.policy {
            Durability::Strict => {
                let written = self.write(batch).await;
                self.done(written);
            }
            Durability::Relaxed => self.shown.extend(batch.iter().cloned()),
            _ => {}
        }
    }

    /// Awaits the next chunks, and writes meanwhile what was shown.
    pub(super) async fn beside<T>(&mut self, next: impl Future<Output = T>) -> T {
        let mut next = pin!(next);
        loop {
            if self.writing.is_none() && !self.shown.is_empty() {
                let batch: Vec<_> = self.shown.drain(..).collect();
                self.writing = Some(self.write(&batch).boxed());
            }
            let Some(writing) = &mut self.writing else { return next.await };
            tokio::select! {
                biased;
                written = writing => {
                    self.writing = None;
                    self.done(written);
                }
                next = &mut next => return next,
            }
        }
    }

    fn write(&self, batch: &[TimedChunk]) -> impl Future<Output = bool> + Send + use<> {
        let mut packer = StreamPacker::new();
        for timed in batch {
            packer.push(timed.clone());
        }
        let part = UnsettledTail { records: packer.finish(), ..self.part.clone() };
        let (agent, attempt) = (self.agent.clone(), self.key);
        async move {
            let Ok(part) = serde_json::to_vec(&part).map(Bytes::from) else { return true };
            let write = |_, reply| WriterMessage::Tail { attempt, part: part.clone(), reply };
            let written = agent.session().cell().writer.call(write).await;
            if let Ok(Err(failure)) = &written {
                tracing::warn!(agent = %agent.id(), %failure, "a stream's tail was not written");
            }
            !matches!(written, Ok(Err(_)))
        }
    }

    /// After a failure the stream goes on unwritten: the next checkpoint fails closed.
    fn done(&mut self, written: bool) {
        if !written {
            self.policy = Durability::None;
            self.shown.clear();
        }
    }
}
