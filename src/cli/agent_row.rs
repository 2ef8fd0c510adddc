//! What people are shown of an agent: a fold of its log, and a look at what waits for it.

use std::collections::BTreeMap;

use playhouse_context::UsageFold;
use playhouse_messages::{
    event::{Event, EventBody, InboxTarget, Seq, TurnEndReason},
    id::{CallId, SessionId},
    machine::Status,
};
use playhouse_plugin_api::agent::Agent;
use playhouse_subagents::descriptor::Descriptor;
use serde::{Deserialize, Serialize};

use super::{output::brief, show::why};

/// How much of a label or an error is shown.
const BRIEF: usize = 200;

/// One agent, as `agents/tree` tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AgentRow {
    pub(super) agent: SessionId,
    /// Who delegated to it.
    pub(super) parent: Option<SessionId>,
    pub(super) depth: u32,
    /// What it is for.
    pub(super) label: Option<String>,
    /// The route that its last request took.
    pub(super) model: Option<String>,
    pub(super) status: Status,
    /// The open turn, or the last one; 0 before the first.
    pub(super) turn: u32,
    /// The open step, or the last one of the turn.
    pub(super) step: u32,
    pub(super) doing: Doing,
    /// The calls that run, by their tools' names.
    pub(super) tools: Vec<String>,
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    /// What its budgets leave it: of each resource that one limits, the least.
    pub(super) left: Vec<Left>,
    /// Prompts that wait for a turn of their own.
    pub(super) next_turn: usize,
    /// Messages that wait for the next step.
    pub(super) next_step: usize,
    /// How the last turn ended.
    pub(super) last_end: Option<String>,
    /// Why a turn did not end well; gone once one does.
    pub(super) last_error: Option<String>,
    /// When the last turn began or ended, in epoch milliseconds.
    pub(super) since: i64,
    /// How many events its log has.
    pub(super) events: u64,
}

/// What is left of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Left {
    pub(super) resource: String,
    pub(super) left: u64,
    pub(super) limit: u64,
}

impl Left {
    /// Of an agent's budgets and those of the trees that it stands in, whichever is nearest to its end.
    fn of(agent: &Agent) -> Vec<Self> {
        let mut all = BTreeMap::<_, Self>::new();
        let budgets = agent.budgets();
        for it in budgets.iter().flat_map(|budget| &budget.resources) {
            let left = it.limit.saturating_sub(it.used).saturating_sub(it.reserved);
            let (resource, limit) = (it.resource.to_owned(), it.limit);
            let least = all.entry(it.resource).or_insert(Self { resource, left, limit });
            if left < least.left {
                (least.left, least.limit) = (left, limit);
            }
        }
        all.into_values().collect()
    }

    /// In hundredths of the limit.
    pub(super) fn percent(&self) -> u64 {
        (u128::from(self.left) * 100 / u128::from(self.limit.max(1))) as u64
    }
}

/// What an agent does now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Doing {
    /// Nothing.
    #[default]
    Resting,
    /// It begins or ends a turn or a step.
    Between,
    /// It waits for a model, or hears it.
    Asking,
    /// Its tools run.
    Calling,
}

/// The fold of a log behind a row.
#[derive(Debug, Clone, Default)]
pub(super) struct Activity {
    /// How far the log was read.
    pub(super) read: Seq,
    label: Option<String>,
    model: Option<String>,
    turn: u32,
    step: u32,
    doing: Doing,
    calls: BTreeMap<CallId, String>,
    usage: UsageFold,
    last_end: Option<String>,
    last_error: Option<String>,
    since: i64,
}

impl Activity {
    /// Folds the next event.
    pub(super) fn apply(&mut self, event: &Event) {
        self.read = event.seq + 1;
        self.usage.apply(event);
        match &event.body {
            EventBody::TurnStart(start) => {
                (self.turn, self.step, self.doing) = (start.turn, 0, Doing::Between);
                self.since = event.time;
            }
            EventBody::StepStart(at) => (self.step, self.doing) = (at.step, Doing::Asking),
            EventBody::AssistantMessage(_) | EventBody::StepEnd(_) => self.doing = Doing::Between,
            EventBody::RequestHeader(header) => {
                let config = &header.header.config;
                self.model = Some(format!("{}/{}", config.provider, config.model));
            }
            EventBody::ToolCall(call) => {
                self.calls.insert(call.call_id.clone(), call.name.clone());
                self.doing = Doing::Calling;
            }
            EventBody::ToolResult(result) => {
                if let Some(id) = &result.message.tool_call_id {
                    self.calls.remove(id);
                }
                if self.calls.is_empty() {
                    self.doing = Doing::Between;
                }
            }
            EventBody::TurnEnd(end) => {
                self.doing = Doing::Resting;
                self.calls.clear();
                self.since = event.time;
                self.last_end = Some(end.reason.kind().to_owned());
                let well = matches!(end.reason, TurnEndReason::Completed | TurnEndReason::Forked);
                self.last_error = (!well).then(|| brief(&why(&end.reason), BRIEF));
            }
            body => {
                // Of a fork's, its own comes last.
                if let Ok(Some(descriptor)) = Descriptor::read(event.seq, body) {
                    self.label = descriptor.label.map(|label| brief(&label, BRIEF));
                }
            }
        }
    }

    /// The row of an agent whose log this has read.
    pub(super) fn row(&self, agent: &Agent) -> AgentRow {
        let (inbox, usage) = (agent.inbox(), self.usage.value());
        let input =
            usage.uncached_input_tokens + usage.cache_read_tokens + usage.cache_write_tokens;
        AgentRow {
            agent: agent.id().clone(),
            parent: agent.runtime_parent().cloned(),
            depth: agent.depth(),
            label: self.label.clone(),
            model: self.model.clone().or_else(|| {
                let choice = agent.model().current()?;
                Some(format!("{}/{}", choice.provider, choice.model))
            }),
            status: agent.status(),
            turn: self.turn,
            step: self.step,
            doing: self.doing,
            tools: self.calls.values().cloned().collect(),
            input_tokens: input,
            output_tokens: usage.output_tokens,
            left: Left::of(agent),
            next_turn: inbox.list(InboxTarget::NextTurn).len(),
            next_step: inbox.list(InboxTarget::NextStep).len(),
            last_end: self.last_end.clone(),
            last_error: self.last_error.clone(),
            since: self.since,
            events: self.read,
        }
    }
}
