//! The model that the environment has a key for, or else a script.

use std::{fmt, sync::Arc};

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{llm::LlmAdapter, options::AgentOptions, world::World};

use crate::{
    anthropic::{self, Anthropic},
    http::ConfigError,
    openai_compatible::{self, OpenAiCompatible},
    scripted::{Script, ScriptedAdapter},
};

/// Whose keys are looked for, in this order: the variable, the route and the model.
const KEYS: [(&str, &str, &str); 2] = [
    ("DEEPSEEK_API_KEY", "deepseek", "deepseek-v4-flash"),
    ("ANTHROPIC_API_KEY", "anthropic", "claude-opus-5-5"),
];

/// A model and the route to it, for programs that should run for real where there is a key, and
/// offline where there is none: examples, demos, a first try.
///
/// ```
/// use playhouse_models::{EnvModel, scripted::{Reply, Script}};
/// use playhouse_plugin_api::{options::AgentOptions, world::World};
///
/// /// Options for agents of a model that says hello, or of a real one.
/// fn options(world: &World) -> Result<AgentOptions, Box<dyn std::error::Error>> {
///     let model = EnvModel::or_script(Script::new().reply(Reply::text("Hello.")))?;
///     Ok(model.register(world)?)
/// }
/// # let _ = options;
/// ```
#[derive(Clone)]
pub struct EnvModel {
    provider: &'static str,
    model: &'static str,
    adapter: Arc<dyn LlmAdapter>,
}

impl EnvModel {
    /// DeepSeek if `DEEPSEEK_API_KEY` is set and not blank, else Anthropic if `ANTHROPIC_API_KEY` is,
    /// else this script. The key itself is looked up at every call, and kept nowhere.
    ///
    /// # Errors
    ///
    /// `INVALID_BASE_URL`, if the provider's variable for that (`DEEPSEEK_BASE_URL`,
    /// `ANTHROPIC_BASE_URL`) holds none.
    pub fn or_script(script: Script) -> Result<Self, ConfigError> {
        let is_set = |key: &str| std::env::var(key).is_ok_and(|value| !value.trim().is_empty());
        let (provider, model) = choose(is_set).unwrap_or(("scripted", "any"));
        let adapter: Arc<dyn LlmAdapter> = match provider {
            "deepseek" => Arc::new(OpenAiCompatible::new(openai_compatible::Config::deepseek())?),
            "anthropic" => Arc::new(Anthropic::new(anthropic::Config::anthropic())?),
            _ => Arc::new(ScriptedAdapter::new(script)),
        };
        Ok(Self { provider, model, adapter })
    }

    /// Registers its route, and gives options for agents that use it.
    ///
    /// # Errors
    ///
    /// `DUPLICATE_ADAPTER` if the route is taken.
    pub fn register(&self, world: &World) -> Result<AgentOptions, Failure> {
        world.models.register([self.provider], self.adapter.clone())?;
        Ok(AgentOptions::new().model(self.provider, self.model))
    }

    /// Whether the script plays it, so that the answers are known.
    pub fn is_scripted(&self) -> bool {
        self.provider == "scripted"
    }
}

impl fmt::Debug for EnvModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EnvModel({}/{})", self.provider, self.model)
    }
}

/// The first route that there is a key for.
fn choose(is_set: impl Fn(&str) -> bool) -> Option<(&'static str, &'static str)> {
    let found = KEYS.into_iter().find(|(key, ..)| is_set(key));
    found.map(|(_, provider, model)| (provider, model))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_that_is_set_names_the_route() {
        let deepseek = Some(("deepseek", "deepseek-v4-flash"));
        let anthropic = Some(("anthropic", "claude-opus-5-5"));
        assert_eq!(choose(|_| false), None);
        assert_eq!(choose(|key| key == "ANTHROPIC_API_KEY"), anthropic);
        assert_eq!(choose(|_| true), deepseek);
    }

    #[test]
    fn what_is_chosen_is_known_to_its_adapter() {
        let known = |provider: &str, model: &str| match provider {
            "deepseek" => {
                openai_compatible::Config::deepseek().models.iter().any(|entry| entry.id == model)
            }
            "anthropic" => {
                anthropic::Config::anthropic().models.iter().any(|entry| entry.id == model)
            }
            _ => false,
        };
        for (_, provider, model) in KEYS {
            assert!(known(provider, model), "{provider}/{model}");
        }
    }
}
