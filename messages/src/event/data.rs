//! What the core's events carry.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Seq;
use crate::{
    chunk::{Failure, Usage},
    config::{Header, HeaderReason},
    id::CallId,
    json::{INTEGER_MAX, marker},
    message::SharedMessage,
    packed::StreamRecord,
};

/// Data of `agent/inbox/spliced`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InboxSpliced {
    /// Which list.
    pub target: InboxTarget,
    /// Where in it.
    pub start: u32,
    /// How many messages leave it there; absent for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub removed_count: u32,
    /// Which messages enter it there.
    pub inserted: Vec<SharedMessage>,
    /// Present on ordinary removals; a removal without it is a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<SpliceOutcome>,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// The two lists of an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InboxTarget {
    /// Prompts, first in first out, one a turn.
    NextTurn,
    /// Steering and injected context, all claimed at the next step boundary.
    NextStep,
}

/// What became of removed messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpliceOutcome {
    /// They were removed, not claimed.
    Canceled,
}

/// Data of `turn/start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnStart {
    /// The turn, from 1.
    pub turn: u32,
}

/// Data of `turn/end`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnEnd {
    /// The turn.
    pub turn: u32,
    /// Why it ended.
    pub reason: TurnEndReason,
}

/// Why a turn ended. Open: unknown kinds are kept.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnEndReason {
    /// Normally, or without a step because nothing was left.
    Completed,
    /// A pre-step hook rejected the step.
    Blocked,
    /// Some step was cut by the output limit.
    MaxTokens,
    /// Cancelled.
    Aborted(CancelCause),
    /// Failed.
    Error(Failure),
    /// A limit ran out: `{resource, limit, used}`.
    Budget(BudgetSpent),
    /// Crash repair closed it; never written live.
    Interrupted,
    /// A fork cut it; never written live.
    Forked,
    /// A kind that this build does not know, whole.
    Other(Map<String, Value>),
}

/// Which limit ended a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetSpent {
    /// `steps`, `tokens`, ...
    pub resource: String,
    /// The limit, in units of the resource.
    pub limit: u64,
    /// How much was used.
    pub used: u64,
}

impl BudgetSpent {
    /// In a form that no log refuses.
    fn loggable(mut self) -> Self {
        self.limit = self.limit.min(INTEGER_MAX);
        self.used = self.used.min(INTEGER_MAX);
        self
    }
}

impl TurnEndReason {
    /// The `kind` tag.
    pub fn kind(&self) -> &str {
        match self {
            Self::Completed => "completed",
            Self::Blocked => "blocked",
            Self::MaxTokens => "max-tokens",
            Self::Aborted(_) => "aborted",
            Self::Error(_) => "error",
            Self::Budget(_) => "budget",
            Self::Interrupted => "interrupted",
            Self::Forked => "forked",
            Self::Other(fields) => fields.get("kind").and_then(Value::as_str).unwrap_or_default(),
        }
    }
}

/// Who cancelled a turn. The first cause of an activity wins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum CancelCause {
    /// A person, or the program on their behalf.
    User,
    /// The agent that delegated the work.
    Parent,
    /// The agent is being disposed.
    Disposed,
    /// A hook.
    Hook {
        /// The hook's words.
        reason: String,
    },
    /// A budget ran out. The turn ends with reason `budget`, never as aborted.
    Budget(BudgetSpent),
    /// Imported from a log that did not say.
    Legacy,
}

impl From<CancelCause> for TurnEndReason {
    /// How a turn ends that was cancelled for this cause.
    fn from(cause: CancelCause) -> Self {
        match cause {
            CancelCause::Budget(spent) => Self::Budget(spent.loggable()),
            cause => Self::Aborted(cause),
        }
    }
}

/// Data of `system/message`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SystemMessage {
    /// The turn.
    pub turn: u32,
    /// The step.
    pub step: u32,
    /// The prompt: empty content, or one text block.
    pub message: SharedMessage,
}

/// Data of `developer/message`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeveloperMessage {
    /// The turn.
    pub turn: u32,
    /// The step.
    pub step: u32,
    /// Additions, then removals.
    pub message: SharedMessage,
    /// The header that defines the additions; present exactly if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header_seq: Option<Seq>,
}

/// Data of `assistant/message`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AssistantMessage {
    /// The turn.
    pub turn: u32,
    /// The step.
    pub step: u32,
    /// The answer, or the delivered prefix of it.
    pub message: SharedMessage,
    /// The attempt's whole stream, packed.
    pub stream: Vec<StreamRecord>,
    /// What the call cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The answer was cut by a cancel or a crash.
    #[serde(default, deserialize_with = "marker", skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
}

/// Data of `assistant/attempt`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AssistantAttempt {
    /// The turn.
    pub turn: u32,
    /// The step.
    pub step: u32,
    /// The attempt's whole stream, packed.
    pub stream: Vec<StreamRecord>,
}

/// Data of `tool/call`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCall {
    /// The turn.
    pub turn: u32,
    /// The step.
    pub step: u32,
    /// The call.
    pub call_id: CallId,
    /// The tool's name.
    pub name: String,
    /// The raw argument text.
    pub arguments: String,
}

/// Data of `tool/result`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The turn.
    pub turn: u32,
    /// The step.
    pub step: u32,
    /// What the model sees.
    pub message: SharedMessage,
    /// The failure's coded facts; only with `isError: true` on the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolErrorInfo>,
    /// The tool's private data for presentation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

/// The coded facts of a failed tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolErrorInfo {
    /// The error's type.
    pub name: String,
    /// Stable, for programs.
    pub code: String,
    /// More detail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Data of `request/header`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestHeader {
    /// The whole snapshot.
    pub header: Arc<Header>,
    /// Why it was logged.
    pub reason: HeaderReason,
    /// A new request series starts here.
    #[serde(default, deserialize_with = "marker", skip_serializing_if = "std::ops::Not::not")]
    pub starts_series: bool,
}

/// Data of `session/end-seed`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndSeed {
    /// Marks the exact cut of a fork.
    #[serde(default, deserialize_with = "marker", skip_serializing_if = "std::ops::Not::not")]
    pub inherited: bool,
}
