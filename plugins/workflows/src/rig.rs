//! A harness with an engine, and children whose lives the test plays.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    chunk::Failure,
    content::{ContentBlock, joined_text},
};
use playhouse_models::scripted::{Reply, Script, ScriptedAdapter};
use playhouse_plugin_api::{
    cancel::CancelToken,
    clock::CountingIds,
    creation::{AgentHandle, NewAgent},
    options::AgentOptions,
    tool::{ToolCallRequest, ToolOutcome},
    world::World,
};
use playhouse_subagents::{
    Capabilities, ChildError, ChildProvider, ChildProviders, ChildRequest, ChildResult, Run,
    SUBAGENTS_SERVICE, StopReason, Subagents,
};
use playhouse_supervisor::{harness::Harness, plugin_host::PluginHandle};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    EngineConfig, NoticeKind, RalphConfig, WORKFLOW_ENGINE_SERVICE, WorkflowEngine,
    WorkflowRequest, WorkflowRun, Workflows,
};

/// The provider's name.
pub(crate) const PUPPETS: &str = "puppets";

/// Children without agents. What one does is in its prompt: `!fail`, `!hang` (until it is cancelled),
/// `!lost`, `!refuse` (to start), `!panic`, `!wait NAME` (for a gate), `!cling` (to its disposal);
/// anything else is answered. With a schema, the next of the reports is its result.
#[derive(Clone, Default)]
pub(crate) struct Puppets(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    next: u32,
    live: usize,
    peak: usize,
    disposed: usize,
    prompts: Vec<String>,
    reports: VecDeque<Value>,
    gates: HashMap<String, watch::Sender<bool>>,
}

impl Puppets {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn live(&self) -> usize {
        self.state().live
    }

    pub(crate) fn peak(&self) -> usize {
        self.state().peak
    }

    /// How many were started, and how many of them disposed.
    pub(crate) fn counts(&self) -> (u32, usize) {
        let state = self.state();
        (state.next, state.disposed)
    }

    pub(crate) fn prompts(&self) -> Vec<String> {
        self.state().prompts.clone()
    }

    pub(crate) fn report(&self, report: Value) {
        self.state().reports.push_back(report);
    }

    pub(crate) fn open(&self, gate: &str) {
        self.gate(gate).send_replace(true);
    }

    fn gate(&self, gate: &str) -> watch::Sender<bool> {
        self.state().gates.entry(gate.to_owned()).or_default().clone()
    }

    /// Waits until so many live.
    pub(crate) async fn until_live(&self, count: usize) {
        until(|| self.live() == count).await;
    }

    async fn play(
        self,
        prompt: String,
        structured: bool,
        cancel: CancelToken,
    ) -> Result<ChildResult, Failure> {
        // Others come between.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        let mut result = ChildResult::new(StopReason::Completed);
        if prompt.contains("!hang") {
            cancel.cancelled().await;
        } else if let Some((_, gate)) = prompt.split_once("!wait ") {
            let mut open = self.gate(gate).subscribe();
            let opened = async { open.wait_for(|open| *open).await.is_ok() };
            cancel.race(opened).await;
        } else if prompt.contains("!lost") {
            return Err(Failure::new("GONE", "the child's process is gone"));
        } else if prompt.contains("!panic") {
            panic!("a puppet's string broke");
        } else if prompt.contains("!fail") {
            result.stop_reason = StopReason::Error;
        }
        if cancel.is_cancelled() {
            result.stop_reason = StopReason::Aborted;
        }
        result.output = vec![ContentBlock::text(format!("re: {prompt}"))];
        if structured {
            result.structured = self.state().reports.pop_front();
        }
        Ok(result)
    }
}

impl ChildProvider for Puppets {
    fn name(&self) -> &str {
        PUPPETS
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { output_schema: true, ..Capabilities::default() }
    }

    fn start(&self, request: ChildRequest) -> BoxFuture<'static, Result<Run, ChildError>> {
        let puppets = self.clone();
        let prompt = joined_text(&request.prompt);
        puppets.state().prompts.push(prompt.clone());
        async move {
            tokio::task::yield_now().await;
            if prompt.contains("!refuse") || request.cancel.is_cancelled() {
                return Err(ChildError::Start(Failure::new("REFUSED", "no puppet for this")));
            }
            let number = {
                let mut state = puppets.state();
                state.next += 1;
                state.live += 1;
                state.peak = state.peak.max(state.live);
                state.next
            };
            let clings = prompt.contains("!cling");
            let structured = request.output_schema.is_some();
            let result = puppets.clone().play(prompt, structured, request.cancel).boxed();
            let disposal = async move {
                tokio::task::yield_now().await;
                if clings {
                    std::future::pending::<()>().await;
                }
                let mut state = puppets.state();
                state.live -= 1;
                state.disposed += 1;
                Ok(())
            };
            Ok(Run::new(format!("puppet-{number}").into(), None, result, disposal.boxed()))
        }
        .boxed()
    }
}

/// Waits for something that other tasks and threads bring about.
pub(crate) async fn until(mut is_so: impl FnMut() -> bool) {
    let patience = tokio::time::timeout(Duration::from_secs(20), async {
        while !is_so() {
            // A script's thread is not woken by the runtime's clock.
            std::thread::yield_now();
            tokio::task::yield_now().await;
        }
    });
    patience.await.expect("it never came to be so");
}

pub(crate) struct Rig {
    pub(crate) harness: Harness,
    pub(crate) parent: AgentHandle,
    pub(crate) puppets: Puppets,
    pub(crate) engine: WorkflowEngine,
    pub(crate) plugin: PluginHandle,
}

/// Limits that tests need not wait for.
pub(crate) fn limits() -> EngineConfig {
    EngineConfig {
        provider: PUPPETS.to_owned(),
        max_concurrent_agents: 4,
        dispose_grace: Duration::from_millis(300),
        sync_timeout: Duration::from_millis(300),
        ..EngineConfig::default()
    }
}

pub(crate) fn meta() -> Value {
    json!({"name": "test", "description": "a test"})
}

impl Rig {
    pub(crate) async fn new() -> Self {
        Self::with(limits()).await
    }

    pub(crate) async fn with(limits: EngineConfig) -> Self {
        let ralph = RalphConfig { provider: PUPPETS.to_owned(), ..RalphConfig::default() };
        let plugin = Workflows::new().engine(limits).ralph(ralph);
        let builder = Harness::builder().ids(CountingIds::default());
        let harness = builder.plugin(Subagents::new()).start().await.unwrap();
        let plugin = harness.host(plugin).await.unwrap();
        let world = harness.world();
        let model = Arc::new(ScriptedAdapter::new(Script::new().reply(Reply::text("Yes."))));
        world.models.register(["scripted"], model).unwrap();
        let providers = world.services.get::<ChildProviders>(SUBAGENTS_SERVICE).unwrap();
        let puppets = Puppets::default();
        providers.register(&world.scope, Arc::new(puppets.clone())).unwrap();
        until(|| world.services.get::<WorkflowEngine>(WORKFLOW_ENGINE_SERVICE).is_some()).await;
        let engine = world.services.get::<WorkflowEngine>(WORKFLOW_ENGINE_SERVICE).unwrap();
        let engine = WorkflowEngine::clone(&engine);
        let options = AgentOptions::new().model("scripted", "any");
        let parent = harness.create(NewAgent::new(options)).await.unwrap();
        Self { harness, parent, puppets, engine, plugin }
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        self.harness.world()
    }

    pub(crate) fn request(&self) -> (WorkflowRequest, Seen) {
        let seen = Seen::default();
        let see = seen.clone();
        let request = WorkflowRequest::new(self.parent.agent(), meta())
            .observed_by(move |notice| see.0.lock().unwrap().push(notice.clone()));
        (request, seen)
    }

    pub(crate) async fn start(&self, script: &str) -> (WorkflowRun, Seen) {
        let (request, seen) = self.request();
        (self.engine.start(request, script).await.unwrap(), seen)
    }

    /// Runs a script to its end; everything of it is gone then.
    pub(crate) async fn run(&self, script: &str) -> (crate::WorkflowResult, Seen) {
        let (run, seen) = self.start(script).await;
        let result = run.result().await;
        run.dispose().await.unwrap();
        self.is_clean(&seen);
        (result, seen)
    }

    /// Nothing is left, and all that was told of fits together.
    pub(crate) fn is_clean(&self, seen: &Seen) {
        assert_eq!(self.engine.live(), crate::Live::default());
        assert_eq!(self.puppets.live(), 0);
        let (started, disposed) = self.puppets.counts();
        assert_eq!(usize::try_from(started).unwrap(), disposed);
        seen.fits();
    }

    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Arc<ToolOutcome> {
        let request = self.tool_request(tool, arguments);
        self.world().tools.execute_one(request).await
    }

    pub(crate) fn tool_request(&self, tool: &str, arguments: Value) -> ToolCallRequest {
        ToolCallRequest {
            call_id: "c1".into(),
            root_call_id: None,
            name: tool.to_owned(),
            arguments,
            agent: Some(self.parent.agent().clone()),
            scope: self.parent.scope().clone(),
            at: None,
            cancel: CancelToken::new(),
            ids: Arc::new(|| "of-the-body".into()),
            checkpoint: None,
        }
    }
}

/// What was told of a run.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<NoticeKind>>>);

impl Seen {
    pub(crate) fn all(&self) -> Vec<NoticeKind> {
        self.0.lock().unwrap().clone()
    }

    /// One start, then the rest, then one end; and of each child a start and an end.
    pub(crate) fn fits(&self) {
        let all = self.all();
        assert!(matches!(all.first(), Some(NoticeKind::Start { .. })), "{all:?}");
        assert!(matches!(all.last(), Some(NoticeKind::End { .. })), "{all:?}");
        let ends = |notice: &&NoticeKind| matches!(notice, NoticeKind::End { .. });
        assert_eq!(all.iter().filter(ends).count(), 1, "{all:?}");
        let (mut open, mut known) = (Vec::new(), Vec::new());
        for notice in &all {
            match notice {
                NoticeKind::AgentStart { seq, child, .. } => {
                    assert!(*seq > 0 && !known.contains(seq), "{all:?}");
                    known.push(*seq);
                    open.push((*seq, child.clone()));
                }
                NoticeKind::AgentEnd { seq, child, .. } => {
                    let before = open.len();
                    open.retain(|(other, theirs)| (other, theirs) != (seq, child));
                    assert_eq!(open.len() + 1, before, "{all:?}");
                }
                _ => {}
            }
        }
        assert!(open.is_empty(), "{all:?}");
    }
}
