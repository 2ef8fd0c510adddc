//! From the file's text to a config, with the place of everything that can be wrong.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

use playhouse_messages::json::INTEGER_MAX;
use playhouse_plugin_api::{
    options::{Durability, UnknownDurability},
    patterns::Patterns,
};
use serde::Deserialize;
use toml::Spanned;

use super::{
    AgentConfig, Config, ConfigError, PLUGINS, Place, PluginConfig, ProviderConfig, ProviderKind,
    SessionChoice, ToolsConfig,
    acp::AcpEntry,
    budget::{BudgetEntry, LimitsEntry, PriceEntry},
    hibernation::HibernationEntry,
    jobs::JobsEntry,
    presets::PresetsEntry,
    recovery::{FallbackEntry, RetryEntry},
    store::StoreEntry,
    teams::TeamsEntry,
    titles::TitlesEntry,
};

/// (top level)
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Agents to make.
    #[serde(default)]
    agent: Vec<AgentEntry>,
    /// Plugins to host, in the place of the default ones.
    plugin: Option<Vec<PluginEntry>>,
    /// Routes by name, beside the built-in ones or in their place.
    #[serde(default)]
    providers: BTreeMap<Spanned<String>, ProviderEntry>,
    /// What models cost.
    #[serde(default)]
    price: Vec<PriceEntry>,
    /// How many tool calls of one batch run at once; positive. 10 if absent.
    #[serde(alias = "maxParallelToolCalls")]
    max_parallel_tool_calls: Option<Spanned<i64>>,
    /// Where sessions are kept.
    store: Option<StoreEntry>,
    /// Where a step goes on whose route has failed.
    fallback: Option<FallbackEntry>,
    /// Names sessions by a model; without it, a session is called by its first prompt.
    titles: Option<TitlesEntry>,
    /// Lets idle agents of the config give up their memory; a message wakes them.
    hibernation: Option<HibernationEntry>,
    /// Bounds of tool calls.
    #[serde(default)]
    tools: ToolsEntry,
    /// Agents of other programs.
    #[serde(default)]
    acp: Vec<AcpEntry>,
    /// What each agent that no other delegates to may spend, together with all below it.
    #[serde(default)]
    budget: BudgetEntry,
    /// Bounds of all agents together.
    #[serde(default)]
    limits: LimitsEntry,
    /// Lets agents have background jobs, with the tools `job_output`, `job_list` and `job_kill`.
    jobs: Option<Spanned<JobsEntry>>,
    /// Lets agents that no other delegates to lead teams, with a roster, a task board and a mailbox.
    teams: Option<Spanned<TeamsEntry>>,
    /// Where agent presets are.
    presets: Option<PresetsEntry>,
}

/// `[[agent]]`
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AgentEntry {
    /// The label, with which the id of a fresh session begins.
    id: Spanned<String>,
    /// The route; together with `model`. The scripted one if absent.
    provider: Option<Spanned<String>>,
    /// The model under it.
    model: Option<Spanned<String>>,
    /// An effort that the model takes; its own if absent.
    #[serde(alias = "reasoning_effort")]
    reasoning_effort: Option<String>,
    /// The output limit of one request; positive. The model's if absent.
    #[serde(alias = "max_tokens")]
    max_tokens: Option<Spanned<i64>>,
    /// The working directory of a fresh session; the current one if absent.
    cwd: Option<PathBuf>,
    /// This exact session, made at the first use.
    #[serde(alias = "session_id")]
    session_id: Option<Spanned<String>>,
    /// This session, which must exist; not together with `sessionId`.
    #[serde(alias = "resume_session_id")]
    resume_session_id: Option<Spanned<String>>,
}

/// `[[plugin]]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginEntry {
    /// Which.
    name: Spanned<String>,
    /// Its settings.
    #[serde(default)]
    settings: toml::Table,
}

/// `[providers.NAME]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderEntry {
    /// What it speaks.
    kind: Spanned<ProviderKind>,
    /// Where it is; the kind's own address if absent.
    base_url: Option<Spanned<String>>,
    /// The environment variable that holds its key; the kind's own if absent.
    api_key_env: Option<Spanned<String>>,
    /// What its models take, `text` and `image`; unknown if absent.
    input_modalities: Option<Spanned<Vec<String>>>,
    /// For a scripted one: the script, instead of the team script.
    script: Option<Spanned<PathBuf>>,
    /// How its failed requests are retried.
    retry: Option<Spanned<RetryEntry>>,
    /// How many of its requests run at once, shared fairly by trees of agents; positive. No limit if
    /// absent.
    requests: Option<Spanned<i64>>,
}

/// `[tools]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ToolsEntry {
    /// The most bytes of a result that the model sees; what is longer is kept in a file. 0 for no
    /// bound, 65,536 if absent.
    max_inline_bytes: Option<Spanned<i64>>,
    /// The time budget of tools that have none of their own, in milliseconds.
    default_timeout_ms: Option<Spanned<i64>>,
    /// Tools that the budget leaves alone; `*` stands for any text.
    timeout_exempt: Patterns,
}

/// Reads a config's text.
pub(super) fn read(path: &Path, text: &str) -> Result<Config, ConfigError> {
    Reader { path, text }.read()
}

pub(super) struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    pub(super) fn place(&self, span: &Range<usize>, key: &str) -> Place {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        Place { file: self.path.to_path_buf(), line, key: key.to_owned() }
    }

    pub(super) fn fault<T>(
        &self,
        at: &Spanned<T>,
        key: &str,
        problem: impl Into<String>,
    ) -> ConfigError {
        self.place(&at.span(), key).fault(problem)
    }

    /// A parser's error, with the key that stands on its line.
    fn refused(&self, error: &toml::de::Error) -> ConfigError {
        let span = error.span().unwrap_or(0..0);
        let message = error.message().lines().map(str::trim).collect::<Vec<_>>().join(" ");
        let named = message.starts_with("unknown field") || message.starts_with("missing field");
        let quoted = message.split('`').nth(1).filter(|_| named).map(str::to_owned);
        let key = quoted.unwrap_or_else(|| {
            let start = self.text.get(..span.start).unwrap_or_default().rfind('\n');
            let line = self.text[start.map_or(0, |at| at + 1)..].lines().next().unwrap_or_default();
            line.split('=').next().unwrap_or_default().trim().to_owned()
        });
        let way_out = if message.starts_with("unknown field") {
            "remove the key, or correct its name"
        } else if message.starts_with("missing field") {
            "add the key"
        } else {
            "correct the value"
        };
        self.place(&span, &key).fault(format!("{message}; {way_out}"))
    }

    pub(super) fn near(&self, path: PathBuf) -> PathBuf {
        match self.path.parent() {
            Some(dir) => dir.join(path),
            None => path,
        }
    }

    pub(super) fn not_empty(&self, at: &Spanned<String>, key: &str) -> Result<String, ConfigError> {
        let text = at.get_ref();
        if text.trim().is_empty() {
            return Err(self.fault(
                at,
                key,
                "must not be empty; give it a value or remove the key",
            ));
        }
        Ok(text.clone())
    }

    /// The name of an environment variable. What is none may be a key, so it is not repeated.
    fn variable(&self, at: &Spanned<String>, key: &str) -> Result<String, ConfigError> {
        let name = at.get_ref();
        let fits = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
        if name.is_empty()
            || name.starts_with(|c: char| c.is_ascii_digit())
            || !name.bytes().all(fits)
        {
            let problem = "must be the name of an environment variable (letters, digits and `_`), \
                           not the key itself";
            return Err(self.fault(at, key, problem));
        }
        Ok(name.clone())
    }

    pub(super) fn positive(&self, at: &Spanned<i64>, key: &str) -> Result<u64, ConfigError> {
        match u64::try_from(*at.get_ref()) {
            Ok(number) if number > 0 && number <= INTEGER_MAX => Ok(number),
            _ => {
                let problem = format!("must be a positive integer, not {}", at.get_ref());
                Err(self.fault(at, key, problem))
            }
        }
    }

    fn read(&self) -> Result<Config, ConfigError> {
        let file: File = toml::from_str(self.text).map_err(|error| self.refused(&error))?;
        let mut agents: Vec<AgentConfig> = Vec::new();
        for entry in &file.agent {
            let agent = self.agent(entry)?;
            self.distinct(entry, &agent, &agents)?;
            agents.push(agent);
        }
        let plugins = match file.plugin {
            None => None,
            Some(entries) => Some(self.plugins(entries)?),
        };
        let mut providers = BTreeMap::new();
        for (name, entry) in file.providers {
            let provider = self.provider(&name, entry)?;
            providers.insert(name.into_inner(), provider);
        }
        let calls = file.max_parallel_tool_calls.as_ref();
        let calls = calls.map(|at| self.positive(at, "max_parallel_tool_calls")).transpose()?;
        let entry = file.store.unwrap_or_default();
        let store = self.store(&entry)?;
        let durability = match &entry.durability {
            Some(name) => name.get_ref().parse().map_err(|fault: UnknownDurability| {
                self.fault(name, "store.durability", fault.to_string())
            })?,
            None => Durability::default(),
        };
        let undurable = entry.undurable_bytes.as_ref();
        let undurable_bytes =
            undurable.map(|at| self.positive(at, "store.undurable_bytes")).transpose()?;
        let store_dir = entry.dir;
        if let Some(dir) = store_dir.as_ref().filter(|dir| dir.get_ref().as_os_str().is_empty()) {
            return Err(self.fault(dir, "store.dir", "must name a directory, or be removed"));
        }
        let titles = file.titles.map(|entry| self.titles(&entry)).transpose()?;
        let hibernation = file.hibernation.map(|entry| self.hibernation(&entry)).transpose()?;
        let fallback = file.fallback.map(|entry| self.fallback(entry)).transpose()?;
        Ok(Config {
            agents,
            teams: file
                .teams
                .as_ref()
                .map(|entry| self.teams(entry, plugins.as_deref()))
                .transpose()?,
            plugins,
            providers,
            fallback,
            prices: self.prices(&file.price)?,
            budget: self.budget(&file.budget)?,
            max_requests: self.max_requests(&file.limits)?,
            max_parallel_tool_calls: calls.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
            tools: self.tools(file.tools)?,
            acp: self.acp(file.acp)?,
            jobs: file.jobs.as_ref().map(|entry| self.jobs(entry)).transpose()?,
            presets: file.presets.map(|entry| self.presets(entry)),
            titles,
            hibernation,
            store_dir: store_dir.map(|dir| self.near(dir.into_inner())),
            store,
            undurable_bytes,
            durability,
        })
    }

    fn tools(&self, entry: ToolsEntry) -> Result<ToolsConfig, ConfigError> {
        let defaults = ToolsConfig::default();
        let bytes = |at: &Spanned<i64>| {
            let problem = "must be a number of bytes, 0 or more; 0 bounds nothing";
            usize::try_from(*at.get_ref())
                .map_err(|_| self.fault(at, "tools.max_inline_bytes", problem))
        };
        let inline = entry.max_inline_bytes.as_ref().map(bytes).transpose()?;
        let timeout = entry.default_timeout_ms.as_ref();
        let timeout =
            timeout.map(|at| self.positive(at, "tools.default_timeout_ms")).transpose()?;
        Ok(ToolsConfig {
            max_inline_bytes: inline.unwrap_or(defaults.max_inline_bytes),
            default_timeout: timeout.map(Duration::from_millis),
            timeout_exempt: entry.timeout_exempt,
        })
    }

    /// A provider and a model under it, of which none or both are named.
    pub(super) fn route(
        &self,
        provider: Option<&Spanned<String>>,
        model: Option<&Spanned<String>>,
    ) -> Result<Option<(String, String)>, ConfigError> {
        Ok(match (provider, model) {
            (None, None) => None,
            (Some(provider), Some(model)) => {
                Some((self.not_empty(provider, "provider")?, self.not_empty(model, "model")?))
            }
            (Some(provider), None) => {
                return Err(self.fault(provider, "provider", "needs a `model` beside it; add one"));
            }
            (None, Some(model)) => {
                return Err(self.fault(model, "model", "needs a `provider` beside it; add one"));
            }
        })
    }

    fn agent(&self, entry: &AgentEntry) -> Result<AgentConfig, ConfigError> {
        let id = self.not_empty(&entry.id, "id")?;
        let model = self.route(entry.provider.as_ref(), entry.model.as_ref())?;
        let session = match (&entry.session_id, &entry.resume_session_id) {
            (None, None) => SessionChoice::Fresh,
            (Some(id), None) => SessionChoice::Exact(self.not_empty(id, "sessionId")?),
            (None, Some(id)) => SessionChoice::Resume(self.not_empty(id, "resumeSessionId")?),
            (Some(_), Some(resume)) => {
                let problem = "excludes `sessionId`; keep `sessionId` to make the session at its \
                               first use, or `resumeSessionId` if it must exist";
                return Err(self.fault(resume, "resumeSessionId", problem));
            }
        };
        let place = match &entry.provider {
            Some(provider) => self.place(&provider.span(), "provider"),
            None => self.place(&entry.id.span(), "id"),
        };
        let max_tokens = entry.max_tokens.as_ref();
        Ok(AgentConfig {
            id,
            model,
            place,
            reasoning_effort: entry.reasoning_effort.clone(),
            max_tokens: max_tokens.map(|at| self.positive(at, "maxTokens")).transpose()?,
            cwd: entry.cwd.clone().map(|cwd| self.near(cwd)),
            session,
        })
    }

    fn distinct(
        &self,
        entry: &AgentEntry,
        agent: &AgentConfig,
        earlier: &[AgentConfig],
    ) -> Result<(), ConfigError> {
        if earlier.iter().any(|other| other.id == agent.id) {
            let problem = format!("\"{}\" labels another agent already; choose another", agent.id);
            return Err(self.fault(&entry.id, "id", problem));
        }
        let Some(id) = agent.session.id() else { return Ok(()) };
        let Some(other) = earlier.iter().find(|other| other.session.id() == Some(id)) else {
            return Ok(());
        };
        let (at, key) = match (&entry.session_id, &entry.resume_session_id) {
            (Some(at), _) => (at, "sessionId"),
            (None, Some(at)) => (at, "resumeSessionId"),
            (None, None) => (&entry.id, "id"),
        };
        let problem = format!(
            "session \"{id}\" is agent \"{}\"'s already; one session has one agent, so choose \
             another id",
            other.id
        );
        Err(self.fault(at, key, problem))
    }

    fn plugins(&self, entries: Vec<PluginEntry>) -> Result<Vec<PluginConfig>, ConfigError> {
        let mut plugins: Vec<PluginConfig> = Vec::new();
        for PluginEntry { name, settings } in entries {
            let problem = if !PLUGINS.contains(&name.get_ref().as_str()) {
                let known = PLUGINS.join(", ");
                format!("there is no plugin \"{}\"; there are {known}", name.get_ref())
            } else if plugins.iter().any(|plugin| plugin.name == *name.get_ref()) {
                format!("plugin \"{}\" is named twice; remove one of them", name.get_ref())
            } else {
                let place = self.place(&name.span(), "name");
                plugins.push(PluginConfig { name: name.into_inner(), settings, place });
                continue;
            };
            return Err(self.fault(&name, "name", problem));
        }
        Ok(plugins)
    }

    fn provider(
        &self,
        name: &Spanned<String>,
        entry: ProviderEntry,
    ) -> Result<ProviderConfig, ConfigError> {
        let key = |field: &str| format!("providers.{}.{field}", name.get_ref());
        let played = entry.kind.get_ref().is_played();
        let only = |at: Range<usize>, field: &str, kind: &str| {
            let problem = format!("is only for providers of kind {kind}; remove it");
            Err(self.place(&at, &key(field)).fault(problem))
        };
        match &entry {
            ProviderEntry { base_url: Some(at), .. } if played => {
                return only(at.span(), "base_url", "openai_compatible, deepseek and anthropic");
            }
            ProviderEntry { api_key_env: Some(at), .. } if played => {
                return only(at.span(), "api_key_env", "openai_compatible, deepseek and anthropic");
            }
            ProviderEntry { input_modalities: Some(at), kind, .. }
                if matches!(kind.get_ref(), ProviderKind::Anthropic | ProviderKind::Replay) =>
            {
                let kinds = "openai_compatible, deepseek and scripted";
                return only(at.span(), "input_modalities", kinds);
            }
            ProviderEntry { script: Some(at), .. } if !played => {
                return only(at.span(), "script", "scripted and replay");
            }
            ProviderEntry { kind, script: None, .. } if *kind.get_ref() == ProviderKind::Replay => {
                let problem = "replay needs a `script`: the log of a recorded session; add one";
                return Err(self.fault(kind, &key("kind"), problem));
            }
            _ => {}
        }
        if name.get_ref().is_empty() || name.get_ref().contains('/') {
            let problem = "a provider's name must have no `/` and not be empty; rename it";
            return Err(self.fault(name, &format!("providers.{}", name.get_ref()), problem));
        }
        let variable = entry.api_key_env.as_ref();
        let api_key_env = variable.map(|at| self.variable(at, &key("api_key_env"))).transpose()?;
        let retry = entry.retry.map(|retry| self.retry(retry, &key("retry"))).transpose()?;
        let modalities = entry.input_modalities.as_ref();
        let input_modalities =
            modalities.map(|at| self.modalities(at, &key("input_modalities"))).transpose()?;
        let max_requests = self.requests(entry.requests.as_ref(), &key("requests"))?;
        let place = match &entry.base_url {
            Some(url) => self.place(&url.span(), &key("base_url")),
            None => self.place(&entry.kind.span(), &key("kind")),
        };
        Ok(ProviderConfig {
            kind: entry.kind.into_inner(),
            base_url: entry.base_url.map(Spanned::into_inner),
            api_key_env,
            input_modalities,
            script: entry.script.map(|script| self.near(script.into_inner())),
            retry,
            max_requests,
            place,
        })
    }

    fn modalities(&self, at: &Spanned<Vec<String>>, key: &str) -> Result<Vec<String>, ConfigError> {
        match &at.get_ref().iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["text"] | ["text", "image"] | ["image", "text"] => Ok(at.get_ref().clone()),
            _ => Err(self.fault(at, key, "must be [\"text\"] or [\"text\", \"image\"]")),
        }
    }
}
