//! Runs: what a started child is to its starter, and what became of it.

use std::{fmt, panic::AssertUnwindSafe};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use playhouse_messages::{
    chunk::{Failure, StreamChunk},
    consumed::ConsumedWork,
    content::{ContentBlock, joined_text},
    event::{BudgetSpent, EventBody, Seq, TurnEndReason},
    id::SessionId,
    log::Log,
    packed::expand,
};
use playhouse_plugin_api::{
    agent::{Agent, Disposal},
    cancel::CancelToken,
    creation::AgentHandle,
    hook::panic_failure,
    scope::Scope,
};
use serde_json::Value;

use crate::structured::{STRUCTURED_OUTPUT, Structured};

/// A diagnostic longer than this many bytes is cut.
pub const DIAGNOSTIC_BYTES_MAX: usize = 4096;

const CUT_MARK: &str = "… [cut]";

/// A child at work. Its starter must call [`Run::dispose`]: dropping a run ends nothing, the child
/// lives until its owner's scope closes.
#[derive(Clone)]
pub struct Run {
    id: SessionId,
    agent: Option<Agent>,
    result: Shared<BoxFuture<'static, Result<ChildResult, Failure>>>,
    disposal: Shared<BoxFuture<'static, Result<(), Failure>>>,
}

/// What became of a child.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ChildResult {
    /// Its last answer, or what there is of one; also if it did not complete.
    pub output: Vec<ContentBlock>,
    /// The structured result.
    pub structured: Option<Value>,
    /// What went wrong, for the delegator.
    pub diagnostic: Option<String>,
    /// How it ended.
    pub stop_reason: StopReason,
}

/// How a child ended. Whatever is not [`StopReason::Completed`] is a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// It did what it was asked to.
    Completed,
    /// It was cancelled.
    Aborted,
    /// It failed, or did nothing.
    Error,
    /// The output limit cut it.
    MaxTokens,
    /// It declined.
    Refusal,
    /// Something else, by its name.
    Other(String),
}

impl StopReason {
    /// Its name in logs and texts.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Completed => "completed",
            Self::Aborted => "aborted",
            Self::Error => "error",
            Self::MaxTokens => "max-tokens",
            Self::Refusal => "refusal",
            Self::Other(name) => name,
        }
    }
}

impl Run {
    /// A run whose result and disposal are these futures. Each is run once, whoever asks; a panic of one
    /// is its failure.
    pub fn new(
        id: SessionId,
        agent: Option<Agent>,
        result: BoxFuture<'static, Result<ChildResult, Failure>>,
        disposal: BoxFuture<'static, Result<(), Failure>>,
    ) -> Self {
        let (result, disposal) = (contained(result), contained(disposal));
        Self { id, agent, result: result.shared(), disposal: disposal.shared() }
    }

    /// The run of an agent in this process, which has accepted its prompt.
    pub(crate) fn local(child: AgentHandle, answer: Answer) -> Self {
        let (agent, id) = (child.agent().clone(), child.id().clone());
        let idle = agent.clone();
        let result = async move {
            // A child that is gone has said all that it will say, in its log.
            let _ = idle.when_idle().await;
            Ok(answer.of(&idle))
        };
        let disposal = async move { child.dispose().await };
        Self::new(id, Some(agent), result.boxed(), disposal.boxed())
    }

    /// The child's id, which is its session's if it is local. Known before the child's first step.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The child, if it lives in this process.
    pub fn agent(&self) -> Option<&Agent> {
        self.agent.as_ref()
    }

    /// Waits until the child is done. Dropping the future stops the wait, not the child.
    ///
    /// # Errors
    ///
    /// Only faults that have no stop reason: a child that fails is a result.
    pub async fn result(&self) -> Result<ChildResult, Failure> {
        self.result.clone().await
    }

    /// Ends what still runs, waits until all of it is quiet, and releases it. Idempotent; always
    /// finishes, and returns what went wrong on the way.
    pub async fn dispose(&self) -> Result<(), Failure> {
        self.disposal.clone().await
    }
}

/// A provider may be anybody's: its panic is a failure of its child.
fn contained<T: Send + 'static>(
    work: BoxFuture<'static, Result<T, Failure>>,
) -> BoxFuture<'static, Result<T, Failure>> {
    let contained = AssertUnwindSafe(work).catch_unwind();
    contained.map(|done| done.unwrap_or_else(|panic| Err(panic_failure(&*panic)))).boxed()
}

/// A run that is disposed even if whoever waits for it is dropped.
pub(crate) struct DisposedOnDrop {
    run: Run,
    /// Whose closing waits for a disposal that nobody else waits for.
    parent: Scope,
}

impl DisposedOnDrop {
    pub(crate) fn new(run: Run, parent: Scope) -> Self {
        Self { run, parent }
    }
}

impl std::ops::Deref for DisposedOnDrop {
    type Target = Run;

    fn deref(&self) -> &Run {
        &self.run
    }
}

impl Drop for DisposedOnDrop {
    fn drop(&mut self) {
        // Without a runtime nothing of the child is left to end.
        if self.run.disposal.peek().is_some() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let run = self.run.clone();
        self.parent.spawn_to_end(async move {
            if let Err(failure) = run.dispose().await {
                tracing::warn!(child = %run.id(), %failure, "an abandoned child's disposal failed");
            }
        });
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Where the answer of a child in this process is found.
pub(crate) struct Answer {
    /// Where its own work begins in its log.
    pub(crate) from: Seq,
    /// The result that was asked for, if by a schema.
    pub(crate) structured: Option<Structured>,
    /// By which its starter cancels it.
    pub(crate) cancel: CancelToken,
}

impl Answer {
    /// The result of a child that is idle, or gone.
    fn of(&self, child: &Agent) -> ChildResult {
        let (mut result, ran) = ChildResult::fold(&child.session().log(), self.from);
        if let Some(structured) = &self.structured {
            result.structured = structured.captured();
        }
        let owed = self.structured.is_some() && result.structured.is_none();
        let completed = result.stop_reason == StopReason::Completed && !owed;
        // One that was disposed before its turn keeps its prompt, for a resume to run.
        let kept = !ran && *child.cell().disposal().borrow() != Disposal::Live;
        if kept || (self.cancel.is_cancelled() && !completed && !is_budget(&result.stop_reason)) {
            result.stop_reason = StopReason::Aborted;
        } else if owed && result.stop_reason == StopReason::Completed {
            result.stop_reason = StopReason::Error;
            result.diagnostic = Some(format!("it ended without a call of `{STRUCTURED_OUTPUT}`"));
        }
        result
    }
}

impl ChildResult {
    /// A result without an output.
    pub fn new(stop_reason: StopReason) -> Self {
        Self { output: Vec::new(), structured: None, diagnostic: None, stop_reason }
    }

    /// Folds a child's own events: those of its log from `from` on.
    pub fn of(log: &Log, from: Seq) -> Self {
        Self::fold(log, from).0
    }

    /// Also tells whether any turn began.
    fn fold(log: &Log, from: Seq) -> (Self, bool) {
        let mut work = ConsumedWork::new();
        let mut answer = None;
        let mut streamed = String::new();
        let mut ran = false;
        for event in log.range(from..log.len()) {
            work.apply(event.seq, &event.body);
            match &event.body {
                EventBody::TurnStart(_) => ran = true,
                // Without content it only carries usage.
                EventBody::AssistantMessage(data) if !data.message.content.is_empty() => {
                    answer = Some(data.message.content.clone());
                }
                EventBody::AssistantAttempt(data) => {
                    let text =
                        expand(&data.stream).into_iter().filter_map(|timed| match timed.chunk {
                            StreamChunk::TextDelta { text, .. } => Some(text),
                            _ => None,
                        });
                    let text: String = text.collect();
                    if !text.is_empty() {
                        streamed = text;
                    }
                }
                _ => {}
            }
        }
        let said = (!streamed.is_empty()).then(|| vec![ContentBlock::text(streamed)]);
        let (stop_reason, diagnostic) = match work.end() {
            Some(end) => stopped(&end.reason),
            None if work.dropped_unrun() => (StopReason::Aborted, None),
            None if ran => (StopReason::Error, Some("its turn has no end".to_owned())),
            None => (StopReason::Error, Some("it never ran".to_owned())),
        };
        let result = Self {
            output: answer.or(said).unwrap_or_default(),
            structured: None,
            diagnostic: diagnostic.map(cut),
            stop_reason,
        };
        (result, ran)
    }

    /// With this output.
    #[must_use]
    pub fn saying(mut self, output: Vec<ContentBlock>) -> Self {
        self.output = output;
        self
    }

    /// With what went wrong, cut at [`DIAGNOSTIC_BYTES_MAX`].
    #[must_use]
    pub fn diagnosed(mut self, diagnostic: impl Into<String>) -> Self {
        self.diagnostic = Some(cut(diagnostic.into()));
        self
    }

    /// The output's text.
    pub fn text(&self) -> String {
        joined_text(&self.output)
    }
}

fn stopped(reason: &TurnEndReason) -> (StopReason, Option<String>) {
    match reason {
        TurnEndReason::Completed => (StopReason::Completed, None),
        TurnEndReason::MaxTokens => (StopReason::MaxTokens, None),
        TurnEndReason::Aborted(_) => (StopReason::Aborted, None),
        TurnEndReason::Blocked => (StopReason::Refusal, None),
        TurnEndReason::Error(failure) => {
            (StopReason::Error, Some(format!("{}: {}", failure.code, failure.message)))
        }
        TurnEndReason::Interrupted => {
            (StopReason::Error, Some("its turn was interrupted by a crash".to_owned()))
        }
        TurnEndReason::Budget(spent) => {
            let BudgetSpent { resource, limit, used } = spent;
            let text = format!("a budget ran out: {used} of {limit} {resource} used");
            (StopReason::Other(BUDGET.to_owned()), Some(text))
        }
        other => (StopReason::Other(other.kind().to_owned()), None),
    }
}

/// The stop reason of a child that a budget ended.
const BUDGET: &str = "budget";

fn is_budget(reason: &StopReason) -> bool {
    reason.as_str() == BUDGET
}

/// Cuts a diagnostic on a character's boundary, visibly.
fn cut(mut text: String) -> String {
    if text.len() > DIAGNOSTIC_BYTES_MAX {
        let mut end = DIAGNOSTIC_BYTES_MAX - CUT_MARK.len();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(CUT_MARK);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_diagnostic_is_cut_on_a_character_and_says_so() {
        let text = cut("ä".repeat(DIAGNOSTIC_BYTES_MAX));
        assert!(text.len() <= DIAGNOSTIC_BYTES_MAX && text.ends_with(CUT_MARK));
        assert_eq!(cut("short".to_owned()), "short");
    }

    mod subagents {
        use std::sync::Arc;

        use playhouse_messages::{
            event::{
                AssistantMessage, CancelCause, Event, InboxSpliced, InboxTarget, NewEvent,
                SpliceOutcome, StepAt, TurnEnd, TurnStart,
            },
            message::{Message, Role, Source},
        };

        use super::*;

        fn log(bodies: impl IntoIterator<Item = EventBody>) -> Log {
            let events = bodies.into_iter().enumerate();
            events
                .map(|(seq, body)| Arc::<Event>::new(NewEvent::log_only(body).at(seq as u64, 0)))
                .collect()
        }

        fn says(text: &str) -> EventBody {
            let content = if text.is_empty() { vec![] } else { vec![ContentBlock::text(text)] };
            let mut message = Message::user_from("a", content, Source::model("p", "m", None));
            message.role = Role::Assistant;
            EventBody::AssistantMessage(AssistantMessage {
                turn: 1,
                step: 1,
                message: Arc::new(message),
                stream: vec![],
                usage: None,
                interrupted: false,
            })
        }

        fn turn(said: &[&str], reason: TurnEndReason) -> ChildResult {
            let start = [
                EventBody::TurnStart(TurnStart { turn: 1 }),
                EventBody::StepStart(StepAt { turn: 1, step: 1 }),
            ];
            let end = [EventBody::TurnEnd(TurnEnd { turn: 1, reason })];
            let said = said.iter().map(|text| says(text));
            ChildResult::of(&log(start.into_iter().chain(said).chain(end)), 0)
        }

        #[test]
        fn orchestration_1_4_the_last_answer_with_content_counts_whatever_the_end() {
            let cases = [
                (TurnEndReason::Completed, StopReason::Completed),
                (TurnEndReason::MaxTokens, StopReason::MaxTokens),
                (TurnEndReason::Aborted(CancelCause::Parent), StopReason::Aborted),
                (TurnEndReason::Blocked, StopReason::Refusal),
                (TurnEndReason::Interrupted, StopReason::Error),
                (TurnEndReason::Forked, StopReason::Other("forked".to_owned())),
            ];
            for (reason, stop_reason) in cases {
                let result = turn(&["first", "abc", ""], reason);
                assert_eq!((result.text(), result.stop_reason), ("abc".to_owned(), stop_reason));
            }
            let failed = turn(&[], TurnEndReason::Error(Failure::new("E", "boom")));
            assert_eq!(failed.diagnostic.as_deref(), Some("E: boom"));
            assert_eq!((failed.output, failed.stop_reason), (vec![], StopReason::Error));
        }

        #[test]
        fn orchestration_1_4_without_a_turn_it_failed_unless_its_prompt_was_cancelled() {
            assert_eq!(ChildResult::of(&log([]), 0).stop_reason, StopReason::Error);
            let dropped = EventBody::InboxSpliced(InboxSpliced {
                target: InboxTarget::NextTurn,
                start: 0,
                removed_count: 1,
                inserted: vec![],
                outcome: Some(SpliceOutcome::Canceled),
            });
            assert_eq!(ChildResult::of(&log([dropped]), 0).stop_reason, StopReason::Aborted);
        }
    }
}
