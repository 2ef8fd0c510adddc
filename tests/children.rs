//! Delegation to children, from code and by the model's tool.

use std::sync::{Arc, Mutex};

use playhouse::{
    Agent, AgentHandle, AgentOptions, CancelCause, EventBody, HarnessState, NewAgent, SessionId,
    TurnEndReason,
    messages::{event::ToolResult, invariants::Invariants, machine::Status},
    models::scripted::{Reply, Rule, Script, When},
    plugin_api::tool::{ToolFilter, tool_fn},
    subagents::{
        ChildProviders, ChildRequest, SUBAGENTS_SERVICE, Slots, Spawn, StopReason, Subagents,
        descriptor::Descriptor, spawn,
    },
    testing::{Stage, Victim, trace},
};
use playhouse_stores::MemoryStore;
use serde_json::{Value, json};
use tokio::sync::Notify;

/// A stage with sub-agents, their slots, and every agent that was ever made on it.
struct Family {
    stage: Stage,
    slots: Slots,
    born: Arc<Mutex<Vec<Agent>>>,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct LookupArgs {
    topic: String,
}

async fn family(script: Script, change: impl FnOnce(Subagents) -> Subagents) -> Family {
    stored_family(script, change, MemoryStore::new()).await
}

async fn stored_family(
    script: Script,
    change: impl FnOnce(Subagents) -> Subagents,
    store: MemoryStore,
) -> Family {
    let plugin = change(Subagents::new());
    let slots = plugin.slots().clone();
    let stage =
        Stage::minimal(script).harness(|h| h.store(store).plugin(plugin)).start().await.unwrap();
    let lookup = tool_fn("lookup", "Looks a topic up.", |args: LookupArgs, _run| async move {
        Ok(format!("the notes on {} say: it depends.", args.topic))
    });
    stage.harness().register_tool(Arc::new(lookup.parallel())).unwrap();
    let born = Arc::new(Mutex::new(Vec::new()));
    let record = born.clone();
    let world = stage.world();
    let listener = move |created: playhouse::plugin_api::points::Created| {
        record.lock().unwrap().push(created.agent);
        async { Ok(()) }
    };
    world.hooks.created.add(&world.scope, listener).unwrap();
    Family { stage, slots, born }
}

impl Family {
    fn root(&self) -> &AgentHandle {
        self.stage.agent()
    }

    fn children(&self) -> Vec<Agent> {
        self.stage.harness().children(self.root().id())
    }

    /// Everybody but the root, in order of birth.
    fn born(&self) -> Vec<Agent> {
        self.born.lock().unwrap().clone()
    }

    /// Waits until so many children of the root live.
    async fn until_children(&self, count: usize) {
        let mut changes = self.stage.world().agents.watch();
        while self.children().len() != count {
            changes.changed().await.unwrap();
        }
    }

    /// Lets the runtime run until nothing is left of any child.
    async fn until_gone(&self, count: usize) {
        for _ in 0..1_000 {
            if self.children().is_empty() && self.slots.taken() == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!(
            "{:?} and {} slots are left after {count} polls",
            self.children(),
            self.slots.taken()
        );
    }

    async fn spawn(&self, parent: &Agent, prompt: &str) -> playhouse::subagents::Run {
        spawn(self.stage.world(), ChildRequest::new(parent, prompt)).await.unwrap()
    }

    /// Nothing is left of any child; after a shutdown, of anybody. All logs are whole.
    async fn ends_clean(self) {
        self.stage.shutdown().await.unwrap();
        for agent in self.born().iter().chain([self.root().agent()]) {
            let log = agent.session().log();
            let kept = Invariants::of(&log).unwrap_or_else(|broken| panic!("{broken}: {log:?}"));
            assert!(kept.is_balanced(), "{}", trace(&log));
        }
        assert_eq!(self.slots.taken(), 0);
        assert!(self.stage.harness().agents().is_empty());
        let metrics = tokio::runtime::Handle::current().metrics();
        // What was told to end takes a few polls to do so.
        for _ in 0..1_000 {
            if metrics.num_alive_tasks() == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{} tasks outlive the harness", metrics.num_alive_tasks());
    }
}

/// The root calls the tool once for each prompt, and repeats what it got.
fn fan_out(prompts: &[&str]) -> Vec<Rule> {
    let call = prompts.iter().fold(Reply::default(), |reply, prompt| {
        reply.and_call("subagent", json!({"description": format!("Do {prompt}"), "prompt": prompt}))
    });
    let answered = When { after_tool: Some("subagent".to_owned()), ..When::default() };
    let asked = When { user_contains: Some("fan out".to_owned()), ..When::default() };
    vec![
        Rule { when: answered, reply: Reply::text("{{results}}") },
        Rule { when: asked, reply: call },
    ]
}

fn on(prompt: &str, reply: Reply) -> Rule {
    let when = When { user_contains: Some(prompt.to_owned()), ..When::default() };
    Rule { when, reply }
}

fn script(rules: impl IntoIterator<Item = Rule>) -> Script {
    rules.into_iter().fold(Script::new(), |script, rule| script.rule(rule.when, rule.reply))
}

fn results(agent: &Agent) -> Vec<ToolResult> {
    let log = agent.session().log();
    let results = log.iter().filter_map(|event| match &event.body {
        EventBody::ToolResult(result) => Some(result.clone()),
        _ => None,
    });
    results.collect()
}

fn failure(result: &ToolResult) -> (Option<&str>, String) {
    (result.error.as_ref().map(|error| &*error.code), result.message.text())
}

fn last_turn(agent: &Agent) -> Option<TurnEndReason> {
    agent.session().log().iter().rev().find_map(|event| match &event.body {
        EventBody::TurnEnd(end) => Some(end.reason.clone()),
        _ => None,
    })
}

#[tokio::test(start_paused = true)]
async fn three_children_work_in_parallel_and_their_answers_make_a_report() {
    let family = family(Script::team(), |plugin| plugin).await;
    let outcome = family.root().prompt("Which cache?").await.unwrap();
    assert_eq!(outcome.reason, TurnEndReason::Completed);
    assert!(outcome.text.starts_with("Report on \"Which cache?\""), "{}", outcome.text);
    let mut seen = 0;
    for topic in ["cost", "speed", "risk"] {
        seen += outcome.text.matches(&format!("the notes on {topic} say: it depends.")).count();
    }
    assert_eq!(seen, 3);
    let children = family.born();
    assert_eq!(children.len(), 3);
    for child in &children {
        assert_eq!(
            trace(&child.session().log()),
            "subagent/descriptor IN+ TS1 IN- SS1.1 SYS+ U(delegation) CTX H C A(lookup) \
             TC(lookup) TR SE1.1 SS1.2 A SE1.2 TE1(completed)"
        );
    }
    family.root().when_idle().await.unwrap();
    assert_eq!(
        family.stage.trace(),
        "IN+ TS1 IN- SS1.1 SYS+ U H C A(subagent,subagent,subagent) TC(subagent) TC(subagent) \
         TC(subagent) TR TR TR SE1.1 SS1.2 A SE1.2 TE1(completed)"
    );
    family.ends_clean().await;
}

#[tokio::test]
async fn a_child_is_its_parents_and_knows_it() {
    let rules = [on("work", Reply::text("done").at_gate("work"))];
    let family = family(script(rules), |plugin| plugin).await;
    let request = ChildRequest::new(family.root(), "work").label("Some work").persona("Be brief.");
    let run = spawn(family.stage.world(), request).await.unwrap();
    let child = run.agent().unwrap();
    assert_eq!(family.children(), std::slice::from_ref(child));
    assert_eq!(run.id(), child.id());
    assert_eq!(child.runtime_parent(), Some(family.root().id()));
    assert_eq!(child.session().header().parent_session.as_ref(), Some(family.root().id()));
    assert_eq!((child.depth(), family.slots.taken()), (1, 1));
    assert_eq!(child.owner(), family.root().scope());
    family.stage.gate("work").open();
    assert_eq!(run.result().await.unwrap().text(), "done");

    let log = child.session().log();
    let sources = log.iter().filter_map(|event| match &event.body {
        EventBody::UserMessage(message) if message.text() == "work" => {
            Some(Value::Object(message.source.fields().clone()))
        }
        _ => None,
    });
    let sender = family.root().id().as_str();
    assert_eq!(
        sources.collect::<Vec<_>>(),
        [json!({"kind": "delegation", "senderSessionId": sender})]
    );
    let label = Some("Some work".to_owned());
    assert_eq!(Descriptor::of(&log, 0), Ok(Some(Descriptor::one_shot("spawn", label))));
    let request = &family.stage.requests()[0];
    let texts: Vec<_> = request.messages.iter().map(|message| message.text()).collect();
    assert_eq!(texts[0], "Be brief.");
    assert!(texts.iter().any(|text| text.contains("You are a sub-agent")), "{texts:?}");

    run.dispose().await.unwrap();
    assert_eq!((family.children(), family.slots.taken()), (vec![], 0));
    family.ends_clean().await;
}

#[tokio::test]
async fn a_child_without_a_slot_fails_with_a_typed_error_and_others_go_on() {
    let mut rules = fan_out(&["one", "two"]);
    rules.push(on("one", Reply::text("first").at_gate("one")));
    rules.push(on("two", Reply::text("second").at_gate("one")));
    let family = family(script(rules), |plugin| plugin.max_children(1)).await;
    let asked = family.root().followup("fan out").await.unwrap();
    family.stage.gate("one").arrived(1).await;
    let refused = spawn(family.stage.world(), ChildRequest::new(family.root(), "one")).await;
    assert_eq!(refused.unwrap_err().code(), "SUBAGENT_CAPACITY");
    family.stage.gate("one").open();
    family.root().outcome(&asked, 0).await.unwrap();
    let codes: Vec<_> = results(family.root()).iter().map(|r| failure(r).0.is_some()).collect();
    assert_eq!(codes.iter().filter(|failed| **failed).count(), 1);
    assert_eq!(family.slots.taken(), 0);
    let run = family.spawn(family.root(), "one").await;
    assert_eq!(run.result().await.unwrap().stop_reason, StopReason::Completed);
    family.ends_clean().await;
}

#[tokio::test]
async fn a_failed_start_leaves_nothing_behind() {
    let family = family(script([on("", Reply::text("x"))]), |plugin| plugin).await;
    let world = family.stage.world();
    let request = || ChildRequest::new(family.root(), "work");

    let unknown = request().tool_filter(ToolFilter::deny(["no-such-tool"]));
    assert_eq!(spawn(world, unknown).await.unwrap_err().code(), "UNKNOWN_TOOL");
    let listed = request().output_schema(json!({"type": "array"}));
    let refused = spawn(world, listed).await.unwrap_err();
    assert_eq!(refused.code(), "UNSUPPORTED_SCHEMA");
    let cancelled = request();
    cancelled.cancel.cancel(CancelCause::User);
    assert_eq!(spawn(world, cancelled).await.unwrap_err().code(), "ABORTED");
    let closed = world.scope.child("closed").unwrap();
    closed.close();
    assert_eq!(spawn(world, request().owned_by(closed)).await.unwrap_err().code(), "ABORTED");

    let providers = world.services.get::<ChildProviders>(SUBAGENTS_SERVICE).unwrap();
    let nobody = providers.start("nobody", request()).await.unwrap_err();
    assert_eq!(nobody.code(), "NO_PROVIDER");
    let second = Arc::new(Spawn::new(world.clone(), Slots::new(1)));
    let refused = providers.register(&world.scope, second).unwrap_err();
    assert_eq!(refused.code(), "DUPLICATE_PROVIDER");

    assert_eq!((family.children(), family.slots.taken()), (vec![], 0));
    assert_eq!(family.stage.requests().len(), 0);
    family.ends_clean().await;
}

#[tokio::test]
async fn a_childs_tool_filter_holds_for_its_own_children() {
    let family = family(script([on("", Reply::text("x"))]), |plugin| plugin).await;
    let world = family.stage.world();
    let request =
        ChildRequest::new(family.root(), "work").tool_filter(ToolFilter::deny(["lookup"]));
    let child = spawn(world, request).await.unwrap();
    let grandchild = family.spawn(child.agent().unwrap(), "work").await;
    for run in [&child, &grandchild] {
        run.result().await.unwrap();
    }
    for request in family.stage.requests() {
        let tools: Vec<_> = request.tools.iter().map(|tool| tool.name.clone()).collect();
        assert_eq!(tools, ["subagent"]);
    }
    family.ends_clean().await;
}

#[tokio::test]
async fn an_owned_child_goes_before_its_parent_and_one_owned_apart_outlives_it() {
    let rules = [on("", Reply::text("done").at_gate("work"))];
    let family = family(script(rules), |plugin| plugin).await;
    let world = family.stage.world();
    let gone = Arc::new(Mutex::new(Vec::new()));
    let record = gone.clone();
    let listener = move |agent: &Agent| record.lock().unwrap().push(agent.id().clone());
    world.hooks.disposed.add(&world.scope, listener).unwrap();

    let owned = family.spawn(family.root(), "owned").await;
    let below = family.spawn(owned.agent().unwrap(), "below").await;
    let request = ChildRequest::new(family.root(), "apart").owned_by(world.scope.clone());
    let apart = spawn(world, request).await.unwrap();
    family.stage.gate("work").arrived(3).await;
    family.root().dispose().await.unwrap();

    let ids = [below.id(), owned.id(), family.root().id()].map(SessionId::clone);
    assert_eq!(*gone.lock().unwrap(), ids, "bottom up");
    for run in [&owned, &below] {
        assert_eq!(run.result().await.unwrap().stop_reason, StopReason::Aborted);
        run.dispose().await.unwrap();
    }
    let survivor = apart.agent().unwrap();
    assert_eq!(survivor.status(), Status::Running);
    assert_eq!(family.slots.taken(), 1);
    family.stage.gate("work").open();
    assert_eq!(apart.result().await.unwrap().text(), "done");
    family.ends_clean().await;
}

#[tokio::test]
async fn a_child_that_is_being_made_is_reached_by_cancel_disposal_and_shutdown() {
    let family = family(script([on("", Reply::text("x"))]), |plugin| plugin).await;
    let harness = family.stage.harness().clone();
    let making = |parent: &Agent| {
        let entered = Arc::new(Notify::new());
        let signal = entered.clone();
        let new = NewAgent::new(AgentOptions::new())
            .delegated_by(parent)
            .owned_by(parent.scope().clone())
            .set_up(move |_| {
                signal.notify_one();
                std::future::pending()
            });
        let harness = harness.clone();
        (entered, tokio::spawn(async move { harness.create(new).await.map(drop) }))
    };
    let aborted = |made: Result<_, _>| -> String {
        let made: Result<(), playhouse::plugin_api::creation::CreateError> = made;
        made.unwrap_err().code().to_owned()
    };

    let (entered, made) = making(family.root());
    entered.notified().await;
    assert_eq!(harness.cancel_tree(family.root(), CancelCause::User).reached(), 2);
    assert_eq!(aborted(made.await.unwrap()), "ABORTED");

    let parent = family.stage.another().await.unwrap();
    let (entered, made) = making(&parent);
    entered.notified().await;
    parent.dispose().await.unwrap();
    assert!(
        made.is_finished() || family.stage.world().agents.owned(parent.scope().id()).1.is_empty()
    );
    assert_eq!(aborted(made.await.unwrap()), "ABORTED");

    let (entered, made) = making(family.root());
    entered.notified().await;
    harness.shutdown().await.unwrap();
    assert_eq!(aborted(made.await.unwrap()), "SHUTTING_DOWN");
    assert_eq!(
        harness.create(NewAgent::new(AgentOptions::new())).await.unwrap_err().code(),
        "SHUTTING_DOWN"
    );
    family.ends_clean().await;
}

#[tokio::test]
async fn a_childs_session_loads_only_where_sub_agents_are_known() {
    let store = MemoryStore::new();
    let again = store.clone();
    let family = stored_family(script([on("", Reply::text("x"))]), |plugin| plugin, store).await;
    let run = family.spawn(family.root(), "work").await;
    run.result().await.unwrap();
    family.stage.shutdown().await.unwrap();

    let other = Stage::minimal(Script::new()).harness(|h| h.store(again.reopen())).start().await;
    let other = other.unwrap();
    let refused = other.harness().resume(run.id().clone(), NewAgent::default()).await;
    assert!(refused.unwrap_err().to_string().contains("subagent/descriptor"));
    other.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_killed_child_comes_back_and_its_run_tells_of_the_crash() {
    let rules = [on("", Reply::text("done").at_gate("work"))];
    let family = family(script(rules), |plugin| plugin).await;
    let run = family.spawn(family.root(), "work").await;
    family.stage.gate("work").arrived(1).await;
    assert!(family.stage.kill(run.agent().unwrap(), Victim::Agent).await);
    let result = run.result().await.unwrap();
    assert_eq!(result.stop_reason, StopReason::Error);
    assert_eq!(result.diagnostic.as_deref(), Some("its turn was interrupted by a crash"));
    run.dispose().await.unwrap();
    family.ends_clean().await;
}

/// At how many polls of the runtime after the start of a spawn something else happens: enough for
/// the child to be made and at work.
const POLLS: usize = 120;

/// As [`POLLS`], for a whole turn with two children.
const DELEGATION_POLLS: usize = 600;

/// Runs a test on a runtime that comes back to it after every poll of another task.
fn poll_by_poll(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.event_interval(1).enable_all().build().unwrap().block_on(test);
}

async fn polls(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_cancel_of_the_tree_at_any_moment_of_a_spawn_ends_the_child_or_comes_before_it() {
    poll_by_poll(async {
        let (mut before, mut given_up, mut cancelled) = (0, 0, 0);
        for count in 0..POLLS {
            let rules = [on("", Reply::text("done").at_gate("work"))];
            let family = family(script(rules), |plugin| plugin).await;
            let (world, root) = (family.stage.world().clone(), family.root().agent().clone());
            let spawning =
                tokio::spawn(async move { spawn(&world, ChildRequest::new(&root, "work")).await });
            polls(count).await;
            let reached =
                family.stage.harness().cancel_tree(family.root(), CancelCause::User).reached();
            family.stage.gate("work").open();
            let stopped = match spawning.await.unwrap() {
                Ok(run) => run.result().await.unwrap().stop_reason,
                Err(error) => {
                    assert_eq!(error.code(), "ABORTED");
                    assert!(family.children().is_empty());
                    given_up += 1;
                    StopReason::Aborted
                }
            };
            if reached == 1 {
                before += 1;
                assert_eq!(stopped, StopReason::Completed, "after {count} polls");
            } else {
                cancelled += 1;
                assert_eq!(stopped, StopReason::Aborted, "after {count} polls");
            }
            family.ends_clean().await;
        }
        let met = (before, given_up, cancelled);
        assert!(
            before > 0 && given_up > 0 && cancelled > given_up,
            "some moment is not met: {met:?}"
        );
    });
}

#[test]
fn a_disposal_of_the_parent_at_any_moment_of_a_spawn_leaves_no_child() {
    poll_by_poll(async {
        for count in 0..POLLS {
            let rules = [on("", Reply::text("done").at_gate("work"))];
            let family = family(script(rules), |plugin| plugin).await;
            let (world, root) = (family.stage.world().clone(), family.root().agent().clone());
            let spawning =
                tokio::spawn(async move { spawn(&world, ChildRequest::new(&root, "work")).await });
            polls(count).await;
            family.root().dispose().await.unwrap();
            assert!(family.stage.harness().agents().is_empty(), "after {count} polls");
            match spawning.await.unwrap() {
                Ok(run) => {
                    assert_eq!(run.result().await.unwrap().stop_reason, StopReason::Aborted);
                    run.dispose().await.unwrap();
                }
                Err(error) => {
                    assert!(matches!(error.code(), "ABORTED" | "SCOPE_CLOSED"), "{error}")
                }
            }
            assert_eq!(family.slots.taken(), 0, "after {count} polls");
            family.ends_clean().await;
        }
    });
}

#[test]
fn a_shutdown_at_any_moment_of_a_spawn_leaves_nobody() {
    poll_by_poll(async {
        for count in 0..POLLS {
            let rules = [on("", Reply::text("done").at_gate("work"))];
            let family = family(script(rules), |plugin| plugin).await;
            let (world, root) = (family.stage.world().clone(), family.root().agent().clone());
            let spawning =
                tokio::spawn(async move { spawn(&world, ChildRequest::new(&root, "work")).await });
            polls(count).await;
            family.stage.shutdown().await.unwrap();
            assert!(family.stage.harness().agents().is_empty(), "after {count} polls");
            if let Ok(run) = spawning.await.unwrap() {
                assert_eq!(run.result().await.unwrap().stop_reason, StopReason::Aborted);
            }
            family.ends_clean().await;
        }
    });
}

#[test]
fn a_dropped_spawn_at_any_moment_takes_its_child_along() {
    poll_by_poll(async {
        for count in 0..POLLS {
            let rules = [on("", Reply::text("done").at_gate("work"))];
            let family = family(script(rules), |plugin| plugin).await;
            let (world, root) = (family.stage.world().clone(), family.root().agent().clone());
            let spawning =
                tokio::spawn(async move { spawn(&world, ChildRequest::new(&root, "work")).await });
            polls(count).await;
            spawning.abort();
            match spawning.await {
                Ok(run) => run.unwrap().dispose().await.unwrap(),
                Err(dropped) => assert!(dropped.is_cancelled()),
            }
            family.until_gone(count).await;
            family.ends_clean().await;
        }
    });
}

#[test]
fn a_cancel_of_the_parent_at_any_moment_of_its_delegation_leaves_no_child_and_whole_logs() {
    let mut ends = std::collections::BTreeMap::<String, usize>::new();
    poll_by_poll(async {
        for count in (0..DELEGATION_POLLS).step_by(3) {
            let mut rules = fan_out(&["one", "two"]);
            rules.push(on("", Reply::text("done")));
            let family = family(script(rules), |plugin| plugin).await;
            family.root().followup("fan out").await.unwrap();
            polls(count).await;
            family.root().cancel(CancelCause::User);
            family.root().when_idle().await.unwrap();
            assert_eq!(family.children(), [], "after {count} polls");
            assert_eq!(family.slots.taken(), 0, "after {count} polls");
            let end = trace(&family.root().session().log());
            *ends.entry(end.rsplit(' ').next().unwrap().to_owned()).or_default() += 1;
            family.ends_clean().await;
        }
    });
    let met: Vec<_> = ends.keys().map(String::as_str).collect();
    assert_eq!(met, ["TE1(aborted:user)", "TE1(completed)"], "{ends:?}");
}

#[tokio::test]
async fn a_harness_without_its_root_keeps_no_child_and_answers_everybody() {
    let stage = Stage::minimal(script([on("", Reply::text("never").at_gate("shut"))]));
    let plugin = Subagents::new();
    let slots = plugin.slots().clone();
    // In memory: nothing has to be stored, and all waiters must be told all the same.
    let stage = stage.harness(|h| h.plugin(plugin)).start().await.unwrap();
    let run = spawn(stage.world(), ChildRequest::new(stage.agent(), "work")).await.unwrap();
    stage.gate("shut").arrived(1).await;
    let entered = Arc::new(Notify::new());
    let signal = entered.clone();
    let new = NewAgent::new(AgentOptions::new()).delegated_by(stage.agent()).set_up(move |_| {
        signal.notify_one();
        std::future::pending()
    });
    let harness = stage.harness().clone();
    let making = tokio::spawn(async move { harness.create(new).await.map(drop) });
    entered.notified().await;

    let supervisor = stage.agent().cell().supervisor.live().unwrap();
    supervisor.try_get_supervisor().unwrap().kill();
    let mut states = stage.harness().watch();
    states.wait_for(|state| matches!(state, HarnessState::Failed(_))).await.unwrap();
    assert_eq!(making.await.unwrap().unwrap_err().code(), "SHUTTING_DOWN");
    assert!(stage.harness().agents().is_empty());
    assert_eq!(slots.taken(), 0);
    assert_eq!(run.result().await.unwrap().stop_reason, StopReason::Error);
    run.dispose().await.unwrap();
    let refused = stage.harness().create(NewAgent::new(AgentOptions::new())).await;
    assert_eq!(refused.unwrap_err().code(), "SHUTTING_DOWN");
    stage.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_parent_whose_actors_die_leaves_no_child_of_the_lost_turn() {
    for victim in [Victim::Agent, Victim::Supervisor] {
        let mut rules = vec![on("hello?", Reply::text("still here"))];
        rules.extend(fan_out(&["one", "two"]));
        rules.push(on("", Reply::text("never").at_gate("shut")));
        let family = family(script(rules), |plugin| plugin).await;
        family.root().followup("fan out").await.unwrap();
        family.stage.gate("shut").arrived(2).await;
        assert!(family.stage.kill(family.root(), victim.clone()).await);
        family.until_children(0).await;
        family.root().when_idle().await.unwrap();
        assert_eq!(family.slots.taken(), 0, "{victim:?}");
        for child in family.born() {
            assert!(matches!(last_turn(&child), Some(TurnEndReason::Aborted(_))), "{victim:?}");
        }
        let results = results(family.root());
        let codes: Vec<_> = results.iter().map(|result| failure(result).0).collect();
        assert_eq!(codes, [Some("TOOL_OUTCOME_UNKNOWN"); 2], "{victim:?}");
        assert_eq!(family.root().prompt("hello?").await.unwrap().text, "still here");
        family.ends_clean().await;
    }
}

mod subagents {
    use super::*;

    #[tokio::test]
    async fn orchestration_1_10_each_run_is_told_of_once_at_its_start_and_once_at_its_end() {
        let mut rules = fan_out(&["good", "bad"]);
        rules.push(on("good", Reply::text("good news")));
        rules.push(on("bad", Reply::error("BAD_REQUEST", "no")));
        let family = family(script(rules), |plugin| plugin).await;
        let world = family.stage.world();
        let providers = world.services.get::<ChildProviders>(SUBAGENTS_SERVICE).unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let (starts, ends) = (told.clone(), told.clone());
        let (lifecycle, agents) = (providers.lifecycle(), world.agents.clone());
        let started = move |run: &playhouse::subagents::RunStarted| {
            assert!(run.local && agents.get(&run.id).is_some());
            starts.lock().unwrap().push((run.id.clone(), None));
        };
        lifecycle.started.add(family.root().scope(), started).unwrap();
        let ended = move |end: &playhouse::subagents::RunEnded| {
            let how = (end.stop_reason.clone(), end.last_message.clone());
            ends.lock().unwrap().push((end.run.id.clone(), Some(how)));
        };
        lifecycle.ended.add(family.root().scope(), ended).unwrap();
        family.root().prompt("fan out").await.unwrap();
        family.root().when_idle().await.unwrap();
        let told = told.lock().unwrap().clone();
        assert_eq!(told.len(), 4);
        let expected =
            [(StopReason::Completed, Some("good news".to_owned())), (StopReason::Error, None)];
        for (child, expected) in family.born().iter().zip(expected) {
            let of_child: Vec<_> = told.iter().filter(|(id, _)| id == child.id()).collect();
            assert_eq!(of_child[0].1, None, "the start comes first");
            assert_eq!(of_child[1].1.as_ref(), Some(&expected));
        }
        family.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_13_a_cancelled_parent_aborts_its_child_clears_its_inbox_and_disposes_it()
     {
        let mut rules = fan_out(&["work"]);
        rules.push(on("work", Reply::text("never").at_gate("work")));
        let family = family(script(rules), |plugin| plugin).await;
        family.root().followup("fan out").await.unwrap();
        family.stage.gate("work").arrived(1).await;
        let child = family.children().remove(0);
        child.followup("and then this").await.unwrap();
        family.root().cancel(CancelCause::User);
        family.root().when_idle().await.unwrap();
        let aborted = TurnEndReason::Aborted(CancelCause::Parent);
        assert_eq!(last_turn(&child), Some(aborted));
        assert!(trace(&child.session().log()).contains("INx"));
        assert!(child.inbox().is_empty());
        assert_eq!((family.children(), family.slots.taken()), (vec![], 0));
        assert_eq!(last_turn(family.root()), Some(TurnEndReason::Aborted(CancelCause::User)));
        let result = &results(family.root())[0];
        let (code, text) = failure(result);
        assert_eq!(code, Some("SUBAGENT_ABORTED"));
        assert!(text.contains("was cancelled"), "{text}");
        family.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_14_1_a_child_beyond_the_depth_limit_is_an_error_and_is_not_made() {
        let mut rules = fan_out(&["deeper"]);
        rules.push(on("", Reply::text("here")));
        let family = family(script(rules), |plugin| plugin.max_depth(3)).await;
        let mut deepest: Agent = family.root().agent().clone();
        let mut runs = Vec::new();
        for depth in 1..=2 {
            let run = family.spawn(&deepest, "stay").await;
            deepest = run.agent().unwrap().clone();
            assert_eq!(deepest.depth(), depth);
            runs.push(run);
        }
        let run = family.spawn(&deepest, "fan out").await;
        let born = family.born().len();
        run.result().await.unwrap();
        let result = &results(run.agent().unwrap())[0];
        let (code, text) = failure(result);
        assert_eq!(code, Some("SUBAGENT_DEPTH"));
        assert_eq!(text, "Error: subagent depth 4 exceeds maxDepth 3");
        assert_eq!(family.born().len(), born);
        family.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_14_2_a_resumed_parents_depth_counts_whatever_its_fresh_options() {
        let store = MemoryStore::new();
        let again = store.clone();
        let rules = || script([on("", Reply::text("x"))]);
        let first = stored_family(rules(), |plugin| plugin, store).await;
        let child = first.spawn(first.root(), "work").await;
        let grandchild = first.spawn(child.agent().unwrap(), "work").await;
        grandchild.result().await.unwrap();
        first.stage.shutdown().await.unwrap();

        let second = Stage::minimal(rules())
            .harness(|h| {
                h.store(again.reopen())
                    .plugin(Subagents::new())
                    .ids(playhouse::plugin_api::clock::UuidIds)
            })
            .start()
            .await
            .unwrap();
        let options = AgentOptions::new().model("scripted", "any");
        let resumed =
            second.harness().resume(grandchild.id().clone(), NewAgent::new(options)).await.unwrap();
        assert_eq!(resumed.depth(), 2);
        let run = spawn(second.world(), ChildRequest::new(&resumed, "work")).await.unwrap();
        let below = run.agent().unwrap();
        assert_eq!(below.session().header().delegation_depth, Some(3));
        let refused = spawn(second.world(), ChildRequest::new(below, "work")).await;
        assert_eq!(refused.unwrap_err().to_string(), "subagent depth 4 exceeds maxDepth 3");
        second.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn orchestration_1_14_4_a_child_cut_by_the_output_limit_is_an_error_with_what_it_said() {
        let mut rules = fan_out(&["work"]);
        rules.push(on("work", Reply::text("abc").with_finish("length")));
        let family = family(script(rules), |plugin| plugin).await;
        family.root().prompt("fan out").await.unwrap();
        let result = &results(family.root())[0];
        let (code, text) = failure(result);
        assert_eq!(code, Some("SUBAGENT_MAX_TOKENS"));
        assert!(text.contains("hit its output token limit\nOutput so far:\nabc"), "{text}");
        family.ends_clean().await;
    }
}

mod anchors {
    use super::*;

    #[tokio::test]
    async fn l26_one_failed_child_is_an_error_result_and_its_siblings_go_on() {
        let mut rules = fan_out(&["good", "bad", "fine"]);
        rules.push(on("good", Reply::text("good news").at_gate("others")));
        rules.push(on("bad", Reply::error("BAD_REQUEST", "the model is unwell")));
        rules.push(on("fine", Reply::text("fine news").at_gate("others")));
        let family = family(script(rules), |plugin| plugin).await;
        let asked = family.root().followup("fan out").await.unwrap();
        family.stage.gate("others").arrived(2).await;
        family.until_children(2).await;
        family.stage.gate("others").open();
        let outcome = family.root().outcome(&asked, 0).await.unwrap();
        assert_eq!(outcome.reason, TurnEndReason::Completed);
        let results = results(family.root());
        let errors: Vec<_> = results.iter().map(|result| failure(result).0).collect();
        assert_eq!(errors, [None, Some("SUBAGENT_FAILED"), None]);
        let text = results[1].message.text();
        assert!(text.contains("sub-agent \"Do bad\""), "{text}");
        assert!(text.contains("failed\nDiagnostic: BAD_REQUEST: the model is unwell"), "{text}");
        assert_eq!(results[0].message.text(), "good news");
        family.ends_clean().await;
    }

    #[tokio::test]
    async fn l45_finished_failed_cancelled_and_refused_children_all_give_their_slots_back() {
        let rules = [
            on("finish", Reply::text("done")),
            on("fail", Reply::error("BAD_REQUEST", "no")),
            on("hang", Reply::text("never").at_gate("shut")),
        ];
        let family = family(script(rules), |plugin| plugin.max_children(1)).await;
        let world = family.stage.world();
        // One slot, so a single leak fails all that come after.
        for prompt in ["finish", "fail", "hang", "finish"] {
            let request = ChildRequest::new(family.root(), prompt);
            let cancel = request.cancel.clone();
            assert_eq!(family.slots.taken(), 0, "before {prompt}");
            let run = spawn(world, request).await.unwrap();
            assert_eq!(family.slots.taken(), 1);
            if prompt == "hang" {
                family.stage.gate("shut").arrived(1).await;
                cancel.cancel(CancelCause::User);
                assert_eq!(run.result().await.unwrap().stop_reason, StopReason::Aborted);
            }
            run.result().await.unwrap();
            run.dispose().await.unwrap();
            assert_eq!(family.slots.taken(), 0, "after {prompt}");
        }
        let unknown = ToolFilter::deny(["no-such-tool"]);
        let refused = ChildRequest::new(family.root(), "finish").tool_filter(unknown);
        spawn(world, refused).await.unwrap_err();
        assert_eq!(family.slots.taken(), 0);
        family.ends_clean().await;
    }

    #[tokio::test]
    async fn l46_children_are_listed_stopped_and_awaited_by_their_one_owner() {
        let rules = [on("", Reply::text("never").at_gate("shut"))];
        let family = family(script(rules), |plugin| plugin).await;
        let runs = [family.spawn(family.root(), "a").await, family.spawn(family.root(), "b").await];
        let listed: Vec<_> = family.children().iter().map(|child| child.id().clone()).collect();
        let mut ids: Vec<_> = runs.iter().map(|run| run.id().clone()).collect();
        ids.sort();
        assert_eq!(listed, ids);
        runs[0].dispose().await.unwrap();
        assert_eq!(family.children().len(), 1);
        family.root().dispose().await.unwrap();
        assert!(family.stage.harness().agents().is_empty());
        assert_eq!(runs[1].result().await.unwrap().stop_reason, StopReason::Aborted);
        family.ends_clean().await;
    }

    #[tokio::test]
    async fn l48_a_child_is_registered_below_its_parent_before_its_first_step() {
        let family = family(script([on("", Reply::text("x"))]), |plugin| plugin).await;
        let world = family.stage.world().clone();
        let (agents, root) = (world.agents.clone(), family.root().id().clone());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = seen.clone();
        let listener = move |step: playhouse::plugin_api::points::PreStep,
                             next: playhouse::plugin_api::hook::Next<_, _>| {
            let found = agents.children(&root).contains(&step.agent);
            record.lock().unwrap().push(found);
            next.run(step)
        };
        world.hooks.pre_step.add(&world.scope, listener).unwrap();
        let run = family.spawn(family.root(), "work").await;
        run.result().await.unwrap();
        assert_eq!(*seen.lock().unwrap(), [true]);
        family.ends_clean().await;
    }

    #[tokio::test]
    async fn l50_cancelling_a_tree_reaches_grandchildren_also_below_one_that_is_gone() {
        let rules = [on("", Reply::text("never").at_gate("shut"))];
        let family = family(script(rules), |plugin| plugin).await;
        let world = family.stage.world();
        let apart = |parent: &Agent| {
            let request = ChildRequest::new(parent, "hang").owned_by(world.scope.clone());
            spawn(world, request)
        };
        let child = apart(family.root()).await.unwrap();
        let grandchild = apart(child.agent().unwrap()).await.unwrap();
        let gone = apart(family.root()).await.unwrap();
        let orphan = apart(gone.agent().unwrap()).await.unwrap();
        gone.dispose().await.unwrap();
        let other = family.stage.another().await.unwrap();
        let elsewhere = apart(&other).await.unwrap();
        family.stage.gate("shut").arrived(5).await;

        let cancelling = family.stage.harness().cancel_tree(family.root(), CancelCause::User);
        assert_eq!(cancelling.reached(), 4, "the root, its child, and two grandchildren");
        for run in [&child, &grandchild, &orphan] {
            let agent = run.agent().unwrap();
            assert!(agent.cell().token().is_cancelled(), "at once, without a wait");
            assert_eq!(run.result().await.unwrap().stop_reason, StopReason::Aborted);
            assert_eq!(last_turn(agent), Some(TurnEndReason::Aborted(CancelCause::Parent)));
        }
        assert_eq!(elsewhere.agent().unwrap().status(), Status::Running);
        family.ends_clean().await;
    }

    #[tokio::test]
    async fn l51_a_shutdown_awaits_the_children_of_a_running_turn() {
        let mut rules = fan_out(&["one", "two"]);
        rules.push(on("", Reply::text("never").at_gate("shut")));
        let family = family(script(rules), |plugin| plugin).await;
        family.root().followup("fan out").await.unwrap();
        family.stage.gate("shut").arrived(2).await;
        family.stage.shutdown().await.unwrap();
        for child in family.born() {
            assert!(matches!(last_turn(&child), Some(TurnEndReason::Aborted(_))));
            assert_eq!(child.status(), Status::Idle);
        }
        assert!(matches!(last_turn(family.root()), Some(TurnEndReason::Aborted(_))));
        family.ends_clean().await;
    }

    #[tokio::test]
    async fn l53_a_childs_id_is_known_before_its_first_step_and_stands_in_a_cancelled_result() {
        let mut rules = fan_out(&["work"]);
        rules.push(on("work", Reply::text("never").at_gate("work")));
        let family = family(script(rules), |plugin| plugin).await;
        let world = family.stage.world();
        let early = Arc::new(Mutex::new(Vec::new()));
        let record = early.clone();
        let listener = move |created: playhouse::plugin_api::points::Created| {
            let steps = trace(&created.agent.session().log());
            record.lock().unwrap().push((created.agent.id().clone(), steps));
            async { Ok(()) }
        };
        world.hooks.created.add(&world.scope, listener).unwrap();
        family.root().followup("fan out").await.unwrap();
        family.stage.gate("work").arrived(1).await;
        let (id, before) = early.lock().unwrap()[0].clone();
        assert_eq!(before, "subagent/descriptor IN+");
        family.root().cancel(CancelCause::User);
        family.root().when_idle().await.unwrap();
        let (_, text) = failure(&results(family.root())[0]);
        assert!(text.contains(&format!("(session {id})")), "{text}");
        family.ends_clean().await;
    }
}
