//! What an OpenAI-compatible route needs to know.

use std::time::Duration;

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::llm::{FrameInput, ModelInfo, Reasoning, RetryPolicy};

use crate::http::{ConfigError, DEFAULT_IDLE_TIMEOUT, KeySource, check_idle_timeout};

/// One provider that speaks chat completions.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The route that error messages name.
    pub provider: String,
    /// For people, and for error messages.
    pub display_name: String,
    /// Where `/chat/completions` is found below; `http` or `https`. A slash at the end is dropped.
    pub base_url: String,
    /// Where the key comes from, at every call anew.
    pub api_key: KeySource,
    /// How the provider differs from others.
    pub dialect: Dialect,
    /// The models that are known; any other is passed through.
    pub models: Vec<ModelEntry>,
    /// What models take that do not say, `text` and `image`. `None` if that is not known: images are
    /// then refused before anything is sent. A text-only model gets words in place of images.
    pub input_modalities: Option<Vec<String>>,
    /// For models that do not say.
    pub context_window: Option<u64>,
    /// Filled in when a call names no limit.
    pub default_max_tokens: Option<u64>,
    /// The efforts of models that do not say.
    pub reasoning: Option<Reasoning>,
    /// How long the provider may be silent while the adapter waits.
    pub idle_timeout: Duration,
    /// How failed calls may be retried.
    pub retry_policy: RetryPolicy,
}

/// How a provider differs from others.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dialect {
    /// Efforts are DeepSeek's: `off`, `low`, `high`, `max`, and a `thinking` switch beside them.
    pub deepseek_thinking: bool,
    /// The deployment's own thinking switch, for DeepSeek.
    pub thinking: Option<Thinking>,
    /// Earlier reasoning is sent back as `reasoning_content`.
    pub replay_reasoning: bool,
    /// The output limit is called `max_completion_tokens`.
    pub max_completion_tokens: bool,
    /// Session id and purpose are told in `x-playhouse-*` headers.
    pub attribution: bool,
}

/// DeepSeek's thinking switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// On.
    Enabled,
    /// Off.
    Disabled,
}

/// A known model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelEntry {
    /// Its id on the wire.
    pub id: String,
    /// For people; the id if empty.
    pub name: String,
    /// What it takes, if that differs from the route's.
    pub input_modalities: Option<Vec<String>>,
    /// The context window, if it differs from the route's.
    pub context_window: Option<u64>,
    /// The default output limit, if it differs from the route's.
    pub default_max_tokens: Option<u64>,
    /// The efforts, if they differ from the route's.
    pub reasoning: Option<Reasoning>,
}

impl Config {
    /// An endpoint of the plain dialect.
    pub fn new(provider: &str, base_url: &str, api_key: KeySource) -> Self {
        Self {
            provider: provider.to_owned(),
            display_name: provider.to_owned(),
            base_url: base_url.to_owned(),
            api_key,
            dialect: Dialect {
                deepseek_thinking: false,
                thinking: None,
                replay_reasoning: false,
                max_completion_tokens: false,
                attribution: false,
            },
            models: Vec::new(),
            input_modalities: None,
            context_window: None,
            default_max_tokens: None,
            reasoning: None,
            idle_timeout: DEFAULT_IDLE_TIMEOUT,
            retry_policy: RetryPolicy::default(),
        }
    }

    /// DeepSeek: route `deepseek`, the key from `DEEPSEEK_API_KEY`, the base URL from
    /// `DEEPSEEK_BASE_URL` if that is set.
    pub fn deepseek() -> Self {
        let base_url = std::env::var("DEEPSEEK_BASE_URL").ok();
        Self::deepseek_at(base_url.as_deref().map(str::trim).filter(|url| !url.is_empty()))
    }

    pub(super) fn deepseek_at(base_url: Option<&str>) -> Self {
        let url = base_url.unwrap_or("https://api.deepseek.com");
        let model = |id: &str, name: &str| ModelEntry {
            id: id.to_owned(),
            name: name.to_owned(),
            ..ModelEntry::default()
        };
        let mut config = Self::new("deepseek", url, KeySource::Env("DEEPSEEK_API_KEY".into()));
        config.display_name = "DeepSeek".to_owned();
        config.dialect.deepseek_thinking = true;
        config.dialect.replay_reasoning = true;
        config.dialect.attribution = true;
        config.models = vec![
            model("deepseek-v4-flash", "DeepSeek V4 Flash"),
            model("deepseek-v4-pro", "DeepSeek V4 Pro"),
            ModelEntry {
                input_modalities: modalities(&["text", "image"]),
                ..model("deepseek-v4-flash-vision-exp", "DeepSeek V4 Flash Vision")
            },
        ];
        config.input_modalities = modalities(&["text"]);
        config.context_window = Some(1_000_000);
        config.default_max_tokens = Some(256_000);
        config.reasoning = Some(Reasoning {
            efforts: ["off", "low", "high", "max"].map(str::to_owned).to_vec(),
            default_effort: Some("high".to_owned()),
        });
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
        let unnamed = |(at, model): (usize, &ModelEntry)| {
            model.id.is_empty() || self.models[..at].iter().any(|earlier| earlier.id == model.id)
        };
        if self.models.iter().enumerate().any(unnamed) {
            return invalid("model ids must be unique and not empty");
        }
        let disabled = self.dialect.thinking == Some(Thinking::Disabled);
        let thinks = |reasoning: &Option<Reasoning>| {
            let default = reasoning.as_ref().and_then(|r| r.default_effort.as_deref());
            default.is_some_and(|effort| effort != "off")
        };
        let entries = self.models.iter().map(|model| &model.reasoning);
        if disabled && entries.chain([&self.reasoning]).any(thinks) {
            return invalid("thinking is disabled, but a default effort enables it");
        }
        Ok(())
    }

    fn modalities<'a>(&'a self, entry: Option<&'a ModelEntry>) -> Option<&'a Vec<String>> {
        entry.and_then(|e| e.input_modalities.as_ref()).or(self.input_modalities.as_ref())
    }

    /// Refuses images for a model that is not known to take them. A text-only one never sees any.
    pub(super) fn check_images(&self, request: &FrameInput<'_>) -> Result<(), Failure> {
        let mut blocks = request.messages.iter().flat_map(|message| &message.content);
        let id = &request.config.model;
        let modalities = self.modalities(self.models.iter().find(|entry| entry.id == *id));
        let takes = modalities.is_some_and(|them| them.iter().any(|it| it == "image"));
        if takes || !blocks.any(|block| block.shown_image().is_some()) {
            return Ok(());
        }
        let text = format!(
            "provider \"{}\" does not say that model \"{id}\" takes images; set `input_modalities` in \
             its config to [\"text\", \"image\"], or to [\"text\"] to leave images out",
            self.provider
        );
        Err(Failure::new("UNSUPPORTED_CONTENT", text))
    }

    /// What is known of a model.
    pub(super) fn model(&self, provider: &str, id: &str) -> ModelInfo {
        let entry = self.models.iter().find(|entry| entry.id == id);
        let name = entry.map(|entry| entry.name.as_str()).filter(|name| !name.is_empty());
        let mut reasoning =
            entry.and_then(|entry| entry.reasoning.clone()).or_else(|| self.reasoning.clone());
        if self.dialect.thinking == Some(Thinking::Disabled) && reasoning.is_some() {
            let off = "off".to_owned();
            reasoning = Some(Reasoning { efforts: vec![off.clone()], default_effort: Some(off) });
        }
        ModelInfo {
            provider: provider.to_owned(),
            id: id.to_owned(),
            name: name.unwrap_or(id).to_owned(),
            description: None,
            input_modalities: self.modalities(entry).cloned(),
            context_window: entry.and_then(|e| e.context_window).or(self.context_window),
            default_max_tokens: entry
                .and_then(|e| e.default_max_tokens)
                .or(self.default_max_tokens),
            reasoning,
            system_prompt_update: None,
            tool_update: None,
        }
    }
}

fn modalities(them: &[&str]) -> Option<Vec<String>> {
    Some(them.iter().map(|&modality| modality.to_owned()).collect())
}

#[cfg(test)]
mod scenario {
    use super::*;

    #[test]
    fn llm_42_a_deployment_without_thinking_offers_only_off() {
        let mut config = Config::deepseek_at(None);
        config.dialect.thinking = Some(Thinking::Disabled);
        assert_eq!(config.check().unwrap_err().code(), "INVALID_CONFIG");
        let efforts = config.model("deepseek", "m").reasoning.unwrap().efforts;
        assert_eq!(efforts, ["off"]);
        config.reasoning.as_mut().unwrap().default_effort = None;
        config.check().unwrap();
    }
}
