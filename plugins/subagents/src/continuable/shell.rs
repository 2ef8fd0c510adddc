//! Carries inputs to the machine, and performs its effects.
//!
//! The machine is behind a lock that is held for one transition. Effects are performed in their order
//! by one caller at a time, outside the lock and without waiting; what takes time runs in tasks of the
//! world's scope, each of which ends with an input. There is at most one such task a child for its
//! making, its message on the way, its disposal and its notice, and one that watches it.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use playhouse_messages::{
    event::{CancelCause, InboxTarget, Seq},
    id::SessionId,
    message::Message,
};
use playhouse_plugin_api::{
    agent::{Agent, AgentError},
    cancel::CancelToken,
    creation::AgentHandle,
    scope::Scope,
    watch,
    world::World,
};
use tokio::sync::oneshot;

use super::{
    Activation, ContinuationError,
    ending::EpochEnd,
    machine::{DrainScope, Effect, Epoch, Input, Lineage, Machine, Op, OpId},
    making::Blueprint,
    set_up::SetUps,
};
use crate::{ChildProviders, RunStarted, Slots};

pub(super) type Answer = Result<(), ContinuationError>;

/// A message on its way.
pub(super) struct Delivery {
    pub message: Message,
    pub target: InboxTarget,
    pub wake: bool,
    /// Who sends it.
    pub caller: Agent,
    /// What the child is made from, if this is its first message.
    pub blueprint: Option<Blueprint>,
}

struct Pending {
    delivery: Arc<Delivery>,
    op: Op,
    reply: oneshot::Sender<Answer>,
}

/// A child in this process.
pub(super) struct Resident {
    pub epoch: Epoch,
    pub handle: AgentHandle,
    /// Where the epoch begins in its log.
    pub from: Seq,
    pub parent: Agent,
    pub provider: String,
    /// What listeners were told, if they were.
    pub started: Mutex<Option<RunStarted>>,
    /// Asks its watcher to look again.
    pub look: watch::Sender<()>,
    pub end: Mutex<Option<EpochEnd>>,
}

pub(super) struct Shell {
    pub world: Arc<World>,
    pub providers: ChildProviders,
    pub slots: Slots,
    /// Owns the children.
    pub owner: Scope,
    pub set_ups: SetUps,
    pub changes: watch::Sender<u64>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    machine: Machine,
    operations: OpId,
    pending: HashMap<OpId, Pending>,
    makings: HashMap<Epoch, CancelToken>,
    residents: HashMap<SessionId, Arc<Resident>>,
    drains: HashMap<OpId, oneshot::Sender<Vec<String>>>,
    effects: VecDeque<Effect>,
    /// Somebody performs effects, and will find those that are added.
    performing: bool,
}

impl Shell {
    pub fn new(world: Arc<World>, providers: ChildProviders, slots: Slots, owner: Scope) -> Self {
        let (set_ups, changes) = (SetUps::default(), watch::Sender::new(0));
        let state = Mutex::default();
        Self { world, providers, slots, owner, set_ups, changes, state }
    }

    /// The lineage of a caller that is live, itself first.
    pub fn caller(&self, caller: &Agent) -> Result<Lineage, ContinuationError> {
        if self.world.store.is_none() {
            return Err(ContinuationError::PersistenceUnavailable);
        }
        if self.world.agents.get(caller.id()).as_ref() != Some(caller) {
            return Err(ContinuationError::Unauthorized {
                caller: caller.id().clone(),
                target: caller.id().clone(),
                why: "it is not the live agent of its session",
            });
        }
        Ok(std::iter::once(caller.id()).chain(caller.lineage().iter()).cloned().collect())
    }

    pub fn admitted(&self, lineage: &Lineage) -> Answer {
        self.state().machine.admitted(lineage)
    }

    pub fn direct_children(&self, parent: &SessionId, children: &[SessionId]) -> Answer {
        self.state().machine.direct_children(parent, children)
    }

    pub fn activations(&self) -> Vec<Activation> {
        self.state().machine.activations()
    }

    pub fn activation(&self, child: &SessionId) -> Option<Activation> {
        self.state().machine.activation(child)
    }

    pub fn resident(&self, child: &SessionId, epoch: Epoch) -> Option<Arc<Resident>> {
        self.state().residents.get(child).filter(|resident| resident.epoch == epoch).cloned()
    }

    /// Hands a message to the machine, and waits for its answer. The token, or dropping the future,
    /// gives it up as long as it can be.
    pub async fn submit(
        self: &Arc<Self>,
        child: &SessionId,
        delivery: Delivery,
        lineage: Lineage,
        cancel: &CancelToken,
        input: impl FnOnce(Op) -> Input,
    ) -> Answer {
        let (reply, mut answer) = oneshot::channel();
        let op = {
            let mut state = self.state();
            state.operations += 1;
            let id = state.operations;
            let op = Op { id, message: delivery.message.id.clone(), lineage };
            let delivery = Arc::new(delivery);
            state.pending.insert(id, Pending { delivery, op: op.clone(), reply });
            op
        };
        let abandoned = Abandoned { shell: self, child, op: op.id };
        self.input(input(op));
        let answer = tokio::select! {
            biased;
            answer = &mut answer => answer,
            () = cancel.cancelled() => {
                abandoned.give_up();
                answer.await
            }
        };
        // There is nothing to give up any more: the machine answers each operation once.
        std::mem::forget(abandoned);
        answer.unwrap_or(Err(ContinuationError::Cancelled))
    }

    pub fn interrupt(&self, target: &SessionId, caller: &SessionId, cause: CancelCause) -> Answer {
        let resident = {
            let mut state = self.state();
            let by_user = cause == CancelCause::User;
            if !state.machine.may_interrupt(caller, target, by_user)? {
                return Ok(());
            }
            state.machine.handle(Input::Interrupted { child: target.clone() });
            state.residents.get(target).cloned()
        };
        if let Some(resident) = resident {
            resident.handle.cancel_with(cause, true);
        }
        Ok(())
    }

    pub async fn drain_below(self: &Arc<Self>, agents: &[Agent], keep_inbox: bool) -> Answer {
        let live = agents.iter().filter(|agent| self.caller(agent).is_ok());
        let ids = live.map(|agent| agent.id().clone()).collect();
        self.drain(DrainScope::Below(ids), keep_inbox).await
    }

    pub async fn drain(self: &Arc<Self>, scope: DrainScope, keep_inbox: bool) -> Answer {
        let (reply, drained) = oneshot::channel();
        let drain = {
            let mut state = self.state();
            state.operations += 1;
            let drain = state.operations;
            state.drains.insert(drain, reply);
            drain
        };
        self.input(Input::Drain { drain, scope, keep_inbox });
        match drained.await {
            Ok(failures) if !failures.is_empty() => Err(ContinuationError::Teardown { failures }),
            _ => Ok(()),
        }
    }

    /// One transition of the machine, and whatever it wants done.
    pub fn input(self: &Arc<Self>, input: Input) {
        let mut state = self.state();
        let effects = state.machine.handle(input);
        state.effects.extend(effects);
        if std::mem::replace(&mut state.performing, true) {
            return;
        }
        while let Some(effect) = state.effects.pop_front() {
            drop(state);
            self.perform(effect);
            state = self.state();
        }
        state.performing = false;
        drop(state);
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn perform(self: &Arc<Self>, effect: Effect) {
        match effect {
            Effect::Make { child, epoch, op } => {
                let cancel = CancelToken::new();
                let mut state = self.state();
                state.makings.insert(epoch, cancel.clone());
                let delivery = state.pending.get(&op).map(|pending| pending.delivery.clone());
                drop(state);
                if let Some(delivery) = delivery {
                    self.spawn(|shell| shell.make(child, epoch, delivery, cancel));
                }
            }
            Effect::GiveUp { epoch } => {
                if let Some(cancel) = self.state().makings.get(&epoch) {
                    cancel.cancel(CancelCause::Parent);
                }
            }
            Effect::Started { child, epoch } => {
                if let Some(resident) = self.resident(&child, epoch) {
                    resident.began(self.providers.lifecycle());
                }
            }
            Effect::Send { child, epoch, op } => {
                let delivery = self.delivery(op);
                let resident = self.resident(&child, epoch);
                if let (Some(delivery), Some(resident)) = (delivery, resident) {
                    self.spawn(|shell| async move {
                        let at = deliver(&delivery, &resident.handle).await;
                        let at = at.map_err(|error| match error {
                            AgentError::Gone(_) => {
                                ContinuationError::ActivationClosing { id: child.clone() }
                            }
                            error => error.into(),
                        });
                        shell.input(Input::Sent { child, epoch, op, at });
                        resident.look.send_modify(|()| ());
                    });
                }
            }
            Effect::Report { op, to } => {
                let pending = {
                    let state = self.state();
                    state.pending.get(&op).map(|found| (found.delivery.clone(), found.op.clone()))
                };
                if let Some((delivery, op)) = pending {
                    self.spawn(|shell| async move {
                        let unavailable =
                            || ContinuationError::ParentUnavailable { parent: to.clone() };
                        let at = match shell.world.agents.get(&to) {
                            None => Err(unavailable()),
                            Some(parent) => match deliver(&delivery, &parent).await {
                                Ok(at) => Ok(delivery.wake.then_some(at)),
                                Err(AgentError::Gone(_)) => Err(unavailable()),
                                Err(error) => Err(error.into()),
                            },
                        };
                        shell.input(Input::Reported { to: to.clone(), op, at });
                        shell.look_at(&to);
                    });
                }
            }
            Effect::Answer { op, answer } => {
                let pending = self.state().pending.remove(&op);
                if let Some(pending) = pending {
                    // The caller may have gone.
                    let _ = pending.reply.send(answer);
                }
            }
            Effect::Cancel { child, epoch, keep_inbox } => {
                if let Some(resident) = self.resident(&child, epoch) {
                    resident.handle.cancel_with(CancelCause::Parent, keep_inbox);
                }
            }
            Effect::Dispose { child, epoch, keep_inbox } => {
                if let Some(resident) = self.resident(&child, epoch) {
                    self.spawn(|shell| shell.dispose(child, resident, keep_inbox));
                }
            }
            Effect::Notice { child, epoch, to, message, wake, interrupted } => {
                if let Some(resident) = self.resident(&child, epoch) {
                    let wake = wake.then_some(interrupted);
                    self.spawn(|shell| shell.notify(child, resident, to, message, wake));
                }
            }
            Effect::Ended { child, epoch } => {
                if let Some(resident) = self.forget(&child, epoch) {
                    resident.ended(self.providers.lifecycle());
                }
            }
            Effect::Drained { drain, failures } => {
                if let Some(reply) = self.state().drains.remove(&drain) {
                    let _ = reply.send(failures);
                }
            }
        }
    }

    fn delivery(&self, op: OpId) -> Option<Arc<Delivery>> {
        self.state().pending.get(&op).map(|pending| pending.delivery.clone())
    }

    /// A child is live.
    pub fn installed(&self, child: SessionId, resident: Arc<Resident>) {
        self.state().residents.insert(child, resident);
    }

    /// A making is over, with or without a child.
    pub fn making_over(&self, epoch: Epoch) {
        self.state().makings.remove(&epoch);
    }

    fn forget(&self, child: &SessionId, epoch: Epoch) -> Option<Arc<Resident>> {
        let mut state = self.state();
        match state.residents.get(child) {
            Some(resident) if resident.epoch == epoch => state.residents.remove(child),
            _ => None,
        }
    }

    /// Something was sent to an agent past its own queue: if it is a child, its watcher looks again.
    pub fn look_at(&self, agent: &SessionId) {
        let resident = self.state().residents.get(agent).cloned();
        if let Some(resident) = resident {
            resident.look.send_modify(|()| ());
        }
    }

    pub fn spawn<F>(self: &Arc<Self>, task: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.world.scope.spawn_to_end(task(self.clone()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Brings a message to an agent. A repeated one is taken once. Returns the length of the agent's log
/// after it.
pub(super) async fn deliver(delivery: &Delivery, to: &Agent) -> Result<Seq, AgentError> {
    let Delivery { message, target, wake, .. } = delivery;
    to.send_again(message.clone(), *target, *wake).await?;
    Ok(to.session().log().len())
}

impl fmt::Debug for Shell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.activations()).finish()
    }
}

/// Gives an operation up whose caller is gone.
struct Abandoned<'a> {
    shell: &'a Arc<Shell>,
    child: &'a SessionId,
    op: OpId,
}

impl Abandoned<'_> {
    fn give_up(&self) {
        self.shell.input(Input::Cancelled { child: self.child.clone(), op: self.op });
    }
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}
