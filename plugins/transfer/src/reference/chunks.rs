//! Streams that were logged by the chunk, folded into the settlement of their attempt.

use playhouse_messages::{
    chunk::{FinishReason, StreamChunk},
    event::{Seq, StepAt},
    packed::{StreamRecord, TimedChunk, pack},
    repair::UnsettledTail,
};
use playhouse_plugin_api::store::StoredTail;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    drafts::{Draft, Drafts},
    shapes,
};
use crate::{
    error::{ImportError, ImportFault},
    report::{Note, Report},
};

/// An attempt whose chunks come in.
#[derive(Debug)]
struct Attempt {
    at: StepAt,
    chunks: Vec<TimedChunk>,
    seqs: Vec<Seq>,
    /// The last chunk, for its line and time.
    last: Draft,
}

impl Attempt {
    fn finish(&self) -> Option<&FinishReason> {
        match &self.chunks.last()?.chunk {
            StreamChunk::Finish { reason, .. } => Some(reason),
            _ => None,
        }
    }

    fn stream(&mut self) -> Vec<StreamRecord> {
        pack(std::mem::take(&mut self.chunks))
    }
}

/// Follows a log, and holds back the chunks of the attempt that streams.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    open: Option<Attempt>,
    /// How many attempts of the open step have settled without a message.
    settled: u32,
    provider: String,
    model: String,
}

impl Attempts {
    /// Takes the next event. What is not a chunk goes to `out`, after the settlement that it proves due.
    pub(super) fn take(
        &mut self,
        mut draft: Draft,
        out: &mut Drafts,
        report: &mut Report,
    ) -> Result<(), ImportError> {
        match draft.kind() {
            "assistant/chunk" => return self.chunk(draft, out, report),
            "assistant/message" => self.embed(&mut draft, out, report)?,
            "step/start" => self.settled = 0,
            "step/end" | "turn/start" | "turn/end" => self.settle(out, report)?,
            "request/header" => self.route(&draft),
            _ => {}
        }
        out.push(draft);
        Ok(())
    }

    fn route(&mut self, header: &Draft) {
        let config = header.data("header").and_then(|header| header.get("config"));
        let text = |key: &str| config?.get(key)?.as_str().map(str::to_owned);
        if let (Some(provider), Some(model)) = (text("provider"), text("model")) {
            (self.provider, self.model) = (provider, model);
        }
    }

    fn chunk(
        &mut self,
        mut draft: Draft,
        out: &mut Drafts,
        report: &mut Report,
    ) -> Result<(), ImportError> {
        #[derive(Deserialize)]
        struct Data {
            turn: u32,
            step: u32,
            chunk: StreamChunk,
        }
        let seq = draft.old.unwrap_or_default();
        if let Some(chunk) = draft.event.get_mut("data").and_then(|data| data.get_mut("chunk")) {
            shapes::chunk(chunk, report);
        }
        let data = draft.event.get("data").map(Data::deserialize);
        let Some(Ok(Data { turn, step, chunk })) = data else {
            let text = match data {
                Some(Err(fault)) => format!("`assistant/chunk` data: {fault}"),
                _ => "`assistant/chunk` without data".to_owned(),
            };
            return Err(ImportError::at(draft.line, seq, ImportFault::Event(text)));
        };
        let at = StepAt { turn, step };
        if self.open.as_ref().is_some_and(|open| open.at != at || open.finish().is_some()) {
            self.settle(out, report)?;
        }
        let timed = TimedChunk { time: draft.time(), chunk };
        match &mut self.open {
            Some(open) => {
                open.chunks.push(timed);
                open.seqs.push(seq);
                open.last = draft;
            }
            None => {
                self.open = Some(Attempt { at, chunks: vec![timed], seqs: vec![seq], last: draft });
            }
        }
        Ok(())
    }

    /// The message settles the attempt that streams, if it is of the same step.
    fn embed(
        &mut self,
        message: &mut Draft,
        out: &mut Drafts,
        report: &mut Report,
    ) -> Result<(), ImportError> {
        let at = |key: &str| message.data(key).and_then(Value::as_u64);
        let (turn, step) = (at("turn"), at("step"));
        let same =
            |open: &Attempt| turn == Some(open.at.turn.into()) && step == Some(open.at.step.into());
        if !self.open.as_ref().is_some_and(same) {
            self.settle(out, report)?;
        }
        let mut records = Vec::new();
        if let Some(mut open) = self.open.take() {
            out.folded(&open.seqs, Some(out.len()));
            records = open.stream();
            report.rewrote("streams by the chunk as part of their answer");
        }
        let fault = |text: String| {
            ImportError::at(message.line, message.old.unwrap_or_default(), ImportFault::Event(text))
        };
        let stream = serde_json::to_value(records).map_err(|it| fault(it.to_string()))?;
        if let Some(data) = message.event.get_mut("data").and_then(Value::as_object_mut) {
            data.entry("stream").or_insert(stream);
        }
        Ok(())
    }

    /// The attempt that streams has no message: it failed, or was cut.
    fn settle(&mut self, out: &mut Drafts, report: &mut Report) -> Result<(), ImportError> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let StepAt { turn, step } = open.at;
        let stream = open.stream();
        let data = json!({"turn": turn, "step": step, "stream": stream});
        out.folded(&open.seqs, Some(out.len()));
        out.push(open.last.beside("assistant/attempt", data));
        self.settled += 1;
        report.note(Note::Added("`assistant/attempt` for streams without an answer".to_owned()));
        Ok(())
    }

    /// The log is over: what still streams is the tail that a crash left, unless its provider had failed
    /// it already.
    pub(super) fn finish(
        mut self,
        out: &mut Drafts,
        report: &mut Report,
    ) -> Result<Option<StoredTail>, ImportError> {
        let failed = |finish: Option<&FinishReason>| {
            matches!(finish, Some(FinishReason::Error { .. } | FinishReason::Aborted { .. }))
        };
        if self.open.as_ref().is_some_and(|open| failed(open.finish())) {
            self.settle(out, report)?;
        }
        let Some(mut open) = self.open.take() else { return Ok(None) };
        out.folded(&open.seqs, None);
        let tail = UnsettledTail {
            turn: open.at.turn,
            step: open.at.step,
            attempt: self.settled + 1,
            provider: self.provider,
            model: self.model,
            records: open.stream(),
        };
        let fault = |text: String| ImportError::new(open.last.line, ImportFault::Event(text));
        let part = serde_json::to_vec(&tail).map_err(|it| fault(it.to_string()))?;
        report.rewrote("the stream that was cut as the session's tail");
        Ok(Some(StoredTail { attempt: out.len() as u64, parts: vec![part.into()] }))
    }
}
