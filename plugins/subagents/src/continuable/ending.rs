//! How an epoch ends, and what the parent is told.

use std::sync::{Arc, PoisonError};

use playhouse_messages::{
    chunk::Failure,
    consumed::ConsumedWork,
    content::ContentBlock,
    event::{CancelCause, EventBody, InboxTarget, Seq, TurnEndReason},
    id::{MessageId, SessionId},
    log::Log,
    machine::Status,
    message::{Message, Source},
};
use playhouse_plugin_api::agent::{Agent, Disposal};

use super::{
    machine::Input,
    shell::{Delivery, Resident, Shell, deliver},
};
use crate::{ChildResult, Lifecycle, StopReason};

/// The source kind of a report.
pub const REPORT_KIND: &str = "subagent-report";

/// The source kind of a settlement notice.
pub const SETTLED_KIND: &str = "subagent-settled";

/// By this event a log says that its agent could not go on.
const AGENT_FAILED: &str = "agent/failed";

/// How an epoch ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EpochEnd {
    pub stop_reason: StopReason,
    /// The child's last answer, or what there is of one.
    pub output: Vec<ContentBlock>,
    pub diagnostic: Option<String>,
    /// Its actors kept dying.
    pub failed: bool,
    /// It was ended by a cancel or a disposal that came from above it.
    pub torn_down: bool,
}

impl EpochEnd {
    /// Folds the events of an epoch, which begins at `from`.
    pub fn of(log: &Log, from: Seq) -> Self {
        let mut work = ConsumedWork::new();
        let mut failed = None;
        for event in log.range(from..log.len()) {
            work.apply(event.seq, &event.body);
            if let EventBody::Custom { kind, data } = &event.body
                && &**kind == AGENT_FAILED
            {
                let text = |key: &str| data.get(key).and_then(|text| text.as_str());
                failed = Some(text("message").unwrap_or("its actors kept dying").to_owned());
            }
        }
        let result = ChildResult::of(log, from);
        let stop_reason = match work.end().map(|end| &end.reason) {
            _ if failed.is_some() => StopReason::Error,
            Some(TurnEndReason::Interrupted) => StopReason::Aborted,
            Some(_) => result.stop_reason,
            None if work.dropped_unrun() => StopReason::Aborted,
            None => StopReason::Completed,
        };
        let has_end = work.end().is_some();
        let (output, failed, diagnostic) =
            (result.output, failed.is_some(), failed.or(result.diagnostic.filter(|_| has_end)));
        Self { stop_reason, output, diagnostic, failed, torn_down: false }
    }
}

impl Shell {
    pub async fn dispose(
        self: Arc<Self>,
        child: SessionId,
        resident: Arc<Resident>,
        keep_inbox: bool,
    ) {
        let Resident { handle, epoch, from, .. } = &*resident;
        let cause = handle.cell().token().cause();
        let disposed = match keep_inbox {
            true => handle.dispose_keeping_inbox().await,
            false => handle.dispose().await,
        };
        let mut end = EpochEnd::of(&handle.session().log(), *from);
        end.torn_down = matches!(cause, Some(CancelCause::Parent | CancelCause::Disposed));
        let failure = disposed.err().map(|failure: Failure| {
            end.stop_reason = StopReason::Error;
            end.output.clear();
            end.diagnostic = Some(failure.message.clone());
            format!("\"{child}\": {}", failure.message)
        });
        *resident.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
        let (epoch, notice) = (*epoch, self.world.ids.message());
        self.input(Input::Disposed { child, epoch, notice, failure });
    }

    /// Tells the parent how the child ended. `may_wake` says that the parent stays, and whether the
    /// child's work was cut off by an interrupt.
    pub async fn notify(
        self: Arc<Self>,
        child: SessionId,
        resident: Arc<Resident>,
        to: SessionId,
        id: MessageId,
        may_wake: Option<bool>,
    ) {
        let end = resident.end.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut at = None;
        if let (Some(end), Some(parent)) = (end, self.world.agents.get(&to)) {
            let stays = *parent.cell().disposal().borrow() == Disposal::Live;
            let told =
                may_wake.is_some_and(|interrupted| interrupted || end.failed || !end.torn_down);
            let delivery = Delivery {
                message: notice(id, &child, &end),
                target: match parent.status() {
                    Status::Idle if told && stays => InboxTarget::NextTurn,
                    _ => InboxTarget::NextStep,
                },
                // What an end tells must not wake what ends with it.
                wake: told && stays,
                caller: resident.handle.agent().clone(),
                blueprint: None,
            };
            match deliver(&delivery, &parent).await {
                Ok(length) => at = delivery.wake.then_some(length),
                Err(error) => tracing::warn!(%child, parent = %to, %error, "a settlement notice"),
            }
        }
        let epoch = resident.epoch;
        self.input(Input::Noticed { child, epoch, at });
        self.look_at(&to);
    }
}

impl Resident {
    pub fn began(&self, lifecycle: &Lifecycle) {
        let (parent, provider) = (self.parent.clone(), self.provider.clone());
        let run = lifecycle.begin(parent, provider, self.handle.id(), true);
        *self.started.lock().unwrap_or_else(PoisonError::into_inner) = Some(run);
    }

    /// Tells listeners, if they were told of the beginning.
    pub fn ended(&self, lifecycle: &Lifecycle) {
        let run = self.started.lock().unwrap_or_else(PoisonError::into_inner).take();
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner).take();
        let result = end.map(|end| {
            let mut result = ChildResult::new(end.stop_reason);
            result.output = end.output;
            result
        });
        if let Some(run) = run {
            lifecycle.end(run, result.as_ref());
        }
    }
}

/// The message by which a parent hears of its child's end.
fn notice(id: MessageId, child: &SessionId, end: &EpochEnd) -> Message {
    let how = match &end.stop_reason {
        StopReason::Completed => "completed its work".to_owned(),
        StopReason::Aborted => "was cancelled".to_owned(),
        StopReason::Error => "failed".to_owned(),
        StopReason::MaxTokens => "hit its output token limit".to_owned(),
        StopReason::Refusal => "declined the task".to_owned(),
        StopReason::Other(other) => format!("ended abnormally ({other})"),
    };
    let summary = format!("Sub-agent {child} {how}.");
    let mut text = summary.clone();
    if let Some(diagnostic) = &end.diagnostic {
        text = format!("{text}\nDiagnostic: {diagnostic}");
    }
    text.push_str(match end.output.is_empty() {
        true => "\nIt left no closing message.",
        false => "\nIts closing message:\n",
    });
    let content = std::iter::once(ContentBlock::text(text)).chain(end.output.iter().cloned());
    let source = Source::notice(SETTLED_KIND, &summary).with("senderSessionId", child.as_str());
    Message::user_from(id, content.collect(), source)
}

/// The message by which a parent hears from its child.
pub(super) fn report(id: MessageId, child: &SessionId, content: Vec<ContentBlock>) -> Message {
    let text = format!("Report of sub-agent {child}:\n");
    let content = std::iter::once(ContentBlock::text(text)).chain(content);
    let source =
        Source::of_kind(REPORT_KIND).with("form", "relay").with("senderSessionId", child.as_str());
    Message::user_from(id, content.collect(), source)
}

/// Whether this agent was told something by a child of its own that it has not read yet.
pub(super) fn unread(agent: &Agent) -> Vec<Unread> {
    let inbox = agent.inbox();
    let lists = [InboxTarget::NextStep, InboxTarget::NextTurn];
    let messages = lists.iter().flat_map(|list| inbox.list(*list).iter().map(|it| (*list, it)));
    messages
        .map(|(list, message)| Unread {
            list,
            kind: message.source.kind().to_owned(),
            from: message.source.get("senderSessionId").map(SessionId::from),
        })
        .collect()
}

/// A message that waits in an agent's inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unread {
    pub list: InboxTarget,
    pub kind: String,
    pub from: Option<SessionId>,
}
