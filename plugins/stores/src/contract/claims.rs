//! Who may write which session, and what a claim leaves behind.

use bytes::Bytes;
use futures::FutureExt as _;
use playhouse_plugin_api::store::{EventBatch, ListQuery, StoreError};

use super::fixtures::*;
use super::{Context, Outcome};

pub(super) async fn a3_a_pending_session_keeps_its_id(context: &Context) -> Outcome {
    let store = context.open().await;
    let pending = store.create(&header("s"), 0).await.unwrap();
    for _ in 0..2 {
        assert_eq!(code(store.create(&header("s"), 0).await), "SESSION_ALREADY_EXISTS");
    }
    // Those who were refused took nothing away.
    pending.append(EventBatch::default()).await.unwrap();
    pending.close().await.unwrap();
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 1)).await.unwrap();
    Ok(())
}

pub(super) async fn a4_of_two_creations_at_once_one_wins(context: &Context) -> Outcome {
    let store = context.open().await;
    let header = header("s");
    let both = futures::join!(store.create(&header, 0), store.create(&header, 0));
    let (mut won, mut lost): (Vec<_>, Vec<_>) =
        [both.0, both.1].into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 1));
    assert_eq!(code(lost.remove(0)), "SESSION_ALREADY_EXISTS");
    let writer = won.remove(0).unwrap();
    writer.append(batch(0, 2)).await.unwrap();
    assert_eq!(events(&*store, "s").await, texts(0, 2));
    writer.close().await.unwrap();
    // And of two who open it to write.
    let id = "s".into();
    let both = futures::join!(store.open_write(&id), store.open_write(&id));
    let (won, mut lost): (Vec<_>, Vec<_>) = [both.0, both.1].into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 1));
    assert_eq!(code(lost.remove(0)), "SESSION_ALREADY_OWNED");
    drop(won);
    store.open_write(&id).await.unwrap();
    Ok(())
}

pub(super) async fn a5_a_stored_session_keeps_its_id_in_the_next_life(
    context: &Context,
) -> Outcome {
    store_one(&*context.open().await, "s", one_turn()).await;
    let store = context.reopen().await;
    assert_eq!(code(store.create(&full_header("s"), 1).await), "SESSION_ALREADY_EXISTS");
    let session = store.read(&"s".into()).await.unwrap();
    assert_eq!((session.header, session.events), (header("s"), one_turn().events));
    store.open_write(&"s".into()).await.unwrap();
    Ok(())
}

pub(super) async fn a6_an_absent_session_is_not_found_and_leaves_nothing(
    context: &Context,
) -> Outcome {
    let store = context.open().await;
    for _ in 0..2 {
        assert_eq!(code(store.read(&"s".into()).await), "SESSION_NOT_FOUND");
        assert_eq!(code(store.open_write(&"s".into()).await), "SESSION_NOT_FOUND");
        assert_eq!(store.stat(&"s".into()).await, Ok(None));
    }
    assert_eq!(ids(&*store).await, [""; 0]);
    store.create(&header("s"), 0).await.unwrap();
    Ok(())
}

pub(super) async fn a7_one_writer_at_a_time(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    assert_eq!(code(store.open_write(&"s".into()).await), "SESSION_ALREADY_OWNED");
    writer.append(one_turn()).await.unwrap();
    assert_eq!(code(store.open_write(&"s".into()).await), "SESSION_ALREADY_OWNED");
    writer.close().await.unwrap();
    let (writer, _) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!(code(store.open_write(&"s".into()).await), "SESSION_ALREADY_OWNED");
    assert_eq!(code(writer.append(one(5, event(5, "1"))).await), "STORE_CONFLICT");
    assert_eq!(code(writer.append(batch(7, 1)).await), "SEQUENCE_MISMATCH");
    writer.append(second_turn()).await.unwrap();
    assert_eq!(events(&*store, "s").await, turns());
    Ok(())
}

pub(super) async fn a9_a_closed_writer_refuses_everything(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 1)).await.unwrap();
    writer.close().await.unwrap();
    writer.close().await.unwrap();
    for refused in [
        writer.append(batch(1, 1)).await,
        writer.append(batch(99, 1)).await,
        writer.append(one(1, Bytes::from_static(b"nothing"))).await,
        writer.append(EventBatch::default()).await,
        writer.tail(1, Bytes::new()).await,
        writer.flush().await,
    ] {
        assert_eq!(refused, Err(StoreError::Closed));
    }
    // What a closed writer does touches no claim of its successor.
    let (next, _) = store.open_write(&"s".into()).await.unwrap();
    writer.close().await.unwrap();
    drop(writer);
    assert_eq!(code(store.open_write(&"s".into()).await), "SESSION_ALREADY_OWNED");
    next.append(batch(1, 1)).await.unwrap();
    assert_eq!(events(&*store, "s").await, texts(0, 2));
    Ok(())
}

pub(super) async fn a9_a_dropped_writer_gives_its_claim_back(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let appended = writer.append(batch(0, 1));
    drop(writer);
    let _ = appended.await;
    drop(store.create(&header("t"), 0).await.unwrap());
    assert_eq!(ids(&*store).await, ["s"]);
    let (writer, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!(session.events, texts(0, 1));
    writer.append(batch(1, 1)).await.unwrap();
    store.create(&header("t"), 0).await.unwrap();
    Ok(())
}

pub(super) async fn a9_a_closed_store_refuses_everything(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 1)).await.unwrap();
    let pending = store.create(&header("t"), 0).await.unwrap();
    store.close().await.unwrap();
    store.close().await.unwrap();
    for refused in [
        code(writer.append(batch(1, 1)).await),
        code(writer.flush().await),
        code(writer.tail(1, Bytes::new()).await),
        code(pending.append(batch(0, 1)).await),
        code(store.create(&header("u"), 0).await),
        code(store.open_write(&"s".into()).await),
        code(store.read(&"s".into()).await),
        code(store.read_events(&"s".into(), 0..1).await),
        code(store.stat(&"s".into()).await),
        code(store.list(ListQuery::default()).await),
        code(store.delete(&"s".into()).await),
        code(store.put_value("k", Bytes::new()).await),
        code(store.get_value("k").await),
        code(store.flush().await),
    ] {
        assert_eq!(refused, "STORE_CLOSED");
    }
    let store = context.reopen().await;
    assert_eq!(ids(&*store).await, ["s"]);
    // A writer of an earlier life writes nothing into this one.
    assert_eq!(code(writer.append(batch(1, 1)).await), "STORE_CLOSED");
    drop((writer, pending));
    assert_eq!(events(&*store, "s").await, texts(0, 1));
    Ok(())
}

pub(super) async fn a11_a_pending_session_is_seen_here_and_not_after_a_reopen(
    context: &Context,
) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&full_header("s"), 3).await.unwrap();
    writer.append(EventBatch::default()).await.unwrap();
    let stat = store.stat(&"s".into()).await.unwrap().unwrap();
    assert_eq!((stat.header, stat.event_count, stat.size_bytes), (full_header("s"), 0, 0));
    assert_eq!(ids(&*store).await, ["s"]);
    let session = store.read(&"s".into()).await.unwrap();
    assert_eq!((session.header, session.inherited_event_count), (full_header("s"), 3));
    assert_eq!((session.events, session.tail), (Vec::new(), None));
    let store = context.reopen().await;
    assert_eq!(store.stat(&"s".into()).await, Ok(None));
    assert_eq!(ids(&*store).await, [""; 0]);
    assert_eq!(code(store.open_write(&"s".into()).await), "SESSION_NOT_FOUND");
    Ok(())
}

pub(super) async fn a12_a_pending_session_that_is_closed_never_was(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(EventBatch::default()).await.unwrap();
    // A flush of the store is none of the session.
    store.flush().await.unwrap();
    writer.close().await.unwrap();
    assert_eq!(store.stat(&"s".into()).await, Ok(None));
    assert_eq!(ids(&*store).await, [""; 0]);
    assert_eq!(code(store.open_write(&"s".into()).await), "SESSION_NOT_FOUND");
    // The id is free, also for another header.
    let writer = store.create(&full_header("s"), 1).await.unwrap();
    assert_eq!(store.read(&"s".into()).await.unwrap().header, full_header("s"));
    writer.append(batch(0, 1)).await.unwrap();
    Ok(())
}

pub(super) async fn a13_a_flush_stores_a_session_without_events(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&full_header("s"), 3).await.unwrap();
    writer.flush().await.unwrap();
    writer.close().await.unwrap();
    assert_eq!(code(store.create(&header("s"), 0).await), "SESSION_ALREADY_EXISTS");
    let store = context.reopen().await;
    let stat = store.stat(&"s".into()).await.unwrap().unwrap();
    assert_eq!((stat.header, stat.event_count), (full_header("s"), 0));
    assert_eq!(ids(&*store).await, ["s"]);
    assert_eq!(events(&*store, "s").await, [""; 0]);
    let (writer, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!((session.events.len(), session.inherited_event_count), (0, 3));
    writer.append(batch(0, 1)).await.unwrap();
    writer.close().await.unwrap();
    assert_eq!(events(&*context.reopen().await, "s").await, texts(0, 1));
    Ok(())
}

/// What was never polled or was begun and given up is done whole or not at all, and is in nobody's
/// way.
pub(super) async fn a22_a_dropped_future_has_no_effect_or_the_whole(context: &Context) -> Outcome {
    let store = context.open().await;
    let (header, id) = (header("s"), "s".into());
    // Operations of a store begin when they are polled.
    drop(store.create(&header, 0));
    drop(store.open_write(&id));
    drop(store.delete(&id));
    assert_eq!(store.stat(&id).await, Ok(None));
    let writer = store.create(&header, 0).await.unwrap();
    writer.append(batch(0, 2)).await.unwrap();
    // Those of a writer are ordered by their calls, so what was called may be done.
    drop(writer.append(batch(2, 2)));
    drop(writer.flush());
    let _ = writer.append(batch(4, 2)).now_or_never();
    writer.flush().await.unwrap();
    let stored = events(&*store, "s").await;
    assert!(stored == texts(0, 6) || stored == texts(0, 4) || stored == texts(0, 2));
    writer.append(batch(0, 8)).await.unwrap();
    drop(writer.close());
    drop(writer);
    assert_eq!(events(&*context.reopen().await, "s").await, texts(0, 8));
    Ok(())
}

pub(super) async fn a22_an_opening_that_is_abandoned_holds_nothing(context: &Context) -> Outcome {
    let store = context.open().await;
    store_one(&*store, "s", batch(0, 2)).await;
    for _ in 0..20 {
        // Given up at whatever point it has reached; if it was done, the writer is dropped.
        let _ = store.open_write(&"s".into()).now_or_never();
        let _ = store.create(&header("t"), 0).now_or_never();
        // What it had begun may end first.
        let mut tries = 0..1000;
        let writer = loop {
            match store.open_write(&"s".into()).await {
                Ok((writer, _)) => break writer,
                Err(error) => assert_eq!(error.code(), "SESSION_ALREADY_OWNED"),
            }
            tries.next().unwrap();
            // Takes the store's own threads, as what it waits for does.
            store.read(&"s".into()).await.unwrap();
        };
        writer.close().await.unwrap();
        let writer = loop {
            match store.create(&header("t"), 0).await {
                Ok(writer) => break writer,
                Err(error) => assert_eq!(error.code(), "SESSION_ALREADY_EXISTS"),
            }
            tries.next().unwrap();
            // Takes the store's own threads, as what it waits for does.
            store.read(&"s".into()).await.unwrap();
        };
        writer.close().await.unwrap();
    }
    assert_eq!(events(&*store, "s").await, texts(0, 2));
    Ok(())
}

pub(super) async fn a22_a_closing_that_is_abandoned_gives_the_claim_back(
    context: &Context,
) -> Outcome {
    let store = context.open().await;
    store_one(&*store, "s", batch(0, 1)).await;
    for round in 1..20 {
        let (writer, _) = store.open_write(&"s".into()).await.unwrap();
        let appended = writer.append(batch(round, 1));
        let mut closing = writer.close();
        if round % 2 == 0 {
            let _ = (&mut closing).now_or_never();
        }
        drop((closing, writer));
        appended.await.unwrap();
        // What it had begun ends by itself.
        let given_back = async {
            while store.open_write(&"s".into()).await.is_err() {
                // Takes the store's own threads, as what it waits for does.
                store.read(&"s".into()).await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(60), given_back).await.unwrap();
    }
    assert_eq!(events(&*store, "s").await, texts(0, 20));
    Ok(())
}
