//! One child from its start to its end.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use agent_client_protocol::{
    Agent, Client, Error, Lines,
    schema::ProtocolVersion,
    v1::{
        ConnectionTo,
        schema::{
            self as acp, CancelNotification, Implementation, InitializeRequest, NewSessionRequest,
            PromptRequest, RequestPermissionRequest, RequestPermissionResponse,
            SessionNotification, SessionUpdate,
        },
    },
};
use futures::{FutureExt, SinkExt, future::BoxFuture, sink, stream};
use playhouse_messages::{chunk::Failure, event::CancelCause};
use playhouse_plugin_api::cancel::CancelToken;
use playhouse_subagents::{ChildResult, Slot, StopReason};
use tokio::sync::{mpsc, oneshot};

use super::{
    answers::{self, Said},
    config::AcpConfig,
    process::{Pipes, Process, STATUS_GRACE},
};
use crate::wire;

/// How long a cancel may take to be written to a child that reads slowly or not at all.
const CANCEL_GRACE: Duration = Duration::from_millis(500);

/// Of the cause of a failed start so many characters are told.
const CAUSE_CHARS_MAX: usize = 2048;

/// How long a child may live on that no longer reads: longer than an end takes to be told.
const INPUT_GRACE: Duration = STATUS_GRACE.saturating_mul(5);

/// What a child is started with.
pub(super) struct Job {
    pub(super) config: Arc<AcpConfig>,
    pub(super) cwd: PathBuf,
    pub(super) prompt: Vec<acp::ContentBlock>,
    /// Unwanted: fails the start, or settles the run at once.
    pub(super) cancel: CancelToken,
    /// Given back once nothing of the child is left.
    pub(super) slot: Slot,
}

/// Where a child's life is told.
pub(super) struct Told {
    pub(super) started: oneshot::Sender<Result<(), Failure>>,
    pub(super) settled: oneshot::Sender<ChildResult>,
    /// Its starter has no more use for it.
    pub(super) released: CancelToken,
}

/// What the conversation and its driver share.
#[derive(Default)]
pub(super) struct Heard {
    session: Mutex<Option<acp::SessionId>>,
    said: Mutex<Said>,
}

impl Heard {
    /// The result with what was said until now.
    pub(super) fn of(&self, result: ChildResult) -> ChildResult {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).of(result)
    }

    fn opened(&self, session: acp::SessionId) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
    }

    fn hear(&self, told: SessionNotification) {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        if let SessionUpdate::AgentMessageChunk(chunk) = told.update
            && let acp::ContentBlock::Text(text) = chunk.content
            && session.as_ref() == Some(&told.session_id)
        {
            self.said.lock().unwrap_or_else(PoisonError::into_inner).push(&text.text);
        }
    }
}

type Conversation = BoxFuture<'static, Result<acp::StopReason, Error>>;

/// Drives one child. Dropping the future kills it.
///
/// # Errors
///
/// If something of it could not be ended.
pub(super) async fn drive(job: Job, heard: Arc<Heard>, told: Told) -> Result<(), Failure> {
    let Job { config, cwd, prompt, cancel, slot } = job;
    let Told { mut started, settled, released } = told;
    let (mut process, pipes) = match Process::spawn(&config, &cwd) {
        Ok(spawned) => spawned,
        Err(failure) => {
            let _ = started.send(Err(failure));
            return Ok(());
        }
    };
    let (ready, mut published) = oneshot::channel();
    // Fires when nothing is wanted of the conversation any more.
    let stop = cancel.child();
    let asked = Asked { cwd, prompt, heard: heard.clone(), stop: stop.clone(), ready };
    let mut conversation = converse(config.clone(), pipes, asked);

    let refused = tokio::select! {
        biased;
        () = cancel.cancelled() => Some(Failure::new("ABORTED", "the start was cancelled")),
        () = started.closed() => Some(Failure::new("ABORTED", "nobody waits for the start")),
        ended = &mut conversation => Some(not_started(&config, ended, &mut process).await),
        Ok(()) = &mut published => None,
        () = process.exited() => {
            let words = process.last_words().await;
            Some(start_failure(&config, &words))
        }
    };
    if let Some(failure) = refused {
        drop(conversation);
        let ended = process.end(config.eof_grace, config.term_grace).await;
        drop(slot);
        let _ = started.send(Err(failure));
        return ended;
    }
    if started.send(Ok(())).is_err() {
        released.cancel(CancelCause::Parent);
    }

    let mut over = false;
    let result = tokio::select! {
        biased;
        () = cancel.cancelled() => ChildResult::new(StopReason::Aborted),
        () = released.cancelled() => ChildResult::new(StopReason::Aborted),
        ended = &mut conversation => {
            over = true;
            match ended {
                Ok(reason) => answers::stopped(reason),
                Err(error) => failed(&error, &mut process).await,
            }
        }
        () = process.exited() => {
            let words = process.last_words().await;
            ChildResult::new(StopReason::Error).diagnosed(format!("the agent is gone: {words}"))
        }
    };
    let _ = settled.send(heard.of(result));
    if !over {
        tokio::select! {
            _ = &mut conversation => over = true,
            () = released.cancelled() => {}
        }
    }
    stop.cancel(CancelCause::Parent);
    if !over {
        let _ = tokio::time::timeout(CANCEL_GRACE, &mut conversation).await;
    }
    // With it goes the child's standard input.
    drop(conversation);
    released.cancelled().await;
    let ended = process.end(config.eof_grace, config.term_grace).await;
    drop(slot);
    ended
}

/// A child may give a cause of any length, and a model reads it.
fn start_failure(config: &AcpConfig, cause: &str) -> Failure {
    let cause: String = cause.chars().take(CAUSE_CHARS_MAX).collect();
    Failure::new("ACP_START", format!("ACP agent \"{}\" did not start: {cause}", config.name))
}

async fn not_started(
    config: &AcpConfig,
    ended: Result<acp::StopReason, Error>,
    process: &mut Process,
) -> Failure {
    let cause = match ended {
        Ok(_) => "it was stopped".to_owned(),
        Err(error) => cause_of(&error, process).await,
    };
    start_failure(config, &cause)
}

async fn failed(error: &Error, process: &mut Process) -> ChildResult {
    let cause = cause_of(error, process).await;
    ChildResult::new(StopReason::Error).diagnosed(format!("the agent failed: {cause}"))
}

/// An agent's own error is what it says; one of the pipes is explained by what became of the child.
async fn cause_of(error: &Error, process: &mut Process) -> String {
    use agent_client_protocol::{is_connection_terminated, is_incoming_transport_closed};
    if process.is_at_fault()
        || is_connection_terminated(error)
        || is_incoming_transport_closed(error)
    {
        return process.last_words().await;
    }
    match &error.data {
        Some(data) => format!("{} ({}): {data}", error.message, error.code.value()),
        None => format!("{} ({})", error.message, error.code.value()),
    }
}

struct Asked {
    cwd: PathBuf,
    prompt: Vec<acp::ContentBlock>,
    heard: Arc<Heard>,
    stop: CancelToken,
    ready: oneshot::Sender<()>,
}

/// The client's side, from the handshake to the end of the one turn.
fn converse(config: Arc<AcpConfig>, pipes: Pipes, asked: Asked) -> Conversation {
    let Pipes { input, lines, unread } = pipes;
    let lines = stream::unfold(lines, async |mut lines: mpsc::Receiver<String>| {
        let line = lines.recv().await?;
        Some((Ok::<_, io::Error>(line), lines))
    });
    let input = Box::pin(wire::write_lines(input));
    let input = sink::unfold((input, unread), async |(mut input, unread), line: String| {
        match input.send(line).await {
            Ok(()) => {
                unread.written();
                Ok((input, unread))
            }
            Err(error) => {
                // As a rule the child is gone, and the end of its output, which is to be heard, says why.
                tokio::time::sleep(INPUT_GRACE).await;
                Err(error)
            }
        }
    });
    let transport = Lines::new(input, lines);
    let (heard, stop, permission) = (asked.heard.clone(), asked.stop.clone(), config.permission);
    let client = Client
        .v1()
        .name(&config.name)
        .on_receive_notification(
            async move |told: SessionNotification, _agent| {
                heard.hear(told);
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .on_receive_request(
            async move |request: RequestPermissionRequest, responder, _agent| {
                let outcome = match stop.is_cancelled() {
                    true => acp::RequestPermissionOutcome::Cancelled,
                    false => answers::permit(permission, &request.options),
                };
                responder.respond(RequestPermissionResponse::new(outcome))
            },
            agent_client_protocol::on_receive_request!(),
        );
    client.connect_with(transport, async move |agent| ask(agent, asked).await).boxed()
}

async fn ask(agent: ConnectionTo<Agent>, asked: Asked) -> Result<acp::StopReason, Error> {
    let Asked { cwd, prompt, heard, stop, ready } = asked;
    let client = Implementation::new("playhouse", env!("CARGO_PKG_VERSION"));
    let hello = InitializeRequest::new(ProtocolVersion::V1).client_info(client);
    let hello = agent.send_request(hello).block_task().await?;
    if hello.protocol_version != ProtocolVersion::V1 {
        let text = format!("it speaks protocol version {}", hello.protocol_version);
        return Err(Error::invalid_request().data(text));
    }
    let session = agent.send_request(NewSessionRequest::new(cwd)).block_task().await?.session_id;
    heard.opened(session.clone());
    let answer = agent.send_request(PromptRequest::new(session.clone(), prompt)).block_task();
    tokio::pin!(answer);
    let _ = ready.send(());
    tokio::select! {
        answer = &mut answer => Ok(answer?.stop_reason),
        () = stop.cancelled() => {
            // What is sent is written before the connection ends.
            agent.send_notification(CancelNotification::new(session))?;
            Ok(acp::StopReason::Cancelled)
        }
    }
}
