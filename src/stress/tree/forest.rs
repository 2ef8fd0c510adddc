//! The harness in which trees grow.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use playhouse_messages::{chunk::Failure, event::EventBody};
use playhouse_plugin_api::{agent::Agent, store::Store};
use playhouse_subagents::{Slots, Subagents};
use tokio::time::Instant;

use super::{
    Grown, Meter, TreeLoad, TreeProgress,
    model::{Gathering, Meeting, Model, measure, prompt, reported},
    report::Left,
    shape::Node,
};
use crate::{
    AgentHandle, AgentOptions, CancelCause, CancelToken, Harness, NewAgent,
    stress::report::Fault,
    testing::{Census, checks},
};

const ROUTE: &str = "tree";

/// Between two tellings of progress.
const TELL: Duration = Duration::from_millis(500);

/// How long tasks that end by themselves may take to.
const LEFT_OVER: Duration = Duration::from_secs(15);

pub(super) struct Forest {
    pub(super) load: TreeLoad,
    pub(super) harness: Harness,
    meeting: Meeting,
    slots: Slots,
    /// Every agent that went live since it was last emptied.
    born: Arc<Mutex<Vec<Agent>>>,
}

/// A tree whose root is at work.
pub(super) struct Tree {
    pub(super) root: AgentHandle,
    pub(super) gathering: Arc<Gathering>,
    pub(super) began: Instant,
    before: Census,
}

impl Forest {
    pub(super) async fn start(load: &TreeLoad, store: Arc<dyn Store>) -> Result<Self, Failure> {
        let subagents = Subagents::new().max_children(usize::MAX).max_depth(load.shape.depth());
        let slots = subagents.slots().clone();
        let started = crate::minimal().shared_store(store).plugin(subagents).start().await;
        let harness = started.map_err(|error| Failure::new(error.code(), error.to_string()))?;
        let world = harness.world();
        // All calls of an answer at once: the children, and the tool.
        world.limits.set_max_parallel_tool_calls(load.shape.widest() + 1);
        let model = Arc::new(Model::adapter(load.shape.clone()));
        // The registration lasts as long as the harness.
        let registered = world.models.register([ROUTE], model);
        let _ = registered.map_err(|error| Failure::new(error.code(), error.to_string()))?;
        // Its actor is started by its first use, and stays: it is none of what a tree leaves behind.
        let _ = world.providers.slot(ROUTE).next(None).await;
        let meeting = Meeting::new(Gathering::of(load.shape.agents()));
        harness.register_tool(measure(meeting.clone(), load.seed))?;
        let born = Arc::<Mutex<Vec<Agent>>>::default();
        let births = born.clone();
        world.hooks.created.add(&world.scope, move |created| {
            births.lock().unwrap_or_else(PoisonError::into_inner).push(created.agent);
            async { Ok(()) }
        })?;
        Ok(Self { load: load.clone(), harness, meeting, slots, born })
    }

    pub(super) fn born(&self) -> MutexGuard<'_, Vec<Agent>> {
        self.born.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plants a root, and does not ask it for anything yet.
    pub(super) async fn plant(&self) -> Result<Tree, Failure> {
        let before = Census::of(&self.harness);
        self.born().clear();
        let gathering = Gathering::of(self.load.shape.agents());
        self.meeting.replace(gathering.clone());
        let options = AgentOptions::new().model(ROUTE, "any").max_depth(self.load.shape.depth());
        let root = self.harness.create(NewAgent::new(options)).await?;
        Ok(Tree { root, gathering, began: Instant::now(), before })
    }

    /// Grows a tree to its end.
    pub(super) async fn grow(
        &self,
        stop: &CancelToken,
        progress: &mut (dyn FnMut(&TreeProgress) + Send),
    ) -> Grown {
        let mut grown = Grown::default();
        let cpu = Meter::read();
        Meter::forget_peak();
        let tree = match self.plant().await {
            Ok(tree) => tree,
            Err(failure) => {
                grown.faults.push(Fault::general(format!("the root is not made: {failure}")));
                return grown;
            }
        };
        let prompted = tree.root.prompt(prompt(Node::ROOT));
        let watched = self.watch(&tree, 0, progress, async {
            let stopped = async {
                stop.cancelled().await;
                tree.root.cancel_tree(CancelCause::User).await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                outcome = prompted => outcome,
                () = stopped => unreachable!("it never ends"),
            }
        });
        let (outcome, live_at_once) = watched.await;
        grown.wall = tree.began.elapsed();
        grown.live_at_once = live_at_once;
        let expected = (self.load.shape.agents(), self.load.shape.sum(self.load.seed));
        match outcome {
            Ok(outcome) if reported(&outcome.text) == Some(expected) => {}
            _ if stop.is_cancelled() => {
                grown.faults.push(Fault::general("the tree was stopped before it had reported"));
            }
            Ok(outcome) => {
                let text = format!(
                    "the root reports {:?} and not {expected:?}: {:?}",
                    outcome.text, outcome.reason
                );
                grown.faults.push(Fault::of(tree.root.id(), text));
            }
            Err(fault) => grown.faults.push(Fault::of(tree.root.id(), fault.to_string())),
        }
        let (disposal, left, faults) = self.fell(tree).await;
        grown.disposal = disposal;
        (grown.cpu, grown.memory) = Meter::since(cpu);
        grown.left = left;
        grown.faults.extend(faults);
        for agent in self.born().drain(..) {
            let log = agent.session().log();
            let turns = log.iter().filter(|event| matches!(event.body, EventBody::TurnStart(_)));
            grown.turns += turns.count() as u64;
            grown.events += log.len();
            if !checks::balanced(&log) {
                grown.faults.push(Fault::of(agent.id(), "its log is not valid and closed"));
            }
        }
        grown
    }

    /// Awaits the work, telling how far it got. Also gives how many lived when the last arrived.
    pub(super) async fn watch<T>(
        &self,
        tree: &Tree,
        cancel: usize,
        progress: &mut (dyn FnMut(&TreeProgress) + Send),
        work: impl Future<Output = T>,
    ) -> (T, usize) {
        let mut ticks = tokio::time::interval(TELL);
        let mut work = std::pin::pin!(work);
        let mut at_once = None;
        loop {
            tokio::select! {
                biased;
                () = tree.gathering.complete(), if at_once.is_none() => {
                    at_once = Some(self.harness.world().agents.count().0);
                }
                done = &mut work => return (done, at_once.unwrap_or(0)),
                _ = ticks.tick() => progress(&TreeProgress {
                    elapsed: tree.began.elapsed(),
                    live: self.harness.world().agents.count().0,
                    arrived: tree.gathering.arrived(),
                    cancel,
                }),
            }
        }
    }

    /// Disposes a tree, and says how long that took, and what is left of it.
    pub(super) async fn fell(&self, tree: Tree) -> (Duration, Left, Vec<Fault>) {
        let mut faults = Vec::new();
        let began = Instant::now();
        if let Err(failure) = tree.root.dispose().await {
            faults.push(Fault::of(tree.root.id(), format!("the disposal: {failure}")));
        }
        let took = began.elapsed();
        let give_up = Instant::now() + LEFT_OVER;
        let mut now = Census::of(&self.harness);
        while now.tasks > tree.before.tasks && Instant::now() < give_up {
            tokio::time::sleep(Duration::from_millis(5)).await;
            now = Census::of(&self.harness);
        }
        let before = tree.before;
        let left = Left {
            agents: now.agents + now.reserved,
            tasks: now.tasks.saturating_sub(before.tasks),
            slots: self.slots.taken(),
        };
        let whole = [
            ("agents and reserved ids", left.agents, 0),
            ("slots of children", left.slots, 0),
            ("tasks", now.tasks, before.tasks),
            ("actors", now.actors, before.actors),
            ("scopes", now.scopes, before.scopes),
            ("registrations", now.registrations, before.registrations),
        ];
        for (what, now, before) in whole {
            if now > before {
                faults.push(Fault::general(format!("{} {what} are left", now - before)));
            }
        }
        (took, left, faults)
    }
}
