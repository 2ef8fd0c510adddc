//! Workflows over real children: the tools, the record, and that nothing is left of a run.

use std::{sync::Arc, time::Duration};

use playhouse::{
    CancelCause, EventBody,
    messages::invariants::Invariants,
    models::scripted::{Reply, Script, When},
    subagents::Subagents,
    testing::{Census, Stage},
    workflows::{
        EngineConfig, Live, RalphConfig, WORKFLOW_ENGINE_SERVICE, WorkflowEngine, WorkflowRecords,
        WorkflowRequest, WorkflowStop, Workflows,
        record::{AGENT_START_KIND, RUN_END_KIND, RUN_START_KIND},
    },
};
use playhouse_stores::MemoryStore;
use serde_json::{Value, json};

fn meta() -> Value {
    json!({"name": "test", "description": "a test"})
}

async fn stage(script: Script) -> (Stage, Arc<WorkflowEngine>) {
    let mut limits = EngineConfig::default();
    limits.max_concurrent_agents = 4;
    limits.dispose_grace = Duration::from_secs(3);
    let plugin = Workflows::new().engine(limits).ralph(RalphConfig::default());
    let stage = Stage::minimal(script)
        .harness(|h| h.store(MemoryStore::new()).plugin(Subagents::new()).plugin(plugin))
        .start()
        .await
        .unwrap();
    let engine = stage.world().services.require(WORKFLOW_ENGINE_SERVICE).unwrap();
    (stage, engine)
}

/// Answers a first prompt, so that the provider's actor is there before anything is counted.
fn warm() -> Script {
    Script::new().rule(When::default().user_contains("warm up"), Reply::text("warm"))
}

/// The model calls the tool once, and then says what it got.
fn calling(tool: &str, arguments: Value) -> Script {
    warm()
        .rule(When::default().user_contains("go").after_tool(tool), Reply::text("{{result.1}}"))
        .rule(When::default().user_contains("go"), Reply::call(tool, arguments))
}

fn workflow(script: &str) -> Value {
    json!({"script": script, "meta": meta(), "args": {"names": ["a", "b", "c"]}})
}

/// What there is once a first turn has left nothing behind that ends by itself.
async fn warmed(stage: &Stage) -> Census {
    stage.agent().prompt("warm up").await.unwrap();
    stage.agent().when_idle().await.unwrap();
    let mut last = Census::of(stage.harness());
    loop {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let now = Census::of(stage.harness());
        if now == last {
            return now;
        }
        last = now;
    }
}

/// Waits until nothing of the engine lives any more: a script's thread ends by no task of ours.
async fn until_gone(engine: &WorkflowEngine) {
    let patience = tokio::time::timeout(Duration::from_secs(30), async {
        while engine.live() != Live::default() {
            std::thread::yield_now();
            tokio::task::yield_now().await;
        }
    });
    patience.await.expect("something of a run is left");
}

/// Threads of scripts in this process, which has one test.
fn script_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task");
    let names = tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "workflow").count()
}

mod subagents {
    use super::*;

    #[tokio::test]
    async fn a_model_writes_a_workflow_whose_children_answer_and_the_log_keeps_its_record() {
        let script =
            "return parallel(args.names.map((n) => () => agent(`say ${n}`, {phase: 'P'})))";
        let model = calling("workflow", workflow(script))
            .rule(When::default().user_contains("say b"), Reply::error("SERVER", "down"))
            .reply(Reply::text("I am {{prompt}}"));
        let (stage, engine) = stage(model).await;
        let before = warmed(&stage).await;
        let answer = stage.agent().prompt("go").await.unwrap().text;
        assert!(answer.contains("agents started: 3"), "{answer}");
        assert!(answer.contains("I am say a") && answer.contains("null"), "{answer}");
        let log = stage.agent().session().log();
        let records = WorkflowRecords::of(&log);
        let (id, run) = records.runs().next().unwrap();
        assert_eq!((run.name.as_str(), run.end), ("test", Some(WorkflowStop::Completed)));
        assert_eq!(run.agents.len(), 3);
        assert!(run.agents.values().all(|agent| agent.outcome.is_some()));
        assert!(answer.contains(id) || !id.is_empty());
        // All of it stands between the call and its result.
        let at = |wanted: &str| {
            log.iter().position(
                |event| matches!(&event.body, EventBody::Custom { kind, .. } if **kind == *wanted),
            )
        };
        let result = log.iter().position(|event| matches!(event.body, EventBody::ToolResult(_)));
        assert!(at(RUN_START_KIND) < at(AGENT_START_KIND) && at(RUN_END_KIND) < result);
        assert!(Invariants::of(&log).unwrap().is_balanced());
        until_gone(&engine).await;
        let after = before.settled(stage.harness()).await;
        assert_eq!(after, before);
        assert_eq!(script_threads(), 0);
        stage.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn a_schema_gives_a_script_objects() {
        let model = Script::new().rule(
            When::default().has_tool("structured_output"),
            Reply::call("structured_output", json!({"n": 7})),
        );
        let (stage, engine) = stage(model).await;
        let script = "const schema = {type: 'object', properties: {n: {type: 'integer'}},
            required: ['n']};
            return (await agent('count', {schema})).n + 1";
        let request = WorkflowRequest::new(stage.agent(), meta());
        let run = engine.start(request, script).await.unwrap();
        let result = run.result().await;
        assert_eq!(result.value, Some(json!(8)), "{result:?}");
        run.dispose().await.unwrap();
        stage.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn orchestration_3_8_5_a_cancel_of_the_parents_turn_leaves_no_child_no_task_and_no_thread()
     {
        let script = "await parallel(args.names.map((n) => () => agent(`hang ${n}`)));
            await new Promise(() => {})";
        let model = calling("workflow", workflow(script))
            .rule(When::default().user_contains("hang"), Reply::text("never").at_gate("closed"));
        let (stage, engine) = stage(model).await;
        let before = warmed(&stage).await;
        stage.agent().followup("go").await.unwrap();
        let mut agents = stage.world().agents.watch();
        while stage.harness().children(stage.agent().id()).len() < 3 {
            agents.changed().await.unwrap();
        }
        stage.agent().cancel(CancelCause::User);
        stage.agent().when_idle().await.unwrap();
        until_gone(&engine).await;
        assert!(stage.harness().children(stage.agent().id()).is_empty());
        let records = WorkflowRecords::of(&stage.agent().session().log());
        let (_, run) = records.runs().next().unwrap();
        assert_eq!(run.end, Some(WorkflowStop::Cancelled));
        assert_eq!(before.settled(stage.harness()).await, before);
        assert_eq!(script_threads(), 0);
        stage.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn a_shutdown_ends_runs_that_nobody_disposes() {
        let model = Script::new().reply(Reply::text("never").at_gate("closed"));
        let (stage, engine) = stage(model).await;
        let request = || WorkflowRequest::new(stage.agent(), meta());
        let hangs = "await parallel([1, 2, 3].map((n) => () => agent(`job ${n}`)))";
        let script = engine.start(request(), hangs).await.unwrap();
        let native = engine.start_native(request(), |cx| async move { cx.agent("job").await });
        let native = native.unwrap();
        let mut agents = stage.world().agents.watch();
        while stage.harness().children(stage.agent().id()).len() < 4 {
            agents.changed().await.unwrap();
        }
        stage.shutdown().await.unwrap();
        for run in [script, native] {
            assert_eq!(run.result().await.stop_reason, WorkflowStop::Cancelled);
        }
        until_gone(&engine).await;
        assert!(stage.harness().agents().is_empty());
        assert_eq!(script_threads(), 0);
    }
}
