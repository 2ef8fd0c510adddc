//! Cancellation and death in trees of agents: who is reached, who is not, and that nothing is left.

mod chaos;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use playhouse::{
    Agent, AgentHandle, CancelCause, EventBody, SessionId, TurnEndReason,
    messages::{
        invariants::Invariants,
        machine::{Decision, Status},
    },
    models::scripted::{Reply, Script, When},
    plugin_api::{
        hook::Next,
        points::PreStep,
        tool::{ToolRun, tool_fn},
    },
    subagents::{ChildRequest, Run, Slots, StopReason, Subagents, spawn},
    testing::{Census, Stage, Victim, trace},
};
use playhouse_stores::MemoryStore;
use serde_json::json;

/// A stage where "hang" waits at the gate `shut`, with a root, and a count from before it was made.
struct Grove {
    stage: Stage,
    slots: Slots,
    root: AgentHandle,
    born: Arc<Mutex<Vec<Agent>>>,
    /// In which order agents were released.
    released: Arc<Mutex<Vec<SessionId>>>,
    before: Census,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

/// "delegate" calls for a child that hangs; all else hangs itself.
fn script() -> Script {
    let hang = json!({"description": "to hang", "prompt": "hang"});
    let delegate = Reply::default().and_call("subagent", hang);
    Script::new()
        .rule(When::default().after_tool("*"), Reply::text("that was it"))
        .rule(When::default().user_contains("delegate"), delegate)
        .rule(When::default().user_contains("straggle"), Reply::call("straggle", "{}"))
        .rule(When::default().user_contains("answer"), Reply::text("an answer"))
        .reply(Reply::text("done").at_gate("shut"))
}

async fn grove() -> Grove {
    let plugin = Subagents::new().max_children(1_000).max_depth(100);
    let slots = plugin.slots().clone();
    let stage = Stage::minimal(script())
        .harness(|harness| harness.store(MemoryStore::new()).plugin(plugin))
        .options(|options| options.max_depth(100))
        .start()
        .await
        .unwrap();
    let world = stage.world();
    let (born, released) = (Arc::<Mutex<Vec<Agent>>>::default(), Arc::<Mutex<Vec<_>>>::default());
    let births = born.clone();
    let listener = move |created: playhouse::plugin_api::points::Created| {
        births.lock().unwrap().push(created.agent);
        async { Ok(()) }
    };
    world.hooks.created.add(&world.scope, listener).unwrap();
    let releases = released.clone();
    let listener = move |agent: &Agent| releases.lock().unwrap().push(agent.id().clone());
    world.hooks.disposed.add(&world.scope, listener).unwrap();
    // Its route's actor is there from the first request on, and stays.
    stage.agent().prompt("answer").await.unwrap();
    stage.agent().when_idle().await.unwrap();
    let before = Census::of(stage.harness());
    let before = before.settled(stage.harness()).await;
    let root = stage.another().await.unwrap();
    Grove { stage, slots, root, born, released, before }
}

impl Grove {
    /// A child of its own parent's scope, at work and hanging.
    async fn below(&self, parent: &Agent) -> Run {
        spawn(self.stage.world(), ChildRequest::new(parent, "hang")).await.unwrap()
    }

    /// As [`Grove::below`], and not owned by its parent: as a child that may outlive it.
    async fn apart(&self, parent: &Agent) -> Run {
        let owner = self.stage.world().scope.clone();
        spawn(self.stage.world(), ChildRequest::new(parent, "hang").owned_by(owner)).await.unwrap()
    }

    async fn at_work(&self, agents: usize) {
        self.stage.gate("shut").arrived(agents).await;
    }

    fn live(&self) -> BTreeSet<SessionId> {
        self.stage.harness().agents().iter().map(|agent| agent.id().clone()).collect()
    }

    /// Disposes whoever is left, and then nothing is as it was not before.
    async fn ends_clean(self) {
        self.root.dispose().await.unwrap();
        for agent in self.stage.harness().agents() {
            if agent != **self.stage.agent() {
                AgentHandle::new(agent).dispose().await.unwrap();
            }
        }
        assert_eq!(self.before.settled(self.stage.harness()).await, self.before);
        self.shuts_down_clean().await;
    }

    /// A shutdown leaves nothing at all; all logs are whole.
    async fn shuts_down_clean(self) {
        self.stage.shutdown().await.unwrap();
        for agent in self.born.lock().unwrap().iter() {
            let log = agent.session().log();
            let kept = Invariants::of(&log).unwrap_or_else(|broken| panic!("{broken}: {log:?}"));
            assert!(kept.is_balanced(), "{}", trace(&log));
        }
        assert_eq!(self.slots.taken(), 0);
        let mut nothing = self.before.clone();
        (nothing.agents, nothing.reserved, nothing.scopes) = (0, 0, 0);
        (nothing.registrations, nothing.actors, nothing.tasks) = (0, 0, 0);
        assert_eq!(nothing.settled(self.stage.harness()).await, nothing);
    }
}

fn agent(run: &Run) -> &Agent {
    run.agent().unwrap()
}

fn last_turn(agent: &Agent) -> Option<TurnEndReason> {
    agent.session().log().iter().rev().find_map(|event| match &event.body {
        EventBody::TurnEnd(end) => Some(end.reason.clone()),
        _ => None,
    })
}

fn aborted(agent: &Agent) -> CancelCause {
    match last_turn(agent) {
        Some(TurnEndReason::Aborted(cause)) => cause,
        other => panic!("{agent:?} ended with {other:?}"),
    }
}

mod subagents {
    use super::*;

    #[tokio::test]
    async fn orchestration_1_13_row_1_a_cancelled_turn_aborts_the_child_it_waits_for() {
        let grove = grove().await;
        grove.root.followup("delegate").await.unwrap();
        grove.at_work(1).await;
        let child = grove.stage.harness().children(grove.root.id()).remove(0);
        child.followup("and then").await.unwrap();
        grove.root.cancel(CancelCause::User);
        grove.root.when_idle().await.unwrap();
        assert_eq!(
            (aborted(&grove.root), aborted(&child)),
            (CancelCause::User, CancelCause::Parent)
        );
        assert!(child.inbox().is_empty());
        assert!(grove.stage.harness().children(grove.root.id()).is_empty(), "it is disposed");
        grove.ends_clean().await;
    }

    /// Such a child has a token of its own, and an owner that outlives the turn.
    #[tokio::test]
    async fn orchestration_1_13_row_2_a_cancelled_turn_leaves_a_child_apart_alone() {
        let grove = grove().await;
        grove.root.followup("hang").await.unwrap();
        let child = grove.apart(&grove.root).await;
        grove.at_work(2).await;
        grove.root.cancel(CancelCause::User);
        grove.root.when_idle().await.unwrap();
        assert_eq!(agent(&child).status(), Status::Running);
        grove.stage.gate("shut").open();
        assert_eq!(child.result().await.unwrap().stop_reason, StopReason::Completed);
        grove.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_13_row_3_an_interrupt_ends_one_turn_and_descendants_go_on() {
        let grove = grove().await;
        let child = grove.apart(&grove.root).await;
        let grandchild = grove.apart(agent(&child)).await;
        grove.at_work(2).await;
        agent(&child).cancel_with(CancelCause::Parent, true);
        agent(&child).when_idle().await.unwrap();
        assert_eq!(aborted(agent(&child)), CancelCause::Parent);
        assert_eq!(agent(&grandchild).status(), Status::Running);
        assert!(grove.live().contains(child.id()), "it stays, and can be asked again");
        grove.stage.gate("shut").open();
        assert_eq!(agent(&child).prompt("answer").await.unwrap().text, "an answer");
        grove.ends_clean().await;
    }

    /// Killing the job is firing the token that its child was started with.
    #[tokio::test]
    async fn orchestration_1_13_row_4_the_token_of_a_background_run_aborts_its_child() {
        let grove = grove().await;
        let request = ChildRequest::new(&grove.root, "hang");
        let kill = request.cancel.clone();
        let run = spawn(grove.stage.world(), request).await.unwrap();
        grove.at_work(1).await;
        kill.cancel(CancelCause::User);
        assert_eq!(run.result().await.unwrap().stop_reason, StopReason::Aborted);
        assert_eq!(aborted(agent(&run)), CancelCause::Parent);
        grove.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_13_row_5_a_disposed_parent_takes_what_it_owns_and_nobody_else() {
        let grove = grove().await;
        let (owned, apart) = (grove.below(&grove.root).await, grove.apart(&grove.root).await);
        grove.at_work(2).await;
        grove.root.dispose().await.unwrap();
        assert_eq!(owned.result().await.unwrap().stop_reason, StopReason::Aborted);
        let live = grove.live();
        assert!(!live.contains(owned.id()) && live.contains(apart.id()));
        assert_eq!(agent(&apart).status(), Status::Running);
        grove.ends_clean().await;
    }

    /// The host's close is the harness's shutdown; 19.2: all are cancelled, then released bottom up.
    #[tokio::test]
    async fn orchestration_1_13_row_6_a_shutdown_tells_all_and_releases_children_first() {
        let grove = grove().await;
        grove.root.followup("hang").await.unwrap();
        let child = grove.below(&grove.root).await;
        let grandchild = grove.below(agent(&child)).await;
        let apart = grove.apart(agent(&grandchild)).await;
        grove.at_work(4).await;
        grove.stage.shutdown().await.unwrap();
        for run in [&child, &grandchild, &apart] {
            assert_eq!(aborted(agent(run)), CancelCause::Disposed);
        }
        let released = grove.released.lock().unwrap().clone();
        let place = |id: &SessionId| released.iter().position(|released| released == id).unwrap();
        assert!(place(grandchild.id()) < place(child.id()), "{released:?}");
        assert!(place(child.id()) < place(grove.root.id()), "{released:?}");
        grove.shuts_down_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_13_row_7_a_disposal_tells_top_down_at_once_and_releases_bottom_up() {
        let grove = grove().await;
        let middle = grove.below(&grove.root).await;
        let below = grove.below(agent(&middle)).await;
        let lowest = grove.below(agent(&below)).await;
        let sibling = grove.below(&grove.root).await;
        grove.at_work(4).await;
        let tokens: Vec<_> = [&middle, &below, &lowest].map(|run| agent(run).cell().token()).into();
        let world = grove.stage.world();
        let told = Arc::new(Mutex::new(Vec::new()));
        let record = told.clone();
        let listener = move |_: &Agent| {
            record.lock().unwrap().push(tokens.iter().all(|token| token.is_cancelled()));
        };
        world.hooks.disposed.add(&world.scope, listener).unwrap();
        middle.dispose().await.unwrap();
        assert_eq!(*told.lock().unwrap(), [true; 3], "all are told before any is released");
        let released = [lowest.id(), below.id(), middle.id()].map(SessionId::clone);
        assert_eq!(*grove.released.lock().unwrap(), released);
        assert_eq!(agent(&sibling).status(), Status::Running, "and nobody beside them");
        grove.stage.gate("shut").open();
        sibling.result().await.unwrap();
        // The listener of this test is one registration more.
        let mut grove = grove;
        grove.before.registrations += 1;
        grove.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_13_row_8_a_rejected_step_of_the_parent_leaves_children_alone() {
        let grove = grove().await;
        let child = grove.below(&grove.root).await;
        grove.at_work(1).await;
        let reject = |_: PreStep, _: Next<PreStep, Decision>| async { Ok(Decision::Reject) };
        grove.stage.world().hooks.pre_step.add(grove.root.scope(), reject).unwrap();
        let outcome = grove.root.prompt("answer").await.unwrap();
        assert_eq!(outcome.reason, TurnEndReason::Blocked);
        assert_eq!(agent(&child).status(), Status::Running);
        grove.stage.gate("shut").open();
        assert_eq!(child.result().await.unwrap().stop_reason, StopReason::Completed);
        grove.ends_clean().await;
    }

    #[tokio::test]
    async fn decision_4_the_cancel_of_a_tree_returns_when_all_of_it_is_idle_or_gone() {
        let grove = grove().await;
        grove.root.followup("delegate").await.unwrap();
        grove.at_work(1).await;
        let foreground = grove.stage.harness().children(grove.root.id()).remove(0);
        let apart = grove.apart(&foreground).await;
        let below = grove.below(agent(&apart)).await;
        let elsewhere = grove.below(grove.stage.agent()).await;
        grove.at_work(4).await;
        let cancelling = grove.root.cancel_tree(CancelCause::User);
        assert_eq!(cancelling.reached(), 4);
        for agent in [&*grove.root, &foreground, agent(&apart), agent(&below)] {
            assert!(agent.cell().token().is_cancelled(), "before anything is awaited");
        }
        let cancelled = cancelling.await;
        assert_eq!((cancelled.reached, cancelled.unfinished), (4, vec![]));
        assert_eq!(aborted(&grove.root), CancelCause::User);
        for agent in [&foreground, agent(&apart), agent(&below)] {
            assert_eq!((agent.status(), aborted(agent)), (Status::Idle, CancelCause::Parent));
        }
        assert!(!grove.live().contains(foreground.id()), "the call that waited has released it");
        assert_eq!(agent(&elsewhere).status(), Status::Running);
        elsewhere.dispose().await.unwrap();
        grove.ends_clean().await;
    }

    /// A tool that is told to stop, and has its grace, starts one more child with a token of its own.
    #[tokio::test]
    async fn decision_4_a_child_that_is_started_while_its_parent_stops_is_caught() {
        let grove = grove().await;
        let world = grove.stage.world().clone();
        let entered = Arc::new(tokio::sync::Notify::new());
        let signal = entered.clone();
        let straggle =
            tool_fn("straggle", "Starts a child late.", move |_: Nothing, run: ToolRun| {
                let (world, signal) = (world.clone(), signal.clone());
                async move {
                    signal.notify_one();
                    run.cancel().cancelled().await;
                    let owner = world.scope.clone();
                    let request = ChildRequest::new(run.agent().unwrap(), "hang").owned_by(owner);
                    spawn(&world, request).await.unwrap();
                    Ok("late")
                }
            });
        grove.stage.harness().register_tool(Arc::new(straggle)).unwrap();
        grove.root.followup("straggle").await.unwrap();
        entered.notified().await;
        let cancelling = grove.root.cancel_tree(CancelCause::User);
        assert_eq!(cancelling.reached(), 1, "it is not there yet");
        let cancelled = cancelling.await;
        assert_eq!((cancelled.reached, cancelled.unfinished), (2, vec![]));
        let late = grove.stage.harness().children(grove.root.id()).remove(0);
        assert_eq!((late.status(), aborted(&late)), (Status::Idle, CancelCause::Parent));
        let mut grove = grove;
        grove.before.registrations += 1;
        grove.ends_clean().await;
    }

    #[tokio::test(start_paused = true)]
    async fn decision_4_who_does_not_stop_in_time_is_named_and_holds_nobody_up() {
        let grove = grove().await;
        let child = grove.below(&grove.root).await;
        let hanging = grove.below(agent(&child)).await;
        grove.at_work(2).await;
        agent(&hanging).cancel(CancelCause::User);
        agent(&hanging).when_idle().await.unwrap();
        let deaf = agent(&hanging).clone();
        let (began, begin) = tokio::sync::oneshot::channel();
        let maintenance = tokio::spawn(async move {
            let hang = move |_| async move {
                began.send(()).unwrap();
                std::future::pending::<()>().await
            };
            deaf.run_maintenance(hang).await.unwrap();
        });
        begin.await.unwrap();
        let cancelled = grove.root.cancel_tree(CancelCause::User).await;
        assert_eq!((cancelled.reached, cancelled.unfinished), (3, vec![hanging.id().clone()]));
        assert_eq!(agent(&child).status(), Status::Idle);
        maintenance.abort();
        grove.ends_clean().await;
    }

    #[tokio::test]
    async fn a_crashed_child_comes_back_and_its_tree_goes_on() {
        let grove = grove().await;
        let child = grove.below(&grove.root).await;
        let grandchild = grove.below(agent(&child)).await;
        grove.at_work(2).await;
        assert!(grove.stage.kill(agent(&child), Victim::Agent).await);
        assert_eq!(child.result().await.unwrap().stop_reason, StopReason::Error);
        assert_eq!(agent(&grandchild).status(), Status::Running);
        let descendants = grove.stage.world().agents.descendants(grove.root.id());
        assert_eq!(descendants, [agent(&child).clone(), agent(&grandchild).clone()]);
        assert_eq!(agent(&child).prompt("answer").await.unwrap().text, "an answer");
        let cancelled = grove.root.cancel_tree(CancelCause::User).await;
        assert_eq!((cancelled.reached, cancelled.unfinished), (3, vec![]));
        assert_eq!(aborted(agent(&grandchild)), CancelCause::Parent);
        grove.ends_clean().await;
    }

    #[tokio::test]
    async fn a_dead_supervisor_in_the_middle_costs_its_own_turn_and_what_that_waited_for() {
        let grove = grove().await;
        let middle = grove.below(&grove.root).await;
        grove.at_work(1).await;
        agent(&middle).cancel(CancelCause::User);
        agent(&middle).followup("delegate").await.unwrap();
        grove.at_work(2).await;
        let waited_for = grove.stage.harness().children(middle.id()).remove(0);
        let owned = grove.below(agent(&middle)).await;
        grove.at_work(3).await;
        assert!(grove.stage.kill(agent(&middle), Victim::Supervisor).await);
        agent(&middle).when_idle().await.unwrap();
        assert_eq!(last_turn(agent(&middle)), Some(TurnEndReason::Interrupted));
        assert_eq!(agent(&owned).status(), Status::Running, "it hangs below no supervisor");
        // The call that waited was dropped, and so its child is disposed.
        let mut changes = grove.stage.world().agents.watch();
        while grove.live().contains(waited_for.id()) {
            changes.changed().await.unwrap();
        }
        grove.root.dispose().await.unwrap();
        assert!(!grove.live().contains(owned.id()), "its owner's disposal still reaches it");
        grove.ends_clean().await;
    }
}
