//! The children of one run: starting, awaiting and disposing them, all at once.

use std::{collections::HashMap, panic::AssertUnwindSafe};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use playhouse_messages::{chunk::Failure, event::CancelCause};
use playhouse_plugin_api::{agent::Agent, cancel::CancelToken, hook::panic_failure};
use playhouse_subagents::{
    ChildOptions, ChildProviders, ChildRequest, ChildResult, Run, StopReason,
};
use serde_json::Value;

use crate::{
    AgentOutcome, AgentRequest,
    protocol::CallNo,
    settlement::{ChildAnswer, Input},
};

/// The children of one run.
pub(crate) struct Children {
    parent: Agent,
    provider: String,
    providers: ChildProviders,
    /// The one way to cancel them.
    cancel: CancelToken,
    works: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Those that were started and are not disposed yet.
    started: HashMap<CallNo, Started>,
}

struct Started {
    run: Run,
    structured: bool,
}

enum Done {
    Started(CallNo, Result<Started, Failure>),
    Settled(CallNo, Result<ChildAnswer, Failure>),
    Disposed(CallNo, Result<(), Failure>),
}

impl Children {
    pub(crate) fn new(parent: Agent, provider: String, providers: ChildProviders) -> Self {
        Self {
            parent,
            provider,
            providers,
            cancel: CancelToken::new(),
            works: FuturesUnordered::new(),
            started: HashMap::new(),
        }
    }

    /// The next thing that happens to one of them; `None` if nothing is on its way. Safe to drop.
    pub(crate) async fn next(&mut self) -> Option<Input> {
        Some(match self.works.next().await? {
            Done::Started(call, Ok(started)) => {
                let child = started.run.id().clone();
                self.started.insert(call, started);
                Input::ChildStarted { call, child }
            }
            Done::Started(call, Err(failure)) => Input::ChildStartFailed { call, failure },
            Done::Settled(call, settled) => Input::ChildSettled { call, settled },
            Done::Disposed(call, disposed) => {
                if let (Some(Started { run, .. }), Err(failure)) =
                    (self.started.remove(&call), disposed)
                {
                    tracing::warn!(child = %run.id(), %failure, "a child's disposal failed");
                }
                Input::ChildDisposed { call }
            }
        })
    }

    pub(crate) fn start(&self, call: CallNo, request: AgentRequest) {
        let (structured, asked) = (request.schema.is_some(), self.request(request));
        let (providers, provider) = (self.providers.clone(), self.provider.clone());
        self.work(
            async move {
                let run = providers.start(&provider, asked?).await?;
                Ok(Started { run, structured })
            },
            move |started| Done::Started(call, started),
        );
    }

    /// Awaits the result of one that was started.
    pub(crate) fn settle(&self, call: CallNo) {
        let Some(Started { run, structured }) = self.started.get(&call) else { return };
        let (run, structured) = (run.clone(), *structured);
        let settled = async move { Ok(answer(run.result().await?, structured)) };
        self.work(settled, move |settled| Done::Settled(call, settled));
    }

    /// Disposes one that was started.
    pub(crate) fn dispose(&self, call: CallNo) {
        let Some(Started { run, .. }) = self.started.get(&call) else { return };
        let run = run.clone();
        self.work(async move { run.dispose().await }, move |disposed| {
            Done::Disposed(call, disposed)
        });
    }

    /// Cancels all of them, those included that are still being started.
    pub(crate) fn abort(&self) {
        self.cancel.cancel(CancelCause::Parent);
    }

    fn request(&self, request: AgentRequest) -> Result<ChildRequest, Failure> {
        let label = request.label_or_default();
        let model = request.choice(|| self.parent.model().current())?;
        let mut child = ChildRequest::new(&self.parent, request.prompt)
            .label(label)
            .options(ChildOptions { model, ..ChildOptions::default() })
            .cancelled_by(self.cancel.clone());
        child.output_schema = request.schema;
        Ok(child)
    }

    /// A provider may be anybody's: its panic is a failure of its child.
    fn work<T: 'static>(
        &self,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
        done: impl FnOnce(Result<T, Failure>) -> Done + Send + 'static,
    ) {
        let contained = AssertUnwindSafe(work).catch_unwind();
        let contained = contained
            .map(|outcome| done(outcome.unwrap_or_else(|panic| Err(panic_failure(&*panic)))));
        self.works.push(contained.boxed());
    }
}

/// What a workflow is answered: the child's text, or its structured result; null if there is none.
fn answer(result: ChildResult, structured: bool) -> ChildAnswer {
    let outcome = match (&result.stop_reason, structured, &result.structured) {
        (StopReason::Completed, true, None) => AgentOutcome::Failed,
        (StopReason::Completed, ..) => AgentOutcome::Completed,
        (StopReason::Aborted, ..) => AgentOutcome::Cancelled,
        _ => AgentOutcome::Failed,
    };
    let value = match outcome {
        AgentOutcome::Completed if structured => result.structured.unwrap_or_default(),
        AgentOutcome::Completed => Value::String(result.text()),
        _ => Value::Null,
    };
    ChildAnswer { outcome, value }
}

#[cfg(test)]
mod tests {
    use playhouse_messages::content::ContentBlock;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_child_that_completed_as_it_was_asked_to_is_answered_with_more_than_null() {
        let cases = [
            (StopReason::Completed, None, false, AgentOutcome::Completed, json!("said")),
            (StopReason::Completed, None, true, AgentOutcome::Failed, json!(null)),
            (StopReason::Completed, Some(json!({})), true, AgentOutcome::Completed, json!({})),
            (StopReason::MaxTokens, Some(json!({})), true, AgentOutcome::Failed, json!(null)),
            (StopReason::Aborted, None, false, AgentOutcome::Cancelled, json!(null)),
            (
                StopReason::Other("budget".to_owned()),
                None,
                false,
                AgentOutcome::Failed,
                json!(null),
            ),
        ];
        for (stop_reason, structured, asked, outcome, value) in cases {
            let mut result = ChildResult::new(stop_reason);
            result.output = vec![ContentBlock::text("said")];
            result.structured = structured;
            assert_eq!(answer(result, asked), ChildAnswer { outcome, value });
        }
    }
}
