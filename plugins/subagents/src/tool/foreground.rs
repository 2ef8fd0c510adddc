//! A delegation that is awaited by its call.

use playhouse_messages::content::ContentBlock;
use playhouse_plugin_api::tool::{ToolError, ToolOutput};
use serde_json::json;

use crate::{
    ChildProviders, ChildRequest, ChildResult, StopReason,
    group::{stopped_code, told},
    run::DisposedOnDrop,
};

const NO_TEXT: &str = "(the sub-agent completed without a text answer)";

/// A cancel of the call cancels the child, awaits it and disposes it; a child that fails fails its
/// own call and no other.
pub(super) async fn run(
    providers: &ChildProviders,
    provider: &str,
    label: &str,
    request: ChildRequest,
) -> Result<ToolOutput, ToolError> {
    let parent = request.parent.scope().clone();
    let run = DisposedOnDrop::new(providers.start(provider, request).await?, parent);
    let id = run.id().clone();
    let result = run.result().await;
    let disposed = run.dispose().await;

    let failed = |code: &str, text: String| Err(ToolError::coded("SubagentError", code, text));
    let who = format!("sub-agent \"{label}\" (session {id})");
    match (result, disposed) {
        (Ok(result), Ok(())) if result.stop_reason == StopReason::Completed => {
            let text = Some(result.text()).filter(|text| !text.is_empty());
            let value = json!({"kind": "foreground", "runId": id, "output": result.output});
            Ok(ToolOutput::new(value)
                .showing(vec![ContentBlock::text(text.unwrap_or_else(|| NO_TEXT.to_owned()))])
                .with_meta(json!({"kind": "foreground", "runId": id})))
        }
        (Ok(result), disposed) => {
            let mut text = format!("{who} {}", report(&result));
            if let Err(failure) = disposed {
                text = format!("{text}\nDisposal failed: {failure}");
            }
            failed(stopped_code(&result.stop_reason), text)
        }
        (Err(failure), Ok(())) => failed(&failure.code, format!("{who} failed: {failure}")),
        (Err(failure), Err(disposal)) => {
            let text = format!("{who} failed: {failure}\nDisposal failed: {disposal}");
            failed(&failure.code, text)
        }
    }
}

/// A headline by the stop reason, then the diagnostic, then what there is of an answer.
fn report(result: &ChildResult) -> String {
    let mut text = told(&result.stop_reason);
    if let Some(diagnostic) = &result.diagnostic {
        text = format!("{text}\nDiagnostic: {diagnostic}");
    }
    let said = result.text();
    if !said.is_empty() {
        text = format!("{text}\nOutput so far:\n{said}");
    }
    text
}
