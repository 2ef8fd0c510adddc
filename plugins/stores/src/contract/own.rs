//! Tails, values, pages and deletion.

use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt as _;
use futures::future::{join_all, try_join};
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{
    ListQuery, Store, StoredTail, ValuePage, ValueQuery, all_values,
};

use super::fixtures::*;
use super::{Context, Outcome};

fn tail(attempt: u64, parts: &[&'static str]) -> Option<StoredTail> {
    let parts = parts.iter().map(|part| Bytes::from_static(part.as_bytes())).collect();
    Some(StoredTail { attempt, parts })
}

async fn tail_of(store: &dyn Store) -> Option<StoredTail> {
    store.read(&"s".into()).await.unwrap().tail
}

pub(super) async fn t1_a_tail_gathers_parts_until_another_attempt(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 2)).await.unwrap();
    assert_eq!(tail_of(&*store).await, None);
    for (attempt, text) in [(1, "a"), (1, "b"), (2, "c"), (2, "d")] {
        writer.tail(attempt, text.into()).await.unwrap();
    }
    writer.append(batch(2, 1)).await.unwrap();
    writer.tail(2, "d".into()).await.unwrap();
    // Events leave it alone, and equal parts are parts.
    assert_eq!(tail_of(&*store).await, tail(2, &["c", "d", "d"]));
    assert_eq!(events(&*store, "s").await, texts(0, 3));
    Ok(())
}

pub(super) async fn t2_a_tail_survives_and_goes_on_after_a_reopen(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.tail(2, "c".into()).await.unwrap();
    writer.tail(2, Bytes::new()).await.unwrap();
    let large = Bytes::from(vec![0xff; 300_000]);
    writer.tail(2, large.clone()).await.unwrap();
    writer.close().await.unwrap();
    let store = context.reopen().await;
    let (writer, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!(session.tail.unwrap().parts, ["c".into(), Bytes::new(), large]);
    writer.tail(2, "e".into()).await.unwrap();
    assert_eq!(tail_of(&*store).await.unwrap().parts.len(), 4);
    // A lower number is another attempt too: the count is the writer's own.
    writer.tail(1, "f".into()).await.unwrap();
    assert_eq!(tail_of(&*store).await, tail(1, &["f"]));
    drop(writer);
    assert_eq!(tail_of(&*context.reopen().await).await, tail(1, &["f"]));
    Ok(())
}

pub(super) async fn t3_parts_of_a_tail_keep_the_order_of_the_calls(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let (first, second) = (writer.tail(1, "g".into()), writer.tail(1, "h".into()));
    try_join(second, first).await.unwrap();
    let (event, part) = (writer.append(batch(0, 1)), writer.tail(1, "i".into()));
    try_join(part, event).await.unwrap();
    assert_eq!(tail_of(&*store).await, tail(1, &["g", "h", "i"]));
    drop(writer);
    assert_eq!(tail_of(&*context.reopen().await).await, tail(1, &["g", "h", "i"]));
    Ok(())
}

pub(super) async fn v1_values_are_replaced_and_come_back(context: &Context) -> Outcome {
    let store = context.open().await;
    assert_eq!(store.get_value("k").await, Ok(None));
    let large = Bytes::from(vec![7; 300_000]);
    let odd = "a/b\u{0} ä'; --";
    for (key, value) in [("k", "1"), (odd, "odd"), ("empty", ""), ("k", "2")] {
        store.put_value(key, Bytes::from_static(value.as_bytes())).await.unwrap();
    }
    store.put_value("large", large.clone()).await.unwrap();
    let puts = (0..20).map(|n| {
        let (store, key) = (Arc::clone(&store), format!("n{n}"));
        async move { store.put_value(&key, Bytes::from(vec![n])).await }
    });
    assert!(join_all(puts).await.iter().all(Result::is_ok));
    // A value is no session.
    assert_eq!(ids(&*store).await, [""; 0]);
    let check = async |store: &dyn Store| {
        assert_eq!(store.get_value("k").await, Ok(Some("2".into())));
        assert_eq!(store.get_value(odd).await, Ok(Some("odd".into())));
        assert_eq!(store.get_value("empty").await, Ok(Some(Bytes::new())));
        assert_eq!(store.get_value("large").await, Ok(Some(large.clone())));
        for n in 0..20 {
            assert_eq!(store.get_value(&format!("n{n}")).await, Ok(Some(Bytes::from(vec![n]))));
        }
        assert_eq!(store.get_value("K").await, Ok(None));
    };
    check(&*store).await;
    check(&*context.reopen().await).await;
    Ok(())
}

pub(super) async fn v2_a_key_has_a_length(context: &Context) -> Outcome {
    let store = context.open().await;
    for key in ["", &"k".repeat(5000)] {
        assert_eq!(code(store.put_value(key, Bytes::new()).await), "INVALID_ARGUMENT");
    }
    store.put_value(&"k".repeat(4096), "v".into()).await.unwrap();
    assert_eq!(store.get_value(&"k".repeat(4096)).await, Ok(Some("v".into())));
    Ok(())
}

pub(super) async fn v3_a_removed_value_is_gone_and_may_be_put_again(context: &Context) -> Outcome {
    let store = context.open().await;
    for (key, value) in [("a", "1"), ("b", ""), ("c", "3"), ("d", "4")] {
        store.put_value(key, Bytes::from_static(value.as_bytes())).await.unwrap();
    }
    let store = context.reopen().await;
    // What was never there is removed as well.
    for key in ["a", "b", "nothing", "d", "a"] {
        store.remove_value(key).await.unwrap();
    }
    store.put_value("d", "5".into()).await.unwrap();
    let check = async |store: &dyn Store| {
        for (key, value) in [("a", None), ("b", None), ("c", Some("3")), ("d", Some("5"))] {
            assert_eq!(store.get_value(key).await, Ok(value.map(Bytes::from)), "{key}");
        }
        assert_eq!(keys(store).await, ["c", "d"]);
    };
    check(&*store).await;
    check(&*context.reopen().await).await;
    for key in ["", &"k".repeat(5000)] {
        assert_eq!(code(store.remove_value(key).await), "INVALID_ARGUMENT");
    }
    Ok(())
}

async fn keys(store: &dyn Store) -> Vec<String> {
    all_values(store).try_collect().await.unwrap()
}

pub(super) async fn v4_keys_are_listed_in_pages(context: &Context) -> Outcome {
    let store = context.open().await;
    assert_eq!(store.list_values(ValueQuery::default()).await, Ok(ValuePage::default()));
    let long = "l".repeat(4000);
    let put = ["b", "a/b", "é", "A", &long, "empty", "n1", "n2", "n3"];
    for key in put {
        let value = if key == "empty" { Bytes::new() } else { "v".into() };
        store.put_value(key, value).await.unwrap();
    }
    let store = context.reopen().await;
    // Some from an earlier life, some new, some gone.
    store.remove_value("n2").await.unwrap();
    store.put_value("n15", "v".into()).await.unwrap();
    let there = ["A", "a/b", "b", "empty", &long, "n1", "n15", "n3", "é"];
    for limit in [1, 2, 4, 9, 100] {
        let (mut after, mut seen, mut pages) = (None, Vec::new(), 0);
        loop {
            let page = store.list_values(ValueQuery { after, limit }).await.unwrap();
            assert!(page.keys.len() <= limit);
            pages += 1;
            seen.extend(page.keys);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, there, "limit {limit}");
        assert_eq!(pages, 9_usize.div_ceil(limit), "limit {limit}");
    }
    for (after, expected) in [("", &there[..]), ("m", &there[5..]), ("n3", &["é"]), ("é", &[])] {
        let query = ValueQuery { after: Some(after.to_owned()), limit: 20 };
        assert_eq!(store.list_values(query).await.unwrap().keys, expected, "after {after:?}");
    }
    assert_eq!(keys(&*store).await, there);
    Ok(())
}

pub(super) async fn p1_pages_are_ordered_and_complete(context: &Context) -> Outcome {
    let store = context.open().await;
    for n in 0..7 {
        store_one(&*store, &format!("page-{n}"), batch(0, n + 1)).await;
    }
    let store = context.reopen().await;
    // Some in the storage of an earlier life, some new, one only claimed, one gone.
    let new = store.create(&header("page-35"), 0).await.unwrap();
    new.append(batch(0, 1)).await.unwrap();
    let claimed = store.create(&header("page-55"), 0).await.unwrap();
    store.delete(&"page-2".into()).await.unwrap();
    for limit in [1, 2, 3, 8, 100] {
        let (mut after, mut seen, mut pages) = (None, Vec::new(), 0);
        loop {
            let page = store.list(ListQuery { after, limit }).await.unwrap();
            assert!(page.sessions.len() <= limit);
            pages += 1;
            for stat in &page.sessions {
                assert_eq!(store.stat(&stat.header.id).await.unwrap().as_ref(), Some(stat));
                seen.push(stat.header.id.to_string());
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let expected =
            ["page-0", "page-1", "page-3", "page-35", "page-4", "page-5", "page-55", "page-6"];
        assert_eq!(seen, expected, "limit {limit}");
        assert_eq!(pages, 8_usize.div_ceil(limit), "limit {limit}");
    }
    drop((new, claimed));
    Ok(())
}

pub(super) async fn p2_a_page_begins_behind_any_id(context: &Context) -> Outcome {
    let store = context.open().await;
    for id in ["b", "d", "é"] {
        store_one(&*store, id, batch(0, 1)).await;
    }
    for (after, expected) in [
        ("", &["b", "d", "é"][..]),
        ("a", &["b", "d", "é"]),
        ("b", &["d", "é"]),
        ("c", &["d", "é"]),
        ("z", &["é"]),
        ("é", &[]),
    ] {
        let query = ListQuery { after: Some(SessionId::from(after)), limit: 9 };
        let page = store.list(query).await.unwrap();
        let ids: Vec<_> = page.sessions.iter().map(|stat| stat.header.id.as_str()).collect();
        assert_eq!((&ids[..], page.next), (expected, None), "after {after:?}");
    }
    Ok(())
}

pub(super) async fn x1_deletion_refuses_what_is_written_or_absent(context: &Context) -> Outcome {
    let store = context.open().await;
    assert_eq!(code(store.delete(&"s".into()).await), "SESSION_NOT_FOUND");
    let writer = store.create(&header("s"), 0).await.unwrap();
    assert_eq!(code(store.delete(&"s".into()).await), "SESSION_ALREADY_OWNED");
    writer.append(batch(0, 3)).await.unwrap();
    assert_eq!(code(store.delete(&"s".into()).await), "SESSION_ALREADY_OWNED");
    assert_eq!(events(&*store, "s").await, texts(0, 3));
    writer.close().await.unwrap();
    store.delete(&"s".into()).await.unwrap();
    assert_eq!(code(store.delete(&"s".into()).await), "SESSION_NOT_FOUND");
    Ok(())
}

pub(super) async fn x2_a_deleted_session_is_gone_and_its_id_free(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 3)).await.unwrap();
    writer.tail(1, "part".into()).await.unwrap();
    writer.close().await.unwrap();
    store_one(&*store, "t", batch(0, 2)).await;
    store.delete(&"s".into()).await.unwrap();
    assert_eq!(code(store.read(&"s".into()).await), "SESSION_NOT_FOUND");
    assert_eq!(store.stat(&"s".into()).await, Ok(None));
    assert_eq!(ids(&*store).await, ["t"]);
    // Nothing of the old session comes back.
    let writer = store.create(&full_header("s"), 1).await.unwrap();
    writer.append(batch(0, 1)).await.unwrap();
    writer.close().await.unwrap();
    let store = context.reopen().await;
    let session = store.read(&"s".into()).await.unwrap();
    assert_eq!((session.header, session.events), (full_header("s"), texts(0, 1)));
    assert_eq!(session.tail, None);
    store.delete(&"s".into()).await.unwrap();
    let store = context.reopen().await;
    assert_eq!(code(store.open_write(&"s".into()).await), "SESSION_NOT_FOUND");
    assert_eq!(events(&*store, "t").await, texts(0, 2));
    Ok(())
}
