use proptest::prelude::*;

use super::{
    simulation::{Plan, Simulation},
    *,
};

fn failure() -> Failure {
    Failure::new("STORE_FULL", "no space")
}

mod scenario {
    use super::*;

    #[test]
    fn core_83_parallel_calls_overlap_and_results_keep_the_models_order() {
        let mut batch = Simulation::new("pp", 10).go();
        assert_eq!(batch.running, [0, 1]);
        batch.settle(1);
        assert_eq!(batch.log(), ["TC 0", "TC 1"]);
        batch.settle(0);
        assert_eq!(batch.log(), ["TC 0", "TC 1", "TR 0", "TR 1"]);
        assert_eq!(batch.finished, Some(Ok(false)));
    }

    #[test]
    fn core_84_barrier_splits_the_groups() {
        let mut batch = Simulation::new("pxp", 10).go();
        assert_eq!(batch.running, [0]);
        batch.settle(0);
        assert_eq!(batch.running, [1]);
        batch.settle(1).settle(2);
        assert_eq!(batch.log(), ["TC 0", "TR 0", "TC 1", "TR 1", "TC 2", "TR 2"]);
    }

    #[test]
    fn core_85_an_exclusive_calls_commit_reclassifies_the_next() {
        for (before, after, running) in [("xpp", "xxp", vec![1]), ("xxp", "xpp", vec![1, 2])] {
            let mut batch = Simulation::new(before, 10).go();
            assert_eq!(batch.running, [0]);
            batch.plan = Simulation::new(after, 10).plan;
            batch.settle(0);
            assert_eq!(batch.running, running);
        }
    }

    #[test]
    fn core_86_a_call_made_exclusive_mid_pool_waits_for_the_pool_and_runs_alone() {
        let mut batch = Simulation::new("pppp", 2).go();
        assert_eq!(batch.running, [0, 1]);
        batch.plan.modes[2] = Concurrency::Exclusive;
        batch.settle(0);
        assert_eq!(batch.running, [1]);
        batch.settle(1);
        assert_eq!(batch.running, [2]);
        batch.settle(2);
        assert_eq!(batch.running, [3]);
    }

    #[test]
    fn core_87_the_cap_holds_and_the_pool_refills() {
        let mut batch = Simulation::new("pppp", 2).go();
        assert_eq!(batch.running, [0, 1]);
        batch.settle(0);
        assert_eq!(batch.running, [1, 2]);
        let mut batch = Simulation::new("ppp", 1).go();
        for index in 0..3 {
            assert_eq!(batch.running, [index]);
            batch.settle(index);
        }
        assert_eq!(batch.log(), ["TC 0", "TR 0", "TC 1", "TR 1", "TC 2", "TR 2"]);
    }

    /// The order examples: four parallel calls, two slots.
    #[test]
    fn core_87_the_order_examples_hold() {
        let mut batch = Simulation::new("pppp", 2).go();
        batch.settle(1).settle(0);
        batch.settle(2).settle(3);
        let log = ["TC 0", "TC 1", "TR 0", "TR 1", "TC 2", "TC 3", "TR 2", "TR 3"];
        assert_eq!(batch.log(), log);
        let mut batch = Simulation::new("pppp", 2).go();
        batch.settle(0);
        assert_eq!(batch.log(), ["TC 0", "TC 1", "TR 0", "TC 2"]);
    }

    #[test]
    fn core_88_policy_and_commits_keep_the_models_order_while_bodies_overlap() {
        let mut batch = Simulation::new("ppp", 3).go();
        batch.settle(2).settle(1).settle(0);
        let ordered = |kind| {
            batch.trace.iter().filter(|line| line.starts_with(kind)).cloned().collect::<Vec<_>>()
        };
        assert_eq!(ordered("POL"), ["POL 0", "POL 1", "POL 2"]);
        assert_eq!(ordered("TR"), ["TR 0", "TR 1", "TR 2"]);
    }

    #[test]
    fn core_90_a_denied_call_takes_no_slot_and_its_sibling_runs() {
        let mut batch = Simulation::new("pp", 1);
        batch.plan.denied[0] = true;
        let mut batch = batch.go();
        assert_eq!(batch.log(), ["TC 0", "TR 0", "TC 1"]);
        batch.settle(1);
        assert_eq!(batch.log(), ["TC 0", "TR 0", "TC 1", "TR 1"]);
        assert!(!batch.trace.contains(&"RUN 0".to_owned()));
    }

    #[test]
    fn core_91_an_abort_before_the_batch_starts_nothing() {
        let mut batch = Simulation::new("ppp", 10);
        batch.input(Input::AbortSeen);
        let batch = batch.go();
        assert_eq!(batch.trace, ["ABORT 0", "ABORT 1", "ABORT 2"]);
        assert_eq!(batch.finished, Some(Ok(false)));
    }

    #[test]
    fn core_92_a_call_whose_policy_an_abort_overtakes_gets_its_own_result() {
        let mut batch = Simulation::new("ppp", 10);
        // Under the cancelled token, policy itself answers with a result.
        batch.plan.denied[0] = true;
        batch.begin();
        batch.answer();
        batch.answer();
        assert_eq!(batch.pending, Some(Effect::RunPolicy(0)));
        batch.abort();
        assert_eq!(batch.trace, ["TC 0", "POL 0", "TR 0", "ABORT 1", "ABORT 2"]);
    }

    #[test]
    fn core_93_an_abort_mid_pool_commits_the_started_and_skips_the_barrier() {
        let mut batch = Simulation::new("ppppx", 2).go();
        batch.abort();
        assert_eq!(batch.log(), ["TC 0", "TC 1"]);
        batch.settle(1).settle(0);
        assert_eq!(batch.log(), ["TC 0", "TC 1", "TR 0", "TR 1", "ABORT 2", "ABORT 3", "ABORT 4"]);
        assert_eq!(batch.finished, Some(Ok(false)));
    }

    #[test]
    fn core_94_a_failure_surfaces_after_the_bodies_and_the_first_one_wins() {
        let mut batch = Simulation::new("pppp", 2).go();
        batch.end(0);
        assert_eq!(batch.pending.take(), Some(Effect::Commit(0)));
        batch.input(Input::Failed(0, failure()));
        assert_eq!(batch.finished, None);
        batch.running.clear();
        batch.input(Input::Failed(1, Failure::unknown("later")));
        assert_eq!(batch.finished, Some(Err(failure())));
        assert_eq!(batch.log(), ["TC 0", "TC 1"]);
    }

    #[test]
    fn newest_50_a_failure_in_the_policy_of_the_second_call_keeps_the_first_result() {
        let mut batch = Simulation::new("xxx", 10).go();
        batch.end(0);
        while batch.pending != Some(Effect::RunPolicy(1)) {
            assert!(batch.answer());
        }
        batch.pending = None;
        batch.input(Input::Failed(1, failure()));
        assert_eq!(batch.log(), ["TC 0", "TR 0", "TC 1"]);
        assert_eq!(batch.finished, Some(Err(failure())));
    }

    #[test]
    fn newest_51_a_failure_while_classifying_records_no_call() {
        let mut batch = Simulation::new("xxx", 10).go();
        batch.end(0);
        while batch.pending != Some(Effect::Classify(1)) {
            assert!(batch.answer());
        }
        batch.pending = None;
        batch.input(Input::Failed(1, failure()));
        assert_eq!(batch.log(), ["TC 0", "TR 0"]);
        assert_eq!(batch.finished, Some(Err(failure())));
    }

    #[test]
    fn newest_52_a_failing_batch_awaits_its_siblings() {
        let mut batch = Simulation::new("ppp", 10);
        batch.begin();
        while batch.pending != Some(Effect::LogCall(2)) {
            assert!(batch.answer());
        }
        batch.pending = None;
        batch.input(Input::Failed(2, failure()));
        batch.settle(1);
        assert_eq!(batch.finished, None);
        batch.settle(0);
        assert_eq!(batch.log(), ["TC 0", "TC 1"]);
        assert_eq!(batch.finished, Some(Err(failure())));
    }
}

#[test]
fn a_denied_call_that_waits_for_an_earlier_result_holds_no_slot() {
    let mut batch = Simulation::new("pppp", 2);
    batch.plan.denied[1] = true;
    let batch = batch.go();
    assert_eq!(batch.running, [0, 2]);
}

#[test]
fn an_abort_while_a_call_is_classified_does_not_start_it() {
    let mut batch = Simulation::new("p", 1);
    batch.begin();
    assert_eq!(batch.pending, Some(Effect::Classify(0)));
    batch.abort();
    assert_eq!(batch.trace, ["ABORT 0"]);
}

#[test]
fn a_failure_while_a_call_is_logged_does_not_ask_policy() {
    let mut batch = Simulation::new("pp", 2);
    batch.begin();
    while batch.pending != Some(Effect::LogCall(1)) {
        assert!(batch.answer());
    }
    batch.running.clear();
    batch.input(Input::Failed(0, failure()));
    assert_eq!(batch.finished, None);
    batch.drain();
    assert_eq!(batch.trace.last().map(String::as_str), Some("TC 1"));
    assert_eq!(batch.finished, Some(Err(failure())));
}

#[test]
fn an_empty_batch_finishes_at_once() {
    assert_eq!(Simulation::new("", 1).go().finished, Some(Ok(false)));
}

#[test]
fn one_concluding_result_concludes_the_batch() {
    let mut batch = Simulation::new("pp", 2);
    batch.concludes = Some(0);
    let mut batch = batch.go();
    batch.settle(0).settle(1);
    assert_eq!(batch.finished, Some(Ok(true)));
}

#[test]
fn an_input_that_nothing_asked_for_fails_the_batch() {
    let mut batch = Simulation::new("p", 1).go();
    batch.input(Input::Logged(0));
    assert_eq!(batch.finished, None);
    batch.settle(0);
    let failure = batch.finished.unwrap().unwrap_err();
    assert_eq!(failure.code, "TOOL_BATCH_PROTOCOL");
}

/// One choice of the adversary.
#[derive(Debug, Clone, Copy)]
enum Move {
    Lane,
    Settle(usize),
    Flip(usize),
    Abort,
    FailLane,
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        12 => Just(Move::Lane),
        8 => any::<usize>().prop_map(Move::Settle),
        3 => any::<usize>().prop_map(Move::Flip),
        1 => Just(Move::Abort),
        1 => Just(Move::FailLane),
    ]
}

fn index_of(line: &str) -> usize {
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

proptest! {
    /// Results in model order, each after its call; the cap and the barriers hold at every moment;
    /// and at the end every call has exactly one result, unless the batch failed.
    #[test]
    fn invariants_33_to_35_hold_for_every_interleaving(
        parallel in prop::collection::vec(any::<bool>(), 0..8),
        denied in prop::collection::vec(prop::bool::weighted(0.2), 8),
        cap in 1_usize..4,
        script in prop::collection::vec(moves(), 0..80),
        faults in prop::bool::weighted(0.3),
    ) {
        let mode = |p: &bool| if *p { Concurrency::Parallel } else { Concurrency::Exclusive };
        let len = parallel.len();
        let plan = Plan { modes: parallel.iter().map(mode).collect(), denied };
        let mut batch = Simulation::of(plan, cap);
        // The mode that each call had when it was last asked.
        let mut asked = vec![None; len];
        let (mut aborted, mut failed) = (false, false);
        batch.begin();
        let ending = std::iter::repeat_n(Move::Lane, 1).cycle();
        let mut script = script.into_iter().chain(ending.enumerate().map(|(n, _)| {
            if n % 2 == 0 { Move::Lane } else { Move::Settle(n / 2) }
        }));
        while batch.finished.is_none() {
            let started_before = batch.running.len();
            match script.next().unwrap() {
                Move::Lane => {
                    if let Some(Effect::Classify(index)) = batch.pending {
                        asked[index] = Some(batch.plan.modes[index]);
                    }
                    batch.answer();
                }
                Move::Settle(nth) => {
                    if let Some(index) = batch.running.get(nth % batch.running.len().max(1)) {
                        batch.end(*index);
                    }
                }
                Move::Flip(nth) if len > 0 => {
                    let mode = &mut batch.plan.modes[nth % len];
                    *mode = match *mode {
                        Concurrency::Parallel => Concurrency::Exclusive,
                        Concurrency::Exclusive => Concurrency::Parallel,
                    };
                }
                Move::Abort => {
                    aborted = true;
                    batch.input(Input::AbortSeen);
                }
                Move::FailLane if faults => {
                    if let Some(
                        Effect::Classify(at) | Effect::LogCall(at) | Effect::RunPolicy(at)
                        | Effect::Commit(at) | Effect::AbortPair(at),
                    ) = batch.pending.take()
                    {
                        failed = true;
                        batch.input(Input::Failed(at, failure()));
                    }
                }
                Move::Flip(_) | Move::FailLane => {}
            }
            prop_assert!(batch.running.len() <= cap, "{:?}", batch.trace);
            if batch.running.len() > started_before && batch.running.len() > 1 {
                for index in &batch.running {
                    prop_assert_eq!(asked[*index], Some(Concurrency::Parallel), "{:?}", batch.trace);
                }
            }
        }
        let at = |kind: &str, index: usize| {
            let line = format!("{kind} {index}");
            batch.trace.iter().position(|traced| *traced == line)
        };
        let results: Vec<_> = batch
            .trace
            .iter()
            .filter(|line| line.starts_with("TR") || line.starts_with("ABORT"))
            .map(|line| index_of(line))
            .collect();
        prop_assert_eq!(&results, &(0..results.len()).collect::<Vec<_>>());
        for index in results.iter().copied() {
            if at("ABORT", index).is_some() {
                prop_assert!(aborted && at("TC", index).is_none());
            } else {
                prop_assert!(at("TC", index) < at("TR", index));
            }
            if let (Some(run), Some(end)) = (at("RUN", index), at("END", index)) {
                prop_assert!(run < end && Some(end) < at("TR", index));
            }
        }
        prop_assert_eq!(failed, batch.finished == Some(Err(failure())));
        if !failed {
            prop_assert_eq!(results.len(), len);
        }
    }
}
