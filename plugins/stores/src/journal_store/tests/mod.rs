//! Tests of what only the journal store promises: its deaths, its disk, its index.

mod beside;
mod index_flips;
mod index_life;
mod kill;
mod many;
mod power_cut;
mod scenario;
mod suffix;
mod sweep;
mod window;

use std::path::Path;
use std::time::Duration;

use playhouse_plugin_api::store::EventBatch;

use super::tray::Post;
use super::*;
use crate::contract::{batch, header, texts};
use crate::journal::tests::model_disk::{Cut, Dice, Fault, ModelDisk, Op, seed};
use crate::verify::verify;

fn small() -> JournalStoreConfig {
    let mut config = JournalStoreConfig::default();
    config.journal.segment_bytes = 20_000;
    config.journal.reserve_bytes = 0;
    config
}

/// A store on a disk in memory, where an index cannot be.
async fn on_model(
    disk: &ModelDisk,
    config: JournalStoreConfig,
) -> Result<JournalStore, StoreError> {
    let config = JournalStoreConfig { index: false, ..config };
    JournalStore::open_on(Arc::new(disk.clone()), "/store".into(), config).await
}

impl JournalStore {
    /// The committer of the moment.
    async fn committer(&self) -> ractor::ActorRef<committer::CommitterMessage> {
        let mut post = self.office.tray.post();
        let found = post.wait_for(|post| matches!(post, Post::Filled(_))).await.unwrap();
        let Post::Filled(committer) = found.clone() else { unreachable!() };
        committer
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_committer_loses_nothing_and_doubles_nothing() {
    let seed = seed(7);
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(JournalStore::open(dir.path(), small()).await.unwrap());
    let write = |n: u64| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let writer = store.create(&header(&format!("s{n}")), 0).await.unwrap();
            for seq in (0..60).step_by(2) {
                // Two under way at once: they must not overtake each other at a new committer.
                let (a, b) = (writer.append(batch(seq, 1)), writer.append(batch(seq + 1, 1)));
                b.await.unwrap();
                a.await.unwrap();
                if seq % 7 == n % 7 {
                    writer.flush().await.unwrap();
                }
            }
        })
    };
    let writers: Vec<_> = (0..16).map(write).collect();
    let killer = {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let mut dice = Dice(seed);
            for _ in 0..6 {
                let committer = store.committer().await;
                // Let it do a few commits first, however fast they are.
                for _ in 0..dice.below(8) {
                    store.office.submit(Job::Barrier).await.unwrap();
                }
                committer.kill();
                let dead = committer.get_id();
                let mut post = store.office.tray.post();
                let other = |post: &Post| matches!(post, Post::Filled(c) if c.get_id() != dead);
                post.wait_for(other).await.unwrap();
            }
        })
    };
    for writer in writers {
        writer.await.unwrap();
    }
    killer.await.unwrap();
    for n in 0..16 {
        let session = store.read(&format!("s{n}").into()).await.unwrap();
        assert_eq!(session.events, texts(0, 60));
    }
    store.close().await.unwrap();
    let report = verify(dir.path(), |_| ()).unwrap();
    assert!(report.is_whole(), "{report}");
    println!("killed committers: cases run 6, faults found 0 ({} events)", report.events);
}

#[tokio::test]
async fn a_committer_that_keeps_dying_ends_writing_and_not_reading() {
    for deaths_max in [0, 2, 8] {
        gives_up_after(deaths_max).await;
    }
}

async fn gives_up_after(deaths_max: usize) {
    let disk = ModelDisk::default();
    let config = small().deaths(deaths_max, Duration::from_secs(10));
    let store = on_model(&disk, config).await.unwrap();
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 1)).await.unwrap();
    tokio::time::pause();
    let mut post = store.office.tray.post();
    let ended = loop {
        let now = post
            .wait_for(|post| matches!(post, Post::Filled(_) | Post::Abolished(_)))
            .await
            .unwrap()
            .clone();
        match now {
            Post::Filled(committer) => {
                committer.kill();
                let dead = committer.get_id();
                let gone = |post: &Post| !matches!(post, Post::Filled(c) if c.get_id() == dead);
                post.wait_for(gone).await.unwrap();
            }
            Post::Abolished(error) => break error,
            Post::Vacant => unreachable!(),
        }
    };
    assert_eq!(ended.code(), "STORE_IO");
    let said = format!("died {} times within 10s", deaths_max + 1);
    assert!(ended.to_string().contains(&said), "{ended}");
    assert!(ended.to_string().contains("until the store is closed and opened anew"), "{ended}");
    // Every write fails, and with the same words.
    assert_eq!(writer.append(batch(1, 1)).await, Err(ended.clone()));
    assert_eq!(writer.flush().await, Err(ended.clone()));
    assert_eq!(store.put_value("k", Bytes::new()).await, Err(ended.clone()));
    assert_eq!(store.flush().await, Err(ended));
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 1));
    // Closing tells what is wrong, and lets go all the same.
    assert_eq!(store.close().await.unwrap_err().code(), "STORE_IO");
    // That is the way out.
    let store = on_model(&disk, small()).await.unwrap();
    let (writer, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!(session.events, texts(0, 1));
    writer.append(batch(1, 1)).await.unwrap();
    tokio::time::resume();
}

#[tokio::test]
async fn a_panic_of_the_writing_thread_opens_the_journal_anew() {
    let disk = ModelDisk::default();
    let store = on_model(&disk, small()).await.unwrap();
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 3)).await.unwrap();
    let other = store.create(&header("other"), 0).await.unwrap();
    for fault in [Fault::Panic, Fault::PanicAfter] {
        disk.fault(fault);
        let next = store.read(&"s".into()).await.unwrap().events.len() as u64;
        // What panics before or after the bytes are written is done by the next committer, and a
        // part that was written is not written twice.
        let tail = writer.tail(next, Bytes::from_static(b"chunks"));
        let append = writer.append(batch(next, 3));
        let (tail, append) = futures::join!(tail, append);
        tail.unwrap();
        append.unwrap();
        other.append(batch(0, 2)).await.unwrap();
        let parts = store.read(&"s".into()).await.unwrap().tail.unwrap().parts;
        assert_eq!(parts, [Bytes::from_static(b"chunks")]);
    }
    writer.append(batch(9, 1)).await.unwrap();
    writer.flush().await.unwrap();
    assert_eq!(store.read(&"other".into()).await.unwrap().events, texts(0, 2));
    assert_eq!(store.stat(&"s".into()).await.unwrap().unwrap().event_count, 10);
    assert_eq!(store.list(ListQuery::default()).await.unwrap().sessions.len(), 2);
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 10));
    store.close().await.unwrap();
    drop((writer, other, store));
    let store = on_model(&disk, small()).await.unwrap();
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 10));
}

#[tokio::test]
async fn what_is_written_is_synced_when_the_window_ends() {
    let unsynced = |disk: &ModelDisk| {
        let state = disk.state();
        let last = state.log.iter().rposition(|op| matches!(op, Op::Write(..))).unwrap();
        !state.log[last..].iter().any(|op| matches!(op, Op::Sync(_)))
    };
    let disk = ModelDisk::default();
    let config = JournalStoreConfig { window: Duration::from_secs(3600), ..small() };
    let store = on_model(&disk, config).await.unwrap();
    let writer = store.create(&header("s"), 0).await.unwrap();
    for seq in 0..5 {
        writer.append(batch(seq, 1)).await.unwrap();
        store.office.submit(Job::Barrier).await.unwrap();
        assert!(unsynced(&disk), "nobody waits for durable, and the window is an hour");
    }
    store.flush().await.unwrap();
    assert!(!unsynced(&disk));
    store.close().await.unwrap();

    let disk = ModelDisk::default();
    let config = JournalStoreConfig { window: Duration::from_millis(1), ..small() };
    let store = on_model(&disk, config).await.unwrap();
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 1)).await.unwrap();
    let synced = async {
        while unsynced(&disk) {
            store.office.submit(Job::Barrier).await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(20), synced).await.unwrap();
    store.close().await.unwrap();
}

#[tokio::test]
async fn many_appends_share_one_write() {
    let disk = ModelDisk::default();
    let store = on_model(&disk, small()).await.unwrap();
    let mut writers = Vec::new();
    for n in 0..64 {
        writers.push(store.create(&header(&format!("s{n}")), 0).await.unwrap());
    }
    let before = disk.state().log.iter().filter(|op| matches!(op, Op::Write(..))).count();
    // All are queued before the runtime gets to run the committer.
    let appends: Vec<_> = writers.iter().map(|writer| writer.append(batch(0, 2))).collect();
    for append in futures::future::join_all(appends).await {
        append.unwrap();
    }
    let writes = disk.state().log.iter().filter(|op| matches!(op, Op::Write(..))).count() - before;
    assert!(writes <= 2, "64 appends took {writes} writes");
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_full_disk_takes_what_closes_a_turn_and_work_resumes_with_room() {
    let disk = ModelDisk::default();
    let mut config = small();
    config.journal.reserve_bytes = 4096;
    let store = on_model(&disk, config).await.unwrap();
    disk.state().capacity = Some(12_000);
    let writer = store.create(&header("s"), 0).await.unwrap();
    let mut next = 0;
    let refused = loop {
        match writer.append(batch(next, 10)).await {
            Ok(()) => next += 10,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code(), "STORE_FULL");
    let closer = |seq| Bytes::from(format!("{{\"type\":\"turn/end\",\"seq\":{seq}}}"));
    let closers = EventBatch { first_seq: next, events: vec![closer(next)] };
    writer.append(closers).await.unwrap();
    writer.flush().await.unwrap();
    assert_eq!(store.read(&"s".into()).await.unwrap().events.len() as u64, next + 1);
    disk.state().capacity = None;
    writer.append(batch(next + 1, 10)).await.unwrap();
    writer.flush().await.unwrap();
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_failed_flush_keeps_the_events_and_a_later_one_makes_them_durable() {
    let disk = ModelDisk::default();
    let store = on_model(&disk, small()).await.unwrap();
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 4)).await.unwrap();
    disk.fault(Fault::FailSync);
    disk.fault(Fault::FailSync);
    assert_eq!(writer.flush().await.unwrap_err().code(), "STORE_IO");
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 4));
    writer.flush().await.unwrap();
    let files = disk.after_power_cut(&Default::default(), disk.at(), Cut::None, &mut Dice(1));
    let store = on_model(&ModelDisk::from_files(&files), small()).await.unwrap();
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 4));
}

#[tokio::test]
async fn closing_gives_the_claim_back_even_if_the_flush_fails() {
    let disk = ModelDisk::default();
    let store = on_model(&disk, small()).await.unwrap();
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 1)).await.unwrap();
    disk.fault(Fault::FailSync);
    disk.fault(Fault::FailSync);
    assert_eq!(writer.close().await.unwrap_err().code(), "STORE_IO");
    let (writer, _) = store.open_write(&"s".into()).await.unwrap();
    writer.append(batch(1, 1)).await.unwrap();
    store.close().await.unwrap();
}

#[tokio::test]
async fn appends_beyond_the_room_wait_and_keep_their_order() {
    let disk = ModelDisk::default();
    let config = JournalStoreConfig { waiting_bytes: 100, ..small() };
    let store = on_model(&disk, config).await.unwrap();
    let writer = store.create(&header("s"), 0).await.unwrap();
    let appends: Vec<_> = (0..200).map(|seq| writer.append(batch(seq, 1))).collect();
    for append in futures::future::join_all(appends).await {
        append.unwrap();
    }
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 200));
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_store_in_use_names_the_directory_and_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let store = JournalStore::open(dir.path(), small()).await.unwrap();
    let refused = JournalStore::open(dir.path(), small()).await.err().unwrap();
    assert_eq!(refused.code(), "STORE_IN_USE");
    let text = refused.to_string();
    assert!(text.contains(&dir.path().display().to_string()), "{text}");
    assert!(text.contains(&std::process::id().to_string()), "{text}");
    // Reading needs no lock.
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 3)).await.unwrap();
    let reader = JournalReader::open(dir.path()).await.unwrap();
    assert_eq!(reader.read(&"s".into()).await.unwrap().events, texts(0, 3));
    assert_eq!(reader.list(ListQuery::default()).await.unwrap().sessions.len(), 1);
    store.close().await.unwrap();
    JournalStore::open(dir.path(), small()).await.unwrap();
}

#[tokio::test]
async fn an_unclean_end_costs_a_check_and_a_damaged_index_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = JournalStore::open(dir.path().join("a"), small()).await.unwrap();
    for n in 0..5 {
        let writer = store.create(&header(&format!("s{n}")), 0).await.unwrap();
        for seq in 0..30 {
            writer.append(batch(seq * 5, 5)).await.unwrap();
        }
    }
    store.put_value("k", Bytes::from_static(b"v")).await.unwrap();
    // As `kill -9` leaves it: whatever is in the files now.
    let cases = ["plain", "no index", "index cut", "index garbage", "index of zeros"];
    for (n, case) in cases.iter().enumerate() {
        let copy = dir.path().join(format!("copy {n}"));
        copy_dir(&dir.path().join("a"), &copy);
        let db = copy.join("index/db");
        let bytes = std::fs::read(&db).unwrap();
        match *case {
            "no index" => std::fs::remove_dir_all(copy.join("index")).unwrap(),
            "index cut" => std::fs::write(&db, &bytes[..bytes.len() / 3]).unwrap(),
            "index garbage" => {
                let garbage: Vec<u8> = bytes.iter().map(|byte| byte ^ 0x33).collect();
                std::fs::write(&db, garbage).unwrap();
            }
            "index of zeros" => std::fs::write(&db, vec![0; bytes.len()]).unwrap(),
            _ => {}
        }
        for life in 0..2 {
            let store = JournalStore::open(&copy, small()).await.unwrap();
            assert_eq!(store.damages(), [], "{case}");
            for n in 0..5 {
                let session = store.read(&format!("s{n}").into()).await.unwrap();
                assert_eq!(session.events, texts(0, 150), "{case} life {life}");
            }
            assert_eq!(store.get_value("k").await, Ok(Some(Bytes::from_static(b"v"))), "{case}");
            store.close().await.unwrap();
        }
        assert!(verify(&copy, |_| ()).unwrap().is_whole(), "{case}");
    }
    println!("unclean ends: cases run {}, faults found 0", cases.len());
}

#[tokio::test]
async fn damage_refuses_the_sessions_it_touches_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = JournalStore::open(dir.path(), small()).await.unwrap();
    for n in 0..4 {
        let writer = store.create(&header(&format!("s{n}")), 0).await.unwrap();
        writer.append(batch(0, 20)).await.unwrap();
    }
    store.close().await.unwrap();
    let path = dir.path().join("journal/0000000000000001.segment");
    let mut bytes = std::fs::read(&path).unwrap();
    // The first batch is the first session's only one.
    bytes[400] ^= 4;
    std::fs::write(&path, &bytes).unwrap();
    let report = verify(dir.path(), |_| ()).unwrap();
    assert!(!report.is_whole());
    assert_eq!(report.unreadable.len(), 1, "{report}");
    assert!(report.to_string().contains("segment 1 offset 48"), "{report}");
    let store = JournalStore::open(dir.path(), small()).await.unwrap();
    for _ in 0..2 {
        // It fails the same way each time, and the claim is given back.
        let refused = store.open_write(&"s0".into()).await.err().unwrap();
        assert_eq!(refused.code(), "STORE_CORRUPT", "{refused}");
    }
    for n in 1..4 {
        assert_eq!(store.read(&format!("s{n}").into()).await.unwrap().events, texts(0, 20));
    }
    let writer = store.create(&header("new"), 0).await.unwrap();
    writer.append(batch(0, 1)).await.unwrap();
    store.close().await.unwrap();
    assert_eq!(verify(dir.path(), |_| ()).unwrap().unreadable.len(), 1);
}

#[tokio::test]
async fn a_header_of_a_newer_version_asks_for_an_upgrade() {
    let dir = tempfile::tempdir().unwrap();
    let store_id = *b"0123456789abcdef";
    let config = crate::journal::JournalConfig::default();
    let mut writer =
        crate::journal::Writer::open(Arc::new(RealDisk), dir.path(), store_id, config).unwrap();
    let record = |session: u64, id: &str, header: &'static str| crate::journal::Record::Session {
        session,
        id: id.to_owned(),
        inherited: 0,
        header: Bytes::from_static(header.as_bytes()),
    };
    let newer = record(1, "newer", r#"{"version":99,"shape":"unknown"}"#);
    let other = record(2, "other", r#"{"version":1,"id":"x","createdAt":1,"isSeeded":false}"#);
    writer.write(&[newer, other], crate::journal::Urgency::Ordinary).unwrap();
    writer.seal().unwrap();
    drop(writer);
    let store = JournalStore::open(dir.path(), small()).await.unwrap();
    let refused = store.read(&"newer".into()).await.unwrap_err();
    assert_eq!(refused.code(), "FORMAT_UNSUPPORTED");
    assert!(refused.to_string().contains("upgrade"), "{refused}");
    let refused = store.read(&"other".into()).await.unwrap_err();
    assert_eq!(refused.code(), "STORE_CORRUPT");
    assert_eq!(store.list(ListQuery::default()).await.unwrap().sessions, []);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_compacted_store_is_smaller_and_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = JournalStore::open(dir.path(), small()).await.unwrap();
    for n in 0..10 {
        let writer = store.create(&header(&format!("s{n}")), 0).await.unwrap();
        for seq in 0..20 {
            writer.append(batch(seq * 10, 10)).await.unwrap();
        }
    }
    for n in 1..10 {
        store.delete(&format!("s{n}").into()).await.unwrap();
    }
    assert_eq!(compact(dir.path()).unwrap_err().code(), "STORE_IN_USE");
    store.close().await.unwrap();
    let report = compact(dir.path()).unwrap();
    assert!(report.bytes_after * 5 < report.bytes_before, "{report:?}");
    for life in 0..2 {
        let store = JournalStore::open(dir.path(), small()).await.unwrap();
        let page = store.list(ListQuery::default()).await.unwrap();
        assert_eq!(page.sessions.len(), 1 + life);
        assert_eq!(store.read(&"s0".into()).await.unwrap().events, texts(0, 200));
        let writer = store.create(&header(&format!("new {life}")), 0).await.unwrap();
        writer.append(batch(0, 1)).await.unwrap();
        store.close().await.unwrap();
    }
    assert!(verify(dir.path(), |_| ()).unwrap().is_whole());
}
