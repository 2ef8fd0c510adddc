//! `playhouse rpc`: the library over JSON-RPC 2.0 on standard input and output.
//!
//! The read loop never waits for work. A request's future is polled once as it arrives, so that
//! requests reach an agent's mailbox in the order in which they were sent; if that does not finish
//! it, it goes on in a task of its own. `docs/rpc.md` describes the protocol.

mod client_tools;
mod images;
mod methods;
mod models;
mod notify;
mod sessions;
mod usage;
mod wire;

use std::{io, path::PathBuf, sync::Arc};

use playhouse_plugin_api::{
    cancel::CancelToken, creation::NewAgent, store::StoreReader, world::World,
};
use playhouse_policies::REPEAT_TOOL_REMINDER;
use playhouse_sessions::SessionQuery;
use playhouse_supervisor::harness::{Harness, HarnessState};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
};

use self::{
    client_tools::ClientTools,
    methods::Server,
    notify::Told,
    wire::{ClientGone, Incoming, Outbox, RpcError},
};
use super::{
    config::{AgentConfig, Config},
    exit::{CliError, EXIT_CODES, Exit},
    follow::follow_all,
    house,
    output::LAST_WORDS,
    providers::Providers,
    signals,
};

/// The longest line that is read: an image in base64 fits, a client gone mad does not fill memory.
const LINE_MAX: usize = 32 << 20;

/// Requests that may be under way at once. Each holds its answer until that is written.
const REQUESTS: usize = 4096;

/// Serves JSON-RPC 2.0 on standard input and output, one message a line.
///
/// Agents of the config are made first. The end of standard input, or a first SIGINT or SIGTERM,
/// disposes all agents; their logs are durable when the process exits with 0. docs/rpc.md describes
/// the methods.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXIT_CODES)]
pub struct Rpc {
    /// The store's directory [default: the config's, or .playhouse].
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// The config, as docs/config.md describes it [default: playhouse.toml if it is there].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Rpc {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// Why it did not start, or did not end well.
    pub async fn run(self) -> Result<Exit, CliError> {
        let config = Config::load(self.config.as_deref())?;
        let providers = Providers::new(&config);
        let signal = signals::listen()?;
        let dir = house::store_dir(self.store, &config);
        let harness =
            house::open(&config, &providers, &dir, &["subagents", REPEAT_TOOL_REMINDER]).await?;
        let (seen, followers) = follow_all(harness.world())?;
        let (outbox, lines) = Outbox::new();
        let writer = tokio::spawn(write(lines));
        let told = Told::new();
        let pump = tokio::spawn(notify::pump(seen, outbox.clone(), told.clone()));
        let tools = ClientTools::new(outbox.clone());
        let server = Arc::new(Server {
            harness: harness.clone(),
            providers,
            agents: config.agents,
            told,
            tools: tools.clone(),
            query: query(harness.world()),
        });
        let mut requests = JoinSet::new();
        let read = async {
            server.start_agents(&outbox).await?;
            serve(&server, &outbox, &mut requests).await
        };
        let read = until_over(read, &signal, &outbox, &harness).await;
        tools.client_gone();
        let down = harness.shutdown().await;
        drop((server, tools, outbox));
        let last_words = async {
            followers.finish().await;
            // A pump or writer that panicked has said so.
            let _ = pump.await;
            while requests.join_next().await.is_some() {}
            let _ = writer.await;
        };
        if tokio::time::timeout(LAST_WORDS, last_words).await.is_err() {
            tracing::warn!("the client did not read the last messages; they are in the logs");
        }
        read?;
        down.map_err(CliError::Failed)?;
        Ok(Exit::Completed)
    }
}

/// Questions over the harness's sessions, live and stored.
fn query(world: &World) -> SessionQuery {
    let store = world.store.clone().map(|store| store as Arc<dyn StoreReader>);
    SessionQuery::new(Some(world.agents.clone()), store)
}

/// Reads until the client ends its side, stops reading ours, a signal comes, or the harness fails.
async fn until_over(
    read: impl Future<Output = Result<(), CliError>>,
    signal: &CancelToken,
    outbox: &Outbox,
    harness: &Harness,
) -> Result<(), CliError> {
    let mut state = harness.watch();
    tokio::select! {
        read = read => read,
        () = signal.cancelled() => Ok(()),
        () = outbox.closed() => Ok(()),
        state = state.wait_for(|state| matches!(state, HarnessState::Failed(_))) => {
            match state.as_deref() {
                Ok(HarnessState::Failed(failure)) => Err(CliError::Failed(failure.clone())),
                _ => Ok(()),
            }
        }
    }
}

async fn serve(
    server: &Arc<Server>,
    outbox: &Outbox,
    requests: &mut JoinSet<()>,
) -> Result<(), CliError> {
    let under_way = Arc::new(Semaphore::new(REQUESTS));
    let mut input = BufReader::new(tokio::io::stdin());
    loop {
        let line = read_line(&mut input, LINE_MAX).await;
        let line = line.map_err(|cause| CliError::io("reading standard input", cause))?;
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
async fn write(mut lines: mpsc::Receiver<String>) {
    let mut output = tokio::io::stdout();
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
    /// Makes the config's agents. One that fails is told and leaves the others alone.
    async fn start_agents(&self, outbox: &Outbox) -> Result<(), CliError> {
        for agent in &self.agents {
            let Err(error) = self.start_agent(agent).await else { continue };
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
            if let Err(ClientGone) = outbox.notify("config/startFailed", &params).await {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn start_agent(&self, agent: &AgentConfig) -> Result<(), CliError> {
        let options = house::options(agent);
        if let Some(model) = &options.model {
            self.providers.check(&model.provider)?;
        }
        let new = NewAgent::new(options).cwd(house::working_dir(agent.cwd.as_deref())?);
        let new = if agent.model.is_some() { house::declaring(new) } else { new };
        let made = house::enter(&self.harness, &agent.session, Some(&agent.id), new).await?;
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
