//! `playhouse.toml`: agents, plugins, providers, fallbacks, prices, limits and the store.
//!
//! ```toml
//! max_parallel_tool_calls = 4
//!
//! [store]
//! dir = "data/sessions"
//!
//! [providers.local]
//! kind = "openai_compatible"
//! base_url = "http://127.0.0.1:8080/v1"
//!
//! [fallback]
//! routes = ["deepseek/deepseek-v4-flash"]
//!
//! [[plugin]]
//! name = "subagents"
//!
//! [[agent]]
//! id = "writer"
//! provider = "local"
//! model = "any"
//! sessionId = "the-novel"
//!
//! [[price]]
//! provider = "deepseek"
//! model = "deepseek-v4-flash"
//! input = 0.3
//! output = 1.2
//! ```
//!
//! Unknown keys are refused, and every error names file, line and key.

mod acp;
mod budget;
mod fault;
mod hibernation;
mod jobs;
mod presets;
mod reader;
mod recovery;
mod store;
mod teams;
mod titles;
pub(super) mod workflows;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use playhouse_budgets::Budget;
use playhouse_jobs::JobsConfig;
use playhouse_messages::retry::RetryPolicy;
use playhouse_plugin_api::{options::Durability, patterns::Patterns};
use playhouse_policies::{FallbackPolicy, REPEAT_TOOL_REMINDER};
use playhouse_presets::Root;
use playhouse_stores::StoreConfig;
use playhouse_supervisor::hibernation::HibernationPolicy;
use playhouse_teams::TeamsConfig;
use serde::Deserialize;

pub(super) use self::budget::micros;
pub use self::{acp::AcpAgentConfig, budget::Price, titles::TitlesConfig};

pub use fault::{ConfigError, Place};

/// The file that is read if there is one and no other is named.
pub const DEFAULT_FILE: &str = "playhouse.toml";

/// The plugins that a config can name.
pub const PLUGINS: [&str; 4] = ["subagents", "lookup", REPEAT_TOOL_REMINDER, "workflows"];

/// Those that `run` hosts if a config names none.
pub const DEFAULT_PLUGINS: [&str; 3] = ["subagents", "lookup", REPEAT_TOOL_REMINDER];

/// A config, checked.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Agents to make.
    pub agents: Vec<AgentConfig>,
    /// Plugins to host; `None` for the defaults.
    pub plugins: Option<Vec<PluginConfig>>,
    /// Providers beside the built-in ones, or in their place.
    pub providers: BTreeMap<String, ProviderConfig>,
    /// Where a step goes on whose route has failed.
    pub fallback: Option<FallbackPolicy>,
    /// What models cost.
    pub prices: Vec<Price>,
    /// What each agent that no other delegates to may spend, together with all below it.
    pub budget: Option<Budget>,
    /// How many model requests run at once.
    pub max_requests: Option<usize>,
    /// How many tool calls of one batch may run at once.
    pub max_parallel_tool_calls: Option<usize>,
    /// What bounds a tool call.
    pub tools: ToolsConfig,
    /// Agents of other programs.
    pub acp: Vec<AcpAgentConfig>,
    /// Background jobs; `None` for none.
    pub jobs: Option<JobsConfig>,
    /// Long-lived teams; `None` for none.
    pub teams: Option<TeamsConfig>,
    /// Where agent presets are; `None` for none.
    pub presets: Option<Vec<Root>>,
    /// The model that names sessions; `None` names them by their first prompt.
    pub titles: Option<TitlesConfig>,
    /// When agents of the config give up their memory; `None` if they do so only when they are told to.
    pub hibernation: Option<HibernationPolicy>,
    /// Where sessions are kept.
    pub store_dir: Option<PathBuf>,
    /// How they are kept.
    pub store: StoreConfig,
    /// How many bytes all sessions together may have accepted and not made durable.
    pub undurable_bytes: Option<u64>,
    /// When they are made durable.
    pub durability: Durability,
}

/// What bounds a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolsConfig {
    /// How many bytes a result may take of the conversation; the rest is kept beside the store. 0
    /// bounds nothing.
    pub max_inline_bytes: usize,
    /// The time budget of tools that have none of their own.
    pub default_timeout: Option<Duration>,
    /// Tools without that budget.
    pub timeout_exempt: Patterns,
}

impl Default for ToolsConfig {
    fn default() -> Self {
        Self {
            max_inline_bytes: 64 * 1024,
            default_timeout: None,
            timeout_exempt: Patterns::default(),
        }
    }
}

/// An agent of the config.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AgentConfig {
    /// Its label; a fresh session's id begins with it.
    pub id: String,
    /// Its provider and model, and where the file names them.
    pub model: Option<(String, String)>,
    /// Where the file names the provider, or the agent.
    pub place: Place,
    /// Its reasoning effort.
    pub reasoning_effort: Option<String>,
    /// The output limit of one request.
    pub max_tokens: Option<u64>,
    /// Its working directory.
    pub cwd: Option<PathBuf>,
    /// Which session it drives.
    pub session: SessionChoice,
}

/// Which session an agent drives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SessionChoice {
    /// A new one.
    #[default]
    Fresh,
    /// This one, made at the first use.
    Exact(String),
    /// This one, which must exist.
    Resume(String),
}

impl SessionChoice {
    /// The session's id, if the choice names one.
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Fresh => None,
            Self::Exact(id) | Self::Resume(id) => Some(id),
        }
    }
}

/// A plugin of the config.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PluginConfig {
    /// Its name, one of [`PLUGINS`].
    pub name: String,
    /// Its settings.
    pub settings: toml::Table,
    /// Where the file names it.
    pub place: Place,
}

/// A provider of the config.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ProviderConfig {
    /// What it speaks.
    pub kind: ProviderKind,
    /// Where it is.
    pub base_url: Option<String>,
    /// The environment variable that holds its key.
    pub api_key_env: Option<String>,
    /// What its models take, where they do not say themselves.
    pub input_modalities: Option<Vec<String>>,
    /// The script of a scripted provider, the built-in one if absent; or the log that is replayed.
    pub script: Option<PathBuf>,
    /// How its failed requests are retried; the adapter's way if absent.
    pub retry: Option<RetryPolicy>,
    /// How many of its requests run at once.
    pub max_requests: Option<usize>,
    /// Where the file names its URL, or it.
    pub place: Place,
}

/// What a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProviderKind {
    /// Chat completions over HTTP.
    OpenaiCompatible,
    /// DeepSeek's dialect of it.
    Deepseek,
    /// Anthropic's messages over HTTP.
    Anthropic,
    /// A script, in process.
    Scripted,
    /// A recorded session, in process.
    Replay,
}

impl ProviderKind {
    /// Whether it plays what it was given, and asks nobody.
    pub(super) fn is_played(self) -> bool {
        matches!(self, Self::Scripted | Self::Replay)
    }
}

impl Config {
    /// Reads `file`, or [`DEFAULT_FILE`] if that is there.
    ///
    /// # Errors
    ///
    /// The place and the way out.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let (path, optional) = match file {
            Some(path) => (path, false),
            None => (Path::new(DEFAULT_FILE), true),
        };
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(path, &text),
            Err(error) if optional && error.kind() == std::io::ErrorKind::NotFound => {
                Ok(Self::default())
            }
            Err(error) => Err(ConfigError::Unreadable {
                file: path.display().to_string(),
                cause: error.to_string(),
            }),
        }
    }

    /// Reads a config's text; paths in it are relative to the file's directory.
    ///
    /// # Errors
    ///
    /// The place and the way out.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        reader::read(path, text)
    }
}

#[cfg(test)]
mod tests {
    use playhouse_messages::retry::Backoff;
    use playhouse_stores::JournalStoreConfig;

    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(Path::new("conf/playhouse.toml"), text)
    }

    #[test]
    fn the_example_of_the_document_is_a_config() {
        let document = include_str!("../../docs/config.md");
        let (_, rest) = document.split_once("```toml\n").unwrap();
        let config = parse(rest.split_once("```").unwrap().0).unwrap();
        assert_eq!(config.max_parallel_tool_calls, Some(4));
        assert_eq!(config.providers.len(), 5);
        assert_eq!(config.agents[0].session, SessionChoice::Exact("the-novel".to_owned()));
        assert_eq!(
            (config.prices.len(), config.plugins.map(|plugins| plugins.len())),
            (1, Some(1))
        );
    }

    fn fault(text: &str) -> String {
        let error = parse(text).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    }

    #[test]
    fn a_whole_config_is_read() {
        let config = parse(
            r#"
            max_parallel_tool_calls = 4
            store = { dir = "data", window_ms = 50, cache_bytes = 1048576, undurable_bytes = 4096 }
            [providers.local]
            kind = "openai_compatible"
            base_url = "http://127.0.0.1:1/v1"
            retry.max_retries = 2
            [providers.play]
            kind = "scripted"
            script = "play.toml"
            [providers.play.retry]
            mode = "always"
            max_retries = 7
            max_delay_ms = 60000
            [fallback]
            routes = ["local/m/n", "play/any"]
            codes = ["SERVER"]
            [tools]
            max_inline_bytes = 0
            default_timeout_ms = 1500
            timeout_exempt = ["subagent*"]
            [hibernation]
            idle_after_ms = 60000
            at_once = 8
            [[plugin]]
            name = "subagents"
            [[agent]]
            id = "a"
            provider = "local"
            model = "m"
            reasoningEffort = "high"
            maxTokens = 10
            sessionId = "s"
            [[agent]]
            id = "b"
            resume_session_id = "t"
            [[price]]
            provider = "local"
            model = "m"
            input = 1.5
            output = 2.0
            cache_read = 0.1
            [budget]
            tokens = 5000
            cost = 0.25
            wall_time_ms = 60000
            [limits]
            requests = 64
            [providers.local2]
            kind = "scripted"
            requests = 4
            "#,
        )
        .unwrap();
        let budget = Budget::new().tokens(5000).cost(250_000).wall_time(Duration::from_secs(60));
        assert_eq!(config.budget, Some(budget));
        let caps = config.request_caps().unwrap();
        assert_eq!((caps.global, caps.providers["local2"], caps.providers.len()), (Some(64), 4, 1));
        let price = &config.prices[0];
        assert_eq!((price.cache_read, price.cache_write), (0.1, 1.5));
        assert_eq!(config.max_parallel_tool_calls, Some(4));
        assert_eq!(config.store_dir.as_deref(), Some(Path::new("conf/data")));
        let store = JournalStoreConfig::default().window(Duration::from_millis(50));
        assert_eq!(config.store, StoreConfig::Journal(store.cache_bytes(1 << 20)));
        assert_eq!(config.undurable_bytes, Some(4096));
        assert_eq!(config.agents[0].session, SessionChoice::Exact("s".into()));
        assert_eq!(config.agents[1].session, SessionChoice::Resume("t".into()));
        assert_eq!(config.providers["play"].script.as_deref(), Some(Path::new("conf/play.toml")));
        assert_eq!(config.prices[0].input, 1.5);
        let RetryPolicy::Normal { max_retries: 2, retryable_codes, backoff } =
            config.providers["local"].retry.clone().unwrap()
        else {
            panic!("{:?}", config.providers)
        };
        assert_eq!((retryable_codes.len(), backoff), (5, Backoff::default()));
        let backoff = Backoff { max_delay_ms: 60_000, ..Backoff::default() };
        assert_eq!(config.providers["play"].retry, Some(RetryPolicy::Always { backoff }));
        let fallback = config.fallback.unwrap();
        assert_eq!(
            (&*fallback.routes()[0].model, fallback.codes()),
            ("m/n", &["SERVER".to_owned()][..])
        );
        let policy = HibernationPolicy::after(Duration::from_secs(60)).at_once(8);
        assert_eq!(config.hibernation, Some(policy));
        let tools = config.tools;
        assert_eq!((tools.max_inline_bytes, tools.timeout_exempt.fit("subagent")), (0, true));
        assert_eq!(tools.default_timeout, Some(Duration::from_millis(1500)));
        assert_eq!(parse("").unwrap().tools.max_inline_bytes, 65_536);
    }

    #[test]
    fn every_error_names_file_line_and_key_and_the_way_out() {
        let file = "conf/playhouse.toml";
        for (text, place, hint) in [
            ("\ncolour = 1", ":2: `colour`", "unknown field"),
            ("[[agent]]\nid = \"a\"\nmaxTokens = 0", ":3: `maxTokens`", "positive"),
            ("[[agent]]\nid = \"a\"\nmaxTokens = \"x\"", ":3: `maxTokens`", "correct the value"),
            ("[[agent]]\nmodel = \"m\"", ":1: `id`", "add the key"),
            ("[[agent]]\nid = \"a\"\nmodel = \"m\"", ":3: `model`", "`provider`"),
            ("[[agent]]\nid = \"a\"\nsessionId = \"\"", ":3: `sessionId`", "not be empty"),
            (
                "[[agent]]\nid = \"a\"\nsessionId = \"s\"\nresumeSessionId = \"s\"",
                ":4: `resumeSessionId`",
                "excludes",
            ),
            (
                "[[agent]]\nid = \"a\"\nsessionId = \"s\"\n[[agent]]\nid = \"b\"\n\
                 resumeSessionId = \"s\"",
                ":6: `resumeSessionId`",
                "one session has one agent",
            ),
            ("[[agent]]\nid = \"a\"\n[[agent]]\nid = \"a\"", ":4: `id`", "choose another"),
            ("[[plugin]]\nname = \"x\"", ":2: `name`", "subagents"),
            ("max_parallel_tool_calls = 0", ":1: `max_parallel_tool_calls`", "positive"),
            ("max_parallel_tool_calls = 1.5", ":1: `max_parallel_tool_calls`", "correct the value"),
            ("[tools]\nmax_inline_bytes = -1", ":2: `tools.max_inline_bytes`", "0 or more"),
            ("[store]\nsegment_bytes = 0", ":2: `store.segment_bytes`", "positive"),
            (
                "[store]\nkind = \"sqlite\"\nwindow_ms = 1",
                ":3: `store.window_ms`",
                "only for the kinds journal and jsonl",
            ),
            (
                "[store]\nkind = \"memory\"\nindex = false",
                ":3: `store.index`",
                "only for the kind journal",
            ),
            ("[hibernation]\nidle_after_ms = 0", ":2: `hibernation.idle_after_ms`", "positive"),
            ("[tools]\ndefault_timeout_ms = 0", ":2: `tools.default_timeout_ms`", "positive"),
            ("[providers.x]\nkind = \"y\"", ":2: `kind`", "openai_compatible"),
            (
                "[providers.x]\nkind = \"scripted\"\nbase_url = \"u\"",
                ":3: `providers.x.base_url`",
                "remove it",
            ),
            ("[budget]\ntokens = -1", ":2: `budget.tokens`", "0 or more"),
            ("[budget]\ncost = -1.0", ":2: `budget.cost`", "0 or more"),
            ("[limits]\nrequests = 0", ":2: `limits.requests`", "positive"),
            (
                "[[price]]\nprovider = \"p\"\nmodel = \"m\"\ninput = -1.0\noutput = 0.0",
                ":4: `input`",
                "0 or more",
            ),
            (
                "[providers.x]\nkind = \"deepseek\"\napi_key_env = \"sk-123\"",
                ":3: `providers.x.api_key_env`",
                "not the key itself",
            ),
            (
                "[providers.x]\nkind = \"deepseek\"\nretry = { initial_delay_ms = 0 }",
                ":3: `providers.x.retry`",
                "must be positive",
            ),
            (
                "[providers.x]\nkind = \"deepseek\"\nretry = { max_retries = -1 }",
                ":3: `retry`",
                "correct the value",
            ),
            (
                "[providers.x]\nkind = \"deepseek\"\n[providers.x.retry]\nmode = \"always\"\ntries = 1",
                ":5: `tries`",
                "unknown field",
            ),
            ("[fallback]\nroutes = []", ":2: `fallback.routes`", "at least one route"),
            ("[fallback]\nroutes = [\"m\"]", ":2: `fallback.routes`", "PROVIDER/MODEL"),
            ("[fallback]\nroutes = [\"a/m\", \"a/m\"]", ":2: `fallback.routes`", "named twice"),
            (
                "[fallback]\nroutes = [\"a/m\"]\ncodes = [\"\"]",
                ":3: `fallback.codes`",
                "unique and not empty",
            ),
            (
                "[providers.x]\nkind = \"anthropic\"\ninput_modalities = [\"text\"]",
                ":3: `providers.x.input_modalities`",
                "remove it",
            ),
            ("a = [", ":1: `a`", "correct the value"),
        ] {
            let error = fault(text);
            assert!(error.starts_with(&format!("{file}{place}")), "{error}");
            assert!(error.contains(hint), "{error}");
        }
    }
}
