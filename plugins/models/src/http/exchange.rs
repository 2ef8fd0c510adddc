//! One request and its answer, read as it arrives.

use std::{error::Error, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use playhouse_messages::chunk::{Failure, FinishReason, StreamChunk};
use playhouse_plugin_api::cancel::CancelToken;
use reqwest::{
    Client, Response, Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER},
};

use super::{ConfigError, Secret, config::endpoint, retry_after::retry_after_ms};

/// How every request names its sender.
const USER_AGENT: &str = concat!("playhouse/", env!("CARGO_PKG_VERSION"));

/// What of an error's body is read.
const ERROR_BODY_MAX: usize = 64 * 1024;

/// What one wire has of its own: how an answer's bytes become chunks, and what a refusal means.
pub(crate) trait Wire: Default + Send + 'static {
    /// Which response headers name the request, best first.
    const REQUEST_ID: &'static [&'static str];

    /// Takes what a read gave.
    fn push(&mut self, bytes: &[u8]);

    /// The next chunk, or `None` if more bytes are needed or the answer is complete.
    fn next(&mut self) -> Result<Option<StreamChunk>, Failure>;

    /// Whether the answer is complete and every chunk taken.
    fn is_done(&self) -> bool;

    /// The failure of a body that ends before the answer is complete.
    fn closed() -> Failure;

    /// The failure that a non-2xx response stands for.
    fn refused(facts: &ResponseFacts<'_>, body: &[u8], provider: &str) -> Failure;
}

/// What a response says beside its body.
#[derive(Debug, Default)]
pub(crate) struct ResponseFacts<'a> {
    pub(crate) status: u16,
    pub(crate) retry_after_ms: Option<u64>,
    /// Not empty.
    pub(crate) request_id: Option<&'a str>,
}

/// Where and how a provider is reached.
pub(crate) struct Connection {
    name: String,
    base_url: String,
    endpoint: Url,
    client: Client,
    idle_timeout: Duration,
}

impl Connection {
    /// A connection for `path` below the base URL of a provider of this display name.
    pub(crate) fn new(
        provider: &str,
        name: &str,
        base_url: &str,
        path: &str,
        idle_timeout: Duration,
    ) -> Result<Self, ConfigError> {
        let endpoint = endpoint(provider, base_url, path)?;
        // A redirected request would carry the conversation to a place that nobody configured.
        let mut client =
            Client::builder().user_agent(USER_AGENT).redirect(reqwest::redirect::Policy::none());
        if endpoint.host_str().is_some_and(is_loopback) {
            client = client.no_proxy();
        }
        let client = client.build().map_err(|error| ConfigError::Client {
            provider: provider.to_owned(),
            reason: causes(&error),
        })?;
        let (name, base_url) = (name.to_owned(), base_url.to_owned());
        Ok(Self { name, base_url, endpoint, client, idle_timeout })
    }
}

/// A proxy could not reach this host, or would reach another.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// What every wait for the provider is subject to.
pub(crate) struct Exchange {
    pub(crate) connection: Arc<Connection>,
    pub(crate) cancel: CancelToken,
    pub(crate) key: Option<Secret>,
}

impl Exchange {
    /// Waits for the provider, no longer than the idle timeout, and until the caller gives up.
    ///
    /// The timer starts here and so runs only while somebody waits: a slow consumer never trips it.
    /// What arrived goes before a timer that ran out while the task was not scheduled, and the timer
    /// before a caller who gave up after it.
    async fn within<T>(&self, future: impl Future<Output = T>) -> Result<T, Failure> {
        if self.cancel.is_cancelled() {
            return Err(self.aborted());
        }
        let idle = self.connection.idle_timeout;
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = tokio::time::sleep(idle) => Err(self.timed_out(idle)),
            () = self.cancel.cancelled() => Err(self.aborted()),
        }
    }

    /// The value of a header made of the key.
    pub(crate) fn key_header(
        &self,
        value: impl FnOnce(&str) -> String,
    ) -> Result<Option<HeaderValue>, Failure> {
        let Some(key) = &self.key else { return Ok(None) };
        // A key is printable ASCII, so this cannot fail; the message holds nothing of it.
        let mut value = HeaderValue::try_from(value(key.expose_secret()))
            .map_err(|_| Failure::new("INVALID_CREDENTIAL", "the API key fits no header"))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// Sends a request, with these headers beside those that every request has.
    pub(crate) async fn send<W: Wire>(
        self,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Answer<W>, Failure> {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let connection = &self.connection;
        let request =
            connection.client.post(connection.endpoint.clone()).headers(headers).body(body);
        let response = self
            .within(request.send())
            .await?
            .map_err(|error| self.transport("request to", error))?;
        if !response.status().is_success() {
            return Err(self.refused::<W>(response).await);
        }
        if response.content_length() == Some(0) || response.status().as_u16() == 204 {
            let message = format!("{} API returned no response body", self.name());
            return Err(Failure::new("EMPTY_RESPONSE", message));
        }
        Ok(Answer { exchange: self, response: Some(response), wire: W::default() })
    }

    /// The failure that a response stands for. Its body is read as far as it helps.
    async fn refused<W: Wire>(&self, mut response: Response) -> Failure {
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
        let now = std::time::SystemTime::now();
        let facts = ResponseFacts {
            status: response.status().as_u16(),
            retry_after_ms: header(RETRY_AFTER.as_str()).and_then(|text| retry_after_ms(text, now)),
            request_id: W::REQUEST_ID
                .iter()
                .find_map(|name| header(name).filter(|id| !id.is_empty())),
        };
        self.redacted(W::refused(&facts, &body, self.name()))
    }

    fn name(&self) -> &str {
        &self.connection.name
    }

    fn aborted(&self) -> Failure {
        Failure::new("ABORTED", format!("{} request aborted by caller", self.name()))
    }

    fn timed_out(&self, idle: Duration) -> Failure {
        let ms = idle.as_millis();
        Failure::new("TIMEOUT", format!("{} stream idle timeout after {ms}ms", self.name()))
    }

    fn transport(&self, what: &str, error: reqwest::Error) -> Failure {
        let (name, url) = (self.name(), &self.connection.base_url);
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
pub(crate) struct Answer<W> {
    exchange: Exchange,
    /// `None` once the answer is complete: what follows it does not matter.
    response: Option<Response>,
    wire: W,
}

impl<W: Wire> Answer<W> {
    async fn next(&mut self) -> Result<Option<StreamChunk>, Failure> {
        loop {
            let decoded = self.wire.next().map_err(|failure| self.exchange.redacted(failure))?;
            if let Some(chunk) = decoded {
                return Ok(Some(self.redacted(chunk)));
            }
            if self.wire.is_done() {
                self.response = None;
            }
            let Some(response) = &mut self.response else { return Ok(None) };
            match self.exchange.within(response.chunk()).await? {
                Ok(Some(bytes)) => self.wire.push(&bytes),
                Ok(None) => return Err(W::closed()),
                Err(error) => return Err(self.exchange.transport("stream from", error)),
            }
        }
    }

    fn redacted(&self, mut chunk: StreamChunk) -> StreamChunk {
        if let StreamChunk::Finish { reason: FinishReason::Error { failure }, .. } = &mut chunk {
            *failure = self.exchange.redacted(failure.clone());
        }
        chunk
    }
}

/// The chunks of an answer that is to come.
pub(crate) fn flatten<W: Wire>(
    answer: impl Future<Output = Result<Answer<W>, Failure>> + Send + 'static,
) -> BoxStream<'static, Result<StreamChunk, Failure>> {
    futures::stream::once(answer)
        .map_ok(|answer| {
            futures::stream::try_unfold(answer, |mut answer| async move {
                Ok(answer.next().await?.map(|chunk| (chunk, answer)))
            })
        })
        .try_flatten()
        .boxed()
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
mod scenario {
    use playhouse_messages::event::CancelCause;
    use tokio::time::{Instant, sleep};

    use super::*;

    const IDLE: Duration = Duration::from_millis(1000);

    fn exchange() -> Exchange {
        let connection = Connection::new("p", "DeepSeek", "http://127.0.0.1:1", "/x", IDLE);
        let connection = Arc::new(connection.unwrap());
        Exchange { connection, cancel: CancelToken::new(), key: None }
    }

    #[tokio::test(start_paused = true)]
    async fn llm_48_only_silence_while_waiting_trips_the_watchdog() {
        let exchange = exchange();
        for _ in 0..5 {
            // Whatever arrives starts the timer anew.
            exchange.within(sleep(IDLE.mul_f64(0.8))).await.unwrap();
            // Nothing runs while the consumer is busy.
            sleep(IDLE * 3).await;
        }
        let start = Instant::now();
        let failure = exchange.within(std::future::pending::<()>()).await.unwrap_err();
        assert_eq!((failure.code.as_str(), start.elapsed()), ("TIMEOUT", IDLE));
    }

    #[tokio::test(start_paused = true)]
    async fn llm_49_the_first_of_timeout_and_abort_wins() {
        let run = |abort_at: Duration| async move {
            let exchange = exchange();
            let cancel = exchange.cancel.clone();
            let abort = async move {
                sleep(abort_at).await;
                cancel.cancel(CancelCause::User);
            };
            let (waited, ()) = tokio::join!(exchange.within(std::future::pending::<()>()), abort);
            waited.unwrap_err()
        };
        let aborted = run(IDLE / 2).await;
        assert_eq!(aborted.code, "ABORTED");
        assert_eq!(aborted.message, "DeepSeek request aborted by caller");
        assert_eq!(run(IDLE).await.code, "TIMEOUT");
        assert_eq!(run(IDLE * 2).await.code, "TIMEOUT");
    }
}
