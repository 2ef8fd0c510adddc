//! Every request can be rebuilt from the log alone, and a longer one begins with the shorter.

use proptest::prelude::*;

use super::{
    judge::{headers, judge_context, judge_prompt},
    ops::answer,
    rig::{Rig, Sent, options},
    world::{Answer, Pre, fails, goes_on_with},
};
use crate::{
    config::{HeaderReason, ToolUpdate},
    log::Log,
    machine::{LoopOptions, Recovery},
    session_state::{KnownKinds, SessionState},
    testing::cases,
};

#[derive(Debug, Clone)]
enum Op {
    Turn,
    Steer,
    Answers(Vec<Answer>),
    Retry,
    /// The next attempt fails, and its step goes on with another model.
    RetryWith(bool),
    Prompt(u8),
    InHistory(bool),
    ToolUpdate(u8),
    Tools(u8),
    Redefine(bool),
    Temperature(bool),
    Model(bool),
    Window(bool),
    Defaults(bool),
    Fact(u8),
    Series,
    Compact(prop::sample::Index, prop::sample::Index),
    /// Compaction by a pre-step listener or a recovery handler.
    CompactBefore(bool, prop::sample::Index),
    /// A new machine over the same log.
    Resume,
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        6 => Just(Op::Turn),
        2 => Just(Op::Steer),
        4 => prop::collection::vec(answer(), 1..4).prop_map(Op::Answers),
        2 => Just(Op::Retry),
        2 => any::<bool>().prop_map(Op::RetryWith),
        5 => (0u8..4).prop_map(Op::Prompt),
        3 => any::<bool>().prop_map(Op::InHistory),
        2 => (0u8..3).prop_map(Op::ToolUpdate),
        4 => (0u8..8).prop_map(Op::Tools),
        1 => any::<bool>().prop_map(Op::Redefine),
        1 => any::<bool>().prop_map(Op::Temperature),
        1 => any::<bool>().prop_map(Op::Model),
        1 => any::<bool>().prop_map(Op::Window),
        1 => any::<bool>().prop_map(Op::Defaults),
        2 => (0u8..3).prop_map(Op::Fact),
        1 => Just(Op::Series),
        3 => (index(), index()).prop_map(|(a, b)| Op::Compact(a, b)),
        2 => (any::<bool>(), index()).prop_map(|(a, b)| Op::CompactBefore(a, b)),
        1 => Just(Op::Resume),
    ]
}

struct Talk {
    rig: Rig,
    turns: u32,
    /// The requests of earlier instances.
    instance_from: usize,
    judged: usize,
    /// A series may have been declared for the next step.
    declared: usize,
}

impl Talk {
    fn new() -> Self {
        // Scripted tool calls go on only as long as the script does; the limit is a guard.
        let options = LoopOptions { max_steps: 8, ..options() };
        Self { rig: Rig::with(options), turns: 0, instance_from: 0, judged: 0, declared: 0 }
    }

    fn op(&mut self, op: Op) {
        let world = &mut self.rig.world;
        match op {
            Op::Turn => self.turn(None),
            Op::Steer => {
                self.turns += 1;
                let (prompt, steer) = (format!("m{}", self.turns), format!("s{}", self.turns));
                self.rig.followup(&prompt).before("Propose").steer(&steer);
                self.finish();
            }
            Op::Answers(answers) => world.answers = answers.into(),
            Op::Retry => world.verdicts.push_back(Ok(Recovery::Retry)),
            Op::RetryWith(other) => {
                world.answers.push_front(fails("X"));
                world.verdicts.push_front(Ok(goes_on_with(if other { "n" } else { "m" })));
            }
            Op::Prompt(0) => world.prompt = Ok(String::new()),
            Op::Prompt(n) => world.prompt = Ok(format!("P{n}")),
            Op::InHistory(yes) => world.in_history = yes,
            Op::ToolUpdate(n) => {
                let modes = [None, Some(ToolUpdate::InHistory), Some(ToolUpdate::AdditionOnly)];
                world.tool_update = modes[usize::from(n)];
            }
            Op::Tools(bits) => {
                let names = ["a", "b", "c"].into_iter().enumerate();
                let names: Vec<_> =
                    names.filter(|(i, _)| bits >> i & 1 == 1).map(|n| n.1).collect();
                world.declare(&names);
            }
            Op::Redefine(deferred) => world.redefine(deferred),
            Op::Temperature(yes) => world.temperature = yes.then_some(0.5),
            Op::Model(other) => {
                self.rig.choose(if other { "n" } else { "m" });
            }
            Op::Window(yes) => world.window = yes.then_some(1000),
            Op::Defaults(yes) => {
                world.default_max = yes.then_some(4096);
                world.default_effort = yes.then(|| "medium".into());
            }
            Op::Fact(n) => world.fact(["", "X", "Y"][usize::from(n)]),
            Op::Series => {
                self.declared = 1;
                world.pre.push_back(Pre::Series);
            }
            Op::Compact(a, b) => self.rig.compact_some(a, b),
            Op::CompactBefore(recovery, at) => {
                self.turn(Some((if recovery { "Recover" } else { "Propose" }, at)));
            }
            Op::Resume => {
                let log = self.rig.core.log().clone();
                let world = std::mem::take(&mut self.rig.world);
                let sent = std::mem::take(&mut self.rig.sent);
                let mut rig = Rig::held(LoopOptions { max_steps: 8, ..options() }, log);
                rig.input(crate::machine::Input::Maintained);
                (rig.world, rig.sent) = (world, sent);
                self.instance_from = rig.sent.len();
                self.rig = rig;
            }
        }
    }

    fn turn(&mut self, compaction: Option<(&str, prop::sample::Index)>) {
        self.turns += 1;
        let prompt = format!("m{}", self.turns);
        if let Some((window, at)) = compaction {
            if window == "Recover" {
                self.rig.world.answers.push_front(fails("X"));
                self.rig.world.verdicts.push_front(Ok(Recovery::Retry));
            }
            self.rig.followup(&prompt);
            self.rig.before(window);
            self.rig.compact_some(at, at);
        } else {
            self.rig.followup(&prompt);
        }
        self.finish();
    }

    fn finish(&mut self) {
        // Step by step, so that each request meets the facts as they were.
        loop {
            while self.rig.session() {
                while self.judged < self.rig.sent.len() {
                    self.judge(self.judged);
                    self.judged += 1;
                }
            }
            if !(self.rig.reply() || self.rig.complete()) {
                break;
            }
        }
        assert!(self.rig.machine.is_idle());
        self.declared = self.rig.world.pre.len();
    }

    fn judge(&self, n: usize) {
        let Sent { request, len, generation, .. } = &self.rig.sent[n];
        let prefix: Log = self.rig.core.log().range(0..*len).cloned().collect();
        let state = SessionState::fold(&prefix, &KnownKinds::new()).unwrap();
        // 21
        assert_eq!(&request.messages, state.history(), "invariant 21");
        assert_eq!(Some(&request.header), state.requests().header(), "invariant 21");
        assert_eq!(request.tool_history, state.tools().snapshot(), "invariant 21");
        assert_eq!(*generation, state.surface().content_generation());
        let before = n.checked_sub(1).map(|n| &self.rig.sent[n]);
        let headers = headers(&prefix, before.map_or(0, |sent| sent.len)..*len);
        // 23
        if n == self.instance_from {
            let first = match before {
                None => HeaderReason::Initial,
                Some(_) => HeaderReason::Resume,
            };
            assert_eq!(headers.len(), 1, "invariant 23");
            assert_eq!(headers[0].0, first, "invariant 23");
        } else {
            assert!(headers.len() <= 1);
            let fresh = |r| matches!(r, HeaderReason::Initial | HeaderReason::Resume);
            assert!(headers.iter().all(|header| !fresh(header.0)), "invariant 23");
        }
        if let Some(before) = before {
            if before.generation == *generation {
                // 22
                let prefix = request.messages.range(0..before.request.messages.len());
                assert!(prefix.eq(before.request.messages.iter()), "invariant 22");
                let series = headers
                    .iter()
                    .filter(|(reason, series)| *series || *reason == HeaderReason::Series);
                assert!(series.count() <= self.declared, "a series that nothing broke");
            } else if n > self.instance_from {
                // 24
                let series = |(reason, series): &(HeaderReason, bool)| {
                    *series || *reason == HeaderReason::Series
                };
                assert!(headers.iter().any(series), "invariant 24: {headers:?}");
            }
        }
        judge_prompt(&self.rig.sent[n]);
        judge_context(&self.rig.sent[n], &state);
    }
}

proptest! {
    #![proptest_config(cases(300))]

    /// Invariants 17, 18 and 21 to 26; core scenario 123.
    #[test]
    fn core_123_every_request_is_rebuilt_from_the_log(ops in prop::collection::vec(op(), 1..40)) {
        let mut talk = Talk::new();
        for op in ops {
            talk.op(op);
        }
        talk.turn(None);
        talk.rig.news();
        prop_assert!(talk.judged > 0 || talk.rig.reports.len() as u32 == talk.turns);
        let codes: Vec<_> = talk.rig.reports.iter().map(|report| &*report.2.code).collect();
        let gate = codes.iter().any(|code| code.starts_with("HISTORY"));
        prop_assert!(!gate, "a strict provider would refuse: {:?}", talk.rig.reports);
    }
}

#[test]
fn the_conversations_reach_every_kind_of_admission() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let mut words = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let ops = prop::collection::vec(op(), 1..40).new_tree(&mut runner).unwrap().current();
        let mut talk = Talk::new();
        for op in ops {
            talk.op(op);
            let news = talk.rig.news();
            words.extend(news.split(' ').map(kind));
        }
    }
    for word in [
        "SYS+(P1)",
        "SYS+()",
        "SYS~(P2)",
        "SYS~()",
        "H(initial)",
        "H(initial,S)",
        "H(resume)",
        "H(resume,S)",
        "H(change)",
        "H(change,S)",
        "H(series)",
        "D+",
        "D-",
        "D+-",
        "C",
        "CTX(X)",
        "CTX(cleared)",
        "AT",
        "U~",
        "TR(c1)",
        "A()",
    ] {
        assert!(words.contains(word), "{word} is not in {words:?}");
    }
}

/// A word without what only chance decides: which tools came and went.
fn kind(word: &str) -> String {
    let Some(changes) = word.strip_prefix("D(") else {
        return word.split_once("(x").map_or(word, |parts| parts.0).to_owned();
    };
    let signs = ['+', '-'].into_iter().filter(|sign| changes.contains(*sign));
    std::iter::once('D').chain(signs).collect()
}
