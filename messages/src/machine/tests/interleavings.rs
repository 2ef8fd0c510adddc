//! All orders in which sends, edits, cancels, completions, replies, plugins and crashes can meet.

use proptest::prelude::*;

use super::{
    lives::Run,
    ops::{Op, lives},
};
use crate::{
    event::InboxTarget,
    invariants::{Fate, Fates},
    testing::cases,
};

proptest! {
    #![proptest_config(cases(600))]

    /// The invariants of the log, of requests, of the inbox and of the loop: see
    /// `docs/invariants.md`.
    #[test]
    fn whatever_happens_the_invariants_hold(ops in lives(0..90)) {
        let mut run = Run::new();
        for op in ops {
            run.op(op);
        }
        run.settle();
        run.judge();
    }

    /// Invariant 40: without failures, every prompt has its own turn, in order.
    #[test]
    fn each_of_a_burst_has_its_turn(gaps in prop::collection::vec(0u8..30, 1..8)) {
        let mut run = Run::new();
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
    for _ in 0..900 {
        let ops = lives(0..90).new_tree(&mut runner).unwrap().current();
        let mut run = Run::new();
        let mut told = String::new();
        for op in ops {
            if matches!(op, Op::Crash(..)) {
                told.push_str(&run.rig.news());
                told.push(' ');
            }
            run.op(op);
        }
        run.settle();
        told.push_str(&run.rig.news());
        let is_text = |c: &char| !c.is_ascii_digit();
        words.extend(told.split(' ').map(|word| word.chars().filter(is_text).collect::<String>()));
        if told.contains("TE1(aborted) TS2") {
            words.insert("latched".to_owned());
        }
    }
    for word in [
        "TE(completed)",
        "TE(blocked)",
        "TE(max-tokens)",
        "TE(interrupted)",
        "TE(budget)",
        "TE(budget:tokens)",
        "TE(aborted)",
        "TE(aborted:parent)",
        "TE(aborted:hook:h)",
        "TE(aborted:disposed)",
        "TE(error:X)",
        "TE(error:Y)",
        "TE(error:P)",
        "TE(error:UNKNOWN)",
        "TE(error:INVARIANT)",
        "A!",
        "AT",
        "A()",
        "TR(c,ABORTED_BEFORE_DISPATCH)",
        "TR(c,TOOL_NOT_STARTED)",
        "TR(c,TOOL_OUTCOME_UNKNOWN)",
        "TR~(c)",
        "H(initial)",
        "H(resume)",
        "H(change)",
        "H(change,S)",
        "H(series)",
        "D(+a)",
        "D(-a)",
        "SYS~(P)",
        "SYS+()",
        "CTX(cleared)",
        "U~(x)",
        "M(n)",
        "x/note",
        "image/offload",
        "ES",
        "INx(T,)",
        "INx(S,)",
        "INx(T,,o)",
        "IN-(S,)",
        "M(n)",
        "latched",
    ] {
        assert!(words.contains(word), "{word} is not in {words:?}");
    }
}
