//! Every numbered scenario has a test of its name, or stands in docs/scenarios.md with the reason.

use std::collections::{BTreeMap, BTreeSet};

use crate::architecture::{root, sources};

/// A family of scenarios and a number in it.
type Scenario = (&'static str, u32);

const FAMILIES: [(&str, u32); 9] = [
    ("core", 153),
    ("newest", 65),
    ("llm", 115),
    ("persistence", 104),
    ("orchestration_1_14", 14),
    ("orchestration_2_5", 8),
    ("orchestration_3_8", 8),
    ("orchestration_17_1", 7),
    ("orchestration_18_7", 10),
];

/// The scenarios that a test's name bears: `core_71_and_72_newest_5_a_cancel` bears three.
fn borne(name: &str) -> Vec<Scenario> {
    let mut found = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let named = FAMILIES
            .iter()
            .find_map(|(family, _)| Some((*family, rest.strip_prefix(family)?.strip_prefix('_')?)));
        rest = match named {
            Some((family, numbers)) => after_numbers(family, numbers, &mut found),
            None => rest.split_once('_').map_or("", |(_, rest)| rest),
        };
    }
    found
}

/// Takes the numbers that a name has right after a family: one, or several with `and` between.
fn after_numbers<'a>(family: &'static str, name: &'a str, found: &mut Vec<Scenario>) -> &'a str {
    let (word, rest) = name.split_once('_').unwrap_or((name, ""));
    let Ok(number) = word.trim_end_matches(|c: char| c.is_ascii_lowercase()).parse() else {
        return name;
    };
    found.push((family, number));
    match rest.strip_prefix("and_") {
        Some(more) => after_numbers(family, more, found),
        None => rest,
    }
}

/// The names of all functions that are tests of scenarios.
fn tests() -> BTreeMap<Scenario, Vec<String>> {
    let mut tests: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (_, text) in sources() {
        for line in text.lines() {
            let Some((_, rest)) = line.split_once("fn ") else { continue };
            let Some((name, _)) = rest.split_once('(') else { continue };
            if FAMILIES.iter().any(|(family, _)| name.starts_with(family)) {
                for scenario in borne(name) {
                    tests.entry(scenario).or_default().push(name.to_owned());
                }
            }
        }
    }
    tests
}

/// What docs/scenarios.md excuses.
fn excused() -> BTreeSet<(String, u32)> {
    let page = std::fs::read_to_string(root().join("docs/scenarios.md")).unwrap();
    let mut excused = BTreeSet::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, scenario, why, _] = cells[..] else { panic!("no row of two cells: {row}") };
        assert!(why.len() > 20, "{scenario} needs a reason");
        let (family, number) = scenario.trim_matches('`').split_once(' ').unwrap();
        excused.insert((family.to_owned(), number.parse().unwrap()));
    }
    excused
}

#[test]
fn every_scenario_is_a_test_or_excused() {
    let (tests, excused) = (tests(), excused());
    let mut missing = Vec::new();
    for (family, last) in FAMILIES {
        for number in 1..=last {
            let tested = tests.get(&(family, number));
            let is_excused = excused.contains(&(family.to_owned(), number));
            assert!(!(is_excused && tested.is_some()), "{family} {number} is tested: {tested:?}");
            if !is_excused && tested.is_none() {
                missing.push(format!("{family} {number}"));
            }
        }
    }
    assert!(missing.is_empty(), "no test bears {}", missing.join(", "));
}

#[test]
fn names_bear_their_numbers() {
    assert_eq!(borne("core_9_steering"), [("core", 9)]);
    assert_eq!(borne("core_71_and_72_newest_5_b"), [("core", 71), ("core", 72), ("newest", 5)]);
    assert_eq!(borne("llm_44_t7_comments_and_12_more"), [("llm", 44)]);
    assert_eq!(borne("core_023_a_core_of_7"), [("core", 23)]);
    let both = [("orchestration_1_14", 6), ("orchestration_1_14", 7)];
    assert_eq!(borne("orchestration_1_14_6_and_7_a_start"), both);
    assert_eq!(borne("orchestration_1_4_the_last_answer"), []);
}
