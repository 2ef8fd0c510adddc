//! What every route over HTTP is configured with: where it is, and whose key it takes.

use std::{sync::Arc, time::Duration};

use playhouse_messages::chunk::Failure;
use reqwest::Url;

use super::Secret;

/// How long a stream may be silent, if the config does not say.
pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Where an API key comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// The endpoint takes none.
    None,
    /// This key.
    Explicit(Secret),
    /// The environment variable of this name.
    Env(String),
}

/// Why a config is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The base URL is unusable.
    #[error("base URL \"{url}\" of provider \"{provider}\" {reason}")]
    BaseUrl {
        /// The route.
        provider: String,
        /// The URL, without what may be secret in it.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Another field is out of range.
    #[error("config of provider \"{provider}\": {reason}")]
    Invalid {
        /// The route.
        provider: String,
        /// What is wrong.
        reason: String,
    },
    /// No HTTP client could be made.
    #[error("no HTTP client for provider \"{provider}\": {reason}")]
    Client {
        /// The route.
        provider: String,
        /// The cause.
        reason: String,
    },
}

impl ConfigError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::BaseUrl { .. } => "INVALID_BASE_URL",
            Self::Invalid { .. } => "INVALID_CONFIG",
            Self::Client { .. } => "HTTP_CLIENT",
        }
    }
}

/// Reads the process's environment. Injected, so that tests need not change it.
pub(crate) type Lookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

pub(crate) fn process_environment() -> Lookup {
    Arc::new(|name| std::env::var(name).ok())
}

impl KeySource {
    /// The key, looked up now.
    pub(crate) fn key(
        &self,
        provider: &str,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Secret>, Failure> {
        let variable = match self {
            Self::None => return Ok(None),
            Self::Explicit(secret) => return Ok(Some(secret.clone())),
            Self::Env(variable) => variable,
        };
        let Some(value) = lookup(variable).filter(|value| !value.is_empty()) else {
            let message = format!(
                "no API key for provider \"{provider}\": set the environment variable {variable}, \
                 or give the key in the provider's config"
            );
            return Err(Failure::new("MISSING_CREDENTIAL", message));
        };
        Secret::new(&value).map(Some).map_err(|error| {
            let message = format!(
                "the environment variable {variable} of provider \"{provider}\" is unusable: \
                 {error}"
            );
            Failure::new(error.code(), message)
        })
    }
}

pub(crate) fn check_idle_timeout(idle: Duration) -> Result<(), &'static str> {
    if idle.is_zero() || idle > Duration::from_millis(i32::MAX as u64) {
        return Err("the idle timeout must be positive and at most 2147483647 ms");
    }
    Ok(())
}

/// Checks a base URL; gives the URL of a path below it. A slash at the base's end does not matter.
pub(crate) fn endpoint(provider: &str, base_url: &str, path: &str) -> Result<Url, ConfigError> {
    let trimmed = base_url.trim_end_matches('/');
    let bad = |reason: String| {
        // Text that is no URL may hold a key just as well, before an `@` or after a `?`.
        let (provider, url) = (provider.to_owned(), masked(trimmed));
        Err(ConfigError::BaseUrl { provider, url, reason })
    };
    let url = match Url::parse(trimmed).and_then(|_| Url::parse(&format!("{trimmed}{path}"))) {
        Ok(url) => url,
        Err(error) => return bad(format!("is not a URL: {error}")),
    };
    if !matches!(url.scheme(), "http" | "https") {
        return bad("must start with http:// or https://".to_owned());
    }
    let secret = !url.username().is_empty() || url.password().is_some();
    if secret || url.query().is_some() || url.fragment().is_some() {
        return bad("must not carry credentials, a query or a fragment".to_owned());
    }
    Ok(url)
}

/// The URL's text without user info and without what follows a `?` or `#`. A password may hold
/// those as well: then nothing of the text is shown.
fn masked(url: &str) -> String {
    let (front, hidden) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    match front.rsplit_once('@') {
        _ if hidden.contains('@') => "…".to_owned(),
        Some((_, back)) => format!("…@{back}"),
        None => front.to_owned(),
    }
}

#[cfg(test)]
mod scenario {
    use super::*;

    #[test]
    fn a_bad_base_url_is_named_without_its_secrets() {
        for url in [
            "",
            "api.example.com",
            "ftp://x",
            "https://",
            "https://u:pw@x/v1",
            "https://x?k=pw",
            "https://u:pw?1@x/v1",
            "https://u:1#pw@x/v1",
            "https://x?k=1@pw",
            "u:pw?1@x",
            "u:pw://@x",
        ] {
            let error = endpoint("p", url, "/chat").unwrap_err();
            assert_eq!(error.code(), "INVALID_BASE_URL", "{url}");
            assert!(!error.to_string().contains("pw"), "{error}");
        }
        let error = endpoint("p", "api.example.com/v1", "/chat").unwrap_err().to_string();
        assert!(error.contains("\"api.example.com/v1\"") && error.contains("\"p\""), "{error}");
    }

    #[test]
    fn a_slash_at_the_end_of_the_base_url_does_not_matter() {
        for url in ["http://h:1/v1", "http://h:1/v1/"] {
            assert_eq!(endpoint("p", url, "/chat").unwrap().as_str(), "http://h:1/v1/chat");
        }
    }

    #[test]
    fn llm_51_a_missing_key_names_the_route_the_variable_and_both_ways_out() {
        let source = KeySource::Env("DEEPSEEK_API_KEY".into());
        for value in [None, Some(String::new())] {
            let failure = source.key("deepseek", |_| value.clone()).unwrap_err();
            assert_eq!(failure.code, "MISSING_CREDENTIAL");
            for part in ["\"deepseek\"", "DEEPSEEK_API_KEY", "environment variable", "config"] {
                assert!(failure.message.contains(part), "{failure}");
            }
        }
        let failure = source.key("deepseek", |_| Some("sk-1\nsk-2".into())).unwrap_err();
        assert_eq!(failure.code, "INVALID_CREDENTIAL");
        assert!(!failure.message.contains("sk-"), "{failure}");
        let key = source.key("deepseek", |_| Some(" k ".into()));
        assert_eq!(key.unwrap(), Some(Secret::new("k").unwrap()));
    }
}
