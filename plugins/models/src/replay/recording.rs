//! From a log to the script of its calls.

use playhouse_messages::{
    chunk::{Failure, StreamChunk},
    config::Route,
    event::{EndSeed, Event, EventBody, StepAt},
    id::SessionId,
    log::Log,
    packed::{StreamRecord, expand},
    session_state::SessionState,
};
use playhouse_plugin_api::llm::{ModelInfo, Reasoning};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Entry, ReplayError,
    difference::Recorded,
    entry::{Patches, Sidecar},
};

/// How a recorded call ends that has no finish, because it was cancelled or a crash cut it.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Unfinished {
    /// The recording is refused.
    #[default]
    Refuse,
    /// With this failure.
    Fail(Failure),
    /// Not at all: the call waits to be cancelled, as it was.
    Hang,
}

/// The calls of one session, in order.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    pub(super) session: Option<SessionId>,
    pub(super) calls: Vec<Call>,
    pub(super) models: Vec<ModelInfo>,
}

/// One call.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) entry: Entry,
    /// Milliseconds before each chunk, as far as they are known.
    pub(super) gaps: Vec<u64>,
    /// What the call was asked, if a log told it.
    pub(super) request: Option<Recorded>,
    /// A person wrote it: placeholders are filled in.
    pub(super) written: bool,
}

impl Call {
    fn written(entry: Entry) -> Self {
        Self { entry, gaps: Vec::new(), request: None, written: true }
    }
}

impl Recording {
    /// The calls that a log records. Those before the cut of a fork were made by another session.
    ///
    /// # Errors
    ///
    /// If an event cannot stand where it stands, and if a call has no finish.
    pub fn of(log: &Log) -> Result<Self, ReplayError> {
        Self::with_unfinished(log, &Unfinished::Refuse)
    }

    /// The same; calls without a finish end so.
    ///
    /// # Errors
    ///
    /// As [`Recording::of`].
    pub fn with_unfinished(log: &Log, unfinished: &Unfinished) -> Result<Self, ReplayError> {
        let mut recording = Self::default();
        let mut state = SessionState::new();
        for event in log.iter() {
            match &event.body {
                EventBody::EndSeed(EndSeed { inherited: true }) => recording.calls.clear(),
                body => recording.facts(body),
            }
            if let Some((at, stream)) = settlement(event) {
                let request = Recorded {
                    header: state.requests().header().cloned(),
                    messages: state.history().clone(),
                };
                let missing = || ReplayError::Unfinished {
                    seq: event.seq,
                    turn: at.turn,
                    step: at.step,
                    index: recording.calls.len(),
                };
                let call = call(stream, request, unfinished).ok_or_else(missing)?;
                recording.calls.push(call);
            }
            let advanced = state.advance(log, event);
            advanced.map_err(|fault| ReplayError::Malformed { seq: event.seq, fault })?;
        }
        Ok(recording)
    }

    /// The calls of a log as `playhouse sessions show --format jsonl` prints it: an event a line.
    ///
    /// # Errors
    ///
    /// If a line is no event, and as [`Recording::of`].
    pub fn from_jsonl(text: &str) -> Result<Self, ReplayError> {
        Self::of(&read_log(text.lines().enumerate())?)
    }

    /// The calls of every session in what `playhouse run --format jsonl` prints, in the order in
    /// which the sessions began; other lines than events are passed over.
    ///
    /// # Errors
    ///
    /// As [`Recording::from_jsonl`].
    pub fn all_from_run(text: &str) -> Result<Vec<Self>, ReplayError> {
        #[derive(Deserialize)]
        struct Line<'a> {
            session: Option<SessionId>,
            #[serde(borrow)]
            event: Option<&'a RawValue>,
        }
        let mut sessions: Vec<(SessionId, Vec<(usize, &str)>)> = Vec::new();
        for (index, text) in text.lines().enumerate() {
            let line: Line<'_> = serde_json::from_str(text).map_err(|fault| {
                ReplayError::NotAnEvent { line: index + 1, reason: fault.to_string() }
            })?;
            let (Some(id), Some(event)) = (line.session, line.event) else { continue };
            let known = sessions.iter().position(|(known, _)| *known == id);
            let at = known.unwrap_or_else(|| {
                sessions.push((id, Vec::new()));
                sessions.len() - 1
            });
            sessions[at].1.push((index, event.get()));
        }
        let recording = |(id, lines): (SessionId, Vec<(usize, &str)>)| {
            Ok(Self::of(&read_log(lines.into_iter())?)?.for_session(id))
        };
        sessions.into_iter().map(recording).collect()
    }

    /// Answers that a person wrote. `{{fromRequest:<regex>}}` in their strings is filled with the
    /// regex's last match in the request: its first group, or all of it.
    ///
    /// # Errors
    ///
    /// If a placeholder is not closed, or holds no regex.
    pub fn written(entries: impl IntoIterator<Item = Entry>) -> Result<Self, ReplayError> {
        let calls: Vec<_> = entries.into_iter().map(Call::written).collect();
        for (at, call) in calls.iter().enumerate() {
            super::placeholder::check(call.entry.chunks()).map_err(|reason| {
                ReplayError::Sidecar { reason: format!("entry {at}: {reason}") }
            })?;
        }
        Ok(Self { calls, ..Self::default() })
    }

    /// Under this id a session gets this recording, whenever it calls first. Others take the
    /// recordings that are left, in order of their first calls.
    #[must_use]
    pub fn for_session(mut self, id: impl Into<SessionId>) -> Self {
        self.session = Some(id.into());
        self
    }

    /// The recording as a sidecar changes it: an array of [`Entry`] takes its place, and
    /// `{"patches":[{"at":0,"entry":..}]}` puts entries in the place of calls, counted from 0. What
    /// a patched call is asked is not compared.
    ///
    /// # Errors
    ///
    /// If the JSON is of neither form, a patch is beyond the end, or a placeholder holds no regex.
    pub fn amended(mut self, sidecar: &str) -> Result<Self, ReplayError> {
        match Sidecar::read(sidecar)? {
            Sidecar::Script(entries) => {
                self.calls = entries.into_iter().map(Call::written).collect();
            }
            Sidecar::Patches(Patches { patches }) => {
                let len = self.calls.len();
                for patch in patches {
                    let call = self.calls.get_mut(patch.at).ok_or_else(|| {
                        let reason = format!("patch at {}: there are {len} calls", patch.at);
                        ReplayError::Sidecar { reason }
                    })?;
                    *call = Call::written(patch.entry);
                }
            }
        }
        Ok(self)
    }

    /// How many calls there are.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Learns of a model what requests tell: a session that is replayed must fill in the defaults
    /// that were filled in, and get its prompt's changes in the same way.
    fn facts(&mut self, body: &EventBody) {
        match body {
            EventBody::RequestContext(context) => {
                let model = self.model(&Route::new(&*context.provider, &*context.model));
                model.context_window = context.context_window;
                model.system_prompt_update = context.system_prompt_update;
            }
            EventBody::RequestHeader(data) => {
                let (config, defaults) = (&data.header.config, data.header.adapter_defaults);
                let model = self.model(&config.route());
                if defaults.max_tokens {
                    model.default_max_tokens = config.max_tokens;
                }
                if let Some(effort) = &config.reasoning_effort {
                    let reasoning = model.reasoning.get_or_insert_with(Reasoning::default);
                    if !reasoning.efforts.contains(effort) {
                        reasoning.efforts.push(effort.clone());
                    }
                    if defaults.reasoning_effort {
                        reasoning.default_effort = Some(effort.clone());
                    }
                }
            }
            _ => {}
        }
    }

    fn model(&mut self, route: &Route) -> &mut ModelInfo {
        let is = |model: &ModelInfo| model.provider == route.provider && model.id == route.model;
        let at = self.models.iter().position(is).unwrap_or_else(|| {
            self.models.push(ModelInfo {
                provider: route.provider.clone(),
                id: route.model.clone(),
                name: route.model.clone(),
                ..ModelInfo::default()
            });
            self.models.len() - 1
        });
        &mut self.models[at]
    }
}

fn settlement(event: &Event) -> Option<(StepAt, &[StreamRecord])> {
    match &event.body {
        // A replacement rewrites what was said; nobody was asked again.
        EventBody::AssistantMessage(data)
            if event.surface == Some(playhouse_messages::event::SurfaceOp::Append) =>
        {
            Some((StepAt { turn: data.turn, step: data.step }, &data.stream))
        }
        EventBody::AssistantAttempt(data) => {
            Some((StepAt { turn: data.turn, step: data.step }, &data.stream))
        }
        _ => None,
    }
}

fn call(stream: &[StreamRecord], request: Recorded, unfinished: &Unfinished) -> Option<Call> {
    let timed = expand(stream);
    let mut before = timed.first().map_or(0, |chunk| chunk.time);
    let gap = |time: i64| {
        u64::try_from(time.saturating_sub(std::mem::replace(&mut before, time))).unwrap_or(0)
    };
    let gaps = timed.iter().map(|chunk| chunk.time).map(gap).collect();
    let chunks: Vec<_> = timed.into_iter().map(|timed| timed.chunk).collect();
    let finished = matches!(chunks.last(), Some(StreamChunk::Finish { .. }));
    let entry = match unfinished {
        _ if finished => Entry::Chunks(chunks),
        Unfinished::Refuse => return None,
        Unfinished::Fail(failure) => Entry::failing(chunks, failure),
        Unfinished::Hang => Entry::Hang { chunks, ready_file: None },
    };
    Some(Call { entry, gaps, request: Some(request), written: false })
}

fn read_log<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Result<Log, ReplayError> {
    let mut log = Log::new();
    for (index, line) in lines {
        let refuse = |reason: String| ReplayError::NotAnEvent { line: index + 1, reason };
        let event = Event::from_json(line).map_err(|fault| refuse(fault.to_string()))?;
        if event.seq != log.len() {
            return Err(refuse(format!("event {} stands where {} should", event.seq, log.len())));
        }
        log.push(event.into());
    }
    Ok(log)
}
