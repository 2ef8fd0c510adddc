//! The adapter: one request a call, its answer translated as it arrives.

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture, stream::BoxStream};
use playhouse_messages::{
    chunk::{Failure, StreamChunk},
    config::Route,
};
use playhouse_plugin_api::{
    cancel::CancelToken,
    llm::{
        EncodeInput, Frame, FrameInput, LlmAdapter, LlmRequest, ModelInfo, Purpose,
        ResultImagesInput, RetryPolicy,
    },
};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};

use super::{Config, ConfigError, decode::Decoder, encode};
use crate::http::{Connection, Exchange, Lookup, flatten, process_environment};

/// A chat completions provider. Clones share connections and configuration.
#[derive(Clone)]
pub struct OpenAiCompatible {
    current: Arc<RwLock<Arc<Shared>>>,
}

/// One configuration. A call uses the same one from beginning to end.
struct Shared {
    config: Config,
    connection: Arc<Connection>,
    environment: Lookup,
}

impl Shared {
    fn new(config: Config, environment: Lookup) -> Result<Self, ConfigError> {
        config.check()?;
        let connection = Arc::new(Connection::new(
            &config.provider,
            &config.display_name,
            &config.base_url,
            "/chat/completions",
            config.idle_timeout,
        )?);
        Ok(Self { config, connection, environment })
    }

    fn headers(&self, exchange: &Exchange, request: &LlmRequest) -> Result<HeaderMap, Failure> {
        let mut headers = HeaderMap::new();
        if let Some(key) = exchange.key_header(|key| format!("Bearer {key}"))? {
            headers.insert(AUTHORIZATION, key);
        }
        if self.config.dialect.attribution {
            let session = request.session_id.as_ref().map(|id| HeaderValue::try_from(id.as_str()));
            if let Some(Ok(session)) = session {
                headers.insert("x-playhouse-session-id", session);
            }
            if request.purpose == Some(Purpose::Compaction) {
                headers.insert("x-playhouse-compact", HeaderValue::from_static("1"));
            }
        }
        Ok(headers)
    }
}

impl OpenAiCompatible {
    /// An adapter for this provider. The key is looked up at every call, not here.
    ///
    /// # Errors
    ///
    /// `INVALID_BASE_URL` or `INVALID_CONFIG`, naming what is wrong.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Self::with_environment(config, process_environment())
    }

    pub(crate) fn with_environment(
        config: Config,
        environment: Lookup,
    ) -> Result<Self, ConfigError> {
        let shared = Shared::new(config, environment)?;
        Ok(Self { current: Arc::new(RwLock::new(Arc::new(shared))) })
    }

    /// The configuration.
    pub fn config(&self) -> Config {
        self.shared().config.clone()
    }

    /// Takes up another configuration from the next call on; calls under way keep theirs. A changed
    /// retry policy counts once the registration's routes are replaced, by themselves say.
    ///
    /// # Errors
    ///
    /// As [`OpenAiCompatible::new`], and `INVALID_CONFIG` for another provider or dialect: encodings
    /// that are kept would be wrong. The configuration then stays as it was, as a whole.
    pub fn reconfigure(&self, config: Config) -> Result<(), ConfigError> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let same =
            current.config.provider == config.provider && current.config.dialect == config.dialect;
        if !same {
            let reason = "provider and dialect cannot change; make another adapter".to_owned();
            return Err(ConfigError::Invalid { provider: config.provider, reason });
        }
        *current = Arc::new(Shared::new(config, current.environment.clone())?);
        Ok(())
    }

    fn shared(&self) -> Arc<Shared> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for OpenAiCompatible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAiCompatible").field("config", &self.config()).finish_non_exhaustive()
    }
}

impl LlmAdapter for OpenAiCompatible {
    fn display_name(&self, _provider: &str) -> String {
        self.shared().config.display_name.clone()
    }

    fn retry_policy(&self, _provider: &str) -> Option<RetryPolicy> {
        Some(self.shared().config.retry_policy.clone())
    }

    fn models<'a>(
        &'a self,
        provider: &'a str,
        _cancel: &'a CancelToken,
    ) -> BoxFuture<'a, Result<Vec<ModelInfo>, Failure>> {
        let config = &self.shared().config;
        let models = config.models.iter().map(|entry| config.model(provider, &entry.id)).collect();
        async { Ok(models) }.boxed()
    }

    fn resolve<'a>(
        &'a self,
        route: &'a Route,
        _cancel: &'a CancelToken,
    ) -> BoxFuture<'a, Result<ModelInfo, Failure>> {
        let model = self.shared().config.model(&route.provider, &route.model);
        async { Ok(model) }.boxed()
    }

    fn encode(&self, input: &EncodeInput<'_>) -> Result<Bytes, Failure> {
        encode::message(&self.shared().config.dialect, input.message, input.images)
    }

    fn encode_result_images(&self, input: &ResultImagesInput<'_>) -> Result<Bytes, Failure> {
        encode::result_images(input.results, input.images)
    }

    fn frame(&self, request: &FrameInput<'_>) -> Result<Frame, Failure> {
        let shared = self.shared();
        shared.config.check_images(request)?;
        encode::frame(&shared.config.dialect, request)
    }

    fn stream(&self, request: LlmRequest) -> BoxStream<'static, Result<StreamChunk, Failure>> {
        let shared = self.shared();
        flatten::<Decoder>(async move {
            let key = shared.config.api_key.key(&shared.config.provider, &*shared.environment)?;
            let (connection, cancel) = (shared.connection.clone(), request.cancel.clone());
            let exchange = Exchange { connection, cancel, key };
            let headers = shared.headers(&exchange, &request)?;
            exchange.send(headers, request.body.to_bytes()).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{KeySource, Secret};

    #[test]
    fn the_adapter_shows_no_key() {
        let mut config = Config::deepseek_at(None);
        config.api_key = KeySource::Explicit(Secret::new("sk-secret").unwrap());
        let adapter = OpenAiCompatible::new(config).unwrap();
        let shown = format!("{adapter:?}");
        assert!(shown.contains("deepseek") && !shown.contains("sk-"), "{shown}");
    }
}
