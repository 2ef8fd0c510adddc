//! A harness that is served, and its clients.

use std::{collections::VecDeque, sync::Arc};

use agent_client_protocol::{
    Client, JsonRpcNotification, JsonRpcRequest, Responder, V1, on_receive_notification,
    on_receive_request,
    schema::ProtocolVersion,
    v1::{
        ConnectionTo,
        schema::{
            self as acp, CancelNotification, ContentBlock, InitializeRequest, NewSessionRequest,
            PromptRequest, PromptResponse, RequestPermissionOutcome, RequestPermissionRequest,
            RequestPermissionResponse, SelectedPermissionOutcome, SessionNotification,
            SessionUpdate, StopReason,
        },
    },
};
use playhouse_messages::{chunk::Failure, event::CancelCause, id::SessionId};
use playhouse_models::scripted::{Reply, Script, ScriptedAdapter, Stage};
use playhouse_plugin_api::{
    agent::Agent,
    attachment::{AttachmentStore, MemoryAttachments},
    cancel::CancelToken,
    creation::NewAgent,
    options::AgentOptions,
    tool::{PreVerdict, ToolRun, tool_fn},
};
use playhouse_stores::MemoryStore;
use playhouse_supervisor::harness::Harness;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use crate::{AcpServer, wire};

pub(super) struct Rig {
    pub(super) harness: Harness,
    pub(super) stage: Arc<Stage>,
    pub(super) server: AcpServer,
    /// How often the tool `act` ran.
    pub(super) acted: Arc<std::sync::atomic::AtomicUsize>,
}

pub(super) fn options() -> AgentOptions {
    AgentOptions::new().model("scripted", "any")
}

impl Rig {
    pub(super) async fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::keeping_images(replies, MemoryAttachments::new()).await
    }

    pub(super) async fn keeping_images(
        replies: impl IntoIterator<Item = Reply>,
        images: impl AttachmentStore,
    ) -> Self {
        let stage = Stage::new(Script::sequence(replies));
        let builder = Harness::builder().store(MemoryStore::new()).attachments(images);
        let harness = builder.start().await.unwrap();
        let model = ScriptedAdapter::on(stage.clone()).with_modalities(["text", "image"]);
        let world = harness.world();
        world.models.register(["scripted"], Arc::new(model)).unwrap();
        let acted = Arc::<std::sync::atomic::AtomicUsize>::default();
        let count = acted.clone();
        let act = tool_fn("act", "Acts", move |_: serde_json::Value, _: ToolRun| {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            async { Ok("done".to_owned()) }
        });
        world.tools.registry().register(&world.scope, Arc::new(act)).unwrap();
        let server = AcpServer::new(world.clone(), NewAgent::new(options()));
        Self { harness, stage, server, acted }
    }

    /// Every call of a tool needs approval from now on.
    pub(super) fn ask_about_tools(&self) {
        let ask = |_, _| async { Ok(PreVerdict::Ask { reason: Some("it acts".into()) }) };
        let world = self.harness.world();
        world.tools.hooks().pre.add(&world.scope, ask).unwrap();
    }

    pub(super) fn agent(&self, session: &acp::SessionId) -> Agent {
        self.harness.agent(&SessionId::from(&*session.0)).unwrap()
    }

    pub(super) async fn connect(&self) -> Visitor {
        let (here, there) = tokio::io::duplex(4096);
        let (until, hang_up) = (CancelToken::new(), CancelToken::new());
        let served = tokio::spawn({
            let (server, until) = (self.server.clone(), until.clone());
            let (input, output) = tokio::io::split(there);
            async move { server.serve(input, output, &until).await }
        });
        let (told, updates) = mpsc::unbounded_channel();
        let (asked, questions) = mpsc::unbounded_channel();
        let (connected, connection) = oneshot::channel();
        let (input, output) = tokio::io::split(here);
        let client = Client
            .v1()
            .on_receive_notification(
                async move |update: SessionNotification, _| {
                    let _ = told.send(update);
                    Ok(())
                },
                on_receive_notification!(),
            )
            .on_receive_request(
                async move |question: RequestPermissionRequest, responder, _| {
                    let _ = asked.send((question, responder));
                    Ok(())
                },
                on_receive_request!(),
            );
        let leaving = hang_up.clone();
        let talk = tokio::spawn(client.connect_with(
            wire::pipes(input, output),
            async move |agent| {
                let _ = connected.send(agent);
                leaving.cancelled().await;
                Ok(())
            },
        ));
        let agent = connection.await.unwrap();
        let visitor =
            Visitor { agent, updates, kept: VecDeque::new(), questions, served, talk, until, hang_up };
        visitor.ask(InitializeRequest::new(ProtocolVersion::V1)).await.unwrap();
        visitor
    }
}

type Question = (RequestPermissionRequest, Responder<RequestPermissionResponse, V1>);

/// A client.
pub(super) struct Visitor {
    pub(super) agent: ConnectionTo<agent_client_protocol::Agent>,
    updates: mpsc::UnboundedReceiver<SessionNotification>,
    kept: VecDeque<SessionNotification>,
    pub(super) questions: mpsc::UnboundedReceiver<Question>,
    served: JoinHandle<Result<(), Failure>>,
    talk: JoinHandle<Result<(), agent_client_protocol::Error>>,
    pub(super) until: CancelToken,
    hang_up: CancelToken,
}

impl Visitor {
    pub(super) async fn ask<R: JsonRpcRequest>(
        &self,
        request: R,
    ) -> Result<R::Response, agent_client_protocol::Error>
    where
        R::Response: Send,
    {
        self.agent.send_request(request).block_task().await
    }

    pub(super) fn tell(&self, notification: impl JsonRpcNotification) {
        self.agent.send_notification(notification).unwrap();
    }

    pub(super) async fn session(&self) -> acp::SessionId {
        self.ask(NewSessionRequest::new("/")).await.unwrap().session_id
    }

    /// Sends a prompt; the answer comes later.
    pub(super) fn send(
        &self,
        session: &acp::SessionId,
        prompt: Vec<ContentBlock>,
    ) -> JoinHandle<Result<PromptResponse, agent_client_protocol::Error>> {
        let request = PromptRequest::new(session.clone(), prompt);
        tokio::spawn(self.agent.send_request(request).block_task())
    }

    pub(super) async fn prompt(&self, session: &acp::SessionId, text: &str) -> StopReason {
        self.send(session, vec![text.into()]).await.unwrap().unwrap().stop_reason
    }

    pub(super) fn cancel(&self, session: &acp::SessionId) {
        self.tell(CancelNotification::new(session.clone()));
    }

    /// The next update.
    pub(super) async fn update(&mut self) -> SessionUpdate {
        match self.kept.pop_front() {
            Some(update) => update.update,
            None => self.updates.recv().await.unwrap().update,
        }
    }

    /// What was told until now, as one line a kind of update.
    pub(super) fn told(&mut self) -> Vec<String> {
        while let Ok(update) = self.updates.try_recv() {
            self.kept.push_back(update);
        }
        let mut lines: Vec<(String, String)> = Vec::new();
        for update in std::mem::take(&mut self.kept) {
            let (kind, text) = line(&update.update);
            match lines.last_mut() {
                Some((last, said)) if *last == kind && kind.len() == 1 => said.push_str(&text),
                _ => lines.push((kind, text)),
            }
        }
        lines.into_iter().map(|(kind, text)| format!("{kind} {text}")).collect()
    }

    /// Leaves, and waits until nothing of it is left at the server's.
    pub(super) async fn leave(self) -> Result<(), Failure> {
        self.hang_up.cancel(CancelCause::User);
        self.talk.await.unwrap().unwrap();
        self.served.await.unwrap()
    }

    /// The server's end, when that ends first.
    pub(super) async fn served(self) -> Result<(), Failure> {
        let ended = self.served.await.unwrap();
        self.hang_up.cancel(CancelCause::User);
        let _ = self.talk.await.unwrap();
        ended
    }
}

pub(super) fn selected(option: &'static str) -> RequestPermissionResponse {
    let chosen = SelectedPermissionOutcome::new(option);
    RequestPermissionResponse::new(RequestPermissionOutcome::Selected(chosen))
}

/// `u`ser, `a`gent and `t`hought with their text; a call with its name, its end with its status.
fn line(update: &SessionUpdate) -> (String, String) {
    let chunk = |kind: &str, chunk: &acp::ContentChunk| {
        let text = match &chunk.content {
            ContentBlock::Text(text) => text.text.clone(),
            ContentBlock::Image(image) => format!("<{} {}>", image.mime_type, image.data.len()),
            other => format!("{other:?}"),
        };
        (kind.to_owned(), text)
    };
    match update {
        SessionUpdate::UserMessageChunk(said) => chunk("u", said),
        SessionUpdate::AgentMessageChunk(said) => chunk("a", said),
        SessionUpdate::AgentThoughtChunk(said) => chunk("t", said),
        SessionUpdate::ToolCall(call) => {
            let input = call.raw_input.clone().unwrap_or_default();
            ("call".to_owned(), format!("{} {input}", call.title))
        }
        SessionUpdate::ToolCallUpdate(update) => {
            let text = match update.fields.content.as_deref() {
                Some([acp::ToolCallContent::Content(content)]) => match &content.content {
                    ContentBlock::Text(text) => text.text.clone(),
                    other => format!("{other:?}"),
                },
                other => format!("{:?}", other.map(<[_]>::len)),
            };
            (format!("{:?}", update.fields.status.unwrap_or_default()), text)
        }
        other => (format!("{other:?}"), String::new()),
    }
}
