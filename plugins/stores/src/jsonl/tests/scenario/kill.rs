//! `kill -9`, for real: a child process writes and tells what was acknowledged, until it is killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use super::*;
use crate::verify::verify;

const SESSIONS: usize = 4;

/// The child: writes on from what it finds, and prints `ack session count` for each append that the
/// store says is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs as the child of the test below"]
async fn writes_until_it_is_killed() {
    let Ok(dir) = std::env::var("PLAYHOUSE_KILL_DIR") else { return };
    let store = Arc::new(JsonlStore::open(dir, JsonlConfig::default()).await.unwrap());
    let write = |n: usize| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let id = SessionId::from(format!("s{n}"));
            let (writer, mut next) = match store.open_write(&id).await {
                Ok((writer, session)) => (writer, session.events.len() as u64),
                Err(_) => (store.create(&header(id.as_str()), 0).await.unwrap(), 0),
            };
            loop {
                writer.tail(next, Bytes::from_static(b"chunks")).await.unwrap();
                writer.append(batch(next, 3)).await.unwrap();
                next += 3;
                // One write; a parent that is gone wants no more.
                if std::io::stdout().write_all(format!("ack {n} {next} .\n").as_bytes()).is_err() {
                    return;
                }
                if next % 5 == 0 {
                    writer.flush().await.unwrap();
                }
            }
        })
    };
    futures::future::join_all((0..SESSIONS).map(write)).await;
}

#[tokio::test]
async fn persistence_55_after_kill_9_the_next_takes_over_at_once_and_nothing_acknowledged_is_lost()
{
    let seed = seed(13);
    let mut dice = Dice(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut counts = [0; SESSIONS];
    let cycles = 10;
    for cycle in 0..cycles {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--nocapture"])
            .arg("jsonl::tests::scenario::kill::writes_until_it_is_killed")
            .env("PLAYHOUSE_KILL_DIR", dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Killed after so many acknowledgements, in the middle of whatever it does then.
        let acks = 1 + dice.below(60);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut told = counts;
        let mut seen = 0;
        for line in lines {
            // The last line may be half, which its full stop tells.
            let words: Vec<&str> = line.split(' ').skip_while(|word| *word != "ack").collect();
            if let ["ack", n, count, "."] = words[..] {
                let n: usize = n.parse().unwrap();
                told[n] = told[n].max(count.parse().unwrap());
                seen += 1;
                if seen == acks {
                    child.kill().unwrap();
                }
            }
        }
        child.wait().unwrap();
        let what = format!("seed {seed} cycle {cycle}");
        assert!(seen >= acks, "{what}: the child ended by itself after {seen} acknowledgements");
        let report = verify(dir.path(), |_| ()).unwrap();
        assert!(report.is_whole(), "{what}: {report}");
        let store = JsonlStore::open(dir.path(), JsonlConfig::default()).await.unwrap();
        for (n, count) in counts.iter_mut().enumerate() {
            let events = match store.read(&format!("s{n}").into()).await {
                Ok(session) => session.events,
                Err(error) => {
                    assert_eq!(error.code(), "SESSION_NOT_FOUND", "{what}: {error}");
                    Vec::new()
                }
            };
            *count = events.len() as u64;
            assert!(*count >= told[n], "{what}: session {n} lost {} events", told[n] - *count);
            assert_eq!(events, texts(0, *count), "{what}");
        }
        store.close().await.unwrap();
    }
    println!(
        "kill -9 on jsonl: cases run {cycles}, faults found 0 ({} events)",
        counts.iter().sum::<u64>()
    );
}
