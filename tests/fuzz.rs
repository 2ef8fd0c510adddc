//! The kept seeds of the fuzz targets, through the same checks.

use std::{fs, path::Path};

#[path = "../fuzz/src/checks.rs"]
mod checks;

/// Runs every seed of a target, and says how many there were.
fn replay(target: &str, check: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let mut seeds: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    seeds.sort();
    assert!(seeds.len() > 4, "{target} has too few seeds to mean anything");
    for seed in seeds {
        println!("{}", seed.display());
        let bytes = fs::read(&seed).unwrap();
        check(&bytes);
        // What a cut in the middle does is as good a seed.
        (0..8).for_each(|part| check(&bytes[..bytes.len() * part / 8]));
    }
}

#[test]
fn the_seeds_of_event_hold() {
    replay("event", checks::event);
}

#[test]
fn the_seeds_of_splice_hold() {
    replay("splice", checks::splice);
}

#[test]
fn the_seeds_of_schema_hold() {
    replay("schema", checks::schema);
}

#[test]
fn the_seeds_of_sse_hold() {
    replay("sse", checks::sse);
}
