//! All orders in which sends, cancels, completions and replies can meet.

use std::collections::HashMap;

use proptest::prelude::*;

use super::{
    rig::{Rig, m},
    world::{Answer, Pre, calls, chunks, cut, delta, fails, goes_on_with, says, throws},
};
use crate::{
    chunk::Failure,
    event::{CancelCause, EventBody, InboxTarget, TurnEndReason},
    id::MessageId,
    invariants::{Fate, Fates},
    machine::{Input, Recovery, Status},
};

#[derive(Debug, Clone)]
pub enum Op {
    Send(InboxTarget, bool),
    Announce(CancelCause, bool),
    Deliver,
    Session,
    Reply,
    Complete,
    /// Several moves of whatever can move.
    Move(u8),
    Remove(u8),
    /// An id that may have been sent before, by a sender that knows so or does not.
    Again(u8, bool),
    Maintain,
    Maintained,
    World(World),
}

#[derive(Debug, Clone)]
pub enum World {
    Answer(Answer),
    Pre(Pre),
    Unprepared,
    Verdict(Recovery),
    BadVerdict,
    Executor,
    Stopping,
    Concludes(bool),
}

pub fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        4 => Just(says("hi")),
        4 => Just(calls(&["c1", "c2"])),
        1 => Just(cut("par", &["c1"])),
        2 => Just(fails("X")),
        1 => Just(throws("Y")),
        1 => Just(chunks(vec![delta("open")])),
        1 => Just(chunks(vec![])),
        1 => Just(Answer::NotStarted(Failure::unknown("z"))),
    ]
}

fn verdict() -> impl Strategy<Value = Recovery> {
    prop_oneof![Just(Recovery::Fail), Just(Recovery::Retry), Just(goes_on_with("n"))]
}

fn world() -> impl Strategy<Value = World> {
    let pre = prop_oneof![
        Just(Pre::Reject),
        Just(Pre::Rewrite(vec![])),
        Just(Pre::Series),
        Just(Pre::Fail("P")),
    ];
    prop_oneof![
        6 => answer().prop_map(World::Answer),
        1 => pre.prop_map(World::Pre),
        1 => Just(World::Unprepared),
        2 => verdict().prop_map(World::Verdict),
        1 => Just(World::BadVerdict),
        1 => Just(World::Executor),
        1 => Just(World::Stopping),
        1 => any::<bool>().prop_map(World::Concludes),
    ]
}

fn cause() -> impl Strategy<Value = CancelCause> {
    prop_oneof![
        6 => Just(CancelCause::User),
        3 => Just(CancelCause::Parent),
        3 => Just(CancelCause::Hook { reason: "h".into() }),
        1 => Just(CancelCause::Disposed),
    ]
}

pub fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::Send(InboxTarget::NextTurn, true)),
        2 => Just(Op::Send(InboxTarget::NextStep, true)),
        2 => Just(Op::Send(InboxTarget::NextStep, false)),
        2 => (cause(), any::<bool>()).prop_map(|(cause, keep)| Op::Announce(cause, keep)),
        3 => Just(Op::Deliver),
        6 => Just(Op::Session),
        6 => Just(Op::Reply),
        4 => Just(Op::Complete),
        6 => any::<u8>().prop_map(Op::Move),
        1 => any::<u8>().prop_map(Op::Remove),
        2 => any::<(u8, bool)>().prop_map(|(n, retry)| Op::Again(n, retry)),
        1 => Just(Op::Maintain),
        1 => Just(Op::Maintained),
        4 => world().prop_map(Op::World),
    ]
}

/// A waking send: what would excuse that it has not run.
struct Wake {
    id: MessageId,
    time: u64,
    /// The token that was already fired, by a cancel that had been handled.
    after_cancel: Option<u64>,
}

pub struct Run {
    pub rig: Rig,
    wakes: Vec<Wake>,
    /// When cancels arrived.
    cancelled: Vec<u64>,
    sent: u32,
    again: u32,
    maintained: bool,
    disposed: bool,
}

impl Run {
    pub fn new(rig: Rig) -> Self {
        Self {
            rig,
            wakes: vec![],
            cancelled: vec![],
            sent: 0,
            again: 0,
            maintained: false,
            disposed: false,
        }
    }

    pub fn op(&mut self, op: Op) {
        let rig = &mut self.rig;
        match op {
            Op::Send(target, wake) => {
                self.sent += 1;
                let id = format!("m{}", self.sent);
                if wake {
                    let fired = rig.token.is_some() && rig.cancels.is_empty();
                    let after_cancel = fired.then_some(rig.tokens);
                    self.wakes.push(Wake { id: (&*id).into(), time: rig.time, after_cancel });
                }
                rig.send(m(&id), target, wake);
            }
            Op::Announce(cause, keep) => {
                rig.announce(cause, keep);
            }
            Op::Deliver => {
                self.disposed |=
                    rig.cancels.front().is_some_and(|cancel| cancel.1 == CancelCause::Disposed);
                if rig.deliver() {
                    self.cancelled.push(rig.time);
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
            Op::Remove(n) => {
                let id = format!("m{}", u32::from(n) % self.sent.max(1) + 1);
                rig.remove(&id);
            }
            Op::Again(n, retry) if self.sent > 0 => {
                self.again += 1;
                let message = m(&format!("m{}", u32::from(n) % self.sent + 1));
                let target = InboxTarget::NextTurn;
                rig.input(Input::Send { ticket: 0, message, target, wake: true, retry });
            }
            Op::Again(..) => {}
            Op::Maintain => {
                let granted = rig.maintenance.len();
                rig.input(Input::Maintain { ticket: 0 });
                self.maintained |= rig.maintenance[granted];
            }
            Op::Maintained => {
                if std::mem::take(&mut self.maintained) {
                    rig.input(Input::Maintained);
                }
            }
            Op::World(world) => {
                let script = &mut rig.world;
                match world {
                    World::Answer(answer) => script.answers.push_back(answer),
                    World::Pre(pre) => script.pre.push_back(pre),
                    World::Unprepared => script.unprepared.push_back(Failure::unknown("u")),
                    World::Verdict(verdict) => script.verdicts.push_back(Ok(verdict)),
                    World::BadVerdict => script.verdicts.push_back(Err(Failure::unknown("v"))),
                    World::Executor => script.executor.push_back(Failure::unknown("e")),
                    World::Stopping => script.stopping.push_back(Failure::unknown("s")),
                    World::Concludes(concludes) => script.concludes = concludes,
                }
            }
        }
    }

    /// Everything that is on its way arrives.
    pub fn settle(&mut self) {
        while !self.rig.cancels.is_empty() {
            self.op(Op::Deliver);
        }
        self.op(Op::Maintained);
        self.rig.run();
    }

    /// What must hold once nothing moves.
    fn judge(&mut self) {
        self.rig.news();
        let rig = &self.rig;
        assert!(rig.machine.is_idle(), "{:?}", rig.machine);
        assert!(rig.is_balanced());
        if !rig.statuses.is_empty() {
            assert_eq!(rig.statuses.last(), Some(&Status::Idle));
        }
        let fates = Fates::of(rig.core.log());
        for event in rig.core.log().iter() {
            let EventBody::TurnEnd(end) = &event.body else { continue };
            let repaired = matches!(end.reason, TurnEndReason::Interrupted | TurnEndReason::Forked);
            assert!(!repaired, "invariant 12");
        }
        for (_, accepted) in &rig.accepted {
            let Ok(accepted) = accepted else { continue };
            assert!(fates.get(&accepted.id).is_some(), "invariant 39");
        }
        let refused = rig.accepted.iter().filter(|accepted| accepted.1.is_err()).count();
        assert!(refused <= self.again as usize, "only a second send of an id is refused");
        let sent = (self.sent + self.again) as usize;
        assert_eq!(rig.accepted.len(), sent, "every sender is answered");
        for wake in &self.wakes {
            if fates.get(&wake.id) != Some(Fate::Pending) || self.disposed {
                continue;
            }
            let stopped = rig
                .stops
                .iter()
                .any(|(time, token)| *time > wake.time && wake.after_cancel != Some(*token));
            let cancelled = self.cancelled.iter().any(|time| *time > wake.time);
            assert!(stopped || cancelled, "invariant 46: {} never runs", wake.id);
        }
        self.prompts_run_in_order();
    }

    /// Invariant 40, as far as cancels and removals leave it: what is claimed of next-turn was
    /// inserted in that order.
    fn prompts_run_in_order(&self) {
        let mut inserted: HashMap<MessageId, usize> = HashMap::new();
        let mut pending: Vec<MessageId> = vec![];
        let mut last = None;
        for event in self.rig.core.log().iter() {
            let EventBody::InboxSpliced(splice) = &event.body else { continue };
            if splice.target != InboxTarget::NextTurn {
                continue;
            }
            let start = splice.start as usize;
            let gone = start..start + splice.removed_count as usize;
            for message in &splice.inserted {
                inserted.insert(message.id.clone(), inserted.len());
            }
            let new = splice.inserted.iter().map(|message| message.id.clone());
            let gone: Vec<_> = pending.splice(gone, new).collect();
            if splice.is_claim() {
                let claimed = inserted.get(&gone[0]);
                assert!(claimed > last.as_ref(), "invariant 40");
                last = claimed.copied();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Invariants 12, 27, 29, 38 to 43 and 45 to 47, and those of the log.
    #[test]
    fn the_turn_ends_and_nothing_is_lost(ops in prop::collection::vec(op(), 0..60)) {
        let mut run = Run::new(Rig::new());
        for op in ops {
            run.op(op);
        }
        run.settle();
        run.judge();
    }

    /// Invariant 40: without failures, every prompt has its own turn, in order.
    #[test]
    fn each_of_a_burst_has_its_turn(gaps in prop::collection::vec(0u8..30, 1..8)) {
        let mut run = Run::new(Rig::new());
        let count = gaps.len();
        for gap in gaps {
            run.op(Op::Send(InboxTarget::NextTurn, true));
            for _ in 0..gap {
                let rig = &mut run.rig;
                let _ = rig.session() || rig.reply() || rig.complete();
            }
        }
        run.settle();
        run.judge();
        let fates = Fates::of(run.rig.core.log());
        for n in 1..=count as u32 {
            let fate = fates.get(&format!("m{n}").into());
            prop_assert_eq!(fate, Some(Fate::Claimed { turn: n }));
        }
        prop_assert_eq!(run.rig.state().boundary().last_turn(), count as u32);
    }
}

/// What the runs above pass through; what they cannot reach would be untested.
#[test]
fn the_interleavings_reach_every_ending() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let mut words = std::collections::BTreeSet::new();
    for _ in 0..400 {
        let ops = prop::collection::vec(op(), 0..60).new_tree(&mut runner).unwrap().current();
        let mut run = Run::new(Rig::new());
        ops.into_iter().for_each(|op| run.op(op));
        run.settle();
        let news = run.rig.news();
        words.extend(
            news.split(' ')
                .map(|word| word.chars().filter(|c| !c.is_ascii_digit()).collect::<String>()),
        );
        if news.contains("TE1(aborted) TS2") {
            words.insert("latched".to_owned());
        }
    }
    for word in [
        "TE(completed)",
        "TE(blocked)",
        "TE(max-tokens)",
        "TE(aborted)",
        "TE(aborted:parent)",
        "TE(aborted:hook:h)",
        "TE(aborted:disposed)",
        "TE(error:X)",
        "TE(error:Y)",
        "TE(error:P)",
        "TE(error:UNKNOWN)",
        "A!",
        "AT",
        "A()",
        "TR(c,ABORTED_BEFORE_DISPATCH)",
        "TR(c,TOOL_NOT_STARTED)",
        "H(series)",
        "INx(T,)",
        "INx(S,)",
        "IN-(S,)",
        "M(n)",
        "latched",
    ] {
        assert!(words.contains(word), "{word} is not in {words:?}");
    }
}
