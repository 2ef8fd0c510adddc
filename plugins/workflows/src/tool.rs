//! The tool `workflow`: a model writes a script, and gets what it returns.

use std::sync::Arc;

use playhouse_messages::content::ContentBlock;
use playhouse_plugin_api::tool::{Tool, ToolError, ToolOutput, ToolRun, tool_fn};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    Meta, WorkflowEngine, WorkflowError, WorkflowRequest, WorkflowResult, WorkflowRun,
    WorkflowStop, record::Recorder,
};

/// The tool's name unless told otherwise.
pub const TOOL_NAME_DEFAULT: &str = "workflow";

/// Guidance for the model: the section's name and place.
pub const WORKFLOW_SECTION: (&str, f64) = ("tool:workflow", 115.0);

pub(crate) const WORKFLOW_GUIDANCE: &str = "\
Use the workflow tool only when the user explicitly asks for a workflow, or for work to be spread \
over many agents at once. For one or a few delegations use the delegation tool instead. A workflow \
cannot be resumed: if it fails or is cancelled, its partial results are lost.";

const DESCRIPTION: &str = "\
Runs a workflow: a JavaScript script that fans work out to fresh sub-agents and returns one JSON \
value. The script is the body of an async function, run without files, network, timers or modules. \
It has `await agent(prompt, {label, phase, schema, provider, model})`, which returns the sub-agent's \
text, or the object that `schema` (a JSON Schema of type object) describes, or null if it failed; \
`await parallel([() => agent(..), ..])`, which runs all at once and gives null for each that throws; \
`await pipeline(items, (prev, item, index) => .., ..)`, which leads each item through the stages by \
itself; `phase(title)`, `log(text)`, and `args`. Sub-agents see nothing of this conversation: write \
prompts that stand alone. Return plain JSON. Give the meta beside the script, not in it.";

/// How a tool runs scripts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolConfig {
    /// The tool's name. Default `workflow`.
    pub name: String,
    /// How many characters of a result the model sees. Default 50,000.
    pub max_result_chars: usize,
}

impl Default for ToolConfig {
    fn default() -> Self {
        Self { name: TOOL_NAME_DEFAULT.to_owned(), max_result_chars: 50_000 }
    }
}

impl ToolConfig {
    pub(crate) fn check(&self) -> Result<(), WorkflowError> {
        match !self.name.trim().is_empty() && self.max_result_chars > 0 {
            true => Ok(()),
            false => {
                let text = "the workflow tool needs a name, and max_result_chars must be positive";
                Err(WorkflowError::Config(text.to_owned()))
            }
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Args {
    /// The body of an async function.
    script: String,
    /// What the workflow is, for people.
    meta: Meta,
    /// What the script finds as `args`.
    args: Option<Map<String, Value>>,
}

/// The tool. It runs in the foreground; a cancel of the call cancels the run, and the run is disposed
/// before the call ends.
pub fn workflow_tool(engine: WorkflowEngine, config: ToolConfig) -> Arc<dyn Tool> {
    let chars_max = config.max_result_chars;
    Arc::new(tool_fn(config.name, DESCRIPTION, move |args: Args, call: ToolRun| {
        execute(engine.clone(), chars_max, args, call)
    }))
}

async fn execute(
    engine: WorkflowEngine,
    chars_max: usize,
    args: Args,
    call: ToolRun,
) -> Result<ToolOutput, ToolError> {
    let Args { script, meta, args } = args;
    let args = args.map_or(Value::Null, Value::Object);
    let name = meta.name.clone();
    let agents_max = engine.config().max_total_agents;
    let start = async |request: WorkflowRequest| engine.start(request.args(args), script).await;
    let ended = recorded(&call, meta, agents_max, start).await?;
    let Ended { run, result } = ended;
    let value = result.value.clone().unwrap_or_default();
    match (result.stop_reason, result.error) {
        (WorkflowStop::Completed, _) => {
            let pretty = format!("{value:#}");
            let agents = result.agents_started;
            let text = format!(
                "Workflow \"{name}\" completed; agents started: {agents}.\n{}",
                clipped(&pretty, chars_max)
            );
            let value = json!({"runId": run.id(), "agentsStarted": agents, "result": value});
            Ok(ToolOutput::new(value)
                .showing(vec![ContentBlock::text(text)])
                .with_meta(json!({"runId": run.id(), "agentsStarted": agents})))
        }
        (stopped, error) => {
            let (code, why) = error.map_or_else(
                || ("WORKFLOW_ERROR".to_owned(), "no reason is known".to_owned()),
                |failure| (failure.code, failure.message),
            );
            let how = match stopped {
                WorkflowStop::Cancelled => "was cancelled",
                _ => "failed",
            };
            let text = clipped(&format!("workflow \"{name}\" {how}: {why}"), chars_max);
            Err(ToolError::coded("WorkflowError", code, text))
        }
    }
}

/// A run that a tool's call started, over and disposed.
pub(crate) struct Ended {
    pub(crate) run: WorkflowRun,
    pub(crate) result: WorkflowResult,
}

/// Starts a run for a call, writes its record unless the call is nested in another, and waits until
/// it is over and disposed.
pub(crate) async fn recorded(
    call: &ToolRun,
    meta: Meta,
    agents_max: u32,
    start: impl AsyncFnOnce(WorkflowRequest) -> Result<WorkflowRun, WorkflowError>,
) -> Result<Ended, ToolError> {
    let Some(parent) = call.agent() else {
        return Err(ToolError::new("only an agent can run a workflow"));
    };
    let (observer, said) = Recorder::channel(agents_max);
    let name = meta.name.clone();
    let request = WorkflowRequest::new(parent, meta)
        .cancelled_by(call.cancel().clone())
        .observed_by(observer);
    let run = start(request).await?;
    let mut abandoned = DisposedOnDrop(Some(run.clone()));
    let recorder =
        (!call.call().is_nested()).then(|| Recorder::new(parent.session().clone(), &run, said));
    let record = async {
        match recorder {
            Some(recorder) => recorder.write(name).await,
            None => None,
        }
    };
    let ending = async {
        let result = run.result().await;
        (result, run.dispose().await)
    };
    let (recorder, (result, disposed)) = futures::join!(record, ending);
    abandoned.0 = None;
    if let Some(recorder) = recorder {
        recorder.end(result.stop_reason).await;
    }
    if let Err(failure) = disposed {
        tracing::warn!(run = run.id(), %failure, "a workflow run left something behind");
    }
    Ok(Ended { run, result })
}

/// A call whose body is dropped still ends its run, though nobody waits for it.
struct DisposedOnDrop(Option<WorkflowRun>);

impl Drop for DisposedOnDrop {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run.cancel("the call that started it was given up");
        }
    }
}

/// The text, cut to so many characters, with the number of those that are left out.
pub(crate) fn clipped(text: &str, chars_max: usize) -> String {
    let dropped = text.chars().count().saturating_sub(chars_max);
    match dropped {
        0 => text.to_owned(),
        dropped => {
            let kept: String = text.chars().take(chars_max).collect();
            format!("{kept}\n[{dropped} characters left out]")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_counted() {
        assert_eq!(clipped("äbc", 3), "äbc");
        assert_eq!(clipped("äbcd", 3), "äbc\n[1 characters left out]");
    }
}
