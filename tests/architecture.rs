//! The shape of the house: which crate may know which, and what no file may do.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn cargo(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(args).current_dir(root()).output().unwrap();
    let (out, err) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "cargo {args:?}: {err}");
    String::from_utf8(out).unwrap()
}

struct Dependency {
    on: String,
    is_dev: bool,
    features: BTreeSet<String>,
}

/// The workspace's crates and what each depends on.
fn workspace() -> BTreeMap<String, Vec<Dependency>> {
    let metadata = cargo(&["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let dependency = |value: &Value| Dependency {
        on: text(&value["name"]),
        is_dev: value["kind"] == "dev",
        features: value["features"].as_array().unwrap().iter().map(text).collect(),
    };
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .map(|package| {
            let dependencies = package["dependencies"].as_array().unwrap();
            (text(&package["name"]), dependencies.iter().map(dependency).collect())
        })
        .collect()
}

/// Every file that a version control of the project would hold.
fn files() -> Vec<PathBuf> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !matches!(name.as_str(), "target" | ".git" | ".playhouse") {
                    walk(&path, found);
                }
            } else if name != ".git" {
                found.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    let mut found = Vec::new();
    walk(root(), &mut found);
    found.sort();
    found
}

pub fn sources() -> impl Iterator<Item = (String, String)> {
    files().into_iter().filter(|path| path.extension().is_some_and(|ext| ext == "rs")).map(|path| {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        (path.to_string_lossy().replace('\\', "/"), text)
    })
}

pub fn is_test(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs" || part == "contract.rs")
}

#[test]
fn arrows_point_down_only() {
    let below = |name: &str| -> Option<&[&str]> {
        Some(match name {
            "playhouse-messages" => &[],
            "playhouse-plugin-api" => &["playhouse-messages"],
            "playhouse-actors" => &["playhouse-plugin-api", "playhouse-messages"],
            "playhouse-supervisor" => {
                &["playhouse-actors", "playhouse-plugin-api", "playhouse-messages"]
            }
            // Work in the background is a job; who works over children needs their seam.
            "playhouse-subagents" => {
                &["playhouse-jobs", "playhouse-plugin-api", "playhouse-messages"]
            }
            "playhouse-workflows" | "playhouse-teams" | "playhouse-acp" => {
                &["playhouse-subagents", "playhouse-plugin-api", "playhouse-messages"]
            }
            // The facade composes everything.
            "playhouse" => return None,
            _plugin => &["playhouse-plugin-api", "playhouse-messages"],
        })
    };
    for (name, dependencies) in workspace() {
        let Some(below) = below(&name) else { continue };
        // What a crate's tests compose is not part of the house.
        for Dependency { on, .. } in dependencies.iter().filter(|found| !found.is_dev) {
            if on.starts_with("playhouse") {
                assert!(below.contains(&on.as_str()), "{name} must not depend on {on}");
            }
        }
    }
}

#[test]
fn messages_do_no_io() {
    let workspace = workspace();
    let messages = workspace["playhouse-messages"].iter().filter(|dependency| !dependency.is_dev);
    let on: BTreeMap<_, _> = messages.map(|found| (found.on.as_str(), &found.features)).collect();
    for banned in ["reqwest", "hyper", "sled", "tokio-util", "tracing", "uuid", "futures"] {
        assert!(!on.contains_key(banned), "playhouse-messages must not depend on {banned}");
    }
    let tokio = ["rt", "sync", "time", "macros"].map(String::from);
    assert!(on["tokio"].is_subset(&tokio.into()), "{:?}", on["tokio"]);
    for (path, text) in sources().filter(|(path, _)| path.starts_with("messages/src")) {
        for banned in ["std::fs", "std::net", "SystemTime", "Instant::now", "tokio::spawn"] {
            assert!(
                !text.contains(banned),
                "{path} uses {banned}: the core has no I/O and no clock"
            );
        }
        if !path.starts_with("messages/src/protocol/") {
            // Channels are for mailboxes, and mailboxes are the protocol's.
            assert!(!text.contains("tokio::"), "{path} uses tokio");
            assert!(!text.contains("ractor::"), "{path} uses ractor");
        }
    }
}

#[test]
fn ractor_has_none_of_the_features_that_cost() {
    let tree = cargo(&[
        "tree",
        "--offline",
        "--workspace",
        "--all-features",
        "-e",
        "features",
        "-i",
        "ractor",
    ]);
    assert!(tree.contains("ractor feature \"tokio_runtime\""), "{tree}");
    for banned in ["message_span_propogation", "async-trait", "cluster", "blanket_serde"] {
        let line = format!("ractor feature \"{banned}\"");
        assert!(!tree.contains(&line), "{line} is on");
    }
}

#[test]
fn tests_wait_for_events_and_not_for_time() {
    // These run on a paused clock, where a sleep takes no time. The list can only shrink.
    let allowed = BTreeSet::from(
        [
            "actors/src/tool_executor/tests.rs",
            "actors/src/tool_executor/tests/grace.rs",
            "actors/src/tool_executor/tests/interleaving.rs",
        ]
        .map(String::from),
    );
    let sleeping: BTreeSet<_> = sources()
        .filter(|(path, text)| is_test(path) && path != "tests/architecture.rs" && sleeps(text))
        .map(|(path, _)| path)
        .collect();
    assert_eq!(sleeping, allowed, "wait for an event; remove a file that sleeps no more");
}

fn sleeps(text: &str) -> bool {
    text.contains("time::sleep") || text.contains("thread::sleep")
}

#[test]
fn files_stay_short() {
    const LINES_MAX: usize = 500;
    // Files that are over it and how long they may be: a list that can only shrink.
    let allowed =
        BTreeMap::from([("supervisor/src/plugin_host/tests.rs", 554), ("tests/children.rs", 920)]);
    let mut long = BTreeSet::new();
    for (path, text) in sources() {
        let lines = text.lines().count();
        if lines > LINES_MAX {
            let most = allowed.get(path.as_str()).copied().unwrap_or(LINES_MAX);
            assert!(lines <= most, "{path} has {lines} lines, more than {most}: split it by ideas");
            long.insert(path);
        }
    }
    let gone: Vec<_> = allowed.keys().filter(|path| !long.contains(**path)).collect();
    assert!(gone.is_empty(), "short now, take them off the list: {gone:?}");
}

#[test]
fn no_text_names_a_place_outside_the_repository() {
    // Split, so that this file does not name them either.
    let places =
        [["/ho", "me/"], ["/ro", "ot/"], ["/wo", "rk/"], ["/Us", "ers/"]].map(|p| p.concat());
    for path in files() {
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for place in &places {
            let named = text.lines().find(|line| {
                let start = line.find(place.as_str());
                // A path begins there, rather than going on: `tests/work/x` is ours.
                start.is_some_and(|at| {
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-}>*".contains(c))
                })
            });
            assert!(named.is_none(), "{}: {}", path.display(), named.unwrap_or_default());
        }
    }
}

#[test]
fn the_readme_gives_the_commands_that_ci_runs() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let ci = fs::read_to_string(root().join(".ci/run")).unwrap();
    let command = ci.lines().find(|line| line.trim_start().starts_with("cargo nextest run"));
    let command = command.expect("the script runs the tests").trim();
    assert!(readme.contains(command), "README.md does not give `{command}`");
    let examples = ci.lines().find_map(|line| line.strip_prefix("for example in "));
    let examples = examples.expect("the script runs the examples").trim_end_matches("; do");
    let listed: BTreeSet<_> = examples.split(' ').map(str::to_owned).collect();
    let there: BTreeSet<_> = files()
        .into_iter()
        .filter(|path| path.starts_with("examples"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(listed, there);
    for example in there {
        assert!(readme.contains(&format!("--example {example}")), "README.md: {example}");
    }
}

#[test]
fn every_document_that_is_linked_is_there() {
    for path in files() {
        if path.extension().is_none_or(|ext| ext != "md") {
            continue;
        }
        let text = fs::read_to_string(root().join(&path)).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let at = root().join(&path).parent().unwrap().join(target);
            assert!(at.exists(), "{} links to {target}", path.display());
        }
    }
}
