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
fn a_tree_reports_whole_and_a_cancelled_one_comes_to_rest() {
    let house = House::new();
    let args = ["stress", "--tree", "3x3x3", "--cancel-at", "2", "--seed", "5"];
    let text = house.run(&args);
    assert_eq!(text.code, Some(0), "{text:?}");
    let value = |row: &str| {
        let line = text.out.lines().find_map(|line| line.strip_prefix(row));
        line.unwrap_or_else(|| panic!("no {row} in {}", text.out)).trim().to_owned()
    };
    for row in ["agents", "alive at once", "turns"] {
        assert_eq!(value(row), "40", "{row}");
    }
    for row in ["live agents after", "tasks after", "slots held after", "faults found"] {
        assert_eq!(value(row), "0", "{row}");
    }

    let lines = house.run(&[&args[..], &["--store", "kept", "--format", "jsonl"]].concat());
    assert_eq!(lines.code, Some(0), "{lines:?}");
    let lines = lines.json();
    let kinds: Vec<_> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["start", "cancelled", "cancelled", "report"]);
    for cancelled in &lines[1..3] {
        assert!(cancelled["reached"].as_u64().unwrap() >= 1, "{cancelled}");
    }
    let verified = house.run(&["sessions", "verify", "--store", "kept"]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    let left = std::fs::read_dir(house.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("bare")), "{left:?}");
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
    for args in [["--tree", "3x0"], ["--tree", "much"], ["--cancel-at", "3"]] {
        let refused = house.run(&[&["stress"], &args[..]].concat());
        assert_eq!(refused.code, Some(2), "{args:?}: {refused:?}");
    }
    let both = house.run(&["stress", "--tree", "3x3", "--agents", "3"]);
    assert!(both.error(2).contains("cannot be used with"), "{both:?}");
    let nowhere = house.run(&["stress", "--store-kind", "sqlite"]);
    assert!(nowhere.error(2).contains("name one with --store"), "{nowhere:?}");
    let nothing = house.run(&["stress", "--store-kind", "memory", "--store", "kept"]);
    assert!(nothing.error(2).contains("keeps nothing in kept"), "{nothing:?}");
    assert_eq!(house.run(&["crash-test", "--cycles", "0"]).code, Some(2));
}
