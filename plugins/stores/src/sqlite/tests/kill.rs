//! `kill -9`, for real: a child process writes and tells what was acknowledged, until it is killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use super::*;

const SESSIONS: u64 = 4;

/// The child: writes on from what it finds, and prints `ack session count` for each append that the
/// store says is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs as the child of the test below"]
async fn writes_until_it_is_killed() {
    let Ok(dir) = std::env::var("PLAYHOUSE_KILL_DIR") else { return };
    let store = Arc::new(open(Path::new(&dir)).await);
    let write = |n: u64| {
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
                // A parent that is gone wants no more.
                if std::io::stdout().write_all(format!("ack {n} {next}\n").as_bytes()).is_err() {
                    return;
                }
            }
        })
    };
    futures::future::join_all((0..SESSIONS).map(write)).await;
}

#[tokio::test]
async fn what_is_acknowledged_survives_kill_9_and_a_second_writer_is_refused() {
    let seed = seed(17);
    let mut dice = Dice(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut counts = vec![0; SESSIONS as usize];
    let cycles = 8;
    for cycle in 0..cycles {
        let what = format!("seed {seed} cycle {cycle}");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--nocapture"])
            .arg("sqlite::tests::kill::writes_until_it_is_killed")
            .env("PLAYHOUSE_KILL_DIR", dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Killed after so many acknowledgements, in the middle of whatever it does then.
        let acks = 1 + dice.below(60);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut told = counts.clone();
        let mut take = |line: &str| {
            let words: Vec<_> = line.split(' ').collect();
            let at = words.iter().position(|word| *word == "ack");
            let Some([n, count]) = at.and_then(|at| words.get(at + 1..at + 3)) else { return 0 };
            let (Ok(n), Ok(count)) = (n.parse::<usize>(), count.parse::<u64>()) else { return 0 };
            // The last line may be half.
            if count % 3 == 0 {
                told[n] = told[n].max(count);
            }
            1
        };
        let mut seen = 0;
        while seen < acks {
            let line = lines.next().expect("the child lives until it is killed").unwrap();
            seen += take(&line);
        }
        let refused = SqliteStore::open(dir.path(), SqliteConfig::default()).await.err().unwrap();
        let owner = format!("process {}", child.id());
        assert!(refused.to_string().contains(&owner), "{what}: {refused}");
        let reader = SqliteReader::open(dir.path()).await.unwrap();
        assert!(!reader.list(ListQuery::default()).await.unwrap().sessions.is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        // Lines that were whole when it died; half of one would be a smaller number.
        let rest: Vec<_> = lines.map_while(Result::ok).collect();
        for line in rest.iter().take(rest.len().saturating_sub(1)) {
            take(line);
        }
        let report = verify(dir.path(), |_| ()).unwrap();
        assert!(report.is_whole(), "{what}: {report}");
        let store = open(dir.path()).await;
        for n in 0..SESSIONS as usize {
            let events = match store.read(&format!("s{n}").into()).await {
                Ok(session) => session.events,
                Err(error) => {
                    assert_eq!(error.code(), "SESSION_NOT_FOUND", "{what}: {error}");
                    Vec::new()
                }
            };
            let count = events.len() as u64;
            assert!(count >= told[n], "{what}: session {n} lost {} events", told[n] - count);
            assert_eq!(count % 3, 0, "{what}: half an append");
            assert_eq!(events, texts(0, count), "{what}");
            counts[n] = count;
        }
        store.close().await.unwrap();
    }
    println!("kill -9: cases run {cycles}, faults found 0 ({} events)", counts.iter().sum::<u64>());
}
