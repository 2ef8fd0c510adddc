//! Delegation as a tool for models.

use std::sync::Arc;

use playhouse_messages::content::ContentBlock;
use playhouse_plugin_api::tool::{Tool, ToolError, ToolFilter, ToolOutput, ToolRun, tool_fn};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::{ChildOptions, ChildProviders, ChildRequest, ChildResult, Run, StopReason};

/// The tool's name unless told otherwise.
pub const TOOL_NAME_DEFAULT: &str = "subagent";

const STANDALONE: &str = "\
Delegates a task to a sub-agent and returns its final answer. The sub-agent works on its own and \
sees nothing of this conversation: write a prompt that stands alone, with all facts, paths and \
constraints, and say what the answer must contain. Call it several times at once for tasks that do \
not depend on each other.";

const INHERITING: &str = "\
Delegates a task to a sub-agent and returns its final answer. The sub-agent sees the completed \
turns of this conversation: state only what is new, and what the answer must contain. Call it \
several times at once for tasks that do not depend on each other.";

const NO_TEXT: &str = "(the sub-agent completed without a text answer)";

/// How a delegation tool starts its children.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ToolConfig {
    /// The tool's name.
    pub name: String,
    /// The provider that starts the children.
    pub provider: String,
    /// What children do otherwise than their parent.
    pub options: ChildOptions,
    /// The deepest that a child may stand.
    pub max_depth: Option<u32>,
    /// Masks tools that children would see.
    pub tool_filter: Option<ToolFilter>,
    /// Who children are to be.
    pub persona: Option<String>,
}

impl ToolConfig {
    /// A tool of the default name for this provider.
    pub fn new(provider: impl Into<String>) -> Self {
        Self {
            name: TOOL_NAME_DEFAULT.to_owned(),
            provider: provider.into(),
            options: ChildOptions::default(),
            max_depth: None,
            tool_filter: None,
            persona: None,
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Args {
    /// The task in 3 to 5 words, for people.
    description: String,
    /// The whole task.
    prompt: String,
}

/// The tool: parallel, and in the foreground. A cancel of the call cancels the child, awaits it and
/// disposes it; a child that fails fails its own call and no other.
pub fn subagent_tool(providers: ChildProviders, config: ToolConfig) -> Arc<dyn Tool> {
    let provider = providers.get(&config.provider);
    let inherits = provider.is_some_and(|provider| provider.inherits_parent_context());
    let description = if inherits { INHERITING } else { STANDALONE };
    let name = config.name.clone();
    let config = Arc::new(config);
    let tool = tool_fn(name, description, move |args: Args, call: ToolRun| {
        delegate(providers.clone(), config.clone(), args, call)
    });
    Arc::new(tool.parallel())
}

async fn delegate(
    providers: ChildProviders,
    config: Arc<ToolConfig>,
    args: Args,
    call: ToolRun,
) -> Result<ToolOutput, ToolError> {
    let Some(parent) = call.agent() else {
        return Err(ToolError::new("only an agent can delegate to a sub-agent"));
    };
    let Args { description, prompt } = args;
    let mut request = ChildRequest::new(parent, prompt)
        .label(&description)
        .options(config.options.clone())
        .cancelled_by(call.cancel().clone());
    request.max_depth = config.max_depth;
    request.tool_filter.clone_from(&config.tool_filter);
    request.persona.clone_from(&config.persona);
    let run = providers.start(&config.provider, request).await?;
    let mut abandoned = DisposedOnDrop(Some(run.clone()));
    let result = run.result().await;
    let disposed = run.dispose().await;
    abandoned.0 = None;

    let failed = |code: &str, text: String| Err(ToolError::coded("SubagentError", code, text));
    let who = format!("sub-agent \"{description}\" (session {})", run.id());
    match (result, disposed) {
        (Ok(result), Ok(())) if result.stop_reason == StopReason::Completed => {
            let text = Some(result.text()).filter(|text| !text.is_empty());
            let value = json!({
                "kind": "foreground",
                "runId": run.id(),
                "output": result.output,
            });
            Ok(ToolOutput::new(value)
                .showing(vec![ContentBlock::text(text.unwrap_or_else(|| NO_TEXT.to_owned()))])
                .with_meta(json!({"kind": "foreground", "runId": run.id()})))
        }
        (Ok(result), disposed) => {
            let mut text = format!("{who} {}", report(&result));
            if let Err(failure) = disposed {
                text = format!("{text}\nDisposal failed: {failure}");
            }
            failed(code(&result.stop_reason), text)
        }
        (Err(failure), Ok(())) => failed(&failure.code, format!("{who} failed: {failure}")),
        (Err(failure), Err(disposal)) => {
            let text = format!("{who} failed: {failure}\nDisposal failed: {disposal}");
            failed(&failure.code, text)
        }
    }
}

fn code(reason: &StopReason) -> &'static str {
    match reason {
        StopReason::Completed => "SUBAGENT_DISPOSAL",
        StopReason::Aborted => "SUBAGENT_ABORTED",
        StopReason::MaxTokens => "SUBAGENT_MAX_TOKENS",
        StopReason::Refusal => "SUBAGENT_REFUSED",
        StopReason::Error => "SUBAGENT_FAILED",
        StopReason::Other(_) => "SUBAGENT_STOPPED",
    }
}

/// A headline by the stop reason, then the diagnostic, then what there is of an answer.
fn report(result: &ChildResult) -> String {
    let mut text = match &result.stop_reason {
        StopReason::Completed => "completed".to_owned(),
        StopReason::Aborted => "was cancelled".to_owned(),
        StopReason::Error => "failed".to_owned(),
        StopReason::MaxTokens => "hit its output token limit".to_owned(),
        StopReason::Refusal => "declined the task".to_owned(),
        StopReason::Other(other) => format!("ended abnormally ({other})"),
    };
    if let Some(diagnostic) = &result.diagnostic {
        text = format!("{text}\nDiagnostic: {diagnostic}");
    }
    let said = result.text();
    if !said.is_empty() {
        text = format!("{text}\nOutput so far:\n{said}");
    }
    text
}

/// A call whose body is dropped still ends its child, though nobody waits for it.
struct DisposedOnDrop(Option<Run>);

impl Drop for DisposedOnDrop {
    fn drop(&mut self) {
        if let (Some(run), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move {
                if let Err(failure) = run.dispose().await {
                    tracing::warn!(child = %run.id(), %failure, "an abandoned child's disposal failed");
                }
            });
        }
    }
}
