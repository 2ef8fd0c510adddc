//! The journal store and the memory store are given the same random life, with closings, crashes
//! and compactions between; they must never be told apart.

use std::collections::BTreeMap;

use super::*;
use crate::MemoryStore;

type Writers = BTreeMap<u64, [Arc<dyn SessionWriter>; 2]>;

fn code<T>(result: &Result<T, StoreError>) -> &'static str {
    result.as_ref().err().map_or("ok", StoreError::code)
}

/// Everything that a store shows.
async fn shown(store: &dyn Store, limit: usize) -> String {
    let mut out = String::new();
    let mut after = None;
    loop {
        let page = store.list(ListQuery { after, limit }).await.unwrap();
        for stat in page.sessions {
            let session = store.read(&stat.header.id).await.unwrap();
            let SessionStat { header, event_count, size_bytes, .. } = stat;
            let (events, tail) = (session.events, session.tail);
            out += &format!("{header:?} {event_count} {size_bytes} {events:?} {tail:?}\n");
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    for n in 0..5 {
        out += &format!("{:?}\n", store.get_value(&format!("k{n}")).await.unwrap());
    }
    out
}

async fn life(seed: u64, index: bool) -> usize {
    let mut dice = Dice(seed);
    let root = tempfile::tempdir().unwrap();
    let mut dir = root.path().join("0");
    let mut config = small();
    config.journal.segment_bytes = 1500;
    config.index = index;
    let mut journal = JournalStore::open(&dir, config.clone()).await.unwrap();
    let mut memory = MemoryStore::new();
    let mut writers = Writers::new();
    for step in 0..120 {
        let what = format!("seed {seed} step {step}");
        let n = dice.next() % 8;
        let id = SessionId::from(format!("s{n}"));
        match dice.below(100) {
            0..10 => {
                let made = journal.create(&header(id.as_str()), 0).await;
                let other = memory.create(&header(id.as_str()), 0).await;
                assert_eq!(code(&made), code(&other), "{what}");
                if let (Ok(made), Ok(other)) = (made, other) {
                    writers.insert(n, [made, other]);
                }
            }
            10..18 => {
                let opened = journal.open_write(&id).await;
                let other = memory.open_write(&id).await;
                assert_eq!(code(&opened), code(&other), "{what}");
                if let (Ok((opened, session)), Ok((other, same))) = (opened, other) {
                    assert_eq!(session.events, same.events, "{what}");
                    assert_eq!(session.tail, same.tail, "{what}");
                    writers.insert(n, [opened, other]);
                }
            }
            18..55 => {
                if let Some([writer, other]) = writers.get(&n) {
                    let stored = memory.stat(&id).await.unwrap().map_or(0, |s| s.event_count);
                    // Mostly what follows, at times again or with a gap.
                    let back = [0, 0, 0, 1, 3][dice.below(5)];
                    let first = stored.saturating_sub(back) + u64::from(dice.chance(5));
                    let events = batch(first, dice.next() % 6);
                    let (done, same) = (writer.append(events.clone()), other.append(events));
                    assert_eq!(done.await, same.await, "{what}");
                }
            }
            55..67 => {
                if let Some([writer, other]) = writers.get(&n) {
                    let attempt = dice.next() % 3;
                    let part = Bytes::from(format!("part {step}"));
                    let (done, same) =
                        (writer.tail(attempt, part.clone()), other.tail(attempt, part));
                    assert_eq!(done.await, same.await, "{what}");
                }
            }
            67..71 => {
                if let Some([writer, other]) = writers.get(&n) {
                    assert_eq!(writer.flush().await, other.flush().await, "{what}");
                }
            }
            71..78 => {
                if let Some([writer, other]) = writers.remove(&n) {
                    assert_eq!(writer.close().await, other.close().await, "{what}");
                }
            }
            78..84 => {
                let (gone, other) = (journal.delete(&id).await, memory.delete(&id).await);
                assert_eq!(code(&gone), code(&other), "{what}");
            }
            84..90 => {
                let (key, value) = (format!("k{}", n % 5), Bytes::from(vec![7; dice.below(90)]));
                journal.put_value(&key, value.clone()).await.unwrap();
                memory.put_value(&key, value).await.unwrap();
            }
            90..93 => {
                writers.clear();
                journal.close().await.unwrap();
                memory.close().await.unwrap();
                if dice.chance(40) {
                    compact(&dir).unwrap();
                }
                journal = JournalStore::open(&dir, config.clone()).await.unwrap();
                memory = memory.reopen();
            }
            93..97 => {
                // As `kill -9` leaves it: everything acknowledged is in the files.
                let copy = root.path().join(format!("{}", step + 1));
                copy_dir(&dir, &copy);
                writers.clear();
                journal = JournalStore::open(&copy, config.clone()).await.unwrap();
                dir = copy;
                memory.close().await.unwrap();
                memory = memory.reopen();
            }
            _ => journal.committer().await.kill(),
        }
        if step % 5 == 0 {
            let limit = 1 + dice.below(9);
            let (one, two) = (shown(&journal, limit).await, shown(&memory, limit).await);
            assert_eq!(one, two, "{what}");
        }
    }
    writers.clear();
    journal.close().await.unwrap();
    let report = verify(&dir, |_| ()).unwrap();
    assert!(report.is_whole(), "seed {seed}: {report}");
    120
}

#[tokio::test]
async fn the_journal_cannot_be_told_from_memory() {
    let seed = seed(23);
    let mut cases = 0;
    for round in 0..24 {
        cases += life(seed.wrapping_add(round), round % 3 != 0).await;
    }
    println!("random lives beside memory: cases run {cases}, faults found 0");
}
