//! `playhouse workflow`: workflow scripts without a model that calls them.

use std::path::PathBuf;

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{creation::NewAgent, options::AgentOptions};
use playhouse_supervisor::harness::Harness;
use playhouse_workflows::{
    NoticeKind, WORKFLOW_ENGINE_SERVICE, WorkflowEngine, WorkflowRequest, WorkflowResult,
    WorkflowStop, Workflows,
};
use serde_json::{Value, json};

use super::{
    config::Config,
    exit::{CliError, EXIT_CODES, Exit},
    hosting::set_up,
    house,
    output::{Format, Out, Paint, note, tame},
    providers::{DEFAULT_MODEL, Providers},
    signals,
};

/// What a script's first comment begins with, if it holds the meta.
const META_MARK: &str = "workflow";

/// Workflows: scripts that spread work over many agents.
#[derive(Debug, clap::Args)]
pub struct Workflow {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Run(Box<RunScript>),
}

/// Runs a workflow script, and prints what it returns.
///
/// The file is JavaScript, the body of an async function, as docs/workflows.md describes it. What the
/// workflow is stands in its first comment, or is given by --meta:
///
///     /* workflow {"name": "review", "description": "Reviews files"} */
///
/// The result goes to standard output, as JSON; phases, log lines and agents go to standard error.
/// Without --model a built-in script plays the agents: no network and no key are needed.
///
/// The first SIGINT or SIGTERM cancels the workflow and waits for its end; the second exits at once.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXIT_CODES, verbatim_doc_comment)]
struct RunScript {
    /// The script.
    file: PathBuf,
    /// What the workflow is, in place of the file's first comment: an object with name and
    /// description, perhaps whenToUse and phases.
    #[arg(long, value_name = "JSON")]
    meta: Option<String>,
    /// What the script finds as `args`.
    #[arg(long, value_name = "JSON", default_value = "null")]
    args: String,
    /// How many agents the workflow may start [default: the engine's limit].
    #[arg(long, value_name = "N")]
    max_agents: Option<u32>,
    /// The route of the agents, such as scripted/team or deepseek/deepseek-v4-flash.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    model: Option<String>,
    /// The store's directory [default: the config's, or .playhouse].
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// The agents' working directory [default: the current one].
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// The config, as docs/config.md describes it [default: playhouse.toml if it is there].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// `text` prints the value that the workflow returns; `jsonl` one line with that, how it ended,
    /// and how many agents it asked for.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl Workflow {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// Why nothing was run, or what failed beside the workflow.
    pub async fn run(self) -> Result<Exit, CliError> {
        match self.command {
            Command::Run(run) => run.run().await,
        }
    }
}

impl RunScript {
    async fn run(self) -> Result<Exit, CliError> {
        let config = Config::load(self.config.as_deref())?;
        let mut named = config.plugins.iter().flatten();
        if config.plugins.is_some() && named.all(|plugin| plugin.name != "subagents") {
            let text =
                "a workflow's agents are sub-agents: name the plugin subagents in the config";
            return Err(CliError::Usage(text.to_owned()));
        }
        let providers = Providers::new(&config);
        let (provider, model) = self.route(&config)?;
        providers.check(&provider)?;
        let script = std::fs::read_to_string(&self.file).map_err(|cause| {
            CliError::Usage(format!("script {}: {cause}; name a text file", self.file.display()))
        })?;
        let meta = match &self.meta {
            Some(meta) => json_of("--meta", meta)?,
            None => meta_of(&script).ok_or_else(|| {
                CliError::Usage(format!(
                    "script {}: it has no meta; begin it with /* workflow {{\"name\": .., \
                     \"description\": ..}} */, or give --meta",
                    self.file.display()
                ))
            })??,
        };
        let args = json_of("--args", &self.args)?;
        let cwd = house::working_dir(self.cwd.as_deref())?;
        let signal = signals::listen()?;
        let dir = house::store_dir(self.store, &config);
        let harness = house::open(&config, &providers, &dir, &["subagents", "workflows"]).await?;
        let work = async {
            let engine = engine(&harness).await?;
            let mut options = AgentOptions::new().model(provider, model);
            options.tree_budget = config.budget;
            let parent = harness.create(NewAgent::new(options).cwd(cwd)).await?;
            let paint = Paint::stderr();
            let mut request = WorkflowRequest::new(parent.agent(), meta)
                .args(args)
                .cancelled_by(signal)
                .observed_by(move |notice| tell(paint, notice));
            if let Some(limit) = self.max_agents {
                request = request.max_total_agents(limit);
            }
            let run = engine.start(request, script).await.map_err(Failure::from)?;
            let result = run.result().await;
            let disposed = run.dispose().await;
            Ok::<_, CliError>((result, disposed))
        };
        let ended = work.await;
        let down = harness.shutdown().await;
        let (result, disposed) = ended?;
        show(self.format, &result)?;
        disposed.and(down).map_err(CliError::Failed)?;
        Ok(match result.stop_reason {
            WorkflowStop::Completed => Exit::Completed,
            WorkflowStop::Cancelled => Exit::Aborted,
            _ => Exit::Failed,
        })
    }

    fn route(&self, config: &Config) -> Result<(String, String), CliError> {
        let Some(route) = &self.model else {
            let (provider, model) = DEFAULT_MODEL;
            let declared = config.agents.first().and_then(|agent| agent.model.clone());
            return Ok(declared.unwrap_or_else(|| (provider.to_owned(), model.to_owned())));
        };
        let parts = route.split_once('/').filter(|(p, m)| !p.is_empty() && !m.is_empty());
        let (provider, model) = parts.ok_or_else(|| {
            CliError::Usage(format!(
                "--model {route}: expected PROVIDER/MODEL, such as scripted/team"
            ))
        })?;
        Ok((provider.to_owned(), model.to_owned()))
    }
}

/// The engine of the harness. A config that names plugins need not name this one.
async fn engine(harness: &Harness) -> Result<WorkflowEngine, CliError> {
    let services = &harness.world().services;
    if services.get::<WorkflowEngine>(WORKFLOW_ENGINE_SERVICE).is_none() {
        set_up(harness.host(Workflows::new()).await).await?;
    }
    let engine =
        services.require::<WorkflowEngine>(WORKFLOW_ENGINE_SERVICE).map_err(Failure::from)?;
    Ok(WorkflowEngine::clone(&engine))
}

fn json_of(option: &str, text: &str) -> Result<Value, CliError> {
    serde_json::from_str(text).map_err(|fault| {
        CliError::Usage(format!("{option}: {fault}; give JSON, quoted for the shell"))
    })
}

/// The meta in a script's first comment, if that holds one.
fn meta_of(script: &str) -> Option<Result<Value, CliError>> {
    let comment = script.trim_start().strip_prefix("/*")?.split_once("*/")?.0;
    let meta = comment.trim().strip_prefix(META_MARK)?;
    Some(json_of("the script's first comment", meta.trim()))
}

/// Progress, for people.
fn tell(paint: Paint, notice: &NoticeKind) {
    match notice {
        NoticeKind::Start { meta } => note(&paint.dim(&format!("workflow {}", tame(&meta.name)))),
        NoticeKind::Phase { title } => note(&paint.cyan(&format!("== {}", tame(title)))),
        NoticeKind::Log { text } => note(&tame(text)),
        NoticeKind::AgentStart { seq, label, .. } => {
            note(&paint.dim(&format!("  [{seq}] {} ...", tame(label))));
        }
        NoticeKind::AgentEnd { seq, label, outcome, .. } => {
            let outcome = format!("{outcome:?}").to_lowercase();
            note(&paint.dim(&format!("  [{seq}] {} {outcome}", tame(label))));
        }
        NoticeKind::End { error: Some(error), .. } => {
            note(&paint.red(&format!("{}: {}", error.code, tame(&error.message))));
        }
        _ => {}
    }
}

fn show(format: Format, result: &WorkflowResult) -> Result<(), CliError> {
    let mut out = Out::new();
    match format {
        Format::Text => {
            if let Some(value) = &result.value {
                out.line(&format!("{value:#}"))?;
            }
        }
        Format::Jsonl => {
            let line = json!({
                "type": "workflow",
                "stopReason": result.stop_reason,
                "agentsStarted": result.agents_started,
                "value": result.value,
                "error": result.error,
            });
            out.line(&line.to_string())?;
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_comment_holds_the_meta_or_nothing() {
        let meta = |script: &str| meta_of(script).map(|meta| meta.ok());
        assert_eq!(meta("\n/* workflow {\"name\": \"n\"}\n*/ x"), Some(Some(json!({"name": "n"}))));
        assert_eq!(meta("/* workflow {oops} */"), Some(None));
        assert_eq!(meta("/* a comment */ return 1"), None);
        assert_eq!(meta("return 1 /* workflow {} */"), None);
    }
}
