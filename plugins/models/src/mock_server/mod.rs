//! A server of chat completions and of Anthropic's messages that plays scripts.
//!
//! It speaks enough HTTP/1.1 to stand in for a provider, and misbehaves as the script says: late,
//! stalled, cut, reset, refused, malformed, or split at any byte. It checks history as strictly as a
//! provider would.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use playhouse_models::{mock_server::MockServer, scripted::Script};
//!
//! let server = MockServer::start(Script::team(), 0).await?;
//! println!("DEEPSEEK_BASE_URL={}", server.base_url());
//! server.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod answer;
mod chat_history;
mod chat_wire;
mod messages_history;
mod messages_wire;
mod serve;
mod wire;

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use serde_json::Value;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use crate::scripted::{Script, Stage};

/// How the server is set up.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct MockOptions {
    /// The port on the loopback interface; 0 lets the system choose.
    pub port: u16,
    /// The key that requests must carry; any or none will do if absent.
    pub api_key: Option<String>,
}

impl MockOptions {
    /// A port that the system chooses, and no key.
    pub fn new() -> Self {
        Self::default()
    }

    /// On this port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Requiring this key.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(key.into());
        self
    }
}

impl fmt::Debug for MockOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.api_key.as_ref().map(|_| "..");
        f.debug_struct("MockOptions").field("port", &self.port).field("api_key", &key).finish()
    }
}

/// A running server. Dropping it ends it at once; [`MockServer::shutdown`] also waits for that.
#[derive(Debug)]
pub struct MockServer {
    addr: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

struct Shared {
    stage: Arc<Stage>,
    api_key: Option<String>,
    requests: Mutex<Vec<RecordedRequest>>,
    connections: AtomicUsize,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("stage", &self.stage).finish_non_exhaustive()
    }
}

/// A request that the server got.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RecordedRequest {
    /// Its place in the order of arrival, from 1.
    pub attempt: usize,
    /// Names in lower case, and values; keys are not shown.
    pub headers: Vec<(String, String)>,
    /// The body as it came.
    pub body: Bytes,
    /// The body as JSON; null if it is none.
    pub json: Value,
    /// How many deltas were sent.
    pub chunks_sent: usize,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Still being answered.
    Open,
    /// Answered to the end that the script gives it.
    Completed,
    /// Answered with this error status, because the script says so.
    Failed(u16),
    /// Refused with this status, without using the script.
    Rejected(u16),
    /// The connection was broken, because the script says so.
    Reset,
    /// The client went away, or the server stopped, during a stall.
    Stalled,
    /// The client went away, or the server stopped, before the end.
    ClientClosed,
}

impl RecordedRequest {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl MockServer {
    /// Starts a server on this port of the loopback interface; 0 lets the system choose.
    ///
    /// # Errors
    ///
    /// If the port cannot be had.
    pub async fn start(script: Script, port: u16) -> io::Result<Self> {
        Self::start_on(Stage::new(script), MockOptions::new().port(port)).await
    }

    /// Starts a server on a stage that others may share.
    ///
    /// # Errors
    ///
    /// If the port cannot be had.
    pub async fn start_on(stage: Arc<Stage>, options: MockOptions) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)).await?;
        let addr = listener.local_addr()?;
        let api_key = options.api_key;
        let (requests, connections) = (Mutex::default(), AtomicUsize::new(0));
        let shared = Arc::new(Shared { stage, api_key, requests, connections });
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve::accept(listener, shared.clone(), stopped));
        Ok(Self { addr, shared, stop: Some(stop), task })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What to configure as a provider's base URL, on either wire.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The stage that it plays on: gates, and what is left of a sequence.
    pub fn stage(&self) -> &Arc<Stage> {
        &self.shared.stage
    }

    /// The requests so far, in order of arrival.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.requests().clone()
    }

    /// How many connections were ever accepted.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Breaks every connection, ends every task and gives the port back.
    pub async fn shutdown(mut self) {
        if let Some(stop) = self.stop.take() {
            // A task that has ended needs no telling.
            let _ = stop.send(());
        }
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "the mock server failed");
        }
    }
}

impl Drop for MockServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn requests(&self) -> std::sync::MutexGuard<'_, Vec<RecordedRequest>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a request; gives its index.
    fn record(&self, headers: Vec<(String, String)>, body: Bytes, json: Value) -> usize {
        let mut requests = self.requests();
        let index = requests.len();
        let attempt = index + 1;
        let outcome = Outcome::Open;
        requests.push(RecordedRequest { attempt, headers, body, json, chunks_sent: 0, outcome });
        index
    }

    fn update(&self, index: usize, change: impl FnOnce(&mut RecordedRequest)) {
        if let Some(request) = self.requests().get_mut(index) {
            change(request);
        }
    }
}
