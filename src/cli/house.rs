//! What `run` and `rpc` share: a harness over a journal, with routes and plugins.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use playhouse_acp::AcpAgents;
use playhouse_budgets::{Budget, Budgets, FairRequests};
use playhouse_context::{DirectoryAttachments, ImageOffload};
use playhouse_jobs::JobsPlugin;
use playhouse_messages::{chunk::Failure, config::ModelChoice, id::SessionId};
use playhouse_plugin_api::{
    agent::Agent,
    blueprint::Blueprint,
    clock::{Ids, UuidIds},
    creation::{AgentHandle, CreateError, NewAgent},
    options::AgentOptions,
};
use playhouse_policies::{
    DefaultTimeout, Fallback, ModelNotice, REPEAT_TOOL_REMINDER, RepeatReminder,
    RepeatReminderConfig, Retry, Spill, SpillDir,
};
use playhouse_presets::PresetsPlugin;
use playhouse_sessions::{SessionProjections, Titles};
use playhouse_stores::{OpenStep, StoreConfig};
use playhouse_subagents::{Background, Subagents};
use playhouse_supervisor::harness::{Harness, HarnessBuilder};
use playhouse_teams::TeamsPlugin;

use playhouse_workflows::Workflows;
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    config::{
        AcpAgentConfig, AgentConfig, Config, PluginConfig, SessionChoice, ToolsConfig,
        workflows::WorkflowsSettings,
    },
    exit::CliError,
    hosting::set_up,
    lookup::Lookup,
    presets::{composed, resumed},
    providers::{Providers, register},
};

/// Where sessions are kept unless told otherwise.
pub const DEFAULT_STORE: &str = ".playhouse";

/// Where the images of sessions are kept, in the store's directory.
pub const ATTACHMENTS: &str = "attachments";
/// The directory of spilled tool outputs, in that of the store.
pub const SPILLS: &str = "spills";

/// What takes longer shows how far it is.
const MOMENT: Duration = Duration::from_millis(500);

/// Which store is meant: the argument's, the config's, or the default one.
pub fn store_dir(argument: Option<PathBuf>, config: &Config) -> PathBuf {
    argument.or_else(|| config.store_dir.clone()).unwrap_or_else(|| DEFAULT_STORE.into())
}

/// The same store, with a bar on standard error while it is opened: if that is a terminal, and it takes
/// more than a moment.
pub fn opening(config: StoreConfig) -> StoreConfig {
    let StoreConfig::Journal(config) = config else { return config };
    let (bar, since) = (ProgressBar::hidden(), Instant::now());
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}, {eta} left");
    let bar = match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    };
    StoreConfig::Journal(config.on_progress(move |at| {
        if since.elapsed() < MOMENT {
            return;
        }
        if bar.is_hidden() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        bar.set_message(match at.step {
            OpenStep::IndexRows => "rows of the index",
            _ => "segments of the journal",
        });
        bar.set_length(at.all);
        bar.set_position(at.done);
    }))
}

/// Opens a store and starts a harness over it. `defaults` are the plugins to host if the config
/// names none.
///
/// # Errors
///
/// What is wrong; nothing is left open then.
pub async fn open(
    config: &Config,
    providers: &Providers,
    dir: &Path,
    defaults: &[&str],
) -> Result<Harness, CliError> {
    // Whatever can be refused is refused before the store is touched.
    let adapters = providers.adapters()?;
    if let Some(route) = config.titles.as_ref().and_then(|titles| titles.route.as_ref()) {
        providers.check(&route.provider)?;
    }
    let subagents = subagents(config)?;
    let reminder = reminder(config)?;
    let workflows = workflows(config)?;
    let plugins: Vec<&str> = match &config.plugins {
        Some(plugins) => plugins.iter().map(|plugin| plugin.name.as_str()).collect(),
        None => defaults.to_vec(),
    };
    let acp = acp_agents(config, &plugins)?;
    // A member is a sub-agent.
    let teams = config.teams.as_ref().filter(|_| plugins.contains(&"subagents"));
    let store = opening(config.store.clone()).open(dir).await?;
    let attachments = DirectoryAttachments::new(dir.join(ATTACHMENTS));
    let builder = crate::minimal().shared_store(store).attachments(attachments);
    let builder = builder.durability(config.durability);
    let mut builder = bounded(builder, &config.tools, dir);
    // Whether or not the plugin is hosted now: sessions of an earlier run must load.
    let kinds = [
        &playhouse_subagents::EVENT_KINDS[..],
        &playhouse_policies::EVENT_KINDS,
        &playhouse_presets::EVENT_KINDS,
        &playhouse_sessions::EVENT_KINDS,
        &playhouse_teams::EVENT_KINDS,
        &playhouse_workflows::record::EVENT_KINDS,
    ];
    for kind in kinds.concat() {
        builder = builder.event_kind(kind);
    }
    if let Some(bytes) = config.undurable_bytes {
        builder = builder.undurable_bytes(bytes);
    }
    if let Some(policy) = config.hibernation {
        builder = builder.hibernation(policy);
    }
    for agent in &config.agents {
        builder = builder.blueprint(blueprint_name(agent), blueprint(agent, config.budget));
    }
    if let Some(calls) = config.max_parallel_tool_calls {
        builder = builder.max_parallel_tool_calls(calls);
    }
    let harness = builder.start().await?;
    let furnish = async {
        register(harness.world(), adapters)?;
        set_up(harness.host(crate::Identity).await).await?;
        set_up(harness.host(ModelNotice).await).await?;
        set_up(harness.host(Retry::new()).await).await?;
        if let Some(policy) = &config.fallback {
            set_up(harness.host(Fallback::new(policy.clone())).await).await?;
        }
        set_up(harness.host(Budgets::new().prices(config.price_table())).await).await?;
        if let Some(caps) = config.request_caps() {
            set_up(harness.host(FairRequests::capped(caps)).await).await?;
        }
        set_up(harness.host(ImageOffload::new()).await).await?;
        set_up(harness.host(SessionProjections::new()).await).await?;
        let titles = Titles::new();
        if let Some(by_model) = &config.titles {
            let world = harness.world();
            let provider = by_model.provider(world.models.clone());
            titles.provide(&world.scope, Arc::new(provider)).map_err(Failure::from)?;
        }
        set_up(harness.host(titles).await).await?;
        if let Some(jobs) = &config.jobs {
            let plugin = JobsPlugin::new(jobs.clone());
            let plugin = plugin.map_err(|fault| Failure::new(fault.code(), fault.to_string()))?;
            set_up(harness.host(plugin).await).await?;
        }
        if let Some(roots) = &config.presets {
            set_up(harness.host(PresetsPlugin::new(roots.clone())).await).await?;
        }
        for name in plugins {
            let hosted = match name {
                "lookup" => harness.host(Lookup).await,
                REPEAT_TOOL_REMINDER => harness.host(reminder.clone()).await,
                "workflows" => harness.host(workflows.clone()).await,
                _ => harness.host(subagents.clone()).await,
            };
            set_up(hosted).await?;
        }
        if let Some(teams) = teams {
            let plugin = TeamsPlugin::new(teams.clone()).map_err(Failure::from)?;
            set_up(harness.host(plugin).await).await?;
        }
        if let Some(agents) = acp {
            set_up(harness.host(agents).await).await?;
        }
        Ok::<_, CliError>(())
    };
    match furnish.await {
        Ok(()) => Ok(harness),
        Err(error) => {
            if let Err(failure) = harness.shutdown().await {
                tracing::error!(%failure, "the harness did not end well");
            }
            Err(error)
        }
    }
}

/// Bounds what a tool call may take of time and of the conversation.
fn bounded(mut builder: HarnessBuilder, tools: &ToolsConfig, store: &Path) -> HarnessBuilder {
    if tools.max_inline_bytes > 0 {
        let spills = Arc::new(SpillDir::new(store.join(SPILLS)));
        builder = builder.plugin(Spill::new(tools.max_inline_bytes, spills));
    }
    if let Some(timeout) = tools.default_timeout {
        builder = builder.plugin(DefaultTimeout::new(timeout).exempt(tools.timeout_exempt.clone()));
    }
    builder
}

/// Settings of the plugin `subagents`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SubagentsSettings {
    max_children: Option<usize>,
    max_depth: Option<u32>,
    tool_name: Option<String>,
    persona: Option<String>,
    background: BackgroundSetting,
    fork_tool: Option<String>,
}

/// What `run_in_background` means to the tool of the plugin `subagents`.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum BackgroundSetting {
    Off,
    #[default]
    OneShot,
    Continuable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoSettings {}

/// Reads all plugins' settings, so that a bad one is told before anything is opened.
fn subagents(config: &Config) -> Result<Subagents, CliError> {
    let mut settings = SubagentsSettings::default();
    for plugin in config.plugins.iter().flatten() {
        match plugin.name.as_str() {
            "subagents" => settings = settings_of(plugin)?,
            REPEAT_TOOL_REMINDER | "workflows" => {}
            _ => settings_of::<NoSettings>(plugin).map(drop)?,
        }
    }
    let mut subagents = Subagents::new();
    if let Some(limit) = settings.max_children {
        subagents = subagents.max_children(limit);
    }
    if let Some(depth) = settings.max_depth {
        subagents = subagents.max_depth(depth);
    }
    if let Some(name) = settings.tool_name {
        subagents = subagents.tool_name(name);
    }
    if let Some(persona) = settings.persona {
        subagents = subagents.persona(persona);
    }
    if let Some(name) = settings.fork_tool {
        subagents = subagents.fork_tool(name);
    }
    subagents = subagents.background(match settings.background {
        BackgroundSetting::Off => Background::Off,
        BackgroundSetting::OneShot => Background::OneShot,
        BackgroundSetting::Continuable => Background::Continuable,
    });
    Ok(subagents)
}

/// The agents of other programs, which need sub-agents to be children of.
fn acp_agents(config: &Config, plugins: &[&str]) -> Result<Option<AcpAgents>, CliError> {
    let Some(first) = config.acp.first() else { return Ok(None) };
    if !plugins.contains(&"subagents") {
        let problem = "an ACP agent is a sub-agent: name the plugin subagents, too, or remove it";
        return Err(first.place.fault(problem).into());
    }
    let agents = config.acp.iter().cloned();
    let with = |all: AcpAgents, one: AcpAgentConfig| all.tool(one.tool, one.config);
    Ok(Some(agents.fold(AcpAgents::new(), with)))
}

fn workflows(config: &Config) -> Result<Workflows, CliError> {
    let plugins = config.plugins.as_deref().unwrap_or_default();
    let mut before = plugins.iter().take_while(|plugin| plugin.name != "workflows");
    let follows = before.any(|plugin| plugin.name == "subagents");
    let Some(plugin) = plugins.iter().find(|plugin| plugin.name == "workflows") else {
        return Ok(WorkflowsSettings::default().plugin());
    };
    if !follows {
        // It would wait for them for ever.
        let problem =
            "a workflow's agents are sub-agents: name the plugin subagents before this one";
        return Err(plugin.place.fault(problem).into());
    }
    Ok(settings_of::<WorkflowsSettings>(plugin)?.plugin())
}

fn reminder(config: &Config) -> Result<RepeatReminder, CliError> {
    let mut plugins = config.plugins.iter().flatten();
    let Some(plugin) = plugins.find(|plugin| plugin.name == REPEAT_TOOL_REMINDER) else {
        return Ok(RepeatReminder::default());
    };
    let settings: RepeatReminderConfig = settings_of(plugin)?;
    RepeatReminder::new(settings).map_err(|error| plugin.place.fault(error.to_string()).into())
}

fn settings_of<T: DeserializeOwned>(plugin: &PluginConfig) -> Result<T, CliError> {
    let table = toml::Value::Table(plugin.settings.clone());
    table.try_into().map_err(|error: toml::de::Error| {
        let cause = error.message().lines().collect::<Vec<_>>().join(" ");
        let text = format!("settings of plugin \"{}\": {cause}; correct them", plugin.name);
        plugin.place.fault(text).into()
    })
}

/// The same agent, whose route was declared and not just defaulted: a session that it resumes goes on
/// with that, and says so in its log before the agent is live.
pub fn declaring(new: NewAgent) -> NewAgent {
    let Some(choice) = new.options.model.clone() else { return new };
    new.set_up(move |agent| declare(agent, choice.clone()))
}

async fn declare(agent: Agent, choice: ModelChoice) -> Result<(), Failure> {
    let model = agent.model();
    if model.current().as_ref() != Some(&choice) {
        model.select(choice).await?;
    }
    Ok(())
}

/// The name of the blueprint that an agent of the config is made from, as headers have it.
pub fn blueprint_name(agent: &AgentConfig) -> String {
    format!("config/{}", agent.id)
}

/// What an agent of the config is made from, at first and whenever it wakes. A route that was declared
/// is declared to the session that the entry names, once a process: later choices outlive a
/// hibernation.
fn blueprint(agent: &AgentConfig, budget: Option<Budget>) -> Blueprint {
    let options = options(Some(agent), budget);
    let declared = agent.model.is_some().then(|| options.model.clone()).flatten();
    let blueprint = Blueprint::new(options);
    let (Some(choice), Some(session)) = (declared, agent.session.id()) else { return blueprint };
    let (session, done) = (SessionId::from(session), Arc::new(AtomicBool::new(false)));
    blueprint.set_up(move |agent| {
        let due = agent.id() == &session && !done.swap(true, Ordering::AcqRel);
        let choice = choice.clone();
        async move { if due { declare(agent, choice).await } else { Ok(()) } }
    })
}

/// An agent of the config, made from its blueprint unless its session was made otherwise.
///
/// # Errors
///
/// If the store cannot be read.
pub async fn of_config(
    harness: &Harness,
    agent: &AgentConfig,
    budget: Option<Budget>,
) -> Result<NewAgent, CliError> {
    let name = blueprint_name(agent);
    let stored = match (agent.session.id(), &harness.world().store) {
        (Some(id), Some(store)) => store.stat(&SessionId::from(id)).await?,
        _ => None,
    };
    if stored.is_none_or(|stored| stored.header.blueprint.as_ref() == Some(&name)) {
        return Ok(NewAgent::blueprint(name));
    }
    let new = NewAgent::new(options(Some(agent), budget));
    Ok(if agent.model.is_some() { declaring(new) } else { new })
}

/// Makes the agent that drives the chosen session, composed from its preset. A fresh session's id
/// begins with the label.
///
/// # Errors
///
/// The library's. Only a session that is not there is made anew, and only if the choice allows it.
pub async fn enter(
    harness: &Harness,
    choice: &SessionChoice,
    label: Option<&str>,
    new: NewAgent,
) -> Result<AgentHandle, CreateError> {
    match choice {
        SessionChoice::Fresh => {
            let new = match label {
                Some(label) => new.id(format!("{label}-session-{}", UuidIds.fresh())),
                None => new,
            };
            harness.create(composed(harness, new).await?).await
        }
        SessionChoice::Resume(id) => {
            let id = SessionId::from(id.as_str());
            let new = resumed(harness, &id, new).await?;
            harness.resume(id, new).await
        }
        SessionChoice::Exact(id) => {
            let id = SessionId::from(id.as_str());
            let stored = async {
                let new = resumed(harness, &id, new.clone()).await?;
                harness.resume(id.clone(), new).await
            };
            match stored.await {
                Err(error) if error.code() == "SESSION_NOT_FOUND" => {
                    harness.create(composed(harness, new.id(id)).await?).await
                }
                resumed => resumed,
            }
        }
    }
}

/// A directory as an absolute path; the current one if none is given.
///
/// # Errors
///
/// If it is not there.
pub fn working_dir(dir: Option<&Path>) -> Result<String, CliError> {
    let dir = dir.unwrap_or(Path::new("."));
    let refused = |cause: String| {
        let text =
            format!("working directory {}: {cause}; name an existing directory", dir.display());
        CliError::Usage(text)
    };
    let found = dir.canonicalize().map_err(|cause| refused(cause.to_string()))?;
    if !found.is_dir() {
        return Err(refused("it is not a directory".to_owned()));
    }
    found.into_os_string().into_string().map_err(|_| refused("its name is not UTF-8".to_owned()))
}

/// What the config says of an agent, or of one that it does not know, as options. `budget` is that of
/// each agent that no other delegates to.
pub fn options(agent: Option<&AgentConfig>, budget: Option<Budget>) -> AgentOptions {
    let (provider, model) = match agent.and_then(|agent| agent.model.as_ref()) {
        Some((provider, model)) => (provider.as_str(), model.as_str()),
        None => super::providers::DEFAULT_MODEL,
    };
    let mut options = AgentOptions::new().model(provider, model);
    options.tree_budget = budget;
    let Some(agent) = agent else { return options };
    if let Some(effort) = &agent.reasoning_effort {
        options = options.reasoning_effort(effort);
    }
    if let Some(max) = agent.max_tokens {
        options = options.max_tokens(max);
    }
    options
}
