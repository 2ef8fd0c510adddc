//! `playhouse.toml`: agents, plugins, providers, prices, limits and the store.
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

mod reader;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// The file that is read if there is one and no other is named.
pub const DEFAULT_FILE: &str = "playhouse.toml";

/// The plugins that a config can name.
pub const PLUGINS: [&str; 2] = ["subagents", "lookup"];

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
    /// What models cost.
    pub prices: Vec<Price>,
    /// How many tool calls of one batch may run at once.
    pub max_parallel_tool_calls: Option<usize>,
    /// Where sessions are kept.
    pub store_dir: Option<PathBuf>,
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
    /// The script of a scripted provider, the built-in one if absent; or the log that is replayed.
    pub script: Option<PathBuf>,
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

/// What a model costs, in the currency of whoever reads the sums.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Price {
    /// The provider.
    pub provider: String,
    /// The model.
    pub model: String,
    /// A million tokens of input.
    pub input: f64,
    /// A million tokens of output.
    pub output: f64,
}

/// A place in a config file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The key.
    pub key: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: `{}`", self.file.display(), self.line, self.key)
    }
}

impl Place {
    /// An error at this place.
    pub fn fault(&self, problem: impl Into<String>) -> ConfigError {
        ConfigError::Invalid { place: self.clone(), problem: problem.into() }
    }
}

/// Why a config is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("config {file}: {cause}; name an existing file with --config")]
    Unreadable {
        /// The file.
        file: String,
        /// The system's words.
        cause: String,
    },
    /// Something in it is wrong.
    #[error("{place}: {problem}")]
    Invalid {
        /// Where.
        place: Place,
        /// What, and the way out.
        problem: String,
    },
}

impl ConfigError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "CONFIG_UNREADABLE",
            Self::Invalid { .. } => "INVALID_CONFIG",
        }
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
        assert_eq!(config.providers.len(), 4);
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
            store = { dir = "data" }
            [providers.local]
            kind = "openai_compatible"
            base_url = "http://127.0.0.1:1/v1"
            [providers.play]
            kind = "scripted"
            script = "play.toml"
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
            "#,
        )
        .unwrap();
        assert_eq!(config.max_parallel_tool_calls, Some(4));
        assert_eq!(config.store_dir.as_deref(), Some(Path::new("conf/data")));
        assert_eq!(config.agents[0].session, SessionChoice::Exact("s".into()));
        assert_eq!(config.agents[1].session, SessionChoice::Resume("t".into()));
        assert_eq!(config.providers["play"].script.as_deref(), Some(Path::new("conf/play.toml")));
        assert_eq!(config.prices[0].input, 1.5);
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
            ("[providers.x]\nkind = \"y\"", ":2: `kind`", "openai_compatible"),
            (
                "[providers.x]\nkind = \"scripted\"\nbase_url = \"u\"",
                ":3: `providers.x.base_url`",
                "remove it",
            ),
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
            ("a = [", ":1: `a`", "correct the value"),
        ] {
            let error = fault(text);
            assert!(error.starts_with(&format!("{file}{place}")), "{error}");
            assert!(error.contains(hint), "{error}");
        }
    }
}
