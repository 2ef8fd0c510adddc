//! The checkpoints of `Strict`: what is held up until the log is durable, and what happens if it
//! cannot be made so.

mod contract {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use playhouse::{
        Agent, EventBody, Harness, NewAgent, TurnEndReason,
        messages::chunk::Failure,
        models::scripted::{Reply, ScriptedAdapter},
        plugin_api::options::Durability,
        tool_fn,
    };
    use playhouse_stores::MemoryStore;

    use crate::lifecycle::rig::{self, Gated, Nothing, Pause, kinds, soon, turn_ends};

    struct Stage {
        harness: Harness,
        model: Arc<ScriptedAdapter>,
        store: Arc<Gated>,
        agent: Agent,
        /// How often the tool's body ran.
        bodies: Arc<AtomicUsize>,
    }

    async fn stage(replies: impl IntoIterator<Item = Reply>, durability: Durability) -> Stage {
        let store = Gated::new(MemoryStore::new(), Pause::opened());
        let (harness, model) = rig::on(store.clone(), replies).await;
        let bodies = Arc::new(AtomicUsize::new(0));
        let count = bodies.clone();
        let tool = tool_fn("work", "Works.", move |_: Nothing, _run| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Ok("done") }
        });
        harness.register_tool(Arc::new(tool)).unwrap();
        let options = rig::options().durability(durability);
        let agent = harness.create(NewAgent::new(options).id("s")).await.unwrap();
        let agent = agent.agent().clone();
        Stage { harness, model, store, agent, bodies }
    }

    impl Stage {
        async fn end(self) {
            self.harness.shutdown().await.unwrap();
            rig::assert_stored(&self.store.inner.reopen(), &self.agent).await;
        }

        fn failed(&self) -> Option<Failure> {
            match turn_ends(&self.agent).pop() {
                Some(TurnEndReason::Error(failure)) => Some(failure),
                _ => None,
            }
        }

        /// The coded results of all calls.
        fn results(&self) -> Vec<Option<String>> {
            let log = self.agent.session().log();
            let results = log.iter().filter_map(|event| match &event.body {
                EventBody::ToolResult(result) => Some(result.error.clone().map(|error| error.code)),
                _ => None,
            });
            results.collect()
        }
    }

    #[tokio::test]
    async fn persistence_70_g1_and_g8_no_step_and_no_stream_before_the_log_is_durable() {
        let stage = stage([Reply::text("hi")], Durability::Strict).await;
        let before = stage.store.flushes();
        stage.store.hold();
        stage.agent.followup("go").await.unwrap();
        stage.store.flushing(before + 1).await;
        // Before the step.
        assert!(!kinds(&stage.agent).contains(&"step/start".to_owned()));
        stage.store.step();
        stage.store.flushing(before + 2).await;
        // Before the request: it is logged, and not sent.
        assert_eq!(kinds(&stage.agent).last().unwrap(), "request/context");
        assert!(stage.model.captured().is_empty());
        stage.store.step();
        stage.store.flushing(before + 3).await;
        // At the turn's end, before idle is announced.
        assert_eq!(stage.model.captured().len(), 1);
        assert_eq!(kinds(&stage.agent).last().unwrap(), "turn/end");
        stage.store.release();
        soon(stage.agent.when_idle()).await.unwrap();
        assert_eq!(stage.store.flushes(), before + 3);
        stage.end().await;
    }

    #[tokio::test]
    async fn g2_a_session_without_a_store_passes_straight_through() {
        let (harness, model) = rig::with(playhouse::minimal(), [Reply::text("hi")]).await;
        let agent = harness.create(NewAgent::new(rig::options())).await.unwrap();
        assert_eq!(agent.prompt("go").await.unwrap().text, "hi");
        assert_eq!(model.captured().len(), 1);
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn persistence_71_g3_a_request_whose_checkpoint_fails_is_not_sent() {
        let stage = stage([Reply::text("hi"), Reply::text("again")], Durability::Strict).await;
        let before = stage.store.flushes();
        stage.store.hold();
        stage.agent.followup("go").await.unwrap();
        stage.store.flushing(before + 1).await;
        stage.store.step();
        stage.store.flushing(before + 2).await;
        stage.store.state.fail_flush.store(true, Ordering::SeqCst);
        stage.store.release();
        soon(stage.agent.when_idle()).await.unwrap();
        assert!(stage.model.captured().is_empty());
        assert_eq!(stage.failed().unwrap().code, "STORE_IO");
        // What is in the log is kept, and durable once the fault is gone.
        stage.store.state.fail_flush.store(false, Ordering::SeqCst);
        assert!(stage.agent.session().flush().await.unwrap());
        rig::assert_stored(&stage.store.inner, &stage.agent).await;
        assert_eq!(stage.agent.prompt("again").await.unwrap().reason, TurnEndReason::Completed);
        stage.end().await;
    }

    #[tokio::test]
    async fn g4_a_tool_s_body_runs_behind_its_checkpoint() {
        let stage = stage([Reply::call("work", "{}"), Reply::text("hi")], Durability::Strict).await;
        let before = stage.store.flushes();
        stage.store.hold();
        stage.agent.followup("go").await.unwrap();
        for passed in 1..=2 {
            stage.store.flushing(before + passed).await;
            stage.store.step();
        }
        stage.store.flushing(before + 3).await;
        assert_eq!(kinds(&stage.agent).last().unwrap(), "tool/call");
        assert_eq!(stage.bodies.load(Ordering::SeqCst), 0);
        stage.store.release();
        soon(stage.agent.when_idle()).await.unwrap();
        assert_eq!((stage.bodies.load(Ordering::SeqCst), stage.results()), (1, vec![None]));
        stage.end().await;
    }

    #[tokio::test]
    async fn persistence_72_g5_a_cancel_during_the_checkpoint_keeps_the_body_from_running() {
        let stage = stage([Reply::call("work", "{}"), Reply::text("hi")], Durability::Strict).await;
        let before = stage.store.flushes();
        stage.store.hold();
        stage.agent.followup("go").await.unwrap();
        for passed in 1..=2 {
            stage.store.flushing(before + passed).await;
            stage.store.step();
        }
        stage.store.flushing(before + 3).await;
        stage.agent.cancel(playhouse::CancelCause::User);
        stage.store.release();
        soon(stage.agent.when_idle()).await.unwrap();
        assert_eq!(stage.bodies.load(Ordering::SeqCst), 0);
        assert_eq!(stage.results(), [Some("ABORTED_BEFORE_DISPATCH".to_owned())]);
        stage.end().await;
    }

    #[tokio::test]
    async fn g6_a_tool_whose_checkpoint_fails_is_an_error_and_does_not_run() {
        let stage = stage([Reply::call("work", "{}"), Reply::text("hi")], Durability::Strict).await;
        let before = stage.store.flushes();
        stage.store.hold();
        stage.agent.followup("go").await.unwrap();
        for passed in 1..=2 {
            stage.store.flushing(before + passed).await;
            stage.store.step();
        }
        stage.store.flushing(before + 3).await;
        stage.store.state.fail_flush.store(true, Ordering::SeqCst);
        stage.store.release();
        soon(stage.agent.when_idle()).await.unwrap();
        assert_eq!(stage.bodies.load(Ordering::SeqCst), 0);
        assert_eq!(stage.results(), [Some("STORE_IO".to_owned())]);
        stage.store.state.fail_flush.store(false, Ordering::SeqCst);
        stage.end().await;
    }

    #[tokio::test]
    async fn g9_without_the_policy_nothing_waits_for_the_disk() {
        for durability in [Durability::Relaxed, Durability::None] {
            let stage = stage([Reply::call("work", "{}"), Reply::text("hi")], durability).await;
            let before = stage.store.flushes();
            stage.store.hold();
            assert_eq!(soon(stage.agent.prompt("go")).await.unwrap().text, "hi");
            assert_eq!((stage.store.flushes(), stage.bodies.load(Ordering::SeqCst)), (before, 1));
            stage.store.release();
            stage.end().await;
        }
    }
}
