//! The Agent Client Protocol over real processes: `playhouse acp` asked by the protocol's own client
//! library, and by the provider of this one.

mod subagents {
    use std::{path::Path, process::Stdio, sync::Arc};

    use agent_client_protocol::{
        Client, on_receive_notification,
        schema::ProtocolVersion,
        v1::schema::{
            CancelNotification, ContentBlock, InitializeRequest, LoadSessionRequest,
            NewSessionRequest, PromptRequest, SessionNotification, SessionUpdate, StopReason,
            ToolCallStatus,
        },
    };
    use playhouse::{
        AgentOptions, CancelCause, CancelToken, NewAgent,
        acp::{AcpAgents, AcpConfig, wire},
        models::scripted::{Reply, Script, ScriptedAdapter},
        subagents::{ChildProviders, ChildRequest, SUBAGENTS_SERVICE, StopReason as Stopped},
    };
    use serde_json::json;
    use tempfile::TempDir;
    use tokio::sync::mpsc;

    const BINARY: &str = env!("CARGO_BIN_EXE_playhouse");

    const SCRIPT: &str = r#"
        [[rules]]
        when = { user_contains = "stall" }
        reply = { text = "One two three four", fault = { kind = "stall", after_chunks = 2 } }
        [[rules]]
        when = { after_tool = "lookup" }
        reply = { text = "It is so." }
        [[rules]]
        when = { user_contains = "look" }
        reply = { calls = [{ name = "lookup", arguments = { topic = "cost" } }] }
    "#;

    const CONFIG: &str = r#"
        [providers.scripted]
        kind = "scripted"
        script = "script.toml"
    "#;

    fn scripted() -> TempDir {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("script.toml"), SCRIPT).unwrap();
        std::fs::write(dir.path().join("acp.toml"), CONFIG).unwrap();
        dir
    }

    /// What a process that was asked by the protocol's own client has told, update by update.
    async fn talk<T>(
        dir: &Path,
        script: impl AsyncFnOnce(
            agent_client_protocol::v1::ConnectionTo<agent_client_protocol::Agent>,
            mpsc::UnboundedReceiver<SessionUpdate>,
        ) -> Result<T, agent_client_protocol::Error>,
    ) -> T {
        let mut server = tokio::process::Command::new(BINARY)
            .args(["acp", "--config", "acp.toml"])
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (input, output) = (server.stdout.take().unwrap(), server.stdin.take().unwrap());
        let (told, updates) = mpsc::unbounded_channel();
        let client = Client.v1().on_receive_notification(
            async move |update: SessionNotification, _| {
                let _ = told.send(update.update);
                Ok(())
            },
            on_receive_notification!(),
        );
        let ended = client.connect_with(wire::pipes(input, output), async |agent| {
            agent.send_request(InitializeRequest::new(ProtocolVersion::V1)).block_task().await?;
            script(agent, updates).await
        });
        let ended = ended.await.unwrap();
        assert!(server.wait().await.unwrap().success());
        ended
    }

    fn said(update: &SessionUpdate) -> String {
        match update {
            SessionUpdate::UserMessageChunk(chunk) | SessionUpdate::AgentMessageChunk(chunk) => {
                match &chunk.content {
                    ContentBlock::Text(text) => text.text.clone(),
                    other => panic!("{other:?}"),
                }
            }
            SessionUpdate::ToolCall(call) => format!("<{}>", call.title),
            SessionUpdate::ToolCallUpdate(update) => {
                format!("<{:?}>", update.fields.status.unwrap_or(ToolCallStatus::Pending))
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn orchestration_16_a_client_drives_the_process_through_a_tool_a_cancel_and_a_reload() {
        let dir = scripted();
        let session = talk(dir.path(), async |agent, mut updates| {
            let new = agent.send_request(NewSessionRequest::new(dir.path())).block_task().await?;
            let session = new.session_id;
            let ask = |text: &str| {
                let request = PromptRequest::new(session.clone(), vec![text.into()]);
                agent.send_request(request).block_task()
            };
            assert_eq!(ask("look it up").await?.stop_reason, StopReason::EndTurn);
            let mut told = String::new();
            while let Ok(update) = updates.try_recv() {
                told += &said(&update);
            }
            assert_eq!(told, "<lookup><Completed>It is so.");

            let cancelled = tokio::spawn(ask("stall"));
            let first = updates.recv().await.unwrap();
            assert!(said(&first).starts_with("One"));
            agent.send_notification(CancelNotification::new(session.clone()))?;
            assert_eq!(cancelled.await.unwrap()?.stop_reason, StopReason::Cancelled);
            Ok(session)
        })
        .await;
        // Another process goes on with it.
        talk(dir.path(), async |agent, mut updates| {
            let load = LoadSessionRequest::new(session.clone(), dir.path());
            agent.send_request(load).block_task().await?;
            let mut told = String::new();
            while let Ok(update) = updates.try_recv() {
                told += &said(&update);
            }
            let whole = "look it up<lookup><Completed>It is so.stallOne two ";
            assert_eq!(told, whole);
            Ok(())
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn orchestration_1_11_the_provider_drives_the_process_as_a_child() {
        let dir = scripted();
        let config = AcpConfig::new(BINARY).name("other").args(["acp", "--config", "acp.toml"]);
        let replies = [
            Reply::call("ask_other", json!({"description": "Look it up", "prompt": "look it up"})),
            Reply::text("They say so."),
        ];
        let agents = AcpAgents::new().tool("ask_other", config);
        let harness = playhouse::base().plugin(agents).start().await.unwrap();
        let world = harness.world();
        let model = Arc::new(ScriptedAdapter::new(Script::sequence(replies)));
        world.models.register(["scripted"], model.clone()).unwrap();
        let providers = world.services.watch().clone();
        let mut changes = providers;
        let providers = loop {
            let found = world.services.get::<ChildProviders>(SUBAGENTS_SERVICE);
            match found.filter(|found| found.get("other").is_some()) {
                Some(found) => break found,
                None => drop(changes.changed().await),
            }
        };
        let options = AgentOptions::new().model("scripted", "any");
        let new = NewAgent::new(options).cwd(dir.path().to_str().unwrap());
        let parent = harness.create(new).await.unwrap();

        // By the model's tool.
        assert_eq!(parent.prompt("Ask them.").await.unwrap().text, "They say so.");
        let heard = format!("{:?}", model.captured().last().unwrap().messages);
        assert!(heard.contains("It is so."), "{heard}");

        // From code, and cancelled amid its answer.
        let cancel = CancelToken::new();
        let request = ChildRequest::new(&parent, "stall").cancelled_by(cancel.clone());
        let run = providers.start("other", request).await.unwrap();
        cancel.cancel(CancelCause::User);
        let result = run.result().await.unwrap();
        assert_eq!(result.stop_reason, Stopped::Aborted);
        run.dispose().await.unwrap();
        harness.shutdown().await.unwrap();
    }
}
