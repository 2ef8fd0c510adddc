//! What is logged of a run in its parent's session, and the fold of it.
//!
//! A run never resumes. A record without its end says that the run was interrupted.

use std::{collections::BTreeMap, sync::Arc};

use playhouse_messages::{
    candidate::Candidate,
    event::{EventBody, NewEvent},
    id::SessionId,
    log::Log,
    validator::{Trace, Validator},
};
use playhouse_plugin_api::session::Session;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::sync::{Semaphore, mpsc};

use crate::{AgentOutcome, NoticeKind, WorkflowRun, WorkflowStop};

/// A run was accepted.
pub const RUN_START_KIND: &str = "tool-workflow/run-start";
/// A child of a run was started.
pub const AGENT_START_KIND: &str = "tool-workflow/agent-start";
/// A child of a run has ended.
pub const AGENT_END_KIND: &str = "tool-workflow/agent-end";
/// A run has ended, and is disposed.
pub const RUN_END_KIND: &str = "tool-workflow/run-end";

/// The kinds of the record.
pub const EVENT_KINDS: [&str; 4] = [RUN_START_KIND, AGENT_START_KIND, AGENT_END_KIND, RUN_END_KIND];

/// One event of the record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkflowEvent {
    /// [`RUN_START_KIND`].
    RunStart(RunStart),
    /// [`AGENT_START_KIND`].
    AgentStart(AgentStart),
    /// [`AGENT_END_KIND`].
    AgentEnd(AgentEnd),
    /// [`RUN_END_KIND`].
    RunEnd(RunEnd),
}

/// The data of [`RUN_START_KIND`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunStart {
    /// The run.
    pub run_id: String,
    /// The workflow's name.
    pub name: String,
}

/// The data of [`AGENT_START_KIND`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentStart {
    /// The run.
    pub run_id: String,
    /// The child's number in it, from 1.
    pub seq: u32,
    /// What it is called.
    pub label: String,
    /// The phase that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The child.
    pub child_id: SessionId,
}

/// The data of [`AGENT_END_KIND`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentEnd {
    /// The run.
    pub run_id: String,
    /// The child's number in it.
    pub seq: u32,
    /// How it ended.
    pub outcome: AgentOutcome,
}

/// The data of [`RUN_END_KIND`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunEnd {
    /// The run.
    pub run_id: String,
    /// How it ended.
    pub stop_reason: WorkflowStop,
}

impl WorkflowEvent {
    /// Reads one; `None` for an event of another kind.
    ///
    /// # Errors
    ///
    /// The data has another shape.
    pub fn read(body: &EventBody) -> Option<Result<Self, String>> {
        let EventBody::Custom { kind, data } = body else { return None };
        fn shaped<T: DeserializeOwned>(data: &serde_json::Value) -> Result<T, String> {
            T::deserialize(data).map_err(|fault| fault.to_string())
        }
        Some(match &**kind {
            RUN_START_KIND => shaped(data).map(Self::RunStart),
            AGENT_START_KIND => shaped(data).map(Self::AgentStart),
            AGENT_END_KIND => shaped(data).map(Self::AgentEnd),
            RUN_END_KIND => shaped(data).map(Self::RunEnd),
            _ => return None,
        })
    }

    /// The event. Whoever does not know it loses nothing but a record for people.
    pub fn event(&self) -> NewEvent {
        let (kind, data) = match self {
            Self::RunStart(data) => (RUN_START_KIND, serde_json::to_value(data)),
            Self::AgentStart(data) => (AGENT_START_KIND, serde_json::to_value(data)),
            Self::AgentEnd(data) => (AGENT_END_KIND, serde_json::to_value(data)),
            Self::RunEnd(data) => (RUN_END_KIND, serde_json::to_value(data)),
        };
        let data = data.expect("these shapes have string keys and small integers");
        NewEvent::custom(kind, data).ignorable()
    }
}

/// The runs of a log. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkflowRecords {
    runs: Arc<BTreeMap<String, Arc<WorkflowRecord>>>,
}

/// What a log says of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkflowRecord {
    /// The workflow's name.
    pub name: String,
    /// Its children, by their number.
    pub agents: BTreeMap<u32, RecordedAgent>,
    /// How it ended; `None` while it runs, and for ever if it was interrupted.
    pub end: Option<WorkflowStop>,
}

/// What a log says of a child of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedAgent {
    /// What it is called.
    pub label: String,
    /// The phase that it belongs to.
    pub phase: Option<String>,
    /// The child.
    pub child: SessionId,
    /// How it ended, if it is said.
    pub outcome: Option<AgentOutcome>,
}

impl WorkflowRecords {
    /// Folds a log, passing over what breaks the rules.
    pub fn of(log: &Log) -> Self {
        let mut records = Self::default();
        for event in log.iter() {
            let _ = records.apply(&event.body);
        }
        records
    }

    /// The runs, by their id.
    pub fn runs(&self) -> impl Iterator<Item = (&str, &WorkflowRecord)> {
        self.runs.iter().map(|(id, run)| (id.as_str(), &**run))
    }

    /// The run of this id.
    pub fn run(&self, id: &str) -> Option<&WorkflowRecord> {
        self.runs.get(id).map(|run| &**run)
    }

    /// Takes the next event of a log.
    ///
    /// # Errors
    ///
    /// How it breaks the rules: runs and the numbers in them are unique, ends follow their starts, and
    /// once a run has ended nothing more is said of it. The event then changes nothing.
    pub fn apply(&mut self, body: &EventBody) -> Result<(), String> {
        let Some(event) = WorkflowEvent::read(body) else { return Ok(()) };
        match event? {
            WorkflowEvent::RunStart(RunStart { run_id, name }) => {
                if self.runs.contains_key(&run_id) {
                    return Err(format!("run {run_id} has begun already"));
                }
                let run = Arc::new(WorkflowRecord { name, ..WorkflowRecord::default() });
                Arc::make_mut(&mut self.runs).insert(run_id, run);
                Ok(())
            }
            WorkflowEvent::AgentStart(AgentStart { run_id, seq, label, phase, child_id }) => self
                .open(&run_id, |run| {
                    if seq == 0 || run.agents.contains_key(&seq) {
                        return Err(format!("number {seq} is taken, or not positive"));
                    }
                    let agent = RecordedAgent { label, phase, child: child_id, outcome: None };
                    run.agents.insert(seq, agent);
                    Ok(())
                }),
            WorkflowEvent::AgentEnd(AgentEnd { run_id, seq, outcome }) => {
                self.open(&run_id, |run| match run.agents.get_mut(&seq) {
                    Some(agent) if agent.outcome.is_none() => {
                        agent.outcome = Some(outcome);
                        Ok(())
                    }
                    _ => Err(format!("agent {seq} has not begun, or has ended already")),
                })
            }
            WorkflowEvent::RunEnd(RunEnd { run_id, stop_reason }) => self.open(&run_id, |run| {
                let open = run.agents.iter().find(|(_, agent)| agent.outcome.is_none());
                if let Some((seq, _)) = open {
                    return Err(format!("agent {seq} has not ended"));
                }
                run.end = Some(stop_reason);
                Ok(())
            }),
        }
    }

    fn open(
        &mut self,
        id: &str,
        change: impl FnOnce(&mut WorkflowRecord) -> Result<(), String>,
    ) -> Result<(), String> {
        let run = self.runs.get(id).ok_or_else(|| format!("run {id} has not begun"))?;
        if run.end.is_some() {
            return Err(format!("run {id} has ended already"));
        }
        let mut next = WorkflowRecord::clone(run);
        change(&mut next).map_err(|fault| format!("run {id}: {fault}"))?;
        Arc::make_mut(&mut self.runs).insert(id.to_owned(), Arc::new(next));
        Ok(())
    }
}

/// Refuses events that break the rules of [`WorkflowRecords`].
#[derive(Debug, Clone, Copy, Default)]
pub struct RecordsHold;

impl RecordsHold {
    /// Its name as a validator.
    pub const NAME: &str = "tool-workflow";
}

impl Validator for RecordsHold {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn trace(&self) -> Box<dyn Trace> {
        Box::new(WorkflowRecords::default())
    }
}

impl Trace for WorkflowRecords {
    fn follow(&mut self, event: Candidate<'_>) -> Result<(), String> {
        self.apply(event.body)
    }

    fn fork(&self) -> Box<dyn Trace> {
        Box::new(self.clone())
    }
}

/// Writes the record of one run into its parent's session.
pub(crate) struct Recorder {
    session: Session,
    run: String,
    said: mpsc::Receiver<NoticeKind>,
}

impl Recorder {
    /// The observer of a run, and what a recorder reads. The run's host never waits for the log: the
    /// channel holds all that one run can say of its children, and that it has ended.
    pub(crate) fn channel(
        agents_max: u32,
    ) -> (impl Fn(&NoticeKind) + Send + Sync + 'static, mpsc::Receiver<NoticeKind>) {
        let max = usize::try_from(agents_max).unwrap_or(usize::MAX).saturating_mul(2);
        let (say, said) = mpsc::channel(max.saturating_add(1).min(Semaphore::MAX_PERMITS));
        let observer = move |notice: &NoticeKind| {
            if !matches!(
                notice,
                NoticeKind::Start { .. } | NoticeKind::Phase { .. } | NoticeKind::Log { .. }
            ) {
                // Full it cannot be; closed it is once an append has failed.
                let _ = say.try_send(notice.clone());
            }
        };
        (observer, said)
    }

    pub(crate) fn new(
        session: Session,
        run: &WorkflowRun,
        said: mpsc::Receiver<NoticeKind>,
    ) -> Self {
        Self { session, run: run.id().to_owned(), said }
    }

    /// Writes until the run has ended. The first append that fails is the last; what the tool says
    /// does not depend on it.
    pub(crate) async fn write(mut self, name: String) -> Option<Self> {
        self.append(WorkflowEvent::RunStart(RunStart { run_id: self.run.clone(), name })).await?;
        while let Some(notice) = self.said.recv().await {
            let run_id = self.run.clone();
            let event = match notice {
                NoticeKind::AgentStart { seq, label, phase, child } => {
                    let start = AgentStart { run_id, seq, label, phase, child_id: child };
                    WorkflowEvent::AgentStart(start)
                }
                NoticeKind::AgentEnd { seq, outcome, .. } => {
                    WorkflowEvent::AgentEnd(AgentEnd { run_id, seq, outcome })
                }
                _ => break,
            };
            self.append(event).await?;
        }
        Some(self)
    }

    /// Closes the record.
    pub(crate) async fn end(self, stop_reason: WorkflowStop) {
        let end = RunEnd { run_id: self.run.clone(), stop_reason };
        self.append(WorkflowEvent::RunEnd(end)).await;
    }

    async fn append(&self, event: WorkflowEvent) -> Option<()> {
        let appended = self.session.append(event.event()).await;
        if let Err(fault) = &appended {
            tracing::warn!(run = self.run, %fault, "the record of a workflow run ends early");
        }
        appended.ok().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(run: &str) -> WorkflowEvent {
        WorkflowEvent::RunStart(RunStart { run_id: run.to_owned(), name: "n".to_owned() })
    }

    fn begins(run: &str, seq: u32) -> WorkflowEvent {
        WorkflowEvent::AgentStart(AgentStart {
            run_id: run.to_owned(),
            seq,
            label: "l".to_owned(),
            phase: None,
            child_id: "c".into(),
        })
    }

    fn ends(run: &str, seq: u32) -> WorkflowEvent {
        let outcome = AgentOutcome::Completed;
        WorkflowEvent::AgentEnd(AgentEnd { run_id: run.to_owned(), seq, outcome })
    }

    fn end(run: &str) -> WorkflowEvent {
        let stop_reason = WorkflowStop::Completed;
        WorkflowEvent::RunEnd(RunEnd { run_id: run.to_owned(), stop_reason })
    }

    /// How the last of these is refused, if it is.
    fn refused(events: &[WorkflowEvent]) -> Option<String> {
        let (last, before) = events.split_last().unwrap();
        let mut records = WorkflowRecords::default();
        for event in before {
            records.apply(&event.event().body).unwrap();
        }
        let known = records.clone();
        let refused = records.apply(&last.event().body).err();
        assert_eq!(refused.is_some(), records == known, "a refused event changes nothing");
        refused
    }

    #[test]
    fn runs_and_numbers_are_unique_ends_are_paired_and_an_end_is_the_end() {
        let whole = [start("a"), start("b"), begins("a", 2), ends("a", 2), begins("a", 1)];
        assert_eq!(refused(&whole), None);
        for (events, reason) in [
            (vec![start("a"), start("a")], "begun already"),
            (vec![begins("a", 1)], "has not begun"),
            (vec![start("a"), begins("a", 0)], "not positive"),
            (vec![start("a"), begins("a", 1), begins("a", 1)], "is taken"),
            (vec![start("a"), ends("a", 1)], "has not begun"),
            (vec![start("a"), begins("a", 1), ends("a", 1), ends("a", 1)], "ended already"),
            (vec![start("a"), begins("a", 1), end("a")], "agent 1 has not ended"),
            (vec![start("a"), end("a"), begins("a", 1)], "has ended already"),
            (vec![start("a"), end("a"), end("a")], "has ended already"),
        ] {
            let refused = refused(&events).unwrap();
            assert!(refused.contains(reason), "{refused:?} has no {reason:?}");
        }
        let odd = NewEvent::custom(RUN_END_KIND, serde_json::json!({"runId": 1}));
        assert!(WorkflowRecords::default().apply(&odd.body).is_err());
    }

    #[test]
    fn a_log_is_folded_and_a_missing_end_says_that_a_run_was_interrupted() {
        let events =
            [start("a"), begins("a", 1), ends("a", 1), end("a"), start("b"), begins("b", 1)];
        let log: Log =
            (0..).zip(events).map(|(seq, event)| Arc::new(event.event().at(seq, 0))).collect();
        let records = WorkflowRecords::of(&log);
        assert_eq!(records.runs().count(), 2);
        assert_eq!(records.run("a").unwrap().end, Some(WorkflowStop::Completed));
        let interrupted = records.run("b").unwrap();
        assert_eq!((interrupted.end, interrupted.agents[&1].outcome), (None, None));
    }
}
