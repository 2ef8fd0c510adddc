//! How sessions get their titles.

use playhouse_messages::config::Route;
use playhouse_plugin_api::llm::LlmRegistry;
use playhouse_sessions::title::{LlmTitles, TitleMode};
use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, reader::Reader};

/// `[titles]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TitlesEntry {
    /// The route; together with `model`. That of the session's requests if absent.
    provider: Option<Spanned<String>>,
    /// The model under it.
    model: Option<Spanned<String>>,
    /// `first-prompt` asks once, for the first prompt; `all-prompts` for each one, with all of them.
    /// `first-prompt` if absent.
    mode: Option<Spanned<String>>,
}

/// How a model names sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TitlesConfig {
    /// The model; that of the session's requests if absent.
    pub route: Option<Route>,
    /// When it is asked.
    pub mode: TitleMode,
}

impl TitlesConfig {
    /// What asks the model.
    pub(in crate::cli) fn provider(&self, models: LlmRegistry) -> LlmTitles {
        let titles = LlmTitles::new(models).mode(self.mode);
        match &self.route {
            Some(route) => titles.route(route.clone()),
            None => titles,
        }
    }
}

impl Reader<'_> {
    pub(super) fn titles(&self, entry: &TitlesEntry) -> Result<TitlesConfig, ConfigError> {
        let route = self.route(entry.provider.as_ref(), entry.model.as_ref())?;
        let mode = match &entry.mode {
            None => TitleMode::default(),
            Some(mode) => match mode.get_ref().as_str() {
                "first-prompt" => TitleMode::FirstPrompt,
                "all-prompts" => TitleMode::AllPrompts,
                _ => {
                    let problem = "must be `first-prompt` or `all-prompts`";
                    return Err(self.fault(mode, "titles.mode", problem));
                }
            },
        };
        let route = route.map(|(provider, model)| Route { provider, model });
        Ok(TitlesConfig { route, mode })
    }
}
