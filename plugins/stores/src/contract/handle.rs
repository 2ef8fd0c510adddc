//! Reading, appending, and what comes back.

use playhouse_messages::{
    event::Seq,
    session::SessionCore,
    session_state::{KnownKinds, LoadError},
};
use playhouse_plugin_api::store::{EventBatch, ListQuery, Store, StoreError};

use super::fixtures::*;
use super::{Capability, Context, Outcome};

pub(super) async fn a1_what_was_appended_is_read_back(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(one_turn()).await.unwrap();
    assert_eq!(events(&*store, "s").await, one_turn().events);
    writer.append(EventBatch::default()).await.unwrap();
    writer.append(EventBatch { first_seq: 99, events: Vec::new() }).await.unwrap();
    assert_eq!(events(&*store, "s").await, one_turn().events);
    writer.flush().await.unwrap();
    let session = store.read(&"s".into()).await.unwrap();
    assert_eq!((session.header, session.inherited_event_count), (header("s"), 0));
    assert_eq!((session.events, session.tail), (one_turn().events, None));
    Ok(())
}

#[expect(clippy::reversed_empty_ranges, reason = "a caller may ask for one")]
pub(super) async fn a2_any_range_is_read_and_none_reaches_past_the_end(
    context: &Context,
) -> Outcome {
    const RANGES: [std::ops::Range<Seq>; 11] =
        [0..6, 2..6, 2..4, 5..6, 0..0, 6..6, 6..99, 99..100, 2..Seq::MAX, 4..2, Seq::MAX..Seq::MAX];
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    for range in RANGES {
        assert_eq!(store.read_events(&"s".into(), range).await, Ok(Vec::new()), "of nothing");
    }
    // In pieces, so that a range crosses their borders.
    for piece in turns()[..6].chunks(2).zip((0..).step_by(2)) {
        let (events, first_seq) = (piece.0.to_vec(), piece.1);
        writer.append(EventBatch { first_seq, events }).await.unwrap();
    }
    writer.close().await.unwrap();
    let check = async |store: &dyn Store| {
        for range in RANGES {
            let expected: Vec<_> = (0..)
                .zip(&turns()[..6])
                .filter(|(seq, _)| range.contains(seq))
                .map(|(_, event)| event.clone())
                .collect();
            let read = store.read_events(&"s".into(), range.clone()).await.unwrap();
            assert_eq!(read, expected, "{range:?}");
        }
        assert_eq!(code(store.read_events(&"t".into(), 0..1).await), "SESSION_NOT_FOUND");
    };
    check(&*store).await;
    check(&*context.reopen().await).await;
    Ok(())
}

pub(super) async fn a8_reading_takes_no_claim_and_changes_nothing(context: &Context) -> Outcome {
    let store = context.open().await;
    store_one(&*store, "s", one_turn()).await;
    let before = store.stat(&"s".into()).await.unwrap();
    for _ in 0..3 {
        assert_eq!(events(&*store, "s").await, one_turn().events);
    }
    assert_eq!(store.stat(&"s".into()).await.unwrap(), before);
    let (writer, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!(session.events, one_turn().events);
    // Beside the writer as well.
    assert_eq!(events(&*store, "s").await, one_turn().events);
    writer.append(second_turn()).await.unwrap();
    Ok(())
}

pub(super) async fn a10_a_flush_of_the_store_covers_all_its_writers(context: &Context) -> Outcome {
    let store = context.open().await;
    let mut writers = Vec::new();
    for (n, id) in ["a", "b", "c"].into_iter().enumerate() {
        let writer = store.create(&header(id), 0).await.unwrap();
        writer.append(batch(0, n as u64 + 1)).await.unwrap();
        writers.push(writer);
    }
    // One closes while the sweep is on, one has only claimed.
    let claimed = store.create(&header("d"), 0).await.unwrap();
    let (closed, swept) = futures::join!(writers[1].close(), store.flush());
    closed.unwrap();
    swept.unwrap();
    drop((writers, claimed));
    let store = context.reopen().await;
    for (n, id) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(events(&*store, id).await, texts(0, n as u64 + 1));
    }
    assert_eq!(ids(&*store).await, ["a", "b", "c"]);
    Ok(())
}

pub(super) async fn a14_a_reader_sees_what_was_appended_before_it_asked(
    context: &Context,
) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let (mut seen, id) = (0, "s".into());
    for seq in 0..20 {
        let reading = store.read_events(&id, 0..99);
        let (appended, read) = futures::join!(writer.append(batch(seq, 1)), reading);
        appended.unwrap();
        // What is read meanwhile is a prefix that never shrinks.
        let read = read.unwrap();
        assert!(read.len() >= seen && read == texts(0, read.len() as u64));
        seen = seq as usize + 1;
        assert_eq!(events(&*store, "s").await.len(), seen);
        assert_eq!(store.stat(&"s".into()).await.unwrap().unwrap().event_count, seq + 1);
        let page = store.list(ListQuery::default()).await.unwrap();
        assert_eq!(page.sessions[0].event_count, seq + 1);
    }
    Ok(())
}

pub(super) async fn a15_everything_comes_back_after_a_reopen(context: &Context) -> Outcome {
    let (store, header) = (context.open().await, full_header("s"));
    let writer = store.create(&header, 3).await.unwrap();
    writer.append(one_turn()).await.unwrap();
    writer.close().await.unwrap();
    let store = context.reopen().await;
    let (writer, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!((session.header, session.inherited_event_count), (header.clone(), 3));
    assert_eq!(session.events, one_turn().events);
    writer.append(second_turn()).await.unwrap();
    writer.close().await.unwrap();
    let store = context.reopen().await;
    let session = store.read(&"s".into()).await.unwrap();
    assert_eq!((session.header, session.inherited_event_count), (header.clone(), 3));
    assert_eq!(session.events, turns());
    let stat = store.stat(&"s".into()).await.unwrap().unwrap();
    assert_eq!((stat.header, stat.event_count), (header, 8));
    assert_eq!(stat.size_bytes, turns().iter().map(|event| event.len() as u64).sum::<u64>());
    Ok(())
}

pub(super) async fn a16_a_gap_is_refused_and_the_log_unchanged(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let mismatch =
        |expected, got| Err(StoreError::SequenceMismatch { id: "s".into(), expected, got });
    assert_eq!(writer.append(batch(1, 1)).await, mismatch(0, 1));
    writer.append(one_turn()).await.unwrap();
    assert_eq!(writer.append(batch(7, 1)).await, mismatch(6, 7));
    // Within a batch the place is the seq, so a gap is an event that says another one.
    let mut gap = batch(6, 2);
    gap.events[1] = texts(8, 1).remove(0);
    let refused = writer.append(gap).await.unwrap_err();
    assert_eq!(refused.code(), "INVALID_ARGUMENT");
    assert!(refused.to_string().contains("event 7 (`x/y`)"), "{refused}");
    assert!(refused.to_string().contains("it says seq 8"), "{refused}");
    assert_eq!(events(&*store, "s").await, one_turn().events);
    writer.append(second_turn()).await.unwrap();
    assert_eq!(events(&*store, "s").await, turns());
    Ok(())
}

/// A writer's successor sends again what it does not know to be durable.
pub(super) async fn a16_what_is_stored_already_may_come_again(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 6)).await.unwrap();
    writer.append(batch(2, 3)).await.unwrap();
    writer.append(batch(4, 4)).await.unwrap();
    let conflict = |seq| Err(StoreError::Conflict { id: "s".into(), seq });
    for (first_seq, at, seq) in [(5, 1, 6), (7, 0, 7), (0, 3, 3)] {
        let mut other = batch(first_seq, 8 - first_seq);
        other.events[at] = event(seq, "1");
        // Nothing of what would have followed is taken either.
        other.events.push(texts(8, 1).remove(0));
        assert_eq!(writer.append(other).await, conflict(seq));
    }
    assert_eq!(events(&*store, "s").await, texts(0, 8));
    writer.close().await.unwrap();
    let store = context.reopen().await;
    let (writer, _) = store.open_write(&"s".into()).await.unwrap();
    writer.append(batch(0, 9)).await.unwrap();
    assert_eq!(writer.append(one(3, event(3, "1"))).await, conflict(3));
    assert_eq!(events(&*store, "s").await, texts(0, 9));
    Ok(())
}

/// A store serves kinds that it does not know; whoever loads the log refuses those that are required.
pub(super) async fn a18_any_kind_of_event_is_stored_and_the_log_s_reader_refuses(
    context: &Context,
) -> Outcome {
    let store = context.open().await;
    let ignorable = r#"{"type":"x/y","seq":0,"time":1,"data":{"a":1},"ignorable":true}"#;
    store_one(&*store, "required", one(0, event(0, r#"{"a":1}"#))).await;
    store_one(&*store, "ignorable", one(0, ignorable.into())).await;
    let store = context.reopen().await;
    for _ in 0..2 {
        // Never owned by one that failed.
        let (writer, session) = store.open_write(&"required".into()).await.unwrap();
        let log = session.log().unwrap();
        let refused = SessionCore::load(session.header, log, &KnownKinds::new()).unwrap_err();
        assert!(matches!(refused, LoadError::UnknownKind { seq: 0, .. }), "{refused}");
        assert!(refused.to_string().contains("x/y"), "{refused}");
        writer.close().await.unwrap();
    }
    let (_writer, session) = store.open_write(&"ignorable".into()).await.unwrap();
    assert_eq!(session.events, [ignorable]);
    let log = session.log().unwrap();
    let core = SessionCore::load(session.header, log, &KnownKinds::new()).unwrap();
    assert_eq!(core.log().iter().map(|event| event.to_json()).collect::<Vec<_>>(), [ignorable]);
    Ok(())
}

pub(super) async fn a19_a_fragment_behind_the_log_is_never_served(context: &Context) -> Outcome {
    context.needs(Capability::CorruptTail)?;
    context.needs(Capability::Readers)?;
    store_one(&*context.open().await, "s", one_turn()).await;
    context.close().await;
    context.backend.corrupt_tail(&"s".into());
    let before = context.backend.storage();
    for _ in 0..2 {
        let reader = context.backend.open_reader().await.unwrap();
        assert_eq!(events(&*reader, "s").await, one_turn().events);
        assert_eq!(reader.stat(&"s".into()).await.unwrap().unwrap().event_count, 6);
    }
    assert!(context.backend.storage() == before, "a reader has changed the storage");
    Ok(())
}

pub(super) async fn a20_a_writer_removes_the_fragment(context: &Context) -> Outcome {
    context.needs(Capability::CorruptTail)?;
    store_one(&*context.open().await, "s", one_turn()).await;
    context.close().await;
    context.backend.corrupt_tail(&"s".into());
    let store = context.open().await;
    assert_eq!(events(&*store, "s").await, one_turn().events);
    let (writer, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!(session.events, one_turn().events);
    writer.append(second_turn()).await.unwrap();
    assert_eq!(events(&*store, "s").await, turns());
    drop(writer);
    for _ in 0..2 {
        let store = context.reopen().await;
        assert_eq!(events(&*store, "s").await, turns());
    }
    Ok(())
}

pub(super) async fn a21_stat_and_list_agree_and_a_revision_tells_changes(
    context: &Context,
) -> Outcome {
    let store = context.open().await;
    let stat = async || {
        let stat = store.stat(&"s".into()).await.unwrap();
        let page = store.list(ListQuery::default()).await.unwrap();
        assert_eq!(page.sessions.first(), stat.as_ref());
        stat.unwrap()
    };
    assert_eq!(store.stat(&"s".into()).await, Ok(None));
    let writer = store.create(&full_header("s"), 2).await.unwrap();
    let pending = stat().await;
    assert_eq!((&pending.header, pending.event_count), (&full_header("s"), 0));
    assert_eq!(stat().await.revision, pending.revision);
    writer.append(EventBatch::default()).await.unwrap();
    assert_eq!(stat().await.revision, pending.revision);
    writer.append(batch(0, 2)).await.unwrap();
    let two = stat().await;
    assert_ne!(two.revision, pending.revision);
    // Who opens and closes, and what comes again, changes nothing.
    writer.append(batch(0, 2)).await.unwrap();
    writer.flush().await.unwrap();
    writer.close().await.unwrap();
    let (writer, _) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!(stat().await, two);
    assert!(writer.append(batch(7, 1)).await.is_err());
    assert_eq!(stat().await, two);
    writer.append(batch(2, 1)).await.unwrap();
    assert_ne!(stat().await.revision, two.revision);
    assert_eq!(stat().await.event_count, 3);
    Ok(())
}

pub(super) async fn a21_a_session_made_anew_has_another_revision(context: &Context) -> Outcome {
    let store = context.open().await;
    let revision = async || store.stat(&"s".into()).await.unwrap().unwrap().revision;
    let mut seen = std::collections::HashSet::new();
    for (time, count) in (0..).zip([0, 0, 2, 2, 1]) {
        // With another header: of the same one and the same events it might be told the same.
        let mut header = (*header("s")).clone();
        header.created_at = time;
        let writer = store.create(&std::sync::Arc::new(header), 0).await.unwrap();
        // Pending, too: one that was erased had another header, maybe.
        assert!(seen.insert(revision().await), "a revision of an earlier session");
        writer.append(batch(0, count)).await.unwrap();
        if count > 0 {
            assert!(seen.insert(revision().await), "a revision of an earlier session");
        }
        writer.close().await.unwrap();
        if count > 0 {
            store.delete(&"s".into()).await.unwrap();
        }
    }
    Ok(())
}
