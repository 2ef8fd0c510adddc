mod subagents {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use agent_client_protocol::{
        ErrorCode,
        v1::schema::{
            self as acp, ContentBlock, NewSessionRequest, PermissionOptionKind, PromptRequest,
            SessionUpdate, StopReason, ToolCallStatus,
        },
    };
    use base64::{Engine, prelude::BASE64_STANDARD};
    use bytes::Bytes;
    use futures::{FutureExt, future::BoxFuture};
    use playhouse_messages::{
        attachment::{Attachment, AttachmentId},
        event::{CancelCause, EventBody, TurnEndReason},
        id::SessionId,
    };
    use playhouse_models::scripted::{Fault, FaultKind, Reply};
    use playhouse_plugin_api::{
        attachment::{AttachmentError, AttachmentStore, MemoryAttachments},
        creation::NewAgent,
    };
    use serde_json::json;
    use tokio::sync::Semaphore;

    use super::super::rig::{Rig, options, selected};

    #[tokio::test(start_paused = true)]
    async fn orchestration_16_4_1_a_prompt_answers_with_chunks_and_then_the_end_of_the_turn() {
        let rig = Rig::new([Reply::text("Hello, you.").with_reasoning("A greeting.")]).await;
        let mut client = rig.connect().await;
        let session = client.session().await;
        assert_eq!(client.prompt(&session, "hi").await, StopReason::EndTurn);
        // All of it came before the answer did.
        assert_eq!(client.told(), ["t A greeting.", "a Hello, you."]);
        client.leave().await.unwrap();
        assert!(rig.harness.agents().is_empty());
        rig.harness.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn orchestration_16_4_2_a_second_prompt_is_refused_while_one_runs() {
        let rig = Rig::new([Reply::text("First.").at_gate("g"), Reply::text("Second.")]).await;
        let mut client = rig.connect().await;
        let (session, other) = (client.session().await, client.session().await);
        let first = client.send(&session, vec!["1".into()]);
        let second = client.send(&session, vec!["2".into()]);
        let refused = second.await.unwrap().unwrap_err();
        assert_eq!(refused.code, ErrorCode::INVALID_PARAMS);
        // Another session has a place of its own.
        assert_eq!(client.prompt(&other, "3").await, StopReason::EndTurn);
        rig.stage.gate("g").open();
        assert_eq!(first.await.unwrap().unwrap().stop_reason, StopReason::EndTurn);
        assert_eq!(client.told(), ["a Second.First."]);
        client.leave().await.unwrap();
        rig.harness.shutdown().await.unwrap();
    }

    /// Keeps images once it is allowed to.
    #[derive(Clone)]
    struct SlowImages {
        kept: MemoryAttachments,
        arrived: Arc<Semaphore>,
        may: Arc<Semaphore>,
    }

    impl AttachmentStore for SlowImages {
        fn describe(&self) -> String {
            "slow".to_owned()
        }

        fn put(
            &self,
            bytes: Bytes,
            name: Option<String>,
        ) -> BoxFuture<'_, Result<Attachment, AttachmentError>> {
            async move {
                self.arrived.add_permits(1);
                self.may.acquire().await.unwrap().forget();
                self.kept.put(bytes, name).await
            }
            .boxed()
        }

        fn get<'a>(
            &'a self,
            id: &'a AttachmentId,
        ) -> BoxFuture<'a, Result<Option<Bytes>, AttachmentError>> {
            self.kept.get(id)
        }
    }

    fn gif() -> ContentBlock {
        let data = BASE64_STANDARD.encode(b"GIF89a\x03\0\x02\0\0\0\0;");
        ContentBlock::Image(acp::ImageContent::new(data, "image/gif"))
    }

    #[tokio::test(start_paused = true)]
    async fn orchestration_16_4_3_a_cancel_during_admission_leaves_no_message() {
        let images = SlowImages {
            kept: MemoryAttachments::new(),
            arrived: Arc::new(Semaphore::new(0)),
            may: Arc::new(Semaphore::new(0)),
        };
        let rig = Rig::keeping_images([Reply::text("A gif.")], images.clone()).await;
        let mut client = rig.connect().await;
        let session = client.session().await;
        let prompt = client.send(&session, vec!["What is this?".into(), gif()]);
        images.arrived.acquire().await.unwrap().forget();
        client.cancel(&session);
        let answer = prompt.await.unwrap().unwrap();
        assert_eq!(answer.stop_reason, StopReason::Cancelled);
        let log = rig.agent(&session).session().log();
        let touched = |body: &EventBody| {
            matches!(body, EventBody::InboxSpliced(_) | EventBody::UserMessage(_))
        };
        assert!(!log.iter().any(|event| touched(&event.body)));

        // The place is free, and the same prompt goes through.
        images.may.add_permits(1);
        let prompt = client.send(&session, vec!["What is this?".into(), gif()]);
        assert_eq!(prompt.await.unwrap().unwrap().stop_reason, StopReason::EndTurn);
        assert_eq!(client.told(), ["a A gif."]);
        client.leave().await.unwrap();
        rig.harness.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn orchestration_16_4_4_a_cancel_amid_the_stream_answers_when_the_agent_is_quiet() {
        let stall = Fault::new(FaultKind::Stall).after(2);
        let rig = Rig::new([Reply::text("One two three").with_fault(stall), Reply::text("On.")]).await;
        let mut client = rig.connect().await;
        let session = client.session().await;
        let prompt = client.send(&session, vec!["count".into()]);
        while !matches!(client.update().await, SessionUpdate::AgentMessageChunk(_)) {}
        client.cancel(&session);
        let answer = prompt.await.unwrap().unwrap();
        assert_eq!(answer.stop_reason, StopReason::Cancelled);
        let log = rig.agent(&session).session().log();
        let last = log.iter().rev().find_map(|event| match &event.body {
            EventBody::TurnEnd(end) => Some(end.reason.clone()),
            _ => None,
        });
        assert_eq!(last, Some(TurnEndReason::Aborted(CancelCause::User)));
        // A cancel of nothing, and of nobody, is none.
        client.cancel(&session);
        client.cancel(&acp::SessionId::new("nobody"));
        client.told();
        assert_eq!(client.prompt(&session, "on").await, StopReason::EndTurn);
        assert_eq!(client.told(), ["a On."]);
        client.leave().await.unwrap();
        rig.harness.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn orchestration_16_4_5_what_a_session_cannot_have_is_refused() {
        let rig = Rig::new([]).await;
        let client = rig.connect().await;
        let server = acp::McpServer::Stdio(acp::McpServerStdio::new("x", "x"));
        for request in [
            NewSessionRequest::new("relative/path"),
            NewSessionRequest::new("/").additional_directories(vec!["/tmp".into()]),
            NewSessionRequest::new("/").mcp_servers(vec![server]),
        ] {
            let refused = client.ask(request).await.unwrap_err();
            assert_eq!(refused.code, ErrorCode::INVALID_PARAMS);
        }
        let session = client.session().await;
        let audio = ContentBlock::Audio(acp::AudioContent::new("", "audio/wav"));
        for prompt in [vec![], vec![audio]] {
            let refused = client.ask(PromptRequest::new(session.clone(), prompt)).await.unwrap_err();
            assert_eq!(refused.code, ErrorCode::INVALID_PARAMS);
        }
        let nobody = client.ask(PromptRequest::new("nobody", vec!["hi".into()])).await.unwrap_err();
        assert_eq!(nobody.code, ErrorCode::RESOURCE_NOT_FOUND);
        client.leave().await.unwrap();
        rig.harness.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn orchestration_16_4_6_a_client_is_asked_once_per_call_and_its_going_is_no_leave() {
        let calls = [
            Reply::call("act", json!({"n": 1})),
            Reply::text("Done."),
            Reply::call("act", json!({"n": 2})),
            Reply::text("A pity."),
            Reply::call("act", json!({"n": 3})),
        ];
        let rig = Rig::new(calls).await;
        rig.ask_about_tools();
        let mut client = rig.connect().await;
        let session = client.session().await;

        let prompt = client.send(&session, vec!["1".into()]);
        let (question, answer) = client.questions.recv().await.unwrap();
        let kinds: Vec<_> = question.options.iter().map(|option| option.kind).collect();
        assert_eq!(kinds, [PermissionOptionKind::AllowOnce, PermissionOptionKind::RejectOnce]);
        assert_eq!(question.tool_call.fields.title.as_deref(), Some("act: it acts"));
        // The client knows the call that it is asked about.
        let SessionUpdate::ToolCall(call) = client.update().await else { panic!() };
        assert_eq!(call.tool_call_id, question.tool_call.tool_call_id);
        assert_eq!(call.status, ToolCallStatus::InProgress);
        assert_eq!(rig.acted.load(Ordering::Relaxed), 0);
        answer.respond(selected("allow-once")).unwrap();
        assert_eq!(prompt.await.unwrap().unwrap().stop_reason, StopReason::EndTurn);
        assert_eq!(client.told(), ["InProgress None", "Completed done", "a Done."]);
        assert_eq!(rig.acted.load(Ordering::Relaxed), 1);

        let prompt = client.send(&session, vec!["2".into()]);
        let (_, answer) = client.questions.recv().await.unwrap();
        answer.respond(selected("reject-once")).unwrap();
        assert_eq!(prompt.await.unwrap().unwrap().stop_reason, StopReason::EndTurn);
        let told = client.told();
        assert!(told[1].starts_with("Failed") && told[1].contains("rejected"), "{told:?}");

        let prompt = client.send(&session, vec!["3".into()]);
        let _unanswered = client.questions.recv().await.unwrap();
        let agent = rig.agent(&session);
        client.leave().await.unwrap();
        assert!(prompt.await.unwrap().is_err(), "nobody was there to be answered");
        assert_eq!(rig.acted.load(Ordering::Relaxed), 1);
        let log = agent.session().log();
        let ends: Vec<_> = log
            .iter()
            .filter_map(|event| match &event.body {
                EventBody::TurnEnd(end) => Some(end.reason.kind().to_owned()),
                _ => None,
            })
            .collect();
        assert_eq!(ends, ["completed", "completed", "aborted"]);
        assert!(rig.harness.agents().is_empty());
        rig.harness.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn orchestration_16_4_6_a_cancel_withdraws_the_question() {
        let rig = Rig::new([Reply::call("act", json!({}))]).await;
        rig.ask_about_tools();
        let mut client = rig.connect().await;
        let session = client.session().await;
        let prompt = client.send(&session, vec!["1".into()]);
        let (_, unanswered) = client.questions.recv().await.unwrap();
        client.cancel(&session);
        assert_eq!(prompt.await.unwrap().unwrap().stop_reason, StopReason::Cancelled);
        unanswered.cancellation().cancelled().await;
        assert_eq!(rig.acted.load(Ordering::Relaxed), 0);
        client.leave().await.unwrap();
        rig.harness.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn orchestration_16_4_7_a_client_that_goes_takes_all_below_its_agents_with_it_children_first() {
        let stall = || Reply::text("never").with_fault(Fault::new(FaultKind::Stall));
        let rig = Rig::new([stall(), stall(), stall()]).await;
        let (client, other) = (rig.connect().await, rig.connect().await);
        let (session, others) = (client.session().await, other.session().await);
        let prompt = client.send(&session, vec!["1".into()]);
        // Children that outlive their parent's turns: the harness owns them.
        let below = |parent: &playhouse_plugin_api::agent::Agent| {
            NewAgent::new(options())
                .delegated_by(parent)
                .owned_by(rig.harness.world().scope.clone())
        };
        let root = rig.agent(&session);
        let child = rig.harness.create(below(&root)).await.unwrap();
        let grandchild = rig.harness.create(below(&child)).await.unwrap();
        for agent in [child.agent(), grandchild.agent()] {
            agent.followup("work").await.unwrap();
        }
        let order = Arc::new(AtomicUsize::new(0));
        let mut ends = Vec::new();
        for agent in [&grandchild, &child] {
            let (agent, order) = (agent.agent().clone(), order.clone());
            ends.push(tokio::spawn(async move {
                let gone = playhouse_plugin_api::agent::Disposal::Disposed;
                let mut disposal = agent.cell().disposal();
                disposal.wait_for(|state| *state == gone).await.unwrap();
                order.fetch_add(1, Ordering::Relaxed)
            }));
        }
        client.leave().await.unwrap();
        let _ = prompt.await.unwrap();
        let live: Vec<_> = rig.harness.agents().iter().map(|agent| agent.id().clone()).collect();
        assert_eq!(live, [SessionId::from(&*others.0)], "another client's are left alone");
        let order = futures::future::join_all(ends).await;
        assert_eq!(order.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [0, 1]);
        other.leave().await.unwrap();
        rig.harness.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn orchestration_16_4_8_another_agent_of_the_same_id_is_not_the_clients() {
        let rig = Rig::new([Reply::text("Mine."), Reply::call("act", json!({})), Reply::text("Theirs.")])
            .await;
        rig.ask_about_tools();
        let mut client = rig.connect().await;
        let session = client.session().await;
        assert_eq!(client.prompt(&session, "1").await, StopReason::EndTurn);
        let id = SessionId::from(&*session.0);
        let own = rig.agent(&session);
        playhouse_plugin_api::creation::AgentHandle::new(own).dispose().await.unwrap();
        // Somebody else goes on with the session, in the same process.
        let impostor = rig.harness.resume(id, NewAgent::new(options())).await.unwrap();
        assert_eq!(impostor.prompt("2").await.unwrap().text, "Theirs.");
        assert_eq!(client.told(), ["a Mine."]);
        assert!(client.questions.try_recv().is_err(), "nor is it asked");
        let refused = client.ask(PromptRequest::new(session, vec!["3".into()])).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::RESOURCE_NOT_FOUND);
        client.leave().await.unwrap();
        assert_eq!(rig.harness.agents().len(), 1, "nor does it go with the client");
        rig.harness.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn orchestration_16_3_a_server_that_ends_ends_its_clients_prompts() {
        let stall = Reply::text("never").with_fault(Fault::new(FaultKind::Stall));
        let rig = Rig::new([stall]).await;
        let client = rig.connect().await;
        let session = client.session().await;
        let prompt = client.send(&session, vec!["1".into()]);
        let mut status = rig.agent(&session).watch_status();
        let running = playhouse_messages::machine::Status::Running;
        status.wait_for(|status| *status == running).await.unwrap();
        client.until.cancel(CancelCause::User);
        assert_eq!(prompt.await.unwrap().unwrap().stop_reason, StopReason::Cancelled);
        client.served().await.unwrap();
        assert!(rig.harness.agents().is_empty());
        rig.harness.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn orchestration_16_3_a_client_that_does_not_read_holds_nobody_up() {
        use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
        let rig = Rig::new([Reply::text("word ".repeat(20_000))]).await;
        let (here, there) = tokio::io::duplex(256);
        let (input, output) = tokio::io::split(there);
        let server = rig.server.clone();
        let until = playhouse_plugin_api::cancel::CancelToken::new();
        let served = tokio::spawn(async move { server.serve(input, output, &until).await });
        let mut here = BufReader::new(here);
        for (id, method, params) in [
            (1, "initialize", json!({"protocolVersion": 1})),
            (2, "session/new", json!({"cwd": "/", "mcpServers": []})),
        ] {
            let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
            here.write_all(format!("{request}\n").as_bytes()).await.unwrap();
            here.read_line(&mut String::new()).await.unwrap();
        }
        // From here on it does not read.
        let agent = rig.harness.agents().remove(0);
        let params = json!({"sessionId": agent.id(), "prompt": [{"type": "text", "text": "go"}]});
        let prompt = json!({"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": params});
        here.write_all(format!("{prompt}\n").as_bytes()).await.unwrap();
        let mut events = agent.session().events(0);
        while !matches!(events.next().await.body, EventBody::TurnEnd(_)) {}
        here.shutdown().await.unwrap();
        served.await.unwrap().unwrap();
        assert!(rig.harness.agents().is_empty());
        rig.harness.shutdown().await.unwrap();
    }
}
