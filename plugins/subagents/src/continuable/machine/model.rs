//! A world of toy agents around the machine: it performs effects late and in any order, and checks
//! what must hold after each transition.

use std::collections::{BTreeMap, BTreeSet};

use playhouse_messages::{
    event::Seq,
    id::{MessageId, SessionId},
};

use super::{
    super::ContinuationError, DrainScope, Effect, Epoch, Input, Lineage, Machine, Op, OpId,
};

/// An agent's log and loop, as far as the machine can tell.
#[derive(Debug, Default)]
pub(super) struct Toy {
    pub lineage: Vec<SessionId>,
    pub live: bool,
    pub running: bool,
    len: Seq,
    pub pending: Vec<MessageId>,
    /// What its turns have claimed.
    pub claimed: Vec<MessageId>,
    /// What a cancel has dropped.
    dropped: Vec<MessageId>,
    /// What woke it, or was to.
    owed: BTreeSet<MessageId>,
    /// What its log has ever held.
    known: BTreeSet<MessageId>,
}

impl Toy {
    /// Takes a message; an idle agent opens a turn over it in the same moment.
    fn take(&mut self, message: MessageId, wake: bool) {
        if self.known.insert(message.clone()) {
            self.len += 1;
            self.pending.push(message);
        }
        if wake {
            self.owed.extend(self.pending.last().cloned());
        }
        if wake && !self.running && !self.pending.is_empty() {
            self.open();
        }
    }

    fn open(&mut self) {
        self.running = true;
        self.len += 2;
        self.claimed.push(self.pending.remove(0));
    }

    /// Its turn ends; what waits gets the next one.
    pub fn finish(&mut self) {
        if self.running {
            self.running = false;
            self.len += 1;
            if !self.pending.is_empty() {
                self.open();
            }
        }
    }

    pub fn cut(&mut self, keep_inbox: bool) {
        if std::mem::replace(&mut self.running, false) {
            self.len += 1;
        }
        if !keep_inbox && !self.pending.is_empty() {
            self.len += 1;
            self.dropped.append(&mut self.pending);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Epochs {
    started: usize,
    ended: usize,
    notices: usize,
    announced: bool,
    /// Its end came from elsewhere than its settling.
    cut: bool,
}

#[derive(Debug, Default)]
pub(super) struct World {
    pub machine: Machine,
    pub agents: BTreeMap<SessionId, Toy>,
    /// Effects that are under way, and observations that were made and not told.
    pub tasks: Vec<Task>,
    ops: BTreeMap<OpId, (Op, SessionId)>,
    pub answers: BTreeMap<OpId, Result<(), ContinuationError>>,
    /// The epoch in which an operation's message was sent.
    pub epochs: BTreeMap<(SessionId, Epoch), Epochs>,
    residents: BTreeMap<SessionId, Epoch>,
    given_up: BTreeSet<Epoch>,
    drains: BTreeSet<OpId>,
    pub numbers: u64,
}

#[derive(Debug, Clone)]
pub(super) enum Task {
    Effect(Effect),
    Tell(Input),
}

impl World {
    pub fn new() -> Self {
        let mut world = Self::default();
        world.agents.insert("root".into(), Toy { live: true, ..Toy::default() });
        world
    }

    pub fn lineage(&self, caller: &SessionId) -> Lineage {
        let above = self.agents.get(caller).map(|agent| agent.lineage.clone()).unwrap_or_default();
        std::iter::once(caller.clone()).chain(above).collect()
    }

    pub fn op(&mut self, caller: &SessionId, about: &SessionId) -> Op {
        self.numbers += 1;
        let message = MessageId::from(format!("m{}", self.numbers));
        let op = Op { id: self.numbers, message, lineage: self.lineage(caller) };
        self.ops.insert(op.id, (op.clone(), about.clone()));
        op
    }

    pub fn is_live(&self, agent: &SessionId) -> bool {
        self.agents.get(agent).is_some_and(|agent| agent.live)
    }

    pub fn start(&mut self, caller: &SessionId, child: &SessionId) -> OpId {
        let op = self.op(caller, child);
        let id = op.id;
        self.input(Input::Start { child: child.clone(), op });
        id
    }

    pub fn deliver(&mut self, caller: &SessionId, child: &SessionId) -> OpId {
        let op = self.op(caller, child);
        let id = op.id;
        self.input(Input::Deliver { child: child.clone(), op });
        id
    }

    pub fn report(&mut self, child: &SessionId) -> OpId {
        let op = self.op(child, child);
        let id = op.id;
        self.input(Input::Report { child: child.clone(), op });
        id
    }

    pub fn cancel(&mut self, op: OpId) {
        if let Some((_, child)) = self.ops.get(&op) {
            self.input(Input::Cancelled { child: child.clone(), op });
        }
    }

    pub fn drain(&mut self, scope: DrainScope, keep_inbox: bool) -> OpId {
        self.numbers += 1;
        self.drains.insert(self.numbers);
        let drain = self.numbers;
        self.input(Input::Drain { drain, scope, keep_inbox });
        drain
    }

    /// Looks at a child; what was seen is told later.
    pub fn look(&mut self, child: &SessionId) {
        let Some(epoch) = self.residents.get(child).copied() else { return };
        let Some(agent) = self.agents.get(child) else { return };
        let pending = agent.pending.iter().cloned().collect();
        let (at, quiet, child) = (agent.len, !agent.running, child.clone());
        let seen = Input::Observed { child, epoch, at, pending, quiet };
        self.tasks.push(Task::Tell(seen));
    }

    /// Somebody else ends a child's agent, or its actors do.
    pub fn leave(&mut self, child: &SessionId) {
        let Some(epoch) = self.residents.get(child).copied() else { return };
        let Some(agent) = self.agents.get_mut(child).filter(|agent| agent.live) else { return };
        agent.cut(true);
        self.cut_off(child);
        let leaving = Input::Leaving { child: child.clone(), epoch, keep_inbox: true };
        self.tasks.push(Task::Tell(leaving));
    }

    fn cut_off(&mut self, child: &SessionId) {
        if let Some(epoch) = self.residents.get(child) {
            self.epochs.entry((child.clone(), *epoch)).or_default().cut = true;
        }
    }

    pub fn input(&mut self, input: Input) {
        for effect in self.machine.handle(input) {
            self.begin(effect);
        }
        self.check();
    }

    /// What is performed at once, as the shell does; the rest becomes a task.
    fn begin(&mut self, effect: Effect) {
        match effect {
            Effect::Answer { op: id, answer } => {
                let (op, child) = &self.ops[&id];
                let is_report = op.lineage.first() == Some(child);
                if answer.is_ok() && !is_report {
                    let key = (child.clone(), self.residents[child]);
                    self.epochs.entry(key).or_default().announced = true;
                }
                assert!(self.answers.insert(id, answer).is_none(), "{id} is answered twice");
            }
            Effect::GiveUp { epoch } => drop(self.given_up.insert(epoch)),
            Effect::Started { child, epoch } => {
                let lives = &mut self.epochs.entry((child, epoch)).or_default().started;
                *lives += 1;
                assert_eq!(*lives, 1);
            }
            Effect::Ended { child, epoch } => {
                self.residents.remove(&child);
                let told = self.epochs.entry((child, epoch)).or_default();
                told.ended += 1;
                assert_eq!(told.ended, 1);
                assert_eq!(told.notices, usize::from(told.announced), "{told:?}");
            }
            Effect::Drained { drain, failures } => {
                assert!(self.drains.remove(&drain) && failures.is_empty());
            }
            Effect::Cancel { child, keep_inbox, .. } => {
                self.cut_off(&child);
                if let Some(agent) = self.agents.get_mut(&child) {
                    agent.cut(keep_inbox);
                }
            }
            Effect::Dispose { ref child, epoch, .. } => {
                let told = self.epochs.entry((child.clone(), epoch)).or_default();
                let agent = &self.agents[child];
                let owned = self.machine.activation(child).map(|child| child.owned);
                assert_eq!(owned, Some(0), "it is disposed before what it owns");
                assert!(
                    told.cut
                        || (!agent.running
                            && agent.pending.iter().all(|id| !agent.owed.contains(id))),
                    "{child} settled with work: {agent:?}"
                );
                self.tasks.push(Task::Effect(effect));
            }
            Effect::Notice { ref child, epoch, ref to, .. } => {
                let told = self.epochs.entry((child.clone(), epoch)).or_default();
                told.notices += 1;
                assert_eq!(told.notices, 1);
                if let Some(parent) = self.machine.activation(to) {
                    assert!(parent.owned > 0, "it is let go before its parent is told");
                }
                self.tasks.push(Task::Effect(effect));
            }
            effect => self.tasks.push(Task::Effect(effect)),
        }
    }

    /// Performs one task; `well` says whether it succeeds, if it may fail.
    pub fn perform(&mut self, task: Task, well: bool) {
        let effect = match task {
            Task::Tell(input) => return self.input(input),
            Task::Effect(effect) => effect,
        };
        match effect {
            Effect::Make { child, epoch, op } => {
                let (op, _) = self.ops[&op].clone();
                let known = self.agents.get(&child);
                let fresh = known.is_none();
                let refused = match known {
                    _ if !well || self.given_up.contains(&epoch) => {
                        Some(ContinuationError::Unavailable)
                    }
                    Some(agent) if agent.lineage.first() != op.lineage.first() => {
                        let (id, why) = (child.clone(), String::new());
                        Some(ContinuationError::NotResumable { id, why })
                    }
                    _ => None,
                };
                if let Some(refused) = refused {
                    return self.input(Input::Made { child, epoch, made: Err(refused) });
                }
                let agent = self.agents.entry(child.clone()).or_default();
                agent.lineage = op.lineage.to_vec();
                agent.live = true;
                // What an earlier epoch left in its inbox waits there for the next message that wakes it.
                agent.owed.clear();
                let accepted = fresh.then(|| {
                    agent.take(op.message.clone(), true);
                    agent.len
                });
                self.residents.insert(child.clone(), epoch);
                self.input(Input::Made { child, epoch, made: Ok(accepted) });
            }
            Effect::Send { child, epoch, op } => {
                let (message, _) = self.ops[&op].clone();
                let at = match self.agents.get_mut(&child) {
                    Some(agent) if agent.live && well => {
                        agent.take(message.message, true);
                        Ok(agent.len)
                    }
                    // The answer is lost, though the message may have come.
                    Some(agent) if agent.live => Err(ContinuationError::Cancelled),
                    _ => Err(ContinuationError::ActivationClosing { id: child.clone() }),
                };
                self.input(Input::Sent { child, epoch, op, at });
            }
            Effect::Report { op, to } => {
                let (op, _) = self.ops[&op].clone();
                let at = match self.agents.get_mut(&to).filter(|parent| parent.live) {
                    Some(parent) => {
                        parent.take(op.message.clone(), well);
                        Ok(well.then_some(parent.len))
                    }
                    None => Err(ContinuationError::ParentUnavailable { parent: to.clone() }),
                };
                self.input(Input::Reported { to, op, at });
            }
            Effect::Dispose { child, epoch, keep_inbox } => {
                if let Some(agent) = self.agents.get_mut(&child) {
                    agent.cut(keep_inbox);
                    agent.live = false;
                }
                self.numbers += 1;
                let notice = MessageId::from(format!("n{}", self.numbers));
                self.input(Input::Disposed { child, epoch, notice, failure: None });
            }
            Effect::Notice { child, epoch, to, message, wake, .. } => {
                let parent = self.agents.get_mut(&to).filter(|parent| parent.live);
                let at = parent.and_then(|parent| {
                    parent.take(message, wake && well);
                    (wake && well).then_some(parent.len)
                });
                self.input(Input::Noticed { child, epoch, at });
            }
            effect => panic!("{effect:?} is performed at once"),
        }
    }

    /// Invariants of appendix D that hold at every moment.
    fn check(&self) {
        let all = self.machine.activations();
        for activation in &all {
            let owner = all.iter().find(|other| other.child == activation.parent);
            let siblings = all.iter().filter(|other| other.parent == activation.parent).count();
            if let Some(owner) = owner {
                assert_eq!(owner.owned, siblings, "what is owned lives, and the other way round");
            }
            if let Some(agent) = self.agents.get(&activation.child) {
                let once: BTreeSet<_> = agent.pending.iter().collect();
                assert_eq!(once.len(), agent.pending.len());
            }
        }
    }

    /// Lets everything come to rest: nothing fails any more.
    pub fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "no rest: {:?}", self.machine.activations());
            if !self.tasks.is_empty() {
                let task = self.tasks.remove(0);
                self.perform(task, true);
                continue;
            }
            let busy = self.agents.iter().find(|(_, agent)| agent.live && agent.running);
            if let Some(id) = busy.map(|(id, _)| id.clone()) {
                self.agents.get_mut(&id).unwrap().finish();
                continue;
            }
            let before = self.machine.activations();
            for child in self.residents.keys().cloned().collect::<Vec<_>>() {
                self.look(&child);
            }
            let looks = std::mem::take(&mut self.tasks);
            looks.into_iter().for_each(|look| self.perform(look, true));
            if self.tasks.is_empty() && self.machine.activations() == before {
                return;
            }
        }
    }

    /// Nothing is under way, and nothing was lost.
    pub fn is_whole(&self) {
        assert!(self.machine.activations().is_empty(), "{:?}", self.machine.activations());
        assert!(self.drains.is_empty(), "a drain has no end");
        assert!(self.machine.counts_nobody());
        for (id, (op, child)) in &self.ops {
            let answer = self.answers.get(id).unwrap_or_else(|| panic!("{op:?} has no answer"));
            let to = match op.lineage.first() == Some(child) {
                true => op.lineage.get(1).unwrap_or(child),
                false => child,
            };
            let there = self.agents.get(to).map_or(0, |agent| {
                let lists = [&agent.pending, &agent.claimed, &agent.dropped];
                lists.iter().flat_map(|list| list.iter()).filter(|id| **id == op.message).count()
            });
            assert!(there <= 1, "{op:?} came twice");
            assert!(answer.is_err() || there == 1, "{op:?} was accepted and is lost");
        }
        for (epoch, told) in &self.epochs {
            assert!(told.ended == 1 && told.started <= 1, "{epoch:?} {told:?}");
        }
    }
}
