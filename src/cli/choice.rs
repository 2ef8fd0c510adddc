//! Which agent a command drives: the arguments' route, or the config's agent, or the default.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use playhouse_budgets::Budget;
use playhouse_plugin_api::{creation::NewAgent, options::AgentOptions};

use super::{
    config::{AgentConfig, Config, DEFAULT_FILE, micros},
    exit::CliError,
    house,
    providers::{DEFAULT_MODEL, Providers},
};

/// The arguments by which an agent is chosen.
#[derive(Debug, clap::Args)]
pub(super) struct Choice {
    /// The route, such as scripted/team, openai_compatible/any or anthropic/claude-opus-5-5. A session
    /// that is resumed goes on with it.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    model: Option<String>,
    /// Where the route's provider is. On this machine openai_compatible and anthropic need no key.
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// How much the model should think, in the provider's words.
    #[arg(long, value_name = "EFFORT")]
    reasoning_effort: Option<String>,
    /// The output limit of one request, in tokens.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=playhouse_messages::json::INTEGER_MAX))]
    max_tokens: Option<u64>,
    #[command(flatten)]
    budget: BudgetArgs,
    /// The config, as docs/config.md describes it [default: playhouse.toml if it is there].
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Which [[agent]] of the config to run [default: the first].
    #[arg(long, value_name = "ID")]
    agent: Option<String>,
    /// The preset that the agent is composed from, of the config's [presets]. A session that is
    /// resumed goes on with its own.
    #[arg(long, value_name = "ID")]
    preset: Option<String>,
}

/// The heading of the budget in `--help`. A heading of the struct would stand above what follows it, too.
const BUDGET: &str = "Budget";

/// What the run may spend: the agent and all that it delegates to, together.
#[derive(Debug, clap::Args)]
struct BudgetArgs {
    /// Tokens that all requests may take: input, cached or not, and output [default: the config's].
    #[arg(long, value_name = "N", help_heading = BUDGET)]
    budget_tokens: Option<u64>,
    /// What they may cost, in the currency of the config's prices [default: the config's].
    #[arg(long, value_name = "AMOUNT", value_parser = cost, help_heading = BUDGET)]
    budget_cost: Option<u64>,
    /// How long the agents may run, such as 90s or 10m [default: the config's].
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = BUDGET)]
    budget_time: Option<Duration>,
    /// How many tool calls they may make [default: the config's].
    #[arg(long, value_name = "N", help_heading = BUDGET)]
    budget_tool_calls: Option<u64>,
}

fn cost(text: &str) -> Result<u64, String> {
    let amount = text.parse().map_err(|_| "not a number".to_owned())?;
    micros(amount).map_err(str::to_owned)
}

fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|fault| fault.to_string())?;
    // Budgets count in milliseconds.
    if time.as_millis() > 0 { Ok(time) } else { Err("a time is 1ms or more".to_owned()) }
}

impl BudgetArgs {
    /// The config's budget, with what the arguments say in the place of its limits.
    fn over(&self, config: Option<Budget>) -> Option<Budget> {
        let budget = config.unwrap_or_default();
        let budget = self.budget_tokens.map_or(budget, |tokens| budget.tokens(tokens));
        let budget = self.budget_cost.map_or(budget, |cost| budget.cost(cost));
        let budget = self.budget_time.map_or(budget, |time| budget.wall_time(time));
        let budget = self.budget_tool_calls.map_or(budget, |calls| budget.tool_calls(calls));
        (!budget.is_empty()).then_some(budget)
    }
}

/// What the arguments and the config come to.
pub(super) struct Chosen<'a> {
    /// The config's agent, if there is one.
    pub(super) entry: Option<&'a AgentConfig>,
    pub(super) providers: Providers,
    options: AgentOptions,
    /// The route was named, and not just defaulted.
    is_declared: bool,
    preset: Option<String>,
}

impl Choice {
    /// Chooses, and checks that the route can be asked.
    pub(super) fn of<'a>(&self, config: &'a Config) -> Result<Chosen<'a>, CliError> {
        let entry = self.entry(config)?;
        let mut providers = Providers::new(config);
        let mut options = house::options(entry, self.budget.over(config.budget));
        if let Some(route) = &self.model {
            let parts = route.split_once('/').filter(|(p, m)| !p.is_empty() && !m.is_empty());
            let Some((provider, model)) = parts else {
                let text = format!(
                    "--model {route}: expected PROVIDER/MODEL, such as scripted/team or \
                     deepseek/deepseek-v4-flash"
                );
                return Err(CliError::Usage(text));
            };
            options = options.model(provider, model);
        }
        if let Some(effort) = &self.reasoning_effort {
            options = options.reasoning_effort(effort);
        }
        if let Some(max) = self.max_tokens {
            options = options.max_tokens(max);
        }
        let provider =
            options.model.as_ref().map_or(DEFAULT_MODEL.0, |model| &model.provider).to_owned();
        if let Some(url) = &self.base_url {
            providers.set_base_url(&provider, url)?;
        }
        let named_by_config = self.model.is_none().then_some(entry).flatten();
        match (providers.check(&provider), named_by_config) {
            (Err(error @ CliError::UnknownProvider { .. }), Some(agent)) => {
                return Err(agent.place.fault(error.to_string()).into());
            }
            (checked, _) => checked?,
        }
        let is_declared = self.model.is_some() || entry.is_some_and(|agent| agent.model.is_some());
        if self.preset.is_some() && !is_declared {
            if self.reasoning_effort.is_some() {
                let text =
                    "--reasoning-effort is for a --model; the preset says how much its own thinks";
                return Err(CliError::Usage(text.to_owned()));
            }
            // The preset's, if it names one.
            options.model = None;
        }
        Ok(Chosen { entry, providers, options, is_declared, preset: self.preset.clone() })
    }

    fn entry<'a>(&self, config: &'a Config) -> Result<Option<&'a AgentConfig>, CliError> {
        let Some(id) = &self.agent else { return Ok(config.agents.first()) };
        let found = config.agents.iter().find(|agent| agent.id == *id);
        let file = self.config.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
        let missing = || {
            let text = format!("--agent {id}: {} has no such [[agent]]; add it", file.display());
            CliError::Usage(text)
        };
        found.map(Some).ok_or_else(missing)
    }
}

impl Chosen<'_> {
    /// The agent to make, without a working directory.
    pub(super) fn new_agent(&self) -> NewAgent {
        let mut new = NewAgent::new(self.options.clone());
        new.agent_preset.clone_from(&self.preset);
        if self.is_declared { house::declaring(new) } else { new }
    }
}
