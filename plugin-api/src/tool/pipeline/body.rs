//! The innermost part of a call: find the tool, check the arguments, run the body.

use std::time::Duration;

use playhouse_messages::event::CancelCause;

use super::*;
use crate::tool::ToolOutput;

impl ToolDispatch {
    /// One try of the body under the token that the wrappers chose.
    pub(super) async fn body(&self, chosen: CancelToken) -> ToolOutcome {
        let call = self.call();
        let given_up = || call.cancel().is_cancelled() || chosen.is_cancelled();
        if given_up() {
            return ToolOutcome::failure(ToolError::aborted_before_dispatch());
        }
        // Looked up only now: policy sees names of no tool, and the registry may have changed.
        let Some(entry) = self.0.pipeline.registry().lookup(call.scope(), call.name()) else {
            return ToolOutcome::failure(ToolError::unknown_tool(call.name()));
        };
        let violations = entry.parameters().violations(call.arguments());
        if !violations.is_empty() {
            return ToolOutcome::failure(ToolError::invalid_args(&violations));
        }
        if let Some(checkpoint) = &self.0.checkpoint
            && let Err(failure) = checkpoint().await
        {
            return ToolOutcome::failure(ToolError::from_failure(&failure));
        }
        if given_up() {
            return ToolOutcome::failure(ToolError::aborted_before_dispatch());
        }
        let token = chosen.child();
        let run = ToolRun {
            call: call.clone(),
            cancel: token.clone(),
            collected: self.0.collected.clone(),
            ids: self.0.ids.clone(),
        };
        self.0.body_started.store(true, Ordering::Release);
        let arguments = call.arguments().clone();
        let tool = entry.tool().clone();
        let timeout = tool.timeout();
        // The call to `execute` is within the future, so that its panic is contained, too.
        let body = AssertUnwindSafe(async move { tool.execute(arguments, run).await });
        let (ended, timed_out) =
            fused(body.catch_unwind(), &token, call.cancel(), &chosen, timeout).await;
        match (ended, timeout) {
            (_, Some(timeout)) if timed_out => {
                ToolOutcome::failure(ToolError::timeout(timeout.as_millis()))
            }
            (Err(panic), _) => ToolOutcome::failure(ToolError::new(panic_text(&*panic))),
            (Ok(Err(error)), _) => ToolOutcome::failure(error),
            (Ok(Ok(_)), _) if given_up() => ToolOutcome::failure(ToolError::aborted()),
            (Ok(Ok(output)), _) => self.checked(&entry, output),
        }
    }

    /// A body's output, if it satisfies the tool's own schema.
    fn checked(&self, entry: &RegisteredTool, output: ToolOutput) -> ToolOutcome {
        match invalid_output(entry, &output.value) {
            Some(error) => ToolOutcome::failure(error),
            None => ToolOutcome::from_output(output, self.0.id),
        }
    }

    /// An outcome from the wrappers: only what this call's own body made is believed as it is.
    pub(super) fn trusted(&self, outcome: ToolOutcome) -> ToolOutcome {
        let ToolOutcome { status, contexts, origin, .. } = &outcome;
        match status {
            Ok(value) if *origin != self.0.id => {
                let rendered = self.rendered(value);
                ToolOutcome { contexts: contexts.clone(), ..rendered }
            }
            _ => outcome,
        }
    }

    /// A success of a value that no body returned: checked and rendered by the tool.
    pub(super) fn rendered(&self, value: &Value) -> ToolOutcome {
        let call = self.call();
        let Some(entry) = self.0.pipeline.registry().lookup(call.scope(), call.name()) else {
            return ToolOutcome::success(value.clone());
        };
        if let Some(error) = invalid_output(&entry, value) {
            return ToolOutcome::failure(error);
        }
        let render = || entry.tool().render(call.arguments(), value);
        match catch_unwind(AssertUnwindSafe(render)) {
            Ok(content) => ToolOutcome { content, ..ToolOutcome::success(value.clone()) },
            Err(panic) => ToolOutcome::failure(ToolError::new(panic_text(&*panic))),
        }
    }
}

fn invalid_output(entry: &RegisteredTool, value: &Value) -> Option<ToolError> {
    let name = &entry.tool().schema().name;
    if check_lossless(value).is_err() {
        let violation = "\"value\" must be a lossless JSON value".to_owned();
        return Some(ToolError::invalid_output(name, &[violation]));
    }
    let violations = entry.output()?.violations(value);
    (!violations.is_empty()).then(|| ToolError::invalid_output(name, &violations))
}

/// Awaits `body`, whatever fires meanwhile; cancelling is cooperative. `token` is a child of what
/// the wrappers chose; the caller's token is fused to it, so that no wrapper can detach the caller.
/// Says whether the tool's own time budget ran out before anybody else gave the call up.
async fn fused<F: Future>(
    body: F,
    token: &CancelToken,
    caller: &CancelToken,
    chosen: &CancelToken,
    timeout: Option<Duration>,
) -> (F::Output, bool) {
    let deadline = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(body, deadline);
    let mut timed_out = false;
    tokio::select! {
        biased;
        () = caller.cancelled() => {
            token.cancel(caller.cause().unwrap_or(CancelCause::User));
        }
        () = chosen.cancelled() => {}
        output = &mut body => return (output, false),
        () = &mut deadline => {
            timed_out = true;
            token.cancel(CancelCause::Hook { reason: "the tool's time budget ran out".to_owned() });
        }
    }
    // Given up by a wrapper or the budget, the body may still hear of the caller's cancel through
    // its own token, which has fired.
    (body.await, timed_out)
}
