//! Simulations of the whole harness: see `docs/simulation.md`.

use playhouse::sim::{check, run};

/// Seeds that failed once, and what they had found. A plan is drawn anew when the generator of plans
/// changes: they are kept as seeds like others, and the fault has a test of its own.
const KEPT: [(u64, &str); 4] = [
    (270, "a resumed agent was idle before the end that its repair wrote was durable"),
    (323, "the same"),
    (573, "the same"),
    (4566, "a writer that died while it closed made a failure of a disposal that had gone well"),
];

fn all_well(seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        if let Err(failed) = check(seed) {
            panic!("{failed}\nreplay it: playhouse sim --seed {seed} --trace");
        }
    }
}

// Two tests, so that they share two cores.

#[test]
fn a_hundred_worlds_are_as_they_must_be() {
    all_well(0..100);
}

#[test]
fn another_hundred_worlds_are_as_they_must_be() {
    all_well(100..200);
}

#[test]
fn seeds_that_failed_once_fail_no_more() {
    all_well(KEPT.map(|(seed, _)| seed));
}

/// Two runs, on threads whose hashers were seeded differently.
#[test]
fn a_seed_has_one_history() {
    let again = std::thread::spawn(|| (1_000..1_040).map(check).collect::<Result<Vec<_>, _>>());
    for second in again.join().unwrap().unwrap() {
        let mut lines = 0;
        let first = run(second.seed, &mut |_| lines += 1).unwrap();
        first.same_as(&second).unwrap();
        assert!(lines > 0 && first.events > 0, "seed {}", first.seed);
    }
}

/// The plans reach what they are for.
#[test]
fn worlds_have_troubles_of_every_kind() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 2_000..2_120 {
        seen.extend(check(seed).unwrap().tally.into_keys());
    }
    for trouble in [
        "agent killed",
        "crash",
        "hook fails",
        "hook panics",
        "power cut",
        "provider killed",
        "retry",
        "root killed",
        "session killed",
        "store failure",
        "supervisor killed",
        "tool executor killed by its tool",
        "tool fails",
        "tool ignores its cancel",
        "tool panics",
        "writer killed",
    ] {
        assert!(seen.contains(trouble), "no {trouble} in {seen:?}");
    }
}
