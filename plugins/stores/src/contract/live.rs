//! The write path while things fail, close and run side by side. A store writes when it is asked;
//! who waits before that, and for what, is the persistence writer's contract.

use std::sync::Arc;

use futures::future::{join_all, try_join_all};
use playhouse_plugin_api::store::SessionWriter;

use super::fixtures::*;
use super::{Capability, Context, Outcome};

pub(super) async fn b4_a_second_flush_has_nothing_to_do(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 3)).await.unwrap();
    writer.flush().await.unwrap();
    let before = (context.backend.storage(), store.stat(&"s".into()).await.unwrap());
    writer.flush().await.unwrap();
    store.flush().await.unwrap();
    let after = (context.backend.storage(), store.stat(&"s".into()).await.unwrap());
    assert!(before == after, "a flush of nothing has changed something");
    assert_eq!(events(&*store, "s").await, texts(0, 3));
    Ok(())
}

pub(super) async fn b5_a_failed_write_takes_nothing_and_is_repeated_once(
    context: &Context,
) -> Outcome {
    context.needs(Capability::BreakWrites)?;
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let pending = store.create(&header("t"), 0).await.unwrap();
    writer.append(batch(0, 2)).await.unwrap();
    for _ in 0..2 {
        context.backend.break_writes(true);
        assert_eq!(code(writer.append(batch(2, 3)).await), "STORE_IO");
        assert_eq!(code(pending.append(batch(0, 1)).await), "STORE_IO");
        assert_eq!(events(&*store, "s").await, texts(0, 2));
        context.backend.break_writes(false);
    }
    writer.append(batch(2, 3)).await.unwrap();
    pending.append(batch(0, 1)).await.unwrap();
    writer.close().await.unwrap();
    pending.close().await.unwrap();
    assert_eq!(events(&*store, "s").await, texts(0, 5));
    let store = context.reopen().await;
    assert_eq!(events(&*store, "s").await, texts(0, 5));
    assert_eq!(events(&*store, "t").await, texts(0, 1));
    Ok(())
}

pub(super) async fn b9_flushes_at_once_all_resolve(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let appends: Vec<_> = (0..50).map(|seq| writer.append(batch(seq, 1))).collect();
    let flushes: Vec<_> = (0..50).map(|_| writer.flush()).collect();
    let (appends, flushes) = futures::join!(join_all(appends), join_all(flushes));
    assert!(appends.into_iter().chain(flushes).all(|done| done.is_ok()));
    assert_eq!(events(&*store, "s").await, texts(0, 50));
    Ok(())
}

pub(super) async fn b11_a_failed_flush_keeps_the_events_and_tells_each_caller(
    context: &Context,
) -> Outcome {
    context.needs(Capability::BreakFlush)?;
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    // The first may have been synced on its own account, so that it appears whole.
    writer.append(batch(0, 1)).await.unwrap();
    writer.flush().await.unwrap();
    writer.append(batch(1, 1)).await.unwrap();
    context.backend.break_flush(true);
    for _ in 0..2 {
        let (one, two) = futures::join!(writer.flush(), writer.flush());
        assert_eq!((code(one), code(two)), ("STORE_IO", "STORE_IO"));
    }
    // Written is written, and so is the same once more.
    assert_eq!(events(&*store, "s").await, texts(0, 2));
    context.backend.break_flush(false);
    writer.append(batch(0, 4)).await.unwrap();
    writer.flush().await.unwrap();
    writer.close().await.unwrap();
    assert_eq!(events(&*context.reopen().await, "s").await, texts(0, 4));
    Ok(())
}

pub(super) async fn b13_one_session_s_refusal_is_not_its_neighbour_s(context: &Context) -> Outcome {
    let store = context.open().await;
    let (one, two) = (header("a"), header("b"));
    let one = store.create(&one, 0).await.unwrap();
    let two = store.create(&two, 0).await.unwrap();
    // Asked for at once, so that they may share a write.
    let (refused, taken, bad) = (one.append(batch(3, 1)), two.append(batch(0, 2)), {
        one.append(super::fixtures::one(0, event(0, "-0")))
    });
    let (refused, taken, bad, swept) = futures::join!(refused, taken, bad, store.flush());
    assert_eq!((code(refused), code(bad)), ("SEQUENCE_MISMATCH", "INVALID_ARGUMENT"));
    assert_eq!((code(taken), code(swept)), ("ok", "ok"));
    one.append(batch(0, 1)).await.unwrap();
    let store = context.reopen().await;
    assert_eq!(events(&*store, "a").await, texts(0, 1));
    assert_eq!(events(&*store, "b").await, texts(0, 2));
    Ok(())
}

pub(super) async fn b16_closing_the_store_drains_its_writers(context: &Context) -> Outcome {
    let store = context.open().await;
    let mut writers = Vec::new();
    for n in 0..5 {
        writers.push(store.create(&header(&format!("s{n}")), 0).await.unwrap());
    }
    let appends: Vec<_> = writers.iter().map(|writer| writer.append(batch(0, 9))).collect();
    store.close().await.unwrap();
    // What was called before is done, and says so.
    try_join_all(appends).await.unwrap();
    let store = context.reopen().await;
    for n in 0..5 {
        let id = format!("s{n}");
        assert_eq!(events(&*store, &id).await, texts(0, 9));
        // The claims went with the life that had them.
        store.open_write(&id.as_str().into()).await.unwrap();
    }
    Ok(())
}

pub(super) async fn b17_closing_gives_the_claim_back_even_if_the_flush_fails(
    context: &Context,
) -> Outcome {
    context.needs(Capability::BreakFlush)?;
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    // The first may have been synced on its own account, so that it appears whole.
    writer.append(batch(0, 1)).await.unwrap();
    writer.flush().await.unwrap();
    writer.append(batch(1, 1)).await.unwrap();
    context.backend.break_flush(true);
    for _ in 0..2 {
        // Also for the successor of one who died before it heard of it.
        assert_eq!(code(writer.close().await), "STORE_IO");
    }
    context.backend.break_flush(false);
    writer.close().await.unwrap();
    let (writer, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!(session.events, texts(0, 2));
    writer.append(batch(2, 1)).await.unwrap();
    writer.close().await.unwrap();
    assert_eq!(events(&*context.reopen().await, "s").await, texts(0, 3));
    Ok(())
}

pub(super) async fn b19_a_writer_follows_another(context: &Context) -> Outcome {
    let store = context.open().await;
    let mut writer = store.create(&header("s"), 0).await.unwrap();
    for life in 0..5 {
        writer.append(batch(life * 2, 2)).await.unwrap();
        writer.close().await.unwrap();
        let (next, session) = store.open_write(&"s".into()).await.unwrap();
        assert_eq!(session.events, texts(0, life * 2 + 2));
        assert_eq!(code(writer.append(batch(life * 2 + 2, 1)).await), "STORE_CLOSED");
        writer = next;
    }
    assert_eq!(events(&*store, "s").await, texts(0, 10));
    Ok(())
}

pub(super) async fn b20_a_huge_batch_is_one_batch(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let huge = batch(0, 150_000);
    let mut gap = huge.clone();
    gap.first_seq = 1;
    assert_eq!(code(writer.append(gap).await), "INVALID_ARGUMENT");
    assert_eq!(store.stat(&"s".into()).await.unwrap().unwrap().event_count, 0);
    writer.append(huge.clone()).await.unwrap();
    // Sent again, as after a failure.
    writer.append(huge.clone()).await.unwrap();
    writer.close().await.unwrap();
    let store = context.reopen().await;
    assert!(events(&*store, "s").await == huge.events);
    assert_eq!(store.read_events(&"s".into(), 149_999..200_000).await.unwrap(), texts(149_999, 1));
    Ok(())
}

pub(super) async fn b21_sessions_are_written_side_by_side(context: &Context) -> Outcome {
    let store = context.open().await;
    let write = |n: u64| {
        let store = Arc::clone(&store);
        async move {
            let header = header(&format!("s{n:03}"));
            let writer: Arc<dyn SessionWriter> = store.create(&header, 0).await.unwrap();
            let each = n % 3 + 1;
            for round in 0..10 {
                writer.append(batch(round * each, each)).await.unwrap();
            }
            writer.flush().await.unwrap();
        }
    };
    join_all((0..100).map(write)).await;
    let store = context.reopen().await;
    for n in 0..100 {
        let expected = texts(0, 10 * (n % 3 + 1));
        assert_eq!(events(&*store, &format!("s{n:03}")).await, expected);
    }
    Ok(())
}

pub(super) async fn b22_closing_waits_for_what_is_under_way(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let appends: Vec<_> = (0..20).map(|seq| writer.append(batch(seq, 1))).collect();
    writer.close().await.unwrap();
    let (_next, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!(session.events, texts(0, 20));
    try_join_all(appends).await.unwrap();
    Ok(())
}

pub(super) async fn b23_a_session_that_is_just_stored_is_in_every_list(
    context: &Context,
) -> Outcome {
    let store = context.open().await;
    let mut expected = Vec::new();
    for n in 0..100 {
        let id = format!("s{n:03}");
        let writer = store.create(&header(&id), 0).await.unwrap();
        expected.push(id);
        let stored = async { writer.append(batch(0, 1)).await.unwrap() };
        let listed = async {
            for _ in 0..3 {
                assert_eq!(ids(&*store).await, expected);
            }
        };
        futures::join!(stored, listed);
    }
    Ok(())
}
