//! `kill -9`, for real: a child process writes and tells what was acknowledged, until it is killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use super::*;

const SESSIONS: u64 = 6;

fn config() -> JournalStoreConfig {
    let mut config = small();
    config.journal.segment_bytes = 8000;
    config
}

/// The child: writes on from what it finds, and prints `session count` for each append that the
/// store says is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs as the child of the test below"]
async fn writes_until_it_is_killed() {
    let Ok(dir) = std::env::var("PLAYHOUSE_KILL_DIR") else { return };
    let store = Arc::new(JournalStore::open(dir, config()).await.unwrap());
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
                // One write; a parent that is gone wants no more.
                if std::io::stdout().write_all(format!("ack {n} {next}\n").as_bytes()).is_err() {
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
async fn what_is_acknowledged_survives_kill_9() {
    let seed = seed(13);
    let mut dice = Dice(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut counts = vec![0; SESSIONS as usize];
    let cycles = 12;
    for cycle in 0..cycles {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--nocapture"])
            .arg("journal_store::tests::kill::writes_until_it_is_killed")
            .env("PLAYHOUSE_KILL_DIR", dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Killed after so many acknowledgements, in the middle of whatever it does then.
        let acks = dice.below(400);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut told = counts.clone();
        let mut take = |line: String| {
            let mut words = line.split(' ').skip_while(|word| *word != "ack").skip(1);
            let (Some(n), Some(count)) = (words.next(), words.next()) else { return false };
            let (n, count): (usize, u64) = (n.parse().unwrap(), count.parse().unwrap());
            told[n] = told[n].max(count);
            true
        };
        let mut seen = 0;
        while seen < acks {
            let line = lines.next().expect("the child lives until it is killed").unwrap();
            seen += usize::from(take(line));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it had printed before it died. The last line may be half.
        for line in lines.map_while(Result::ok).filter(|line| line.split(' ').count() == 3) {
            let whole = line
                .rsplit(' ')
                .next()
                .is_some_and(|count| count.parse::<u64>().is_ok_and(|count| count % 3 == 0));
            if whole && line.starts_with("ack ") {
                take(line);
            }
        }
        let what = format!("seed {seed} cycle {cycle}");
        let report = verify(dir.path(), |_| ()).unwrap();
        assert!(report.is_whole(), "{what}: {report}");
        let store = JournalStore::open(dir.path(), config()).await.unwrap();
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
