//! One client: what it sends is served, and what happens is told.

use std::{io, sync::Arc};

use playhouse_budgets::Budget;
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::cancel::CancelToken;
use playhouse_supervisor::harness::Harness;
use serde_json::{Value, json};
use tokio::{
    io::{
        AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt,
        BufReader,
    },
    sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc},
    task::{JoinHandle, JoinSet},
};

use super::{
    client_tools::ClientTools,
    methods::Server,
    notify::{self, Told},
    wire::{self, ClientGone, Incoming, Outbox, RpcError},
};
use crate::cli::{
    config::AgentConfig,
    exit::CliError,
    follow::{Followers, Which, follow},
    house,
    output::LAST_WORDS,
    providers::Providers,
};

/// The longest line that is read: an image in base64 fits, a client gone mad does not fill memory.
const LINE_MAX: usize = 32 << 20;

/// Requests that may be under way at once. Each holds its answer until that is written.
const REQUESTS: usize = 4096;

/// What all clients of a process share.
#[derive(Clone)]
pub(in crate::cli) struct Desk {
    pub(in crate::cli) harness: Harness,
    pub(in crate::cli) providers: Arc<Providers>,
    /// The config's agents, which a client may make by their labels.
    pub(in crate::cli) agents: Arc<[AgentConfig]>,
    /// What an agent that a client makes may spend, unless the client says.
    pub(in crate::cli) budget: Option<Budget>,
}

/// A client and the tasks that serve it.
pub(super) struct Connection {
    server: Arc<Server>,
    pub(super) outbox: Outbox,
    followers: Followers,
    pump: JoinHandle<()>,
    writer: JoinHandle<()>,
    requests: Mutex<JoinSet<()>>,
}

impl Connection {
    /// Begins to tell a client of the agents that are meant.
    pub(super) fn open(
        desk: &Desk,
        output: impl AsyncWrite + Unpin + Send + 'static,
        which: Which,
    ) -> Result<Self, Failure> {
        let (seen, followers) = follow(desk.harness.world(), which)?;
        let (outbox, lines) = Outbox::new();
        let writer = tokio::spawn(write(lines, output));
        let told = Told::new();
        let pump = tokio::spawn(notify::pump(seen, outbox.clone(), told.clone()));
        let tools = ClientTools::new(outbox.clone());
        let query = super::query(desk.harness.world());
        let server = Arc::new(Server { desk: desk.clone(), told, tools, query });
        Ok(Self { server, outbox, followers, pump, writer, requests: Mutex::default() })
    }

    /// Makes the config's agents. One that fails is told and leaves the others alone.
    pub(super) async fn start_agents(&self) -> Result<(), CliError> {
        for agent in &*self.server.desk.agents {
            let Err(error) = self.server.start_agent(agent).await else { continue };
            tracing::warn!(
                "agent \"{}\" of the config was not started: {}",
                agent.id,
                error.line()
            );
            let params = json!({
                "id": agent.id,
                "sessionId": agent.session.id(),
                "error": {"code": error.code(), "message": error.line()},
            });
            if let Err(ClientGone) = self.outbox.notify("config/startFailed", &params).await {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Serves what the client sends, until it ends its side.
    pub(super) async fn serve(&self, input: impl AsyncRead + Unpin) -> Result<(), CliError> {
        let Self { server, outbox, requests, .. } = self;
        // One reader a connection.
        let requests = &mut *requests.lock().await;
        let under_way = Arc::new(Semaphore::new(REQUESTS));
        let mut input = BufReader::new(input);
        loop {
            let line = read_line(&mut input, LINE_MAX).await;
            let line =
                line.map_err(|cause| CliError::io("reading the client's messages", cause))?;
            while requests.try_join_next().is_some() {}
            let incoming = match line {
                Line::End => return Ok(()),
                Line::TooLong => {
                    let text = format!("a message may have at most {LINE_MAX} bytes");
                    Incoming::Refused { id: Value::Null, error: RpcError::invalid_request(text) }
                }
                Line::Text(line) if line.trim_ascii().is_empty() => continue,
                Line::Text(line) => wire::parse(&line),
            };
            let (id, error) = match incoming {
                Incoming::Response { id, answer } => {
                    server.tools.answered(&id, answer);
                    continue;
                }
                Incoming::Request { id, method, params } => {
                    if let Ok(permit) = under_way.clone().try_acquire_owned() {
                        let served = server.clone().serve(method, params);
                        begin(answer(id, served, outbox.clone(), permit), requests).await;
                        continue;
                    }
                    let text = format!("{REQUESTS} requests are under way; await some first");
                    (id, RpcError::application("TOO_MANY_REQUESTS", text))
                }
                Incoming::Refused { id, error } => (Some(id), error),
            };
            // Only a client that writes what is refused and does not read makes the loop wait here.
            if let Some(id) = id
                && let Err(ClientGone) = outbox.answer(&id, Err(error)).await
            {
                return Ok(());
            }
        }
    }

    /// Its tools fail from now on, and are gone: nobody reads the answers.
    pub(super) fn stop_tools(&self) {
        self.server.tools.client_gone();
    }

    /// Tells the rest, once no agent is left, to a client that may read slowly or not at all.
    pub(super) async fn last_words(self) {
        let Self { server, outbox, followers, pump, writer, requests } = self;
        drop((server, outbox));
        let last_words = async {
            followers.finish().await;
            // A pump or writer that panicked has said so.
            let _ = pump.await;
            let mut requests = requests.into_inner();
            while requests.join_next().await.is_some() {}
            let _ = writer.await;
        };
        if tokio::time::timeout(LAST_WORDS, last_words).await.is_err() {
            tracing::warn!("the client did not read the last messages; they are in the logs");
        }
    }

    /// Ends a client that has ended its side: it is told all that it has asked for, unless it does not
    /// read, or `ended` fires. Then its requests are given up, and its tools are gone.
    pub(super) async fn leave(self, ended: &CancelToken) {
        let Self { server, outbox, followers, pump, writer, requests } = self;
        let mut requests = requests.into_inner();
        tokio::select! {
            () = ended.cancelled() => {}
            () = outbox.closed() => {}
            () = async { while requests.join_next().await.is_some() {} } => {}
        }
        server.tools.leave();
        requests.shutdown().await;
        drop((server, outbox, followers));
        let last_words = async {
            let _ = pump.await;
            let _ = writer.await;
        };
        // A client that does not read has gone.
        let _ = tokio::time::timeout(LAST_WORDS, last_words).await;
    }
}

/// Serves a request to its end. The permit counts it until its answer is on its way.
async fn answer(
    id: Option<Value>,
    served: impl Future<Output = Result<String, RpcError>>,
    outbox: Outbox,
    permit: OwnedSemaphorePermit,
) {
    let answer = served.await;
    match (id, answer) {
        // A client that is gone is noticed by the read loop.
        (Some(id), answer) => drop(outbox.answer(&id, answer).await),
        (None, Err(error)) => tracing::warn!(?error, "a notification of the client failed"),
        (None, Ok(_)) => {}
    }
    drop(permit);
}

/// Polls a request once, here and now; what is not done then goes on by itself.
async fn begin(request: impl Future<Output = ()> + Send + 'static, requests: &mut JoinSet<()>) {
    let mut request = Box::pin(request);
    // Without the scheduler's budget, which could make the first poll do nothing.
    let first = futures::poll!(tokio::task::unconstrained(request.as_mut()));
    if first.is_pending() {
        requests.spawn(request);
    }
}

enum Line {
    Text(Vec<u8>),
    TooLong,
    End,
}

/// The next line, without its end. One that is too long is skipped whole.
async fn read_line(input: &mut (impl AsyncBufRead + Unpin), max: usize) -> io::Result<Line> {
    let mut line = Vec::new();
    let read = (&mut *input).take(max as u64 + 1).read_until(b'\n', &mut line).await?;
    if read == 0 {
        return Ok(Line::End);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Line::Text(line));
    }
    if line.len() <= max {
        // The input ends without a line end.
        return Ok(Line::Text(line));
    }
    loop {
        let buffer = input.fill_buf().await?;
        let (used, over) = match buffer.iter().position(|byte| *byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        input.consume(used);
        if over {
            return Ok(Line::TooLong);
        }
    }
}

/// Writes what is ready in one go. Ends when nobody can send any more, or the client is gone.
async fn write(mut lines: mpsc::Receiver<String>, mut output: impl AsyncWrite + Unpin) {
    let mut ready = Vec::new();
    while lines.recv_many(&mut ready, 64).await > 0 {
        let mut bytes = Vec::with_capacity(ready.iter().map(|line| line.len() + 1).sum());
        for line in ready.drain(..) {
            bytes.extend_from_slice(line.as_bytes());
            bytes.push(b'\n');
        }
        let written = async {
            output.write_all(&bytes).await?;
            output.flush().await
        };
        if let Err(error) = written.await {
            tracing::info!(%error, "the client no longer reads");
            return;
        }
    }
}

impl Server {
    async fn start_agent(&self, agent: &AgentConfig) -> Result<(), CliError> {
        let options = house::options(Some(agent), self.desk.budget);
        if let Some(model) = &options.model {
            self.desk.providers.check(&model.provider)?;
        }
        let new = house::of_config(&self.desk.harness, agent, self.desk.budget).await?;
        let new = new.cwd(house::working_dir(agent.cwd.as_deref())?);
        let made = house::enter(&self.desk.harness, &agent.session, Some(&agent.id), new).await?;
        self.told.joined(&made).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(input: &[u8], max: usize) -> Vec<String> {
        let mut input = BufReader::with_capacity(3, input);
        let mut lines = Vec::new();
        loop {
            match read_line(&mut input, max).await.unwrap() {
                Line::Text(line) => lines.push(String::from_utf8(line).unwrap()),
                Line::TooLong => lines.push("(too long)".to_owned()),
                Line::End => return lines,
            }
        }
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_skipped_whole() {
        assert_eq!(lines(b"abc\n123456789\nde\nf", 4).await, ["abc", "(too long)", "de", "f"]);
        assert_eq!(lines(b"1234\n12345", 4).await, ["1234", "(too long)"]);
        assert_eq!(lines(b"", 4).await, Vec::<String>::new());
    }
}
