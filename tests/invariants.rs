//! `docs/invariants.md` says what is true of the sources.

use std::{collections::BTreeSet, fs, path::Path};

use crate::architecture::{root, sources};

struct Row {
    number: u32,
    by_log: bool,
    tests: Vec<String>,
}

fn page() -> String {
    fs::read_to_string(root().join("docs/invariants.md")).unwrap()
}

fn rows(page: &str) -> Vec<Row> {
    let table = page.lines().filter_map(|line| {
        let cells: Vec<_> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let [number, _, checked, tests] = cells.as_slice() else { return None };
        let number = number.parse().ok()?;
        let by_log = checked.split(", ").any(|place| place == "log");
        Some(Row { number, by_log, tests: names(tests) })
    });
    table.collect()
}

/// What stands in backticks.
fn names(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_invariant_has_a_row_and_every_test_that_it_names_exists() {
    let page = page();
    let rows = rows(&page);
    assert!(rows.iter().map(|row| row.number).eq(1..=52));
    let functions: BTreeSet<String> = sources()
        .flat_map(|(_, text)| {
            let after = text.split("fn ").skip(1);
            let name = |rest: &str| {
                rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
            };
            after.map(name).collect::<Vec<String>>()
        })
        .collect();
    for Row { number, tests, .. } in &rows {
        assert!(!tests.is_empty(), "invariant {number} names no test");
        for test in tests {
            assert!(functions.contains(test), "invariant {number}: there is no test `{test}`");
        }
    }
    let mutations = page.split("## Mutations").nth(1).unwrap_or_default();
    let caught = mutations.lines().filter(|line| line.starts_with("| ")).skip(1);
    for line in caught {
        let test = names(line.rsplit('|').nth(1).unwrap_or_default());
        assert!(test.iter().any(|test| functions.contains(test)), "{line}");
    }
}

/// A fault is a number and a text: `hold(condition, number, || text)` or `Err((number, text))`.
#[test]
fn the_rows_of_the_log_are_those_that_the_code_reports() {
    let mut reported = BTreeSet::new();
    for (path, text) in sources() {
        if !path.starts_with("messages/src/invariants") || Path::new(&path).ends_with("tests.rs") {
            continue;
        }
        let holds = text.split(", || ").filter_map(|before| before.rsplit([',', ' ']).next());
        let errs = text.split("Err((").skip(1).filter_map(|after| after.split(',').next());
        reported.extend(holds.chain(errs).filter_map(|word| word.trim().parse::<u32>().ok()));
    }
    let page = page();
    let said = rows(&page).into_iter().filter(|row| row.by_log).map(|row| row.number);
    assert_eq!(reported, said.collect::<BTreeSet<_>>());
}
