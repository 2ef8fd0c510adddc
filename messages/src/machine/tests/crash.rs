//! Death at any event: a successor balances the log, and loses nothing that was accepted.

use proptest::prelude::*;

use super::{
    lives::Run,
    ops::life,
    rig::Rig,
    world::{calls, says},
};
use crate::{
    event::InboxTarget,
    invariants::{Fate, Fates},
    log::Log,
    packed::StreamRecord,
    repair::{UnsettledTail, interrupted_closers},
    session_state::{KnownKinds, SessionState},
    testing::cases,
};

fn prefix(log: &Log, len: u64) -> Log {
    log.range(0..len).cloned().collect()
}

/// Lets a successor take over a log that was cut; says what it added.
fn take_over(log: &Log) -> (Rig, String) {
    let mut rig = Rig::successor(log.clone());
    rig.run();
    assert!(rig.machine.is_idle() && rig.is_balanced());
    let news = rig.news();
    (rig, news)
}

proptest! {
    #![proptest_config(cases(100))]

    /// Invariants 10 and 11, and those of the log across the crash.
    #[test]
    fn a_successor_balances_any_prefix(ops in life(0..40)) {
        let mut run = Run::new();
        for op in ops {
            run.op(op);
        }
        let log = run.rig.core.log().clone();
        for len in 0..=log.len() {
            let cut = prefix(&log, len);
            let waiting = Fates::of(&cut);
            let (rig, _) = take_over(&cut);
            let whole = rig.core.log();
            prop_assert!(prefix(whole, len).iter().eq(cut.iter()), "history is never rewritten");
            prop_assert!(interrupted_closers(whole, None).is_empty());
            // Prompts that waited were run, or wait behind one that was not.
            let after = Fates::of(whole);
            let state = SessionState::fold(&cut, &KnownKinds::new()).unwrap();
            for target in [InboxTarget::NextTurn, InboxTarget::NextStep] {
                for message in state.inbox().list(target) {
                    prop_assert_eq!(waiting.get(&message.id), Some(Fate::Pending));
                    let fate = after.get(&message.id);
                    prop_assert_ne!(fate, Some(Fate::Discarded));
                    prop_assert!(target == InboxTarget::NextStep || fate != Some(Fate::Pending));
                }
            }
            let again = Rig::successor(whole.clone()).run().news();
            prop_assert_eq!(again, "", "repair is idempotent");
        }
    }
}

/// A fixed conversation, so that the closers of each cut can be read.
fn conversation() -> Log {
    let mut rig = Rig::new();
    rig.world.answers.extend([calls(&["c1", "c2"]), says("ok")]);
    rig.followup("A").run();
    rig.core.log().clone()
}

mod scenario {
    use super::*;

    #[test]
    fn design_2_a_tail_that_the_log_refuses_does_not_keep_the_turn_open() {
        let log = conversation();
        let requested = log.iter().position(|event| event.body.kind() == "request/context");
        let cut = prefix(&log, requested.unwrap() as u64 + 1);
        let records = vec![StreamRecord::TextChunks {
            time0: 1,
            index: 0,
            dt: vec![],
            texts: vec!["shown".into()],
        }];
        for (provider, expected) in
            [("p", "A! SE1.1 TE1(interrupted)"), ("", "SE1.1 TE1(interrupted)")]
        {
            let tail = UnsettledTail {
                turn: 1,
                step: 1,
                attempt: 1,
                provider: provider.into(),
                model: "m".into(),
                records: records.clone(),
            };
            let mut rig = Rig::successor_with(cut.clone(), Some(tail));
            rig.run();
            assert_eq!(rig.news(), expected);
        }
    }

    #[test]
    fn core_5_4_a_refused_repair_leaves_the_agent_alive() {
        let mut rig = Rig::successor(conversation());
        rig.veto = Some("Repair");
        rig.run();
        assert_eq!(rig.reports.len(), 1);
        rig.followup("B").run();
        assert!(rig.news().ends_with("TE2(completed)"));
    }

    #[test]
    fn newest_58_a_crash_after_turn_start_closes_the_turn() {
        let log = conversation();
        // The prompt was not claimed yet, so that the successor runs it.
        let (_, news) = take_over(&prefix(&log, 2));
        assert!(news.starts_with("TE1(interrupted) TS2 IN-(T,1) SS2.1 SYS+ U(A)"), "{news}");
        let (_, news) = take_over(&prefix(&log, 3));
        assert_eq!(news, "TE1(interrupted)");
    }

    #[test]
    fn newest_59_a_crash_after_a_tool_call_answers_it() {
        let log = conversation();
        let called = log.iter().position(|event| event.body.kind() == "tool/call").unwrap() as u64;
        let (rig, news) = take_over(&prefix(&log, called + 1));
        let tail = "TR(c1,TOOL_OUTCOME_UNKNOWN) TR(c2,TOOL_NOT_STARTED) SE1.1 TE1(interrupted)";
        assert_eq!(news, tail);
        assert_eq!(rig.core.log().get(called + 1).unwrap().sources, [called]);
    }

    #[test]
    fn core_10_a_successor_s_first_request_resumes() {
        let log = conversation();
        let (mut rig, _) = take_over(&log);
        rig.followup("B").run();
        assert_eq!(rig.news(), "IN+(T,B) TS2 IN-(T,1) SS2.1 U(B) H(resume) A SE2.1 TE2(completed)");
    }

    /// The send is accepted behind the repair, which says that nothing waits.
    #[test]
    fn a_wake_during_repair_runs() {
        for (len, expected) in [(0, "IN+(T,B) TS1"), (conversation().len(), "IN+(T,B) TS2")] {
            let mut rig = Rig::successor(prefix(&conversation(), len));
            rig.followup("B").run();
            let news = rig.news();
            assert!(news.starts_with(expected) && news.contains("(completed)"), "{news}");
            assert!(rig.is_balanced() && rig.machine.is_idle());
        }
    }

    /// A cancel that comes while the log is being balanced takes the prompts with it.
    #[test]
    fn core_5_1_a_cancel_during_repair_clears_what_waits() {
        let log = conversation();
        let mut rig = Rig::successor(prefix(&log, 2));
        rig.cancel().followup("B").run();
        let news = rig.news();
        assert!(news.starts_with("TE1(interrupted) INx(T,1) IN+(T,B) TS2"), "{news}");
        assert!(news.ends_with("TE2(completed)"), "{news}");
    }
}
