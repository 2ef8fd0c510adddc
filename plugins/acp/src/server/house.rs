//! What one client has: its sessions, and their end.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use agent_client_protocol::{
    Client, Error, JsonRpcResponse,
    schema::ProtocolVersion,
    v1::{
        ConnectionTo, Responder,
        schema::{
            self as acp, AgentCapabilities, Implementation, InitializeResponse, LoadSessionRequest,
            LoadSessionResponse, McpServer, NewSessionRequest, NewSessionResponse,
            PromptCapabilities, PromptRequest, PromptResponse, StopReason,
        },
    },
};
use futures::future::join_all;
use playhouse_messages::{
    chunk::Failure,
    config::Route,
    event::{CancelCause, Seq},
    id::SessionId,
    message::{Message, Source},
};
use playhouse_plugin_api::{
    agent::{Agent, AgentError},
    cancel::CancelToken,
    creation::{AgentHandle, AgentMaker, NewAgent},
    scope::Scope,
    world::World,
};
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::task::TaskTracker;

use super::{
    gate::Gate,
    input,
    seat::{Line, Progress, Seat, follow},
    settle::{Settlement, failed_beside},
};

/// How long a client may take to read what it is owed, once it is leaving.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);

/// Updates that may wait to be written.
const WINDOW: usize = 64;

/// Requests that may be under way at once.
const REQUESTS: usize = 1024;

/// All that is kept for one client. Dropping it disposes the client's agents.
pub(super) struct House {
    pub(super) world: Arc<World>,
    template: NewAgent,
    /// Owns the client's agents.
    scope: Scope,
    pub(super) window: Arc<Semaphore>,
    requests: Arc<Semaphore>,
    seats: Mutex<BTreeMap<Arc<str>, Arc<Seat>>>,
    /// Nothing new is begun.
    pub(super) closing: CancelToken,
    /// Nobody reads any more.
    pub(super) lost: CancelToken,
    tasks: TaskTracker,
    takes_images: OnceCell<bool>,
    closed: OnceCell<Result<(), Failure>>,
}

/// A reserved place for a prompt. Dropping it frees the place.
struct Ticket {
    seat: Arc<Seat>,
    cancel: CancelToken,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.seat.slot().free();
    }
}

fn invalid(text: impl Into<String>) -> Error {
    let text = text.into();
    let mut error = Error::invalid_params();
    error.message = format!("{}: {text}", error.message);
    error
}

/// A failure of the library, by its code.
fn refusal(failure: &Failure) -> Error {
    let mut error = match &*failure.code {
        "INVALID_ARGUMENT" | "SESSION_ALREADY_OWNED" => Error::invalid_params(),
        _ => Error::internal_error(),
    };
    error.message.clone_from(&failure.message);
    error.data(serde_json::json!({"code": failure.code}))
}

fn unknown_session(id: &acp::SessionId) -> Error {
    acp::Error::session_not_found(id.clone()).into()
}

fn check(cwd: &Path, more: &[std::path::PathBuf], servers: &[McpServer]) -> Result<String, Error> {
    if !more.is_empty() {
        return Err(invalid("additionalDirectories are not supported; leave them out"));
    }
    if !servers.is_empty() {
        return Err(invalid("mcpServers are not supported; leave them out"));
    }
    match cwd.to_str() {
        Some(text) if cwd.is_absolute() => Ok(text.to_owned()),
        _ => Err(invalid(format!("cwd {} is no absolute path in UTF-8", cwd.display()))),
    }
}

impl House {
    pub(super) fn open(world: Arc<World>, template: NewAgent) -> Result<Arc<Self>, Failure> {
        let scope = world.scope.child("acp")?;
        Ok(Arc::new(Self {
            world,
            template,
            scope,
            window: Arc::new(Semaphore::new(WINDOW)),
            requests: Arc::new(Semaphore::new(REQUESTS)),
            seats: Mutex::default(),
            closing: CancelToken::new(),
            lost: CancelToken::new(),
            tasks: TaskTracker::new(),
            takes_images: OnceCell::new(),
            closed: OnceCell::new(),
        }))
    }

    fn seats(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Arc<Seat>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client's session of this id, whose agent is still the one that it was made with.
    fn seat(&self, id: &acp::SessionId) -> Option<Arc<Seat>> {
        let mut seats = self.seats();
        let seat = seats.get(&id.0)?.clone();
        if seat.is_live() {
            return Some(seat);
        }
        seats.remove(&id.0);
        None
    }

    /// Serves a request in a task of its own, so that whatever comes behind it can be read.
    pub(super) fn serve<T: JsonRpcResponse>(
        &self,
        responder: Responder<T>,
        answer: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<(), Error> {
        if self.closing.is_cancelled() {
            let text = "the connection is closing; open another";
            return responder.respond_with_error(refusal(&Failure::new("CLOSING", text)));
        }
        let Ok(permit) = self.requests.clone().try_acquire_owned() else {
            let text = format!("{REQUESTS} requests are under way; await some first");
            return responder.respond_with_error(refusal(&Failure::new("TOO_MANY_REQUESTS", text)));
        };
        self.tasks.spawn(async move {
            // A client that is gone needs no answer.
            let _ = responder.respond_with_result(answer.await);
            drop(permit);
        });
        Ok(())
    }

    /// Whether the route of new sessions says that it takes images.
    pub(super) async fn takes_images(&self) -> bool {
        let resolved = self.takes_images.get_or_init(async || {
            let Some(model) = &self.template.options.model else { return false };
            let Some(adapter) = self.world.models.adapter(&model.provider) else { return false };
            let route = Route::new(&model.provider, &model.model);
            let info = self.closing.race(adapter.resolve(&route, &self.closing)).await;
            let modalities = info.and_then(Result::ok).and_then(|info| info.input_modalities);
            modalities.is_some_and(|modalities| modalities.iter().any(|taken| taken == "image"))
        });
        *resolved.await
    }

    /// What the client is told of us.
    pub(super) async fn greet(&self) -> InitializeResponse {
        let prompts = PromptCapabilities::new().image(self.takes_images().await);
        let capabilities = AgentCapabilities::new()
            .load_session(self.world.store.is_some())
            .prompt_capabilities(prompts);
        InitializeResponse::new(ProtocolVersion::V1)
            .agent_capabilities(capabilities)
            .agent_info(Implementation::new("playhouse", env!("CARGO_PKG_VERSION")))
    }

    fn maker(&self) -> Result<&Arc<dyn AgentMaker>, Error> {
        let none = || Failure::new("NO_HARNESS", "no harness makes agents in this world");
        self.world.maker.get().ok_or_else(|| refusal(&none()))
    }

    fn new_agent(&self, line: &Line, progress: &Progress, cwd: String) -> NewAgent {
        let mut new = self.template.clone();
        new.owner = Some(self.scope.clone());
        new.within = new.within.or_else(|| Some(self.world.scope.clone()));
        new.cancel = Some(self.closing.clone());
        new.cwd = Some(cwd);
        let furnish = new.set_up.take();
        let (world, closing) = (self.world.clone(), self.closing.clone());
        let (line, progress) = (line.clone(), progress.clone());
        new.set_up(move |agent| {
            let (line, progress, closing) = (line.clone(), progress.clone(), closing.clone());
            let (world, furnish) = (world.clone(), furnish.clone());
            async move {
                let gate = Gate { agent: agent.clone(), line, progress, closing };
                world.tools.set_approval_gate(agent.scope(), Arc::new(gate))?;
                match furnish {
                    Some(furnish) => furnish(agent).await,
                    None => Ok(()),
                }
            }
        })
    }

    fn line(&self, client: ConnectionTo<Client>) -> Line {
        Line::new(client, self.window.clone(), self.lost.clone())
    }

    fn take_seat(&self, agent: &AgentHandle, line: Line, progress: Progress, replay_until: Seq) {
        let agent = agent.agent().clone();
        let store = self.world.attachments.clone();
        self.tasks.spawn(follow(&agent, line, progress.clone(), replay_until, store));
        let id = agent.id().as_str().into();
        self.seats().insert(id, Arc::new(Seat::new(agent, progress)));
    }

    pub(super) async fn create(
        &self,
        client: ConnectionTo<Client>,
        request: NewSessionRequest,
    ) -> Result<NewSessionResponse, Error> {
        let cwd = check(&request.cwd, &request.additional_directories, &request.mcp_servers)?;
        let (line, progress) = (self.line(client), Progress::new());
        let new = self.new_agent(&line, &progress, cwd);
        let made = self.maker()?.create(new).await.map_err(|error| refusal(&error.0))?;
        self.take_seat(&made, line, progress, 0);
        Ok(NewSessionResponse::new(made.id().as_str().to_owned()))
    }

    /// Goes on with a stored session. All that was said in it is told before this returns.
    pub(super) async fn load(
        &self,
        client: ConnectionTo<Client>,
        request: LoadSessionRequest,
    ) -> Result<LoadSessionResponse, Error> {
        let cwd = check(&request.cwd, &request.additional_directories, &request.mcp_servers)?;
        let id = &request.session_id;
        if self.seat(id).is_some() {
            return Err(invalid(format!("session {id} is open here already")));
        }
        let (line, progress) = (self.line(client), Progress::new());
        let mut new = self.new_agent(&line, &progress, cwd);
        new.id = Some(SessionId::from(&*id.0));
        let made = self.maker()?.resume(new).await.map_err(|error| match error.code() {
            "SESSION_NOT_FOUND" => unknown_session(id),
            _ => refusal(&error.0),
        })?;
        let replay_until = made.session().log().len();
        self.take_seat(&made, line, progress.clone(), replay_until);
        progress.reaches(replay_until).await;
        Ok(LoadSessionResponse::new())
    }

    /// Takes the session's place for a prompt, and gives the future of its answer.
    pub(super) fn admit(
        self: &Arc<Self>,
        request: PromptRequest,
    ) -> Result<impl Future<Output = Result<PromptResponse, Error>> + use<>, Error> {
        let seat = self.seat(&request.session_id);
        let seat = seat.ok_or_else(|| unknown_session(&request.session_id))?;
        let cancel = seat.slot().reserve();
        let Some(cancel) = cancel else {
            return Err(invalid("a prompt of this session is under way; await it, or cancel it"));
        };
        let ticket = Ticket { seat, cancel };
        let house = self.clone();
        Ok(async move { house.prompt(&ticket, request.prompt).await.map(PromptResponse::new) })
    }

    async fn prompt(
        &self,
        ticket: &Ticket,
        blocks: Vec<acp::ContentBlock>,
    ) -> Result<StopReason, Error> {
        let Ticket { seat, cancel } = ticket;
        let agent = &seat.agent;
        let admitted = async {
            let parts = input::parts(blocks, self.takes_images().await).map_err(invalid)?;
            input::content(parts, &*self.world.attachments).await.map_err(|error| refusal(&error))
        };
        let Some(content) = cancel.race(admitted).await else { return Ok(StopReason::Cancelled) };
        let message = Message::user_from(self.world.ids.message(), content?, Source::user());
        let from = agent.session().log().len();
        // From here on a cancel is the agent's; one that overtakes the message is repeated.
        if !seat.slot().enter() {
            return Ok(StopReason::Cancelled);
        }
        let outcome = match agent.followup(message).await {
            Ok(id) => {
                if cancel.is_cancelled() {
                    agent.cancel(CancelCause::User);
                }
                agent.outcome(&id, from).await
            }
            Err(error) => Err(error),
        };
        // The agent's going is an end of its work, too.
        let _ = agent.when_idle().await;
        let log = agent.session().log();
        let delivered = seat.progress.reaches(log.len()).await;
        let turn = outcome.as_ref().ok().map(|outcome| outcome.turn);
        let end = match &outcome {
            Ok(outcome) => Some(&outcome.reason),
            Err(AgentError::Dropped { .. } | AgentError::Gone(_)) => None,
            Err(error) => return Err(refusal(&Failure::from(error.clone()))),
        };
        let cancelled = cancel.is_cancelled();
        let failed_beside = failed_beside(&log, from, turn);
        let settled = Settlement { cancelled, delivered, failed_beside, end };
        settled.answer().map_err(|failure| refusal(&failure))
    }

    /// Cancels what runs in a session; nothing if there is none of the id.
    pub(super) fn cancel(&self, id: &acp::SessionId) {
        if let Some(seat) = self.seat(id) {
            seat.cancel();
        }
    }

    /// Ends all that the client has: refuses new work, cancels what runs, waits for it and for what of
    /// it is told, and disposes the agents, children first. Always finishes; the same end for all who
    /// ask.
    ///
    /// # Errors
    ///
    /// What went wrong on the way.
    pub(super) async fn close(&self) -> Result<(), Failure> {
        self.closed.get_or_init(|| self.end()).await.clone()
    }

    async fn end(&self) -> Result<(), Failure> {
        self.closing.cancel(CancelCause::Disposed);
        self.tasks.close();
        let seats: Vec<_> = self.seats().values().cloned().collect();
        for seat in &seats {
            seat.slot().cancel();
            // The tokens fire now; what they end is waited for below.
            drop(seat.agent.cancel_tree(CancelCause::User));
        }
        let quiet = join_all(seats.iter().map(|seat| async {
            let _ = seat.agent.when_idle().await;
            seat.progress.reaches(seat.agent.session().log().len()).await
        }));
        if tokio::time::timeout(OUTPUT_GRACE, quiet).await.is_err() {
            // It does not read, or a tool takes its time; the disposal waits for that.
            self.lost.cancel(CancelCause::Disposed);
        }
        // What a creation under way has made, it has not seated yet, the scope disposes.
        let mut failures = Vec::new();
        for seat in &seats {
            failures.extend(dispose_below(&self.world, &seat.agent).await);
        }
        let handles = seats.iter().map(|seat| AgentHandle::new(seat.agent.clone()));
        let ended = join_all(handles.map(|handle| async move { handle.dispose().await })).await;
        failures.extend(ended.into_iter().filter_map(Result::err));
        self.scope.close_and_wait().await;
        self.lost.cancel(CancelCause::Disposed);
        self.tasks.wait().await;
        match failures.as_slice() {
            [] => Ok(()),
            [only] => Err(only.clone()),
            [first, ..] => {
                let all: Vec<_> = failures.iter().map(ToString::to_string).collect();
                Err(Failure::new(&*first.code, all.join("; ")))
            }
        }
    }
}

/// Disposes all agents below one, whoever owns them, the deepest first.
async fn dispose_below(world: &World, root: &Agent) -> Vec<Failure> {
    let mut failures = Vec::new();
    loop {
        let below = world.agents.descendants(root.id());
        let Some(deepest) = below.iter().map(Agent::depth).max() else { return failures };
        let level = below.iter().filter(|agent| agent.depth() == deepest);
        let level: Vec<_> = level.cloned().map(AgentHandle::new).collect();
        let ended = join_all(level.iter().map(AgentHandle::dispose)).await;
        failures.extend(ended.into_iter().filter_map(Result::err));
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.scope.close();
    }
}
