//! A delegation that is a job of its caller.

use playhouse_jobs::{JobOutcome, Jobs, NewJob, Work};
use playhouse_messages::content::ContentBlock;
use playhouse_plugin_api::{
    agent::Agent,
    cancel::CancelToken,
    tool::{ToolError, ToolOutput},
};
use serde_json::json;

use super::{Delegated, ToolConfig};
use crate::{ChildProviders, ChildRequest, ChildResult, StopReason, run::DisposedOnDrop};

/// The kind of these jobs.
const KIND: &str = "subagent";

/// Answers at once; whatever becomes of the child is the job's.
pub(super) fn start(
    jobs: &Jobs,
    providers: ChildProviders,
    config: &ToolConfig,
    parent: &Agent,
    call: Delegated,
) -> Result<ToolOutput, ToolError> {
    let cancel = CancelToken::new();
    let label = call.description.clone();
    let request = config.request(parent, call, cancel.clone());
    let provider = config.provider.clone();
    let work = move || {
        let job = async move { Ok(outcome(&providers, &provider, request).await) };
        Ok(Work::new(job).cancelled_by(cancel))
    };
    let id = jobs
        .start(NewJob::new(KIND, label).owned_by(parent), work)
        .map_err(|error| ToolError::coded("SubagentError", error.code(), error.to_string()))?;
    let text = format!("started in the background as job {id}");
    Ok(ToolOutput::new(json!({"kind": "background", "jobId": id}))
        .showing(vec![ContentBlock::text(text)])
        .with_meta(json!({"kind": "background", "jobId": id})))
}

async fn outcome(providers: &ChildProviders, provider: &str, request: ChildRequest) -> JobOutcome {
    let (cancel, parent) = (request.cancel.clone(), request.parent.scope().clone());
    let run = match providers.start(provider, request).await {
        Ok(run) => DisposedOnDrop::new(run, parent),
        Err(error) if cancel.is_cancelled() && error.code() == "ABORTED" => {
            return JobOutcome::killed();
        }
        Err(error) => return JobOutcome::failed(error.to_string()),
    };
    let result = run.result().await;
    let disposed = run.dispose().await;
    match (result, disposed) {
        (Ok(result), Ok(())) => ended(&result),
        (Ok(result), Err(failure)) => {
            with_text(JobOutcome::failed(format!("its disposal failed: {failure}")), &result)
        }
        (Err(failure), Ok(())) => JobOutcome::failed(failure.to_string()),
        (Err(failure), Err(disposal)) => {
            JobOutcome::failed(format!("{failure}; its disposal failed: {disposal}"))
        }
    }
}

fn ended(result: &ChildResult) -> JobOutcome {
    let outcome = match &result.stop_reason {
        StopReason::Completed => JobOutcome::completed(),
        StopReason::Aborted => JobOutcome::killed(),
        reason => JobOutcome::failed(match &result.diagnostic {
            Some(diagnostic) => format!("{}; diagnostic: {diagnostic}", reason.as_str()),
            None => reason.as_str().to_owned(),
        }),
    };
    with_text(outcome, result)
}

fn with_text(outcome: JobOutcome, result: &ChildResult) -> JobOutcome {
    match result.text() {
        text if text.is_empty() => outcome,
        text => outcome.output(text),
    }
}

#[cfg(test)]
mod tests {
    mod subagents {
        use playhouse_jobs::JobStatus;

        use super::super::*;

        #[test]
        fn orchestration_1_8_a_childs_end_is_its_jobs_end() {
            let result = |stop_reason, said: &str, diagnostic: Option<&str>| {
                let mut result = ChildResult::new(stop_reason);
                result.output.extend((!said.is_empty()).then(|| ContentBlock::text(said)));
                result.diagnostic = diagnostic.map(str::to_owned);
                ended(&result)
            };
            let job = |status, detail: Option<&str>, output: Option<&str>| {
                (status, detail.map(str::to_owned), output.map(str::to_owned))
            };
            let cases = [
                (
                    result(StopReason::Completed, "done", None),
                    job(JobStatus::Completed, None, Some("done")),
                ),
                (result(StopReason::Completed, "", None), job(JobStatus::Completed, None, None)),
                (
                    result(StopReason::Aborted, "half", None),
                    job(JobStatus::Killed, None, Some("half")),
                ),
                (
                    result(StopReason::MaxTokens, "ab", None),
                    job(JobStatus::Failed, Some("max-tokens"), Some("ab")),
                ),
                (
                    result(StopReason::Error, "", Some("E: boom")),
                    job(JobStatus::Failed, Some("error; diagnostic: E: boom"), None),
                ),
            ];
            for (outcome, expected) in cases {
                assert_eq!((outcome.status(), outcome.detail, outcome.output), expected);
            }
        }
    }
}
