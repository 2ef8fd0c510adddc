//! The model routes of the command: the built-in ones and those of the config.

use std::{collections::BTreeMap, ffi::OsString, fs, net::IpAddr, sync::Arc};

use playhouse_messages::{chunk::Failure, retry::RetryPolicy};
use playhouse_models::{
    anthropic::{self, Anthropic},
    openai_compatible::{self, KeySource, OpenAiCompatible, Secret},
    replay::{Recording, ReplayAdapter},
    scripted::{Script, ScriptedAdapter},
};
use playhouse_plugin_api::{llm::LlmAdapter, world::World};

use super::{
    config::{Config, Place, ProviderKind},
    exit::CliError,
};

/// The provider and model that are used unless another is asked for: no network, no key.
pub const DEFAULT_MODEL: (&str, &str) = ("scripted", "team");

/// Adapters by the name of their route.
pub type Adapters = Vec<(String, Arc<dyn LlmAdapter>)>;

/// The routes, by name.
#[derive(Debug, Clone)]
pub struct Providers(BTreeMap<String, Provider>);

#[derive(Debug, Clone)]
struct Provider {
    kind: ProviderKind,
    base_url: Option<String>,
    api_key_env: Option<String>,
    input_modalities: Option<Vec<String>>,
    script: Option<std::path::PathBuf>,
    retry: Option<RetryPolicy>,
    place: Option<Place>,
}

impl Provider {
    fn built_in(kind: ProviderKind) -> Self {
        Self {
            kind,
            base_url: None,
            api_key_env: None,
            input_modalities: None,
            script: None,
            retry: None,
            place: None,
        }
    }

    fn variable(&self) -> &str {
        self.api_key_env.as_deref().unwrap_or(match self.kind {
            ProviderKind::Deepseek => "DEEPSEEK_API_KEY",
            ProviderKind::Anthropic => "ANTHROPIC_API_KEY",
            _ => "OPENAI_API_KEY",
        })
    }

    fn url(&self) -> String {
        let set = |variable: &str| std::env::var(variable).ok().filter(|url| !url.is_empty());
        self.base_url
            .clone()
            .or_else(|| set("OPENAI_BASE_URL"))
            .unwrap_or_else(|| "https://api.openai.com/v1".to_owned())
    }

    fn scripted(&self) -> Result<ScriptedAdapter, CliError> {
        let mut adapter = ScriptedAdapter::new(self.script()?);
        if let Some(policy) = &self.retry {
            adapter = adapter.with_retry_policy(policy.clone());
        }
        if let Some(modalities) = &self.input_modalities {
            adapter = adapter.with_modalities(modalities.iter().map(String::as_str));
        }
        Ok(adapter)
    }

    /// What the config says of a route of chat completions, whatever its dialect.
    fn completions(&self, mut route: openai_compatible::Config) -> openai_compatible::Config {
        if let Some(policy) = &self.retry {
            route.retry_policy.clone_from(policy);
        }
        if self.input_modalities.is_some() {
            route.input_modalities.clone_from(&self.input_modalities);
        }
        route
    }

    fn anthropic(&self, name: &str) -> anthropic::Config {
        let mut route = anthropic::Config::anthropic();
        route.provider = name.to_owned();
        if let Some(url) = &self.base_url {
            route.base_url.clone_from(url);
        }
        if let Some(policy) = &self.retry {
            route.retry_policy.clone_from(policy);
        }
        route
    }

    /// Whether a call can be made without a key: on this machine, on a wire that others speak too.
    fn works_without_key(&self) -> bool {
        match self.kind {
            ProviderKind::Scripted | ProviderKind::Replay => true,
            ProviderKind::OpenaiCompatible => is_loopback(&self.url()),
            ProviderKind::Anthropic => is_loopback(&self.anthropic("").base_url),
            ProviderKind::Deepseek => false,
        }
    }

    /// What stands where the key is looked for; blank counts as nothing.
    fn key(&self) -> Option<OsString> {
        std::env::var_os(self.variable())
            .filter(|key| key.to_str().is_none_or(|key| !key.trim().is_empty()))
    }

    /// Where the adapter looks for the key, at every call.
    fn key_source(&self) -> KeySource {
        if self.works_without_key() && self.key().is_none() {
            return KeySource::None;
        }
        KeySource::Env(self.variable().to_owned())
    }

    fn adapter(&self, name: &str) -> Result<Arc<dyn LlmAdapter>, CliError> {
        let adapter: Result<Arc<dyn LlmAdapter>, _> = match self.kind {
            ProviderKind::Scripted => return Ok(Arc::new(self.scripted()?)),
            ProviderKind::Replay => return Ok(Arc::new(ReplayAdapter::new(self.recordings()?))),
            ProviderKind::OpenaiCompatible => {
                let route = openai_compatible::Config::new(name, &self.url(), self.key_source());
                OpenAiCompatible::new(self.completions(route)).map(|adapter| Arc::new(adapter) as _)
            }
            ProviderKind::Deepseek => {
                let mut route = openai_compatible::Config::deepseek();
                route.provider = name.to_owned();
                route.api_key = self.key_source();
                if let Some(url) = &self.base_url {
                    route.base_url.clone_from(url);
                }
                OpenAiCompatible::new(self.completions(route)).map(|adapter| Arc::new(adapter) as _)
            }
            ProviderKind::Anthropic => {
                let mut route = self.anthropic(name);
                route.api_key = self.key_source();
                Anthropic::new(route).map(|adapter| Arc::new(adapter) as _)
            }
        };
        adapter.map_err(|error| match &self.place {
            Some(place) => place.fault(error.to_string()).into(),
            None => error.into(),
        })
    }

    fn script(&self) -> Result<Script, CliError> {
        match &self.script {
            None => Ok(Script::team()),
            Some(path) => read_script(path),
        }
    }

    /// A session's log, or all that a run printed.
    fn recordings(&self) -> Result<Vec<Recording>, CliError> {
        let Some(path) = &self.script else { return Ok(Vec::new()) };
        let (file, text) = read_text(path)?;
        let recordings = if text.starts_with(r#"{"kind":"#) {
            Recording::all_from_run(&text)
        } else {
            Recording::from_jsonl(&text).map(|recording| vec![recording])
        };
        recordings.map_err(|cause| CliError::Recording { file, cause })
    }
}

/// A script's file and text.
fn read_text(path: &std::path::Path) -> Result<(String, String), CliError> {
    let file = path.display().to_string();
    match fs::read_to_string(path) {
        Ok(text) => Ok((file, text)),
        Err(cause) => {
            Err(CliError::Usage(format!("script {file}: {cause}; name an existing file")))
        }
    }
}

/// Reads a script from a file.
pub(super) fn read_script(path: &std::path::Path) -> Result<Script, CliError> {
    let (file, text) = read_text(path)?;
    Script::from_toml(&text).map_err(|cause| CliError::Script { file, cause })
}

impl Providers {
    /// The built-in routes, and those of the config in their place or beside them.
    pub fn new(config: &Config) -> Self {
        let mut providers = BTreeMap::from([
            ("scripted".to_owned(), Provider::built_in(ProviderKind::Scripted)),
            ("openai_compatible".to_owned(), Provider::built_in(ProviderKind::OpenaiCompatible)),
            ("deepseek".to_owned(), Provider::built_in(ProviderKind::Deepseek)),
            ("anthropic".to_owned(), Provider::built_in(ProviderKind::Anthropic)),
        ]);
        for (name, provider) in &config.providers {
            let provider = Provider {
                kind: provider.kind,
                base_url: provider.base_url.clone(),
                api_key_env: provider.api_key_env.clone(),
                input_modalities: provider.input_modalities.clone(),
                script: provider.script.clone(),
                retry: provider.retry.clone(),
                place: Some(provider.place.clone()),
            };
            providers.insert(name.clone(), provider);
        }
        Self(providers)
    }

    fn get(&self, name: &str) -> Result<&Provider, CliError> {
        self.0.get(name).ok_or_else(|| CliError::UnknownProvider {
            name: name.to_owned(),
            known: self.0.keys().cloned().collect::<Vec<_>>().join(", "),
        })
    }

    /// Moves a provider to another base URL.
    ///
    /// # Errors
    ///
    /// For an unknown provider, and for one that has no URL.
    pub fn set_base_url(&mut self, name: &str, url: &str) -> Result<(), CliError> {
        if self.get(name)?.kind.is_played() {
            let text = format!(
                "provider \"{name}\" plays a script and has no base URL; choose another with \
                 --model, such as openai_compatible/any"
            );
            return Err(CliError::Usage(text));
        }
        if let Some(provider) = self.0.get_mut(name) {
            provider.base_url = Some(url.to_owned());
            // A fault of this URL is not one of the config.
            provider.place = None;
        }
        Ok(())
    }

    /// Checks that calls of this route can be made.
    ///
    /// # Errors
    ///
    /// For an unknown provider, a bad base URL or script, and a missing key.
    pub fn check(&self, name: &str) -> Result<(), CliError> {
        let provider = self.get(name)?;
        // A bad URL is the nearer cause: a key would not help.
        provider.adapter(name)?;
        let unusable = match provider.key() {
            _ if provider.kind.is_played() => return Ok(()),
            Some(key) => match key.to_str().map(Secret::new) {
                Some(Ok(_)) => return Ok(()),
                Some(Err(fault)) => fault.to_string(),
                None => "the API key is not UTF-8".to_owned(),
            },
            None if provider.works_without_key() => return Ok(()),
            None => {
                let variable = provider.variable().to_owned();
                return Err(CliError::MissingKey { provider: name.to_owned(), variable });
            }
        };
        let variable = provider.variable().to_owned();
        Err(CliError::UnusableKey { provider: name.to_owned(), variable, cause: unusable })
    }

    /// Makes the adapters, before anything is opened.
    ///
    /// # Errors
    ///
    /// For a bad base URL and an unreadable script.
    pub fn adapters(&self) -> Result<Adapters, CliError> {
        let adapter = |(name, provider): (&String, &Provider)| {
            provider.adapter(name).map(|adapter| (name.clone(), adapter))
        };
        self.0.iter().map(adapter).collect()
    }
}

/// Registers adapters with a world.
///
/// # Errors
///
/// If a route's name is taken.
pub(super) fn register(world: &World, adapters: Adapters) -> Result<(), CliError> {
    for (name, adapter) in adapters {
        let registered = world.models.register([name], adapter);
        // The routes live as long as the world.
        drop(registered.map_err(|fault| Failure::new(fault.code(), fault.to_string()))?);
    }
    Ok(())
}

/// Whether a URL's host is this machine. The adapter refuses URLs with user info, so that nothing
/// can hide the host behind an `@`.
fn is_loopback(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hosts_of_this_machine_need_no_key() {
        for url in
            ["http://127.0.0.1:1/v1", "http://localhost", "http://[::1]:9/", "http://127.9.9.9"]
        {
            assert!(is_loopback(url), "{url}");
        }
        for url in ["https://api.openai.com/v1", "http://127.0.0.1@evil.example", "localhost", ""] {
            assert!(!is_loopback(url), "{url}");
        }
    }

    #[test]
    fn an_unknown_provider_is_told_with_those_that_there_are() {
        let error = Providers::new(&Config::default()).check("nobody").unwrap_err();
        assert_eq!(error.code(), "UNKNOWN_PROVIDER");
        assert!(
            error.line().contains("anthropic, deepseek, openai_compatible, scripted"),
            "{error}"
        );
    }
}
