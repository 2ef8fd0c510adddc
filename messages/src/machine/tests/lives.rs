//! One session's lives: whatever happens to its agents is done here, and what became of it is kept
//! for the judge.

use std::sync::{Arc, Mutex};

use serde_json::json;

use super::{
    ops::{Edit, Op, Plugin, World},
    rig::{Rig, load, m, options},
    world::Pre,
};
use crate::{
    candidate::Candidate,
    chunk::Failure,
    config::{ModelChoice, ToolUpdate},
    content::ContentBlock,
    event::{CancelCause, EndSeed, EventBody, InboxTarget, NewEvent, Seq},
    id::MessageId,
    invariants::InvariantsHold,
    log::Log,
    machine::{Input, LoopOptions, Recovery},
    message::{Message, Source},
    repair::construction_marker,
    session::{Command, InboxEdit, Reply, SessionCore},
    surface::IMAGE_OFFLOAD,
    validator::{Trace, Validator},
};

/// A waking send: what would excuse that it has not run.
pub struct Wake {
    pub id: MessageId,
    pub time: u64,
    /// The token that was already fired, by a cancel that had been handled.
    pub after_cancel: Option<u64>,
}

pub struct Run {
    pub rig: Rig,
    /// What is true of the agent of the moment.
    pub life: Life,
    pub crashes: usize,
    refuse: Refuse,
    sent: u32,
    /// Messages that came neither from a sender nor from the loop.
    others: u32,
}

#[derive(Default)]
pub struct Life {
    /// Where the log stood when it began.
    pub from: Seq,
    pub wakes: Vec<Wake>,
    /// When cancels arrived.
    pub cancelled: Vec<u64>,
    pub senders: usize,
    /// How many of them sent an id for the second time.
    pub again: usize,
    /// Somebody changed the order of what waits.
    pub reordered: bool,
    pub disposed: bool,
    maintained: bool,
}

/// Refuses the next event of a kind.
#[derive(Clone, Default)]
struct Refuse(Arc<Mutex<Option<&'static str>>>);

impl Validator for Refuse {
    fn name(&self) -> &str {
        "refuse"
    }

    fn trace(&self) -> Box<dyn Trace> {
        Box::new(self.clone())
    }
}

impl Trace for Refuse {
    fn follow(&mut self, event: Candidate<'_>) -> Result<(), String> {
        match self.0.lock().unwrap().take_if(|kind| *kind == event.body.kind()) {
            Some(kind) => Err(format!("{kind} is refused")),
            None => Ok(()),
        }
    }

    fn fork(&self) -> Box<dyn Trace> {
        Box::new(self.clone())
    }
}

/// Scripted tool calls may go on as long as the script does; the limit is a guard.
fn guarded() -> LoopOptions {
    LoopOptions { max_steps: 4, ..options() }
}

impl Run {
    pub fn new() -> Self {
        let refuse = Refuse::default();
        let mut rig = Rig::with(guarded());
        refuse.watch(&mut rig.core);
        let life = Life::default();
        Self { rig, life, crashes: 0, refuse, sent: 0, others: 0 }
    }

    pub fn op(&mut self, op: Op) {
        let rig = &mut self.rig;
        match op {
            Op::Send(target, wake) => self.send(target, wake),
            Op::Again(n, retry) if self.sent > 0 => {
                self.life.again += 1;
                self.life.senders += 1;
                let message = m(&format!("m{}", u32::from(n) % self.sent + 1));
                let target = InboxTarget::NextTurn;
                rig.input(Input::Send { ticket: 0, message, target, wake: true, retry });
            }
            Op::Again(..) => {}
            // What nobody has sent yet cannot be put back.
            Op::Edit(Edit::PutBack(_)) if self.sent == 0 => {}
            Op::Edit(edit) => self.edit(edit),
            Op::Announce(cause, keep) => {
                rig.announce(cause, keep);
            }
            Op::Deliver => {
                let cancel = rig.cancels.front();
                self.life.disposed |= cancel.is_some_and(|it| it.1 == CancelCause::Disposed);
                if rig.deliver() {
                    self.life.cancelled.push(rig.time);
                }
            }
            Op::Session => {
                rig.session();
            }
            Op::Reply => {
                rig.reply();
            }
            Op::Complete => {
                rig.complete();
            }
            Op::Move(n) => {
                for _ in 0..n % 16 {
                    let _ = rig.session() || rig.reply() || rig.complete();
                }
            }
            Op::Call(starts) => {
                let runs = matches!(rig.work, Some(crate::machine::Effect::RunTools { .. }));
                match (runs, starts) {
                    (false, _) => {}
                    (true, true) => rig.start_call(),
                    (true, false) => rig.finish_call(),
                }
            }
            Op::Maintain => {
                let granted = rig.maintenance.len();
                rig.input(Input::Maintain { ticket: 0 });
                self.life.maintained |= rig.maintenance[granted];
            }
            Op::Maintained => {
                if std::mem::take(&mut self.life.maintained) {
                    rig.input(Input::Maintained);
                }
            }
            Op::World(world) => self.world(world),
            Op::Plugin(plugin) => self.plugin(plugin),
            Op::Crash(at, resumes) => {
                let len = at.index(rig.core.log().len() as usize + 1) as u64;
                self.crash(len, resumes);
            }
        }
    }

    fn send(&mut self, target: InboxTarget, wake: bool) {
        self.sent += 1;
        self.life.senders += 1;
        let (rig, id) = (&mut self.rig, format!("m{}", self.sent));
        if wake {
            let fired = rig.token.is_some() && rig.cancels.is_empty();
            let after_cancel = fired.then_some(rig.tokens);
            self.life.wakes.push(Wake { id: (&*id).into(), time: rig.time, after_cancel });
        }
        rig.send(m(&id), target, wake);
    }

    fn other(&mut self) -> crate::message::SharedMessage {
        self.others += 1;
        m(&format!("o{}", self.others))
    }

    fn edit(&mut self, edit: Edit) {
        let known =
            |n: u8| -> MessageId { format!("m{}", u32::from(n) % self.sent.max(1) + 1).into() };
        self.life.reordered |= !matches!(edit, Edit::Remove(_) | Edit::Clear);
        let edit = match edit {
            Edit::Remove(n) => InboxEdit::Remove { id: known(n) },
            Edit::Replace(n) => InboxEdit::Replace { id: known(n), with: self.other() },
            Edit::Prepend(target) => InboxEdit::Prepend { message: self.other(), target },
            Edit::Clear => InboxEdit::Clear,
            Edit::Splice(target, start, delete, new) => {
                let insert = (0..new).map(|_| self.other()).collect();
                InboxEdit::Splice { target, start, delete, insert }
            }
            Edit::PutBack(n) => {
                let id = known(n);
                // Nobody is to be woken by it.
                self.life.wakes.retain(|wake| wake.id != id);
                let (target, insert) = (InboxTarget::NextStep, vec![m(id.as_str())]);
                InboxEdit::Splice { target, start: 0, delete: 0, insert }
            }
        };
        self.rig.input(Input::Edit { ticket: 0, edit });
    }

    fn world(&mut self, world: World) {
        let others = |run: &mut Self, n: u8| (0..n).map(|_| run.other()).collect::<Vec<_>>();
        let pre = match world {
            World::Reject => Some(Pre::Reject),
            World::Rewrite(n) => Some(Pre::Rewrite(others(self, n))),
            World::Extra => Some(Pre::Extra(others(self, 1))),
            World::Series => Some(Pre::Series),
            World::PreFails => Some(Pre::Fail("P")),
            _ => None,
        };
        let script = &mut self.rig.world;
        script.pre.extend(pre);
        let model = |other| if other { "n".to_owned() } else { "m".to_owned() };
        match world {
            World::Answer(answer) => script.answers.push_back(answer),
            World::Unprepared => script.unprepared.push_back(Failure::unknown("u")),
            World::Retry => script.verdicts.push_back(Ok(Recovery::Retry)),
            World::RetryOn(other) => {
                let choice = ModelChoice {
                    provider: "p".into(),
                    model: model(other),
                    reasoning_effort: None,
                };
                script.verdicts.push_back(Ok(Recovery::RetryWith(choice)));
            }
            World::NoRetry => script.verdicts.push_back(Ok(Recovery::Fail)),
            World::BadVerdict => script.verdicts.push_back(Err(Failure::unknown("v"))),
            World::Executor(calls, results) => {
                script.fails_after = (calls, results);
                script.executor.push_back(Failure::unknown("e"));
            }
            World::Stopping => script.stopping.push_back(Failure::unknown("s")),
            World::Concludes(concludes) => script.concludes = concludes,
            World::Prompt(0) => script.prompt = Ok(String::new()),
            World::Prompt(4) => script.prompt = Err(Failure::unknown("r")),
            World::Prompt(n) => script.prompt = Ok(format!("P{n}")),
            World::InHistory(yes) => script.in_history = yes,
            World::ToolUpdate(n) => {
                let modes = [None, Some(ToolUpdate::InHistory), Some(ToolUpdate::AdditionOnly)];
                script.tool_update = modes[usize::from(n)];
            }
            World::Tools(bits) => {
                let names = ["a", "b", "c"].into_iter().enumerate();
                let declared = names.filter(|(at, _)| bits >> at & 1 == 1);
                script.declare(&declared.map(|(_, name)| name).collect::<Vec<_>>());
            }
            World::Redefine(deferred) => script.redefine(deferred),
            World::Temperature(yes) => script.temperature = yes.then_some(0.5),
            World::HookedModel(yes) => script.hooked_model = yes.then(|| "hooked".into()),
            World::Window(yes) => script.window = yes.then_some(1000),
            World::Defaults(yes) => {
                script.default_max = yes.then_some(4096);
                script.default_effort = yes.then(|| "medium".into());
            }
            World::Fact(n) => script.fact(["", "X", "Y"][usize::from(n)]),
            World::Reject | World::Rewrite(_) | World::Extra | World::Series | World::PreFails => {}
        }
    }

    fn plugin(&mut self, plugin: Plugin) {
        // Who parts a call from its result bricks the session; the gate would say so.
        let answered = self.rig.state().recovery().pending().next().is_none();
        match plugin {
            Plugin::Choose(other) => {
                self.rig.choose(if other { "n" } else { "m" });
            }
            Plugin::Compact(a, b) if answered && !self.refuse.is_set() => {
                self.rig.compact_some(a, b);
            }
            Plugin::Prune(at) => self.rig.prune(at),
            Plugin::Note => {
                self.rig.append(NewEvent::custom("x/note", json!({})).ignorable());
            }
            Plugin::User if answered => {
                let message = self.other();
                self.try_append(NewEvent::append(EventBody::UserMessage(message)));
            }
            Plugin::Image if answered => {
                self.others += 1;
                let (attachment, offloaded) = (json!({"attachmentId": "i"}), false);
                let content = vec![ContentBlock::Image { attachment, offloaded }];
                let id = format!("o{}", self.others);
                let message = Arc::new(Message::user_from(id, content, Source::user()));
                self.try_append(NewEvent::append(EventBody::UserMessage(message)));
            }
            Plugin::Offload(at) => {
                let nodes: Vec<_> = self.rig.state().surface().nodes().collect();
                if !nodes.is_empty() {
                    let target = json!({"seq": at.get(&nodes), "imageIndexes": [0]});
                    // Most nodes have no image.
                    self.try_append(NewEvent::custom(IMAGE_OFFLOAD, json!({"targets": [target]})));
                }
            }
            Plugin::EndSeed => {
                let marker = EventBody::EndSeed(EndSeed::default());
                self.rig.append(NewEvent::log_only(marker));
            }
            Plugin::Refuse(kind) => *self.refuse.0.lock().unwrap() = Some(kind),
            Plugin::Compact(..) | Plugin::User | Plugin::Image => {}
        }
    }

    fn try_append(&mut self, event: NewEvent) {
        let reply = self.rig.core.execute(Command::Append(vec![event]), &mut self.rig.mint);
        assert!(matches!(reply, Reply::Appended(_) | Reply::Refused(_)), "{reply:?}");
    }

    /// The process dies, and another opens what is left of the log.
    pub fn crash(&mut self, len: Seq, resumes: bool) {
        let log: Log = self.rig.core.log().range(0..len).cloned().collect();
        let mut core = load(log);
        *self.refuse.0.lock().unwrap() = None;
        let world = std::mem::take(&mut self.rig.world);
        self.life = Life { maintained: resumes, ..Life::default() };
        if resumes {
            let mint = &mut self.rig.mint;
            let repaired = core.execute(Command::Repair { tail: None }, mint);
            assert!(matches!(repaired, Reply::Repaired(_)), "{repaired:?}");
            let marker = construction_marker(core.log());
            let marked = core.execute(Command::Append(marker.into_iter().collect()), mint);
            assert!(matches!(marked, Reply::Appended(_)), "{marked:?}");
        }
        self.refuse.watch(&mut core);
        self.life.from = core.log().len();
        let mint = std::mem::take(&mut self.rig.mint);
        self.rig = match resumes {
            true => Rig::held_over(guarded(), core),
            false => Rig::successor_over(core, None),
        };
        self.rig.world = world;
        // Ids of the log must not come again.
        self.rig.mint = mint;
        self.crashes += 1;
    }

    /// Everything that is on its way arrives.
    pub fn settle(&mut self) {
        while !self.rig.cancels.is_empty() {
            self.op(Op::Deliver);
        }
        self.op(Op::Maintained);
        self.rig.run();
    }
}

impl Refuse {
    fn is_set(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }

    fn watch(&self, core: &mut SessionCore) {
        core.set_validators(&[Arc::new(InvariantsHold), Arc::new(self.clone())]);
    }
}
