//! What an Anthropic route needs to know.

use std::time::Duration;

use playhouse_plugin_api::llm::{ModelInfo, Reasoning, RetryPolicy};

use crate::http::{ConfigError, DEFAULT_IDLE_TIMEOUT, KeySource, check_idle_timeout};

/// The smallest thinking budget that the wire takes, in tokens.
const BUDGET_MIN: u64 = 1024;

/// One provider that speaks the Messages API.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The route that error messages name.
    pub provider: String,
    /// For people, and for error messages.
    pub display_name: String,
    /// Where `/v1/messages` is found below; `http` or `https`. A slash at the end is dropped.
    pub base_url: String,
    /// Where the key comes from, at every call anew.
    pub api_key: KeySource,
    /// Whether to ask for prompt caching.
    pub prompt_caching: bool,
    /// The models that are known; any other is passed through. An entry also stands for its dated
    /// snapshots: `m` for `m-20260101`.
    pub models: Vec<ModelEntry>,
    /// The context window of models that do not say, in tokens.
    pub context_window: Option<u64>,
    /// The output limit, in tokens, of calls that name none and models that do not say. The wire
    /// requires one.
    pub default_max_tokens: u64,
    /// How long the provider may be silent while the adapter waits.
    pub idle_timeout: Duration,
    /// How failed calls may be retried.
    pub retry_policy: RetryPolicy,
}

/// A known model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelEntry {
    /// Its id on the wire.
    pub id: String,
    /// For people; the id if empty.
    pub name: String,
    /// The context window in tokens, if it differs from the route's.
    pub context_window: Option<u64>,
    /// The default output limit in tokens, if it differs from the route's.
    pub default_max_tokens: Option<u64>,
    /// How efforts are told; `None` if the model takes none.
    pub thinking: Option<Thinking>,
    /// The effort of calls that name none; one of those that the model takes.
    pub default_effort: Option<String>,
    /// Whether the model takes a temperature.
    pub sampling: bool,
}

/// How a model is told how much to think.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Thinking {
    /// The model decides by an effort: `thinking.type: adaptive` and `output_config.effort`.
    Adaptive {
        /// The efforts that it takes, the least first.
        efforts: Vec<String>,
        /// Whether thinking can be switched off, with the effort `off`.
        can_be_off: bool,
        /// Its thinking is bound to what stood before it, and refused once that has changed. The
        /// provider is then asked to drop such thinking, which is a beta of the wire.
        bound: bool,
    },
    /// A budget of tokens for each effort, each 1024 at least: `thinking.type: enabled`. `off` is
    /// always taken as well.
    Budget(Vec<(String, u64)>),
}

impl Thinking {
    /// The efforts that a call may name.
    fn efforts(&self) -> Vec<String> {
        let off = || std::iter::once("off".to_owned());
        match self {
            Self::Adaptive { efforts, can_be_off: false, .. } => efforts.clone(),
            Self::Adaptive { efforts, .. } => off().chain(efforts.iter().cloned()).collect(),
            Self::Budget(budgets) => {
                off().chain(budgets.iter().map(|(effort, _)| effort.clone())).collect()
            }
        }
    }
}

impl ModelEntry {
    /// A model of which nothing more is known.
    pub fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            name: String::new(),
            context_window: None,
            default_max_tokens: None,
            thinking: None,
            default_effort: None,
            sampling: true,
        }
    }

    fn is_for(&self, model: &str) -> bool {
        let snapshot = |rest: &str| {
            let date = rest.strip_prefix('-');
            date.is_some_and(|date| date.len() == 8 && date.bytes().all(|b| b.is_ascii_digit()))
        };
        model.strip_prefix(&self.id).is_some_and(|rest| rest.is_empty() || snapshot(rest))
    }
}

impl Config {
    /// An endpoint whose models are unknown.
    pub fn new(provider: &str, base_url: &str, api_key: KeySource) -> Self {
        Self {
            provider: provider.to_owned(),
            display_name: provider.to_owned(),
            base_url: base_url.to_owned(),
            api_key,
            prompt_caching: true,
            models: Vec::new(),
            context_window: None,
            default_max_tokens: 32_000,
            idle_timeout: DEFAULT_IDLE_TIMEOUT,
            retry_policy: RetryPolicy::default(),
        }
    }

    /// Anthropic: route `anthropic`, the key from `ANTHROPIC_API_KEY`, the base URL from
    /// `ANTHROPIC_BASE_URL` if that is set.
    pub fn anthropic() -> Self {
        let base_url = std::env::var("ANTHROPIC_BASE_URL").ok();
        Self::anthropic_at(base_url.as_deref().map(str::trim).filter(|url| !url.is_empty()))
    }

    pub(super) fn anthropic_at(base_url: Option<&str>) -> Self {
        let url = base_url.unwrap_or("https://api.anthropic.com");
        let mut config = Self::new("anthropic", url, KeySource::Env("ANTHROPIC_API_KEY".into()));
        config.display_name = "Anthropic".to_owned();
        config.models = current_models();
        config
    }

    /// Checks all but the base URL.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let invalid = |reason: &str| {
            let (provider, reason) = (self.provider.clone(), reason.to_owned());
            Err(ConfigError::Invalid { provider, reason })
        };
        if let Err(reason) = check_idle_timeout(self.idle_timeout) {
            return invalid(reason);
        }
        if self.default_max_tokens == 0 {
            return invalid("the default output limit must be positive");
        }
        for (at, model) in self.models.iter().enumerate() {
            if model.id.is_empty() || self.models[..at].iter().any(|other| other.id == model.id) {
                return invalid("model ids must be unique and not empty");
            }
            let efforts = model.thinking.as_ref().map(Thinking::efforts).unwrap_or_default();
            if model.default_effort.as_ref().is_some_and(|effort| !efforts.contains(effort)) {
                return invalid("a default effort must be one that the model takes");
            }
            if let Some(Thinking::Budget(budgets)) = &model.thinking
                && budgets.iter().any(|(_, tokens)| *tokens < BUDGET_MIN)
            {
                return invalid("a thinking budget must be 1024 tokens at least");
            }
        }
        Ok(())
    }

    /// The entry that stands for a model.
    pub(super) fn entry(&self, model: &str) -> Option<&ModelEntry> {
        self.models.iter().find(|entry| entry.is_for(model))
    }

    /// What is known of a model.
    pub(super) fn model(&self, provider: &str, id: &str) -> ModelInfo {
        let entry = self.entry(id);
        let name = entry.map(|entry| entry.name.as_str()).filter(|name| !name.is_empty());
        let limit = entry.and_then(|entry| entry.default_max_tokens);
        let reasoning = entry.and_then(|entry| {
            let efforts = entry.thinking.as_ref()?.efforts();
            Some(Reasoning { efforts, default_effort: entry.default_effort.clone() })
        });
        ModelInfo {
            provider: provider.to_owned(),
            id: id.to_owned(),
            name: name.unwrap_or(id).to_owned(),
            description: None,
            input_modalities: Some(vec!["text".to_owned(), "image".to_owned()]),
            context_window: entry.and_then(|e| e.context_window).or(self.context_window),
            default_max_tokens: Some(limit.unwrap_or(self.default_max_tokens)),
            reasoning,
            system_prompt_update: None,
            tool_update: None,
        }
    }
}

/// The models of the official service as it documents them.
fn current_models() -> Vec<ModelEntry> {
    let strings = |efforts: &[&str]| efforts.iter().map(|e| (*e).to_owned()).collect::<Vec<_>>();
    let adaptive = |id: &str, name: &str, efforts: &[&str], can_be_off, default: &str| ModelEntry {
        name: name.to_owned(),
        context_window: Some(1_000_000),
        default_max_tokens: Some(64_000),
        thinking: Some(Thinking::Adaptive { efforts: strings(efforts), can_be_off, bound: true }),
        default_effort: Some(default.to_owned()),
        sampling: false,
        ..ModelEntry::new(id)
    };
    let all = ["low", "medium", "high", "xhigh", "max"];
    let budget = |effort: &str, tokens| (effort.to_owned(), tokens);
    vec![
        adaptive("claude-fable-5-2", "Claude Fable 5.2", &all, false, "high"),
        adaptive("claude-opus-5-5", "Claude Opus 5.5", &all, false, "medium"),
        adaptive("claude-sonnet-5-5", "Claude Sonnet 5.5", &all, false, "high"),
        adaptive("claude-haiku-5-5", "Claude Haiku 5.5", &all[..3], true, "medium"),
        ModelEntry {
            name: "Claude Haiku 4.5".to_owned(),
            context_window: Some(200_000),
            thinking: Some(Thinking::Budget(vec![
                budget("low", 4096),
                budget("medium", 10_000),
                budget("high", 24_000),
            ])),
            default_effort: Some("off".to_owned()),
            ..ModelEntry::new("claude-haiku-4-5")
        },
    ]
}

#[cfg(test)]
mod scenario {
    use super::*;

    #[test]
    fn models_tell_limits_efforts_and_images_and_others_pass_through() {
        let config = Config::anthropic_at(None);
        config.check().unwrap();
        let opus = config.model("anthropic", "claude-opus-5-5");
        assert_eq!(opus.name, "Claude Opus 5.5");
        assert_eq!((opus.context_window, opus.default_max_tokens), (Some(1_000_000), Some(64_000)));
        let reasoning = opus.reasoning.unwrap();
        assert_eq!(reasoning.efforts, ["low", "medium", "high", "xhigh", "max"]);
        assert_eq!(reasoning.default_effort.as_deref(), Some("medium"));
        assert_eq!(opus.input_modalities.unwrap(), ["text", "image"]);
        let snapshot = config.model("anthropic", "claude-haiku-4-5-20251001");
        assert_eq!(snapshot.name, "Claude Haiku 4.5");
        assert_eq!(snapshot.reasoning.unwrap().efforts, ["off", "low", "medium", "high"]);
        for other in ["claude-haiku-4-5-preview", "claude-haiku-4-50", "mine"] {
            let other = config.model("anthropic", other);
            assert_eq!((other.reasoning, other.default_max_tokens), (None, Some(32_000)));
        }
    }

    #[test]
    fn a_bad_config_is_refused() {
        type Spoil = fn(&mut Config);
        let bad: [Spoil; 6] = [
            |config| config.idle_timeout = Duration::ZERO,
            |config| config.default_max_tokens = 0,
            |config| config.models[0].id.clear(),
            |config| config.models[0].id = config.models[1].id.clone(),
            |config| config.models[0].default_effort = Some("off".into()),
            |config| {
                config.models[0].thinking = Some(Thinking::Budget(vec![("high".into(), 1000)]));
            },
        ];
        for (at, spoil) in bad.iter().enumerate() {
            let mut config = Config::anthropic_at(None);
            spoil(&mut config);
            assert_eq!(config.check().unwrap_err().code(), "INVALID_CONFIG", "{at}");
        }
    }
}
