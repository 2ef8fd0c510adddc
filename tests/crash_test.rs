//! `playhouse crash-test`, as the command runs it.

use std::process::Command;

use serde_json::Value;

fn crash_test(args: &[&str]) -> (Option<i32>, Vec<Value>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_playhouse"));
    command.args(["crash-test", "--format", "jsonl"]).args(args);
    let output = command.output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    println!("{out}{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), out.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn ten_kills_of_every_kind_of_store_lose_nothing_that_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let (code, reports) = crash_test(&["--cycles", "10", "--dir", dir.path().to_str().unwrap()]);
    assert_eq!(code, Some(0));
    assert_eq!(reports[0]["store"], "journal");
    assert_eq!(reports[0]["kills"], 10);
    for report in &reports {
        assert!(report["promised"].as_u64().unwrap() > 0, "{report}");
        for fault in ["lost", "wrong", "failedOpens"] {
            assert_eq!(report[fault], 0, "{report}");
        }
    }
    // Nothing is left behind by a test that passes.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn memory_cannot_be_crash_tested() {
    let (code, _) = crash_test(&["--store-kind", "memory"]);
    assert_eq!(code, Some(2));
}
