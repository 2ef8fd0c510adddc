//! Which agent a command drives: the arguments' route, or the config's agent, or the default.

use std::path::{Path, PathBuf};

use playhouse_plugin_api::{creation::NewAgent, options::AgentOptions};

use super::{
    config::{AgentConfig, Config, DEFAULT_FILE},
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
    /// The config, as docs/config.md describes it [default: playhouse.toml if it is there].
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Which [[agent]] of the config to run [default: the first].
    #[arg(long, value_name = "ID")]
    agent: Option<String>,
}

/// What the arguments and the config come to.
pub(super) struct Chosen<'a> {
    /// The config's agent, if there is one.
    pub(super) entry: Option<&'a AgentConfig>,
    pub(super) providers: Providers,
    options: AgentOptions,
    /// The route was named, and not just defaulted.
    is_declared: bool,
}

impl Choice {
    /// Chooses, and checks that the route can be asked.
    pub(super) fn of<'a>(&self, config: &'a Config) -> Result<Chosen<'a>, CliError> {
        let entry = self.entry(config)?;
        let mut providers = Providers::new(config);
        let mut options = entry.map_or_else(
            || AgentOptions::new().model(DEFAULT_MODEL.0, DEFAULT_MODEL.1),
            house::options,
        );
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
        Ok(Chosen { entry, providers, options, is_declared })
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
        let new = NewAgent::new(self.options.clone());
        if self.is_declared { house::declaring(new) } else { new }
    }
}
