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
    llm::{EncodeInput, Frame, FrameInput, LlmAdapter, LlmRequest, ModelInfo, RetryPolicy},
};
use reqwest::header::{HeaderMap, HeaderValue};

use super::{Config, ConfigError, decode::Decoder, encode, frame};
use crate::http::{Connection, Exchange, Lookup, flatten, process_environment};

/// The version of the wire.
const VERSION: &str = "2023-06-01";

/// The beta that lets a request say what becomes of thinking whose context has changed.
const THINKING_BINDING: &str = "thinking-binding-controls-2026-08-01";

/// A provider that speaks the Messages API. Clones share connections and configuration.
#[derive(Clone)]
pub struct Anthropic {
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
            "/v1/messages",
            config.idle_timeout,
        )?);
        Ok(Self { config, connection, environment })
    }

    fn headers(&self, exchange: &Exchange, model: &str) -> Result<HeaderMap, Failure> {
        let mut headers = HeaderMap::new();
        headers.insert("anthropic-version", HeaderValue::from_static(VERSION));
        if let Some(key) = exchange.key_header(str::to_owned)? {
            headers.insert("x-api-key", key);
        }
        if frame::binds(self.config.entry(model)) {
            headers.insert("anthropic-beta", HeaderValue::from_static(THINKING_BINDING));
        }
        Ok(headers)
    }
}

impl Anthropic {
    /// An adapter for this provider. The key is looked up at every call, not here.
    ///
    /// # Errors
    ///
    /// `INVALID_BASE_URL` or `INVALID_CONFIG`, naming what is wrong.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        let shared = Shared::new(config, process_environment())?;
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
    /// As [`Anthropic::new`], and `INVALID_CONFIG` for another provider. The configuration then stays
    /// as it was, as a whole.
    pub fn reconfigure(&self, config: Config) -> Result<(), ConfigError> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.config.provider != config.provider {
            let reason = "the provider cannot change; make another adapter".to_owned();
            return Err(ConfigError::Invalid { provider: config.provider, reason });
        }
        *current = Arc::new(Shared::new(config, current.environment.clone())?);
        Ok(())
    }

    fn shared(&self) -> Arc<Shared> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Anthropic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Anthropic").field("config", &self.config()).finish_non_exhaustive()
    }
}

impl LlmAdapter for Anthropic {
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
        encode::message(input.message, input.images)
    }

    fn frame(&self, request: &FrameInput<'_>) -> Result<Frame, Failure> {
        frame::frame(&self.shared().config, request)
    }

    fn stream(&self, request: LlmRequest) -> BoxStream<'static, Result<StreamChunk, Failure>> {
        let shared = self.shared();
        flatten::<Decoder>(async move {
            let key = shared.config.api_key.key(&shared.config.provider, &*shared.environment)?;
            let (connection, cancel) = (shared.connection.clone(), request.cancel.clone());
            let exchange = Exchange { connection, cancel, key };
            let headers = shared.headers(&exchange, &request.config.model)?;
            exchange.send(headers, request.body.to_bytes()).await
        })
    }
}
