//! What no store takes, and what every store must.

use std::sync::Arc;

use bytes::Bytes;
use playhouse_messages::{event::Event, json::INTEGER_MAX};
use playhouse_plugin_api::store::{EventBatch, ListPage, ListQuery};

use super::fixtures::*;
use super::{Context, Outcome};

pub(super) async fn a17_what_is_no_lossless_json_is_refused_whole(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let data = [
        "9007199254740992",
        "-9007199254740992",
        r#"{"a":[18446744073709551616]}"#,
        "[-0.0]",
        "-0",
        "NaN",
        "Infinity",
        "1e999",
        "undefined",
        r#""\ud800""#,
        r#"{"\udfff":1}"#,
        "{",
    ];
    let broken = [
        &b""[..],
        b" ",
        b"{}",
        b"[]",
        b"\"text\"",
        br#"{"seq":1,"time":1,"data":{}}"#,
        br#"{"type":"x/y","time":1,"data":{}}"#,
        br#"{"type":"x/y","seq":0,"time":1,"data":{}}"#,
        b"{\"type\":\"x/y\",\n\"seq\":1,\"time\":1,\"data\":{}}",
        b"{\"type\":\"x/y\",\"seq\":1,\"time\":1,\"data\":\"\xff\"}",
    ];
    let broken = broken.into_iter().map(Bytes::from_static);
    for bad in data.iter().map(|data| event(1, data)).chain(broken) {
        for events in [vec![bad.clone()], vec![bad.clone(), texts(2, 1).remove(0)]] {
            let mut whole = texts(0, 1);
            whole.extend(events);
            let refused = writer.append(EventBatch { first_seq: 0, events: whole }).await;
            let refused = refused.expect_err(&format!("{bad:?}"));
            assert_eq!(refused.code(), "INVALID_ARGUMENT");
            assert!(refused.to_string().contains("event 1"), "{refused}");
        }
    }
    let refused = writer.append(one(0, event(0, "[-0.0]"))).await.unwrap_err();
    assert!(refused.to_string().contains("`x/y`"), "its kind: {refused}");
    // Nothing of it is stored, not even the session.
    assert_eq!(store.stat(&"s".into()).await.unwrap().unwrap().event_count, 0);
    writer.append(batch(0, 1)).await.unwrap();
    for bad in data {
        assert!(writer.append(one(1, event(1, bad))).await.is_err());
    }
    let good = event(1, &format!("[{INTEGER_MAX},-{INTEGER_MAX},0,0.0,-1.5,1e300,null]"));
    writer.append(one(1, good.clone())).await.unwrap();
    writer.close().await.unwrap();
    let expected = [texts(0, 1).remove(0), good];
    assert_eq!(events(&*store, "s").await, expected);
    assert_eq!(events(&*context.reopen().await, "s").await, expected);
    Ok(())
}

/// As deep as a reader reads is stored, deeper is refused, however deep.
pub(super) async fn a17_depth_has_a_limit_and_no_overflow(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let nested = |levels| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    for levels in [128, 129, 20_000, 500_000] {
        let refused = writer.append(one(0, event(0, &nested(levels)))).await;
        assert_eq!(code(refused), "INVALID_ARGUMENT", "{levels} levels");
    }
    let deep = event(0, &nested(127));
    writer.append(one(0, deep.clone())).await.unwrap();
    writer.close().await.unwrap();
    let session = context.reopen().await.read(&"s".into()).await.unwrap();
    let log = session.log().unwrap();
    assert_eq!(log.iter().map(|event| Bytes::from(event.to_json())).collect::<Vec<_>>(), [deep]);
    Ok(())
}

pub(super) async fn a17_odd_strings_and_keys_come_back(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let data = [
        r#"{"__proto__":{"a":1},"constructor":2,"":3}"#,
        r#""\u0000 in the middle \u0000""#,
        r#""\ud83d\ude00 😀 \u2028\u2029 \\ \" \/""#,
        r#"{"b":1,"a":2,"b2":[{"z":1,"y":2}]}"#,
        r#"{ "spaced" : [ 1 , 2.50 , 1E3 ] }"#,
    ];
    let written: Vec<_> = (0..).zip(data).map(|(seq, data)| event(seq, data)).collect();
    writer.append(EventBatch { first_seq: 0, events: written.clone() }).await.unwrap();
    writer.close().await.unwrap();
    assert_eq!(events(&*store, "s").await, written);
    let store = context.reopen().await;
    assert_eq!(events(&*store, "s").await, written, "byte for byte");
    for text in &written {
        Event::from_json(std::str::from_utf8(text).unwrap()).unwrap();
    }
    Ok(())
}

pub(super) async fn a23_a_header_that_is_refused_reserves_nothing(context: &Context) -> Outcome {
    let store = context.open().await;
    let mut late = (*header("s")).clone();
    late.created_at = INTEGER_MAX + 1;
    let mut relative = (*header("s")).clone();
    relative.cwd = Some("relative".to_owned());
    let mut newer = (*header("s")).clone();
    newer.version += 1;
    for bad in [late, relative, newer] {
        assert_eq!(code(store.create(&Arc::new(bad), 0).await), "INVALID_ARGUMENT");
    }
    assert_eq!(store.stat(&"s".into()).await, Ok(None));
    store.create(&header("s"), 0).await.unwrap();
    Ok(())
}

pub(super) async fn a24_a_count_of_inherited_events_is_for_seeded_sessions(
    context: &Context,
) -> Outcome {
    let store = context.open().await;
    assert_eq!(code(store.create(&header("s"), 2).await), "INVALID_ARGUMENT");
    assert_eq!(store.stat(&"s".into()).await, Ok(None));
    let writer = store.create(&full_header("s"), 2).await.unwrap();
    writer.append(batch(0, 4)).await.unwrap();
    writer.close().await.unwrap();
    // Seeded with nothing is seeded all the same.
    let empty = store.create(&full_header("t"), 0).await.unwrap();
    empty.flush().await.unwrap();
    empty.close().await.unwrap();
    let store = context.reopen().await;
    let (_writer, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!(session.inherited_event_count, 2);
    assert!(session.header.is_seeded);
    let session = store.read(&"t".into()).await.unwrap();
    assert!(session.header.is_seeded && session.inherited_event_count == 0);
    Ok(())
}

pub(super) async fn a25_what_the_caller_does_later_changes_nothing(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let mut events = texts(0, 3);
    let appended = writer.append(EventBatch { first_seq: 0, events: events.clone() });
    events[1] = event(1, "\"changed\"");
    events.truncate(2);
    drop(events);
    appended.await.unwrap();
    let mut value = vec![1, 2, 3];
    let put = store.put_value("k", Bytes::copy_from_slice(&value));
    value.fill(0);
    put.await.unwrap();
    // What was read is the reader's own, too.
    let mut read = super::fixtures::events(&*store, "s").await;
    read.clear();
    assert_eq!(super::fixtures::events(&*store, "s").await, texts(0, 3));
    assert_eq!(store.get_value("k").await.unwrap().unwrap(), [1, 2, 3][..]);
    Ok(())
}

pub(super) async fn a26_appends_take_effect_in_the_order_of_the_calls(
    context: &Context,
) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let (first, second) = (writer.append(batch(0, 2)), writer.append(batch(2, 1)));
    second.await.unwrap();
    first.await.unwrap();
    let many: Vec<_> = (3..60).map(|seq| writer.append(batch(seq, 1))).collect();
    for appended in futures::future::join_all(many.into_iter().rev()).await {
        appended.unwrap();
    }
    assert_eq!(events(&*store, "s").await, texts(0, 60));
    Ok(())
}

pub(super) async fn a27_an_empty_store_lists_nothing(context: &Context) -> Outcome {
    let store = context.open().await;
    assert_eq!(store.list(ListQuery::default()).await, Ok(ListPage::default()));
    let after = Some("s".into());
    assert_eq!(store.list(ListQuery { after, limit: 1 }).await, Ok(ListPage::default()));
    let store = context.reopen().await;
    assert_eq!(store.list(ListQuery::default()).await, Ok(ListPage::default()));
    assert!(!store.describe().is_empty());
    Ok(())
}

pub(super) async fn a28_odd_ids_never_collide(context: &Context) -> Outcome {
    let (long, longer) = ("x".repeat(300), "x".repeat(301));
    let odd = [
        "..",
        ".",
        "a/b",
        "a~002Fb",
        "a%2Fb",
        "a\\b",
        "a",
        "A",
        "ä",
        "a\u{308}",
        "a\u{0}b",
        " ",
        "a ",
        "a.",
        "../../etc",
        "/etc",
        "~",
        "con",
        "-rf",
        "a\nb",
        "😀",
        "'; drop table sessions; --",
        &long,
        &longer,
    ];
    let store = context.open().await;
    for (n, id) in (1..).zip(odd) {
        store_one(&*store, id, batch(0, n)).await;
    }
    let store = context.reopen().await;
    for (n, id) in (1..).zip(odd) {
        let session = store.read(&id.into()).await.unwrap();
        assert_eq!((session.header.id.as_str(), session.events.len()), (id, n), "{id:?}");
    }
    let mut sorted = odd.map(str::to_owned);
    sorted.sort();
    assert_eq!(ids(&*store).await, sorted);
    // Each is deleted alone.
    for id in odd {
        store.delete(&id.into()).await.unwrap();
        sorted = sorted.map(|kept| if kept == id { String::new() } else { kept });
        let left: Vec<_> = sorted.iter().filter(|id| !id.is_empty()).cloned().collect();
        assert_eq!(ids(&*store).await, left);
    }
    Ok(())
}

pub(super) async fn a28_ids_without_end_are_refused(context: &Context) -> Outcome {
    let store = context.open().await;
    for id in ["", &"x".repeat(5000)] {
        assert_eq!(code(store.create(&header(id), 0).await), "INVALID_ARGUMENT");
        assert_eq!(store.stat(&id.into()).await, Ok(None));
        assert_eq!(code(store.read(&id.into()).await), "SESSION_NOT_FOUND");
    }
    store_one(&*store, &"x".repeat(4096), batch(0, 1)).await;
    assert_eq!(events(&*context.reopen().await, &"x".repeat(4096)).await, texts(0, 1));
    Ok(())
}

/// One event may be larger than what is written at once, or than a file of the store.
pub(super) async fn a28_one_event_may_be_large(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let large = event(0, &format!("\"{}\"", "long ".repeat(600_000)));
    let written = vec![large, texts(1, 1).remove(0)];
    writer.append(EventBatch { first_seq: 0, events: written.clone() }).await.unwrap();
    writer.append(EventBatch { first_seq: 0, events: written.clone() }).await.unwrap();
    assert!(events(&*store, "s").await == written);
    let store = context.reopen().await;
    assert!(events(&*store, "s").await == written);
    assert_eq!(store.read_events(&"s".into(), 1..2).await.unwrap(), texts(1, 1));
    Ok(())
}
