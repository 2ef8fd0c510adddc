//! The tool `ralph`.

use std::sync::Arc;

use playhouse_messages::{chunk::Failure, content::ContentBlock};
use playhouse_plugin_api::tool::{Tool, ToolError, ToolOutput, ToolRun, tool_fn};
use playhouse_subagents::spawn::SPAWN;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::rounds::Loop;
use crate::{
    Meta, WorkflowEngine, WorkflowError, WorkflowRequest, WorkflowStop,
    config::is_name,
    error::code,
    tool::{Ended, clipped, recorded},
};

/// The tool's name.
pub const RALPH_TOOL: &str = "ralph";

/// Guidance for the model: the section's name and place.
pub const RALPH_SECTION: (&str, f64) = ("tool:ralph", 116.0);

pub(crate) const RALPH_GUIDANCE: &str = "\
Use the ralph tool only when the user explicitly asks for a Ralph loop, or for a loop of fresh \
agents. Long work within this session is no reason to use it.";

const DESCRIPTION: &str = "\
Pursues an objective with one fresh sub-agent after the other in the same workspace. Each sees the \
objective and the report of the one before it, and nothing of this conversation: state the objective \
completely, with how to tell that it is reached. Returns when a worker reports that it is complete or \
blocked, or when the rounds are used up.";

/// How a tool runs loops.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RalphConfig {
    /// Who starts the workers: a provider that can do structured results, and whose children do not
    /// inherit their parent's context. Default `spawn`.
    pub provider: String,
    /// How many rounds a loop has unless its call says, and how many it may have. Default 256.
    pub max_rounds: u32,
    /// How many characters of JSON a report may have. Default 16,384.
    pub max_handoff_chars: usize,
    /// How many characters of a result the model sees. Default 16,384.
    pub max_result_chars: usize,
}

impl Default for RalphConfig {
    fn default() -> Self {
        Self {
            provider: SPAWN.to_owned(),
            max_rounds: 256,
            max_handoff_chars: 16_384,
            max_result_chars: 16_384,
        }
    }
}

impl RalphConfig {
    pub(crate) fn check(&self) -> Result<(), WorkflowError> {
        let numbers =
            self.max_rounds > 0 && self.max_handoff_chars > 0 && self.max_result_chars > 0;
        match is_name(&self.provider) && numbers {
            true => Ok(()),
            false => {
                let text = "the ralph tool needs a provider, and its limits must be positive";
                Err(WorkflowError::Config(text.to_owned()))
            }
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Args {
    /// What is to be reached, completely.
    objective: String,
    /// How many workers there may be.
    #[schemars(range(min = 1))]
    max_rounds: Option<u32>,
}

/// The tool. It runs in the foreground, as the tool `workflow` does.
pub fn ralph_tool(engine: WorkflowEngine, config: RalphConfig) -> Arc<dyn Tool> {
    let config = Arc::new(config);
    Arc::new(tool_fn(RALPH_TOOL, DESCRIPTION, move |args: Args, call: ToolRun| {
        execute(engine.clone(), config.clone(), args, call)
    }))
}

async fn execute(
    engine: WorkflowEngine,
    config: Arc<RalphConfig>,
    args: Args,
    call: ToolRun,
) -> Result<ToolOutput, ToolError> {
    let rounds_max = check(&engine, &config, &args)?;
    let objective = args.objective.trim().to_owned();
    let work = Loop { objective, rounds_max, handoff_chars_max: config.max_handoff_chars };
    let meta = Meta::new(RALPH_TOOL, "Pursues an objective with one fresh agent after the other");
    let start = async |request: WorkflowRequest| {
        let request = request.provider(&config.provider).max_total_agents(rounds_max);
        engine.start_native(request, move |cx| work.run(cx))
    };
    let Ended { run, result } = recorded(&call, meta, rounds_max, start).await?;
    let value = result.value.clone().unwrap_or_default();
    match (result.stop_reason, result.error) {
        (WorkflowStop::Completed, _) => {
            let (status, rounds) = (&value["status"], &value["roundsStarted"]);
            let text = format!(
                "Ralph loop ended: status {}, rounds started: {rounds}. What follows is what the \
                 workers report of themselves; verify what matters.\n{:#}",
                status.as_str().unwrap_or_default(),
                value["report"],
            );
            let text = clipped(&text, config.max_result_chars);
            let agents = result.agents_started;
            let value = json!({"runId": run.id(), "agentsStarted": agents, "result": value});
            Ok(ToolOutput::new(value)
                .showing(vec![ContentBlock::text(text)])
                .with_meta(json!({"runId": run.id(), "agentsStarted": agents})))
        }
        (stopped, error) => {
            let failure =
                error.unwrap_or_else(|| Failure::new(code::WORKFLOW_ERROR, "no reason is known"));
            let (rounds, why) = (result.agents_started, &failure.message);
            let text = match stopped {
                WorkflowStop::Cancelled => {
                    format!("the ralph loop was cancelled in round {rounds}: {why}")
                }
                _ => format!("the ralph loop failed: {why}"),
            };
            let text = clipped(&text, config.max_result_chars);
            Err(ToolError::coded("WorkflowError", failure.code, text))
        }
    }
}

fn check(engine: &WorkflowEngine, config: &RalphConfig, args: &Args) -> Result<u32, ToolError> {
    let refused = |code: &str, text: String| Err(ToolError::coded("WorkflowError", code, text));
    if args.objective.trim().is_empty() {
        return refused(code::INVALID_ARGUMENT, "the objective must not be empty".to_owned());
    }
    let ceiling = config.max_rounds.min(engine.config().max_total_agents);
    let rounds = args.max_rounds.unwrap_or(ceiling);
    if !(1..=ceiling).contains(&rounds) {
        return refused(code::INVALID_ARGUMENT, format!("maxRounds {rounds}: give 1 to {ceiling}"));
    }
    let name = &config.provider;
    match engine.providers().get(name) {
        None => refused(code::AGENT_START, format!("there is no sub-agent provider \"{name}\"")),
        Some(provider) if !provider.capabilities().output_schema => refused(
            "UNSUPPORTED_CAPABILITY",
            format!("sub-agent provider \"{name}\" gives no structured results; choose another"),
        ),
        Some(provider) if provider.inherits_parent_context() => refused(
            "UNSUPPORTED_CAPABILITY",
            format!(
                "children of \"{name}\" see this conversation; choose a provider of fresh ones"
            ),
        ),
        Some(_) => Ok(rounds),
    }
}
