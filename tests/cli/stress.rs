//! `playhouse stress`.

use super::House;

#[test]
fn a_run_without_a_fault_ends_with_0_and_says_what_it_did() {
    let house = House::new();
    let args = ["stress", "--agents", "3", "--turns", "2", "--chaos", "2", "--seed", "5"];
    let text = house.run(&args);
    assert_eq!(text.code, Some(0), "{text:?}");
    for row in ["turns", "acknowledged inputs", "actors killed", "turn time, p99", "faults found"] {
        assert!(text.out.lines().any(|line| line.starts_with(row)), "no {row} in {}", text.out);
    }
    assert!(text.err.starts_with("seed 5\n"), "{}", text.err);

    let lines = house.run(&[&args[..], &["--store", "kept", "--format", "jsonl"]].concat());
    assert_eq!(lines.code, Some(0), "{lines:?}");
    let report = &lines.json()[1];
    assert_eq!(
        (&report["kind"], &report["seed"], &report["faults"]),
        (&"report".into(), &5.into(), &0.into())
    );
    let sessions = report["sessions"].as_u64().unwrap();
    let listed = house.run(&["sessions", "list", "--store", "kept", "--format", "jsonl"]);
    assert_eq!(
        listed.out.lines().filter(|line| line.contains("\"id\":\"stress-")).count(),
        3,
        "{listed:?}"
    );
    assert!(sessions >= 3);
}

#[cfg(unix)]
#[test]
fn a_signal_ends_the_load_and_not_the_judgement() {
    let house = House::new();
    let args = ["stress", "--agents", "3", "--duration", "600", "--format", "jsonl"];
    let mut running = house.spawn(&args);
    running.line(|line| line.contains("\"start\"").then_some(()));
    running.signal("-INT");
    let (code, lines) = running.end();
    assert_eq!(code, Some(0), "{lines:?}");
    assert!(lines.last().unwrap().contains("\"report\""), "{lines:?}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let house = House::new();
    for args in
        [["--agents", "0"], ["--chaos", "-1"], ["--chaos", "much"], ["--store-kind", "tape"]]
    {
        let refused = house.run(&[&["stress"], &args[..]].concat());
        assert_eq!(refused.code, Some(2), "{args:?}: {refused:?}");
    }
    let nowhere = house.run(&["stress", "--store-kind", "sqlite"]);
    assert!(nowhere.error(2).contains("name one with --store"), "{nowhere:?}");
    let nothing = house.run(&["stress", "--store-kind", "memory", "--store", "kept"]);
    assert!(nothing.error(2).contains("keeps nothing in kept"), "{nothing:?}");
    assert_eq!(house.run(&["crash-test", "--cycles", "0"]).code, Some(2));
}
