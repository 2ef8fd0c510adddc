//! Continuable children through the facade: what they survive, and that they leave nothing behind.

mod subagents {
    use std::sync::Arc;

    use playhouse::{
        AgentOptions, CancelCause, EventBody, Harness, NewAgent, SessionId,
        messages::{
            content::ContentBlock, invariants::Invariants, machine::Status, message::Source,
        },
        models::scripted::{Reply, Script, ScriptedAdapter, When},
        plugin_api::{agent::Agent, cancel::CancelToken},
        subagents::{
            CONTINUATIONS_SERVICE, ChildRequest, Continuations, StartContinuable, Subagents,
        },
        testing::{Stage, Victim, trace},
    };
    use playhouse_stores::{JournalStore, JournalStoreConfig, MemoryStore};

    fn script() -> Script {
        let work = When::default().user_contains("task");
        Script::new()
            .rule(work, Reply::text("done").at_gate("task"))
            .rule(When::default(), Reply::text("ok"))
    }

    async fn stage() -> (Stage, Continuations) {
        let plugin = Subagents::new();
        let stage = Stage::minimal(script())
            .harness(|harness| harness.store(MemoryStore::new()).plugin(plugin))
            .start()
            .await
            .unwrap();
        let service = service(stage.harness());
        (stage, service)
    }

    fn service(harness: &Harness) -> Continuations {
        let services = &harness.world().services;
        Continuations::clone(&services.require(CONTINUATIONS_SERVICE).unwrap())
    }

    async fn start(service: &Continuations, parent: &Agent, id: &str) {
        let request = ChildRequest::new(parent, "task");
        let start = StartContinuable { label: id.into(), child_id: Some(id.into()), request };
        service.start("spawn", start).await.unwrap();
    }

    async fn send(service: &Continuations, parent: &Agent, id: &str) {
        let (source, cancel) = (Source::delegation(parent.id().as_str()), CancelToken::new());
        let content = vec![ContentBlock::text("more")];
        service.followup(parent, &id.into(), content, source, &cancel).await.unwrap();
    }

    async fn until_none(service: &Continuations) {
        let mut changes = service.watch();
        loop {
            changes.borrow_and_update();
            if service.activations().is_empty() {
                return;
            }
            changes.changed().await.unwrap();
        }
    }

    fn notices(agent: &Agent) -> usize {
        let log = agent.session().log();
        let inserted = log.iter().filter_map(|event| match &event.body {
            EventBody::InboxSpliced(splice) => Some(splice.inserted.clone()),
            _ => None,
        });
        let told = inserted.flatten();
        told.filter(|message| message.source.kind() == "subagent-settled").count()
    }

    async fn no_task_is_left() {
        let metrics = tokio::runtime::Handle::current().metrics();
        for _ in 0..10_000 {
            if metrics.num_alive_tasks() == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{} tasks outlive the harness", metrics.num_alive_tasks());
    }

    #[tokio::test(start_paused = true)]
    async fn a_continuable_child_outlives_the_death_of_each_of_its_actors() {
        for victim in [Victim::Agent, Victim::Session, Victim::Writer, Victim::Supervisor] {
            let (stage, service) = stage().await;
            start(&service, stage.agent(), "a").await;
            let a = stage.harness().agent(&"a".into()).unwrap();
            stage.gate("task").arrived(1).await;
            send(&service, stage.agent(), "a").await;
            assert!(stage.kill(&a, victim.clone()).await, "{victim:?}");
            stage.gate("task").open();
            until_none(&service).await;
            let said = trace(&a.session().log());
            assert!(said.ends_with("TE2(completed)"), "{victim:?}: {said}");
            assert_eq!(notices(stage.agent()), 1, "{victim:?}");
            stage.shutdown().await.unwrap();
        }
        no_task_is_left().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_tree_of_continuable_children_is_cancelled_at_any_moment_and_leaves_nothing() {
        for moment in 0..12 {
            let (stage, service) = stage().await;
            let root = stage.agent().agent().clone();
            let mut all: Vec<Agent> = vec![root.clone()];
            for parent in 0..4 {
                let parent = all[parent].clone();
                for child in 0..3 {
                    let id = format!("{}.{child}", parent.id());
                    start(&service, &parent, &id).await;
                    all.push(stage.harness().agent(&SessionId::from(id)).unwrap());
                }
            }
            for _ in 0..moment * 7 {
                tokio::task::yield_now().await;
            }
            let cancelled = root.cancel_tree(CancelCause::User).await;
            assert_eq!(cancelled.unfinished, Vec::<SessionId>::new());
            until_none(&service).await;
            root.when_idle().await.unwrap();
            assert_eq!(root.status(), Status::Idle);
            assert_eq!(root.session().view().last_turn, 0, "what was cancelled wakes nobody");
            assert_eq!(notices(&root), 3);
            for agent in &all {
                let log = agent.session().log();
                let kept = Invariants::of(&log).unwrap_or_else(|broken| panic!("{broken}"));
                assert!(kept.is_balanced(), "{}", trace(&log));
            }
            assert_eq!(stage.harness().agents(), [root]);
            stage.shutdown().await.unwrap();
        }
        no_task_is_left().await;
    }

    #[tokio::test]
    async fn a_parent_that_was_resumed_from_disk_sends_to_its_old_child() {
        let dir = tempfile::tempdir().unwrap();
        let options = || AgentOptions::new().model("scripted", "any");
        let harness = async || {
            let config = JournalStoreConfig::default();
            let store = JournalStore::open(dir.path(), config).await.unwrap();
            let builder = Harness::builder().store(store).plugin(Subagents::new());
            let harness = builder.start().await.unwrap();
            let model = Arc::new(ScriptedAdapter::new(script()));
            model.gate("task").open();
            drop(harness.world().models.register(["scripted"], model).unwrap());
            harness
        };
        let first = harness().await;
        let root = first.create(NewAgent::new(options()).id("root")).await.unwrap();
        start(&service(&first), &root, "a").await;
        until_none(&service(&first)).await;
        first.shutdown().await.unwrap();

        let second = harness().await;
        let root = second.resume("root", NewAgent::new(options())).await.unwrap();
        assert_eq!(second.agents().len(), 1, "a child that has settled is not live");
        let before = notices(&root);
        send(&service(&second), &root, "a").await;
        until_none(&service(&second)).await;
        assert_eq!(notices(&root), before + 1);
        second.shutdown().await.unwrap();
    }
}
