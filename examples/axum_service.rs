//! A service: each conversation is an agent. Its answers are streamed as server-sent events, a client
//! that goes away cancels its turn, an idle conversation hibernates, and a shutdown ends all cleanly.
//!
//! `cargo run --example axum_service` plays a client against the service and exits;
//! `cargo run --example axum_service -- 127.0.0.1:3000` serves until Ctrl-C. It is offline unless
//! `DEEPSEEK_API_KEY` or `ANTHROPIC_API_KEY` is set. To talk to it:
//!
//! ```sh
//! id=$(curl -X POST localhost:3000/conversations)
//! curl -N -d 'Hello' localhost:3000/conversations/$id
//! ```

use std::{
    collections::HashSet,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    response::{
        Sse,
        sse::{Event, KeepAlive},
    },
    routing::post,
};
use futures::{FutureExt, Stream, StreamExt, future::BoxFuture, stream};
use playhouse::{
    Agent, AgentError, Blueprint, CancelCause, CancelToken, EventBody, Harness, HibernationPolicy,
    NewAgent, Outcome, SessionId, TurnEndReason,
    messages::{chunk::StreamChunk, frame::Frame},
    models::{
        EnvModel,
        scripted::{Fault, FaultKind, Reply, Script, When},
    },
    plugin_api::feed::Frames,
    stores::MemoryStore,
};
use serde_json::json;
use tokio::net::TcpListener;

type AnyError = Box<dyn std::error::Error>;
/// A status, and why.
type Refused = (StatusCode, String);

/// What all requests share.
struct Service {
    harness: Harness,
    /// The conversations that answer somebody: one question at a time.
    answering: Mutex<HashSet<SessionId>>,
}

/// The right to be answered in a conversation.
struct Claim {
    service: Arc<Service>,
    id: SessionId,
}

impl Claim {
    /// Nothing if somebody is being answered there.
    fn of(service: Arc<Service>, id: SessionId) -> Option<Self> {
        let is_free = service.answering().insert(id.clone());
        is_free.then(|| Self { service, id })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.service.answering().remove(&self.id);
    }
}

/// An answer under way. Whoever drops it, as axum does when the client goes away, cancels the turn.
struct Answer {
    agent: Agent,
    frames: Frames,
    outcome: BoxFuture<'static, Result<Outcome, AgentError>>,
    ended: bool,
    _claim: Claim,
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.ended {
            self.agent.cancel(CancelCause::User);
        }
    }
}

impl Service {
    fn answering(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.answering.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `POST /conversations`: its id.
async fn begin(State(service): State<Arc<Service>>) -> Result<String, Refused> {
    let made = service.harness.create(NewAgent::blueprint("conversation")).await;
    let made = made.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    Ok(made.id().to_string())
}

/// `POST /conversations/{id}` with a question: the answer as events `text`, each a JSON string, then
/// `end` with how the turn ended.
async fn ask(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    question: String,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refused> {
    let id = SessionId::from(id);
    // Made anew if it hibernates.
    let woken = service.harness.wake(&id).await;
    let agent = woken.map_err(|error| (StatusCode::NOT_FOUND, error.to_string()))?;
    let claim = Claim::of(service, id);
    let claim = claim.ok_or((StatusCode::CONFLICT, "one question at a time".to_owned()))?;
    // What is left of a turn that was cancelled is nobody's any more.
    let idle = agent.when_idle().await;
    idle.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    let (frames, asked) = (agent.session().frames(), agent.clone());
    // Sent when the stream is first read, and so never without somebody who reads.
    let outcome = async move { asked.prompt(question).await }.boxed();
    let answer = Answer { agent, frames, outcome, ended: false, _claim: claim };
    let events = stream::unfold(answer, next).map(Ok);
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// The next event of an answer.
async fn next(mut answer: Answer) -> Option<(Event, Answer)> {
    while !answer.ended {
        // What was shown comes before the end.
        tokio::select! {
            biased;
            Some(frame) = answer.frames.next() => {
                let text = text_of(frame);
                if !text.is_empty() {
                    return Some((Event::default().event("text").data(json!(text).to_string()), answer));
                }
            }
            outcome = &mut answer.outcome => {
                answer.ended = true;
                let why = match &outcome {
                    Ok(outcome) => outcome.reason.kind(),
                    Err(error) => error.code(),
                };
                return Some((Event::default().event("end").data(why), answer));
            }
        }
    }
    None
}

fn text_of(frame: Frame) -> String {
    let Frame::Chunks { chunks, .. } = frame else { return String::new() };
    let text = chunks.into_iter().filter_map(|timed| match timed.chunk {
        StreamChunk::TextDelta { text, .. } => Some(text),
        _ => None,
    });
    text.collect()
}

/// Serves until the token fires, and lets go of all agents.
async fn serve(
    service: Arc<Service>,
    listener: TcpListener,
    stop: CancelToken,
) -> Result<(), AnyError> {
    let app = Router::new()
        .route("/conversations", post(begin))
        .route("/conversations/{id}", post(ask))
        .with_state(service.clone());
    let stopping = service.clone();
    let stopped = async move {
        stop.cancelled().await;
        // Their streams end with that, and so do the connections that are waited for.
        stopping.harness.agents().iter().for_each(|agent| agent.cancel(CancelCause::User));
    };
    axum::serve(listener, app).with_graceful_shutdown(stopped).await?;
    Ok(service.harness.shutdown().await?)
}

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let model = EnvModel::or_script(script())?;
    // Another store keeps the conversations over a restart.
    let builder = playhouse::base().store(MemoryStore::new());
    let harness =
        builder.hibernation(HibernationPolicy::after(Duration::from_secs(600))).start().await?;
    let options = model.register(harness.world())?.max_tokens(8_000);
    harness.blueprint("conversation", Blueprint::new(options))?;
    let service = Arc::new(Service { harness, answering: Mutex::default() });

    let stop = CancelToken::new();
    let address = std::env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0")).await?;
    let url = format!("http://{}/conversations", listener.local_addr()?);
    let serving = serve(service.clone(), listener, stop.clone());
    let using = async {
        let used = match address {
            Some(_) => {
                println!("listening on {url}");
                tokio::signal::ctrl_c().await.map_err(AnyError::from)
            }
            None => play(&service, &url, model.is_scripted()).await,
        };
        stop.cancel(CancelCause::User);
        used
    };
    let (served, used) = futures::join!(serving, using);
    used.and(served)?;
    println!("agents left: {}", service.harness.agents().len());
    Ok(())
}

/// A client: it asks, goes away in the middle of an answer, and comes back.
async fn play(service: &Service, url: &str, scripted: bool) -> Result<(), AnyError> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let id = client.post(url).send().await?.error_for_status()?.text().await?;
    let url = format!("{url}/{id}");
    let ask = async |question: &'static str| -> Result<_, AnyError> {
        println!("> {question}");
        let response = client.post(&url).body(question).send().await?.error_for_status()?;
        Ok(Box::pin(events(response.bytes_stream())))
    };

    let said = read_all(ask("What is a cache?").await?).await;
    println!("{said}");

    let mut story = ask("Tell me its whole story.").await?;
    let first = story.next().await.unwrap_or_default();
    drop(story);
    println!("{} … and away.", first.text());
    let conversation = SessionId::from(id);
    let agent = service.harness.agent(&conversation).ok_or("it is awake")?;
    let reason = last_end(&agent, 2).await;
    println!("that turn ended: {}", reason.kind());

    // As it would after ten minutes. The next question wakes it.
    agent.when_idle().await?;
    service.harness.hibernate(&conversation).await?;
    assert!(service.harness.agent(&conversation).is_none());
    let last = read_all(ask("And in short?").await?).await;
    println!("{last}");
    let unknown = client.post(format!("{url}0")).body("Who?").send().await?.status();
    assert_eq!(unknown, StatusCode::NOT_FOUND.as_u16());
    if scripted {
        assert_eq!(said, "It keeps what was asked for before. (completed)");
        assert_eq!(reason, TurnEndReason::Aborted(CancelCause::User));
        assert_eq!(last, "It remembers. (completed)");
    }
    Ok(())
}

/// How a turn ended, or will have.
async fn last_end(agent: &Agent, turn: u32) -> TurnEndReason {
    let mut log = agent.session().events(0);
    loop {
        match &log.next().await.body {
            EventBody::TurnEnd(end) if end.turn == turn => return end.reason.clone(),
            _ => {}
        }
    }
}

/// An event as the client sees it.
#[derive(Default)]
struct Received {
    name: String,
    data: String,
}

impl Received {
    fn text(&self) -> String {
        serde_json::from_str(&self.data).unwrap_or_default()
    }
}

/// The whole answer, and how it ended.
async fn read_all(events: impl Stream<Item = Received>) -> String {
    let said = events.fold(String::new(), async |said, event| match &*event.name {
        "text" => said + &event.text(),
        _ => format!("{said} ({})", event.data),
    });
    said.await
}

/// The events of a response, without its comments.
fn events<E>(
    bytes: impl Stream<Item = Result<impl AsRef<[u8]>, E>>,
) -> impl Stream<Item = Received> {
    let read = (Box::pin(bytes), Vec::<u8>::new());
    stream::unfold(read, async |(mut bytes, mut seen)| {
        loop {
            if let Some(end) = seen.windows(2).position(|two| two == b"\n\n") {
                let frame: Vec<u8> = seen.drain(..end + 2).collect();
                let frame = String::from_utf8_lossy(&frame).into_owned();
                let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name));
                if let (Some(name), Some(data)) = (field("event: "), field("data: ")) {
                    let event = Received { name: name.to_owned(), data: data.to_owned() };
                    return Some((event, (bytes, seen)));
                }
                continue;
            }
            seen.extend_from_slice(bytes.next().await?.ok()?.as_ref());
        }
    })
}

/// What a model would say. The story has no end: it waits to be cancelled.
fn script() -> Script {
    let when = |text: &str| When::default().user_contains(text);
    let endless = Reply::text("Once upon a time there was a cache")
        .with_fault(Fault::new(FaultKind::Stall).after(3));
    Script::new()
        .rule(when("What is"), Reply::text("It keeps what was asked for before."))
        .rule(when("story"), endless)
        .reply(Reply::text("It remembers."))
}
