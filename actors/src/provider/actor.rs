use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use futures::StreamExt;
use playhouse_messages::{
    chunk::{Failure, StreamChunk},
    config::CallConfig,
    event::CancelCause,
    prepared::{Prepared, Ticket},
    protocol::{ProviderMessage, StreamRequest},
    request::FrozenRequest,
    tool_history::ToolProjection,
};
use playhouse_plugin_api::{
    attachment::AttachmentStore,
    cancel::CancelToken,
    delay,
    llm::{LlmRegistry, LlmRequest, LoadedImages, PreparedCall, RequestBody, terminal_chunk},
    world::World,
};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::task::JoinSet;
use tracing::Instrument;

/// The shell around a provider route.
#[derive(Debug)]
pub struct ProviderActor;

/// What the shell is started with.
#[derive(Debug)]
pub struct ProviderArgs {
    /// The route.
    pub provider: String,
    /// The world.
    pub world: Arc<World>,
}

/// The shell's state.
pub struct ProviderShell {
    args: ProviderArgs,
    bound: Bound,
    next_ticket: u64,
    /// Resolutions and streams; they end with the actor.
    tasks: JoinSet<()>,
}

/// Calls that were prepared and not yet sent. One whose ticket nobody holds any more is swept.
type Bound = Arc<Mutex<HashMap<u64, (Weak<u64>, PreparedCall)>>>;

impl ProviderShell {
    fn prepare(&mut self, config: CallConfig, reply: RpcReplyPort<Result<Prepared, Failure>>) {
        self.next_ticket += 1;
        let number = self.next_ticket;
        let (models, bound) = (self.args.world.models.clone(), self.bound.clone());
        self.tasks.spawn(async move {
            // Whoever gives up does not wait any longer; adapters bound what they do here.
            let cancel = CancelToken::new();
            let prepared = prepare(&models, config, &cancel, number, &bound).await;
            let _ = reply.send(prepared);
        });
    }

    fn stream(&mut self, request: StreamRequest) {
        let StreamRequest { ticket, request, session_id, chunks } = request;
        let call = lock(&self.bound).remove(&ticket.number());
        let world = self.args.world.clone();
        self.tasks.spawn(
            async move {
                let cancel = CancelToken::new();
                let open = async {
                    let (_, call) = call.ok_or_else(|| lost_call(&request))?;
                    open(&call, &*world.attachments, &request, session_id, &cancel).await
                };
                let stream = tokio::select! {
                    biased;
                    () = chunks.closed() => return,
                    stream = open => stream,
                };
                let mut stream = match stream {
                    Ok(stream) => stream,
                    Err(failure) => {
                        let _ = chunks.send(terminal_chunk(failure, &cancel)).await;
                        return;
                    }
                };
                loop {
                    let chunk = tokio::select! {
                        biased;
                        () = chunks.closed() => {
                            // Nobody wants the answer: the adapter is told, then dropped.
                            cancel.cancel(CancelCause::User);
                            return;
                        }
                        chunk = stream.next() => chunk,
                    };
                    let Some(chunk) = chunk else { return };
                    let last = matches!(chunk, StreamChunk::Finish { .. });
                    if chunks.send(chunk).await.is_err() || last {
                        return;
                    }
                }
            }
            .in_current_span(),
        );
    }
}

async fn prepare(
    models: &LlmRegistry,
    config: CallConfig,
    cancel: &CancelToken,
    number: u64,
    bound: &Bound,
) -> Result<Prepared, Failure> {
    let call = models.prepare(config, cancel).await?;
    let ticket = Ticket::new(number);
    let prepared = call.facts(ticket.clone());
    let mut bound = lock(bound);
    // Amortised: those that nobody holds are at most as many as the others.
    if bound.len() == bound.capacity() {
        bound.retain(|_, (ticket, _)| ticket.strong_count() > 0);
    }
    bound.insert(number, (ticket.downgrade(), call));
    Ok(prepared)
}

/// Builds the wire request of old bytes and new bytes, and starts the adapter's stream. Images are
/// read for new bytes only: once a message and route.
async fn open(
    call: &PreparedCall,
    attachments: &dyn AttachmentStore,
    request: &FrozenRequest,
    session_id: playhouse_messages::id::SessionId,
    cancel: &CancelToken,
) -> Result<playhouse_plugin_api::llm::ChunkStream, Failure> {
    let mut projection = ToolProjection::new(
        call.tool_update(),
        &request.header.tools,
        request.tool_history.as_ref(),
        request.messages.messages(),
    );
    let outgoing = call.outgoing(request.messages.iter().filter_map(|it| projection.entry(it)));
    let messages = outgoing.messages();
    let tools = projection.declarations().clone();
    let frame = call.frame(&messages, &tools, None)?;
    let images = LoadedImages::load(attachments, outgoing.unread_images()).await?;
    let body = RequestBody::new(frame, outgoing.encode(&images)?);
    let request = LlmRequest {
        config: call.config().clone(),
        messages,
        tools,
        session_id: Some(session_id),
        purpose: None,
        body,
        cancel: cancel.clone(),
    };
    Ok(call.stream(request)?)
}

fn lost_call(request: &FrozenRequest) -> Failure {
    let provider = &request.header.config.provider;
    Failure::new("TRANSPORT", format!("the actor of provider `{provider}` restarted; try again"))
}

fn lock(bound: &Bound) -> std::sync::MutexGuard<'_, HashMap<u64, (Weak<u64>, PreparedCall)>> {
    bound.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Actor for ProviderActor {
    type Msg = ProviderMessage;
    type State = ProviderShell;
    type Arguments = ProviderArgs;

    async fn pre_start(
        &self,
        _myself: ActorRef<ProviderMessage>,
        args: ProviderArgs,
    ) -> Result<ProviderShell, ActorProcessingErr> {
        let (bound, tasks) = (Bound::default(), JoinSet::new());
        Ok(ProviderShell { args, bound, next_ticket: 0, tasks })
    }

    async fn handle(
        &self,
        _myself: ActorRef<ProviderMessage>,
        message: ProviderMessage,
        state: &mut ProviderShell,
    ) -> Result<(), ActorProcessingErr> {
        delay::before_message().await;
        while state.tasks.try_join_next().is_some() {}
        match message {
            ProviderMessage::Prepare { config, reply } => state.prepare(config, reply),
            ProviderMessage::Stream(request) => state.stream(*request),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<ProviderMessage>,
        _event: SupervisionEvent,
        _state: &mut ProviderShell,
    ) -> Result<(), ActorProcessingErr> {
        // It has no children; the default would stop it if it had.
        Ok(())
    }
}

/// The code by which a route without an adapter is told apart from other failures.
pub(crate) fn is_unserved(failure: &Failure) -> bool {
    failure.code == "NO_ADAPTER"
}
