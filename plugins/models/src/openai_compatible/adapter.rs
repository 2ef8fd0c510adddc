//! The adapter: one request a call, its answer translated as it arrives.

use std::{
    error::Error,
    fmt,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture, stream::BoxStream};
use playhouse_messages::{
    chunk::{Failure, FinishReason, StreamChunk},
    config::Route,
};
use playhouse_plugin_api::{
    cancel::CancelToken,
    llm::{
        EncodeInput, Frame, FrameInput, LlmAdapter, LlmRequest, ModelInfo, Purpose,
        ResultImagesInput, RetryPolicy,
    },
};
use reqwest::{
    Client, Response, Url,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER},
};

use super::{Config, ConfigError, Secret, config::Lookup, decode::Decoder, encode, errors};

/// How every request names its sender.
const USER_AGENT: &str = concat!("playhouse/", env!("CARGO_PKG_VERSION"));

/// What of an error's body is read.
const ERROR_BODY_MAX: usize = 64 * 1024;

/// A chat completions provider. Clones share connections and configuration.
#[derive(Clone)]
pub struct OpenAiCompatible {
    current: Arc<RwLock<Arc<Shared>>>,
}

/// One configuration. A call uses the same one from beginning to end.
struct Shared {
    config: Config,
    endpoint: Url,
    client: Client,
    environment: Lookup,
}

impl Shared {
    fn new(config: Config, environment: Lookup) -> Result<Self, ConfigError> {
        let endpoint = config.endpoint()?;
        // A redirected request would carry the conversation to a place that nobody configured.
        let mut client =
            Client::builder().user_agent(USER_AGENT).redirect(reqwest::redirect::Policy::none());
        if endpoint.host_str().is_some_and(is_loopback) {
            client = client.no_proxy();
        }
        let client = client.build().map_err(|error| ConfigError::Client {
            provider: config.provider.clone(),
            reason: causes(&error),
        })?;
        Ok(Self { config, endpoint, client, environment })
    }
}

/// A proxy could not reach this host, or would reach another.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

impl OpenAiCompatible {
    /// An adapter for this provider. The key is looked up at every call, not here.
    ///
    /// # Errors
    ///
    /// `INVALID_BASE_URL` or `INVALID_CONFIG`, naming what is wrong.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Self::with_environment(config, Arc::new(|name| std::env::var(name).ok()))
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
        let answer = async move {
            let key = shared.config.key(&*shared.environment)?;
            let wait = Wait { shared, cancel: request.cancel.clone(), key };
            wait.send(request).await
        };
        futures::stream::once(answer)
            .map_ok(|answer| {
                futures::stream::try_unfold(answer, |mut answer| async move {
                    Ok(answer.next().await?.map(|chunk| (chunk, answer)))
                })
            })
            .try_flatten()
            .boxed()
    }
}

/// What every wait for the provider is subject to.
struct Wait {
    shared: Arc<Shared>,
    cancel: CancelToken,
    key: Option<Secret>,
}

impl Wait {
    /// Waits for the provider, no longer than the idle timeout, and until the caller gives up.
    ///
    /// The timer starts here and so runs only while somebody waits: a slow consumer never trips it.
    /// What arrived goes before a timer that ran out while the task was not scheduled, and the timer
    /// before a caller who gave up after it.
    async fn within<T>(&self, future: impl Future<Output = T>) -> Result<T, Failure> {
        if self.cancel.is_cancelled() {
            return Err(self.aborted());
        }
        let idle = self.shared.config.idle_timeout;
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = tokio::time::sleep(idle) => Err(self.timed_out(idle)),
            () = self.cancel.cancelled() => Err(self.aborted()),
        }
    }

    async fn send(self, request: LlmRequest) -> Result<Answer, Failure> {
        let request = self
            .shared
            .client
            .post(self.shared.endpoint.clone())
            .headers(self.headers(&request)?)
            .body(request.body.to_bytes());
        let response = self
            .within(request.send())
            .await?
            .map_err(|error| self.transport("request to", error))?;
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        if response.content_length() == Some(0) || response.status().as_u16() == 204 {
            let message = format!("{} API returned no response body", self.name());
            return Err(Failure::new("EMPTY_RESPONSE", message));
        }
        Ok(Answer { wait: self, response: Some(response), decoder: Decoder::default() })
    }

    fn headers(&self, request: &LlmRequest) -> Result<HeaderMap, Failure> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(key) = &self.key {
            let value = HeaderValue::try_from(format!("Bearer {}", key.expose_secret()));
            // A key is printable ASCII, so this cannot fail; the message holds nothing of it.
            let mut value = value
                .map_err(|_| Failure::new("INVALID_CREDENTIAL", "the API key fits no header"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if self.shared.config.dialect.attribution {
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

    /// The failure that a response stands for. Its body is read as far as it helps.
    async fn refused(&self, mut response: Response) -> Failure {
        let mut body = Vec::new();
        while body.len() < ERROR_BODY_MAX {
            match self.within(response.chunk()).await {
                Ok(Ok(Some(bytes))) => body.extend_from_slice(&bytes),
                // The status says enough if the body breaks off.
                Ok(Ok(None) | Err(_)) => break,
                Err(failure) => return failure,
            }
        }
        let header = |name: &str| response.headers().get(name)?.to_str().ok();
        let facts = errors::ResponseFacts {
            status: response.status().as_u16(),
            retry_after: header(RETRY_AFTER.as_str()),
            request_id: header("x-request-id").or_else(|| header("x-deepseek-request-id")),
        };
        self.redacted(errors::http(&facts, &body, self.name(), SystemTime::now()))
    }

    fn name(&self) -> &str {
        &self.shared.config.display_name
    }

    fn aborted(&self) -> Failure {
        Failure::new("ABORTED", format!("{} request aborted by caller", self.name()))
    }

    fn timed_out(&self, idle: Duration) -> Failure {
        let ms = idle.as_millis();
        Failure::new("TIMEOUT", format!("{} stream idle timeout after {ms}ms", self.name()))
    }

    fn transport(&self, what: &str, error: reqwest::Error) -> Failure {
        let (name, url) = (self.name(), &self.shared.config.base_url);
        let cause = causes(&error.without_url());
        let message = format!("{name} API {what} {url} failed: {cause}");
        self.redacted(Failure::new("TRANSPORT", message))
    }

    fn redacted(&self, mut failure: Failure) -> Failure {
        if let Some(key) = &self.key {
            failure.message = key.redact(&failure.message);
            failure.code = key.redact(&failure.code);
        }
        failure
    }
}

/// A response being read.
struct Answer {
    wait: Wait,
    /// `None` once the terminator was read: what follows it does not matter.
    response: Option<Response>,
    decoder: Decoder,
}

impl Answer {
    async fn next(&mut self) -> Result<Option<StreamChunk>, Failure> {
        loop {
            let decoded = self.decoder.next().map_err(|failure| self.wait.redacted(failure))?;
            if let Some(chunk) = decoded {
                return Ok(Some(self.redacted(chunk)));
            }
            if self.decoder.is_done() {
                self.response = None;
            }
            let Some(response) = &mut self.response else { return Ok(None) };
            match self.wait.within(response.chunk()).await? {
                Ok(Some(bytes)) => self.decoder.push(&bytes),
                Ok(None) => return Err(Decoder::closed()),
                Err(error) => return Err(self.wait.transport("stream from", error)),
            }
        }
    }

    fn redacted(&self, mut chunk: StreamChunk) -> StreamChunk {
        if let StreamChunk::Finish { reason: FinishReason::Error { failure }, .. } = &mut chunk {
            *failure = self.wait.redacted(failure.clone());
        }
        chunk
    }
}

/// An error and what caused it, without repeating what a wrapper already says.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use playhouse_messages::event::CancelCause;
    use tokio::time::{Instant, sleep};

    use super::*;

    const IDLE: Duration = Duration::from_millis(1000);

    fn wait() -> Wait {
        let mut config = Config::deepseek_at(None);
        config.idle_timeout = IDLE;
        let adapter = OpenAiCompatible::with_environment(config, Arc::new(|_| None)).unwrap();
        Wait { shared: adapter.shared(), cancel: CancelToken::new(), key: None }
    }

    mod scenario {
        use super::*;

        #[tokio::test(start_paused = true)]
        async fn llm_48_only_silence_while_waiting_trips_the_watchdog() {
            let wait = wait();
            for _ in 0..5 {
                // Whatever arrives starts the timer anew.
                wait.within(sleep(IDLE.mul_f64(0.8))).await.unwrap();
                // Nothing runs while the consumer is busy.
                sleep(IDLE * 3).await;
            }
            let start = Instant::now();
            let failure = wait.within(std::future::pending::<()>()).await.unwrap_err();
            assert_eq!((failure.code.as_str(), start.elapsed()), ("TIMEOUT", IDLE));
        }

        #[tokio::test(start_paused = true)]
        async fn llm_49_the_first_of_timeout_and_abort_wins() {
            let run = |abort_at: Duration| async move {
                let wait = wait();
                let cancel = wait.cancel.clone();
                let abort = async move {
                    sleep(abort_at).await;
                    cancel.cancel(CancelCause::User);
                };
                let (waited, ()) = tokio::join!(wait.within(std::future::pending::<()>()), abort);
                waited.unwrap_err()
            };
            let aborted = run(IDLE / 2).await;
            assert_eq!(aborted.code, "ABORTED");
            assert_eq!(aborted.message, "DeepSeek request aborted by caller");
            assert_eq!(run(IDLE).await.code, "TIMEOUT");
            assert_eq!(run(IDLE * 2).await.code, "TIMEOUT");
        }
    }

    #[test]
    fn the_adapter_shows_no_key() {
        let mut config = Config::deepseek_at(None);
        config.api_key = super::super::KeySource::Explicit(Secret::new("sk-secret").unwrap());
        let adapter = OpenAiCompatible::new(config).unwrap();
        let shown = format!("{adapter:?}");
        assert!(shown.contains("deepseek") && !shown.contains("sk-"), "{shown}");
    }
}
