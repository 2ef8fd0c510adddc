//! Other instances over the same storage, as other processes have them.

use super::fixtures::*;
use super::{Capability, Context, Outcome};

pub(super) async fn d1_a_second_instance_may_read_and_not_write_the_same(
    context: &Context,
) -> Outcome {
    context.needs(Capability::MultiInstance)?;
    let (first, second) = (context.open().await, context.beside().await);
    let writer = first.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 2)).await.unwrap();
    for _ in 0..2 {
        assert_eq!(code(second.open_write(&"s".into()).await), "SESSION_ALREADY_OWNED");
        assert_eq!(code(second.create(&header("s"), 0).await), "SESSION_ALREADY_EXISTS");
        assert_eq!(code(second.delete(&"s".into()).await), "SESSION_ALREADY_OWNED");
    }
    assert_eq!(events(&*second, "s").await, texts(0, 2));
    store_one(&*second, "t", batch(0, 1)).await;
    assert_eq!(events(&*first, "t").await, texts(0, 1));
    writer.close().await.unwrap();
    let (writer, _) = second.open_write(&"s".into()).await.unwrap();
    assert_eq!(code(first.open_write(&"s".into()).await), "SESSION_ALREADY_OWNED");
    writer.append(batch(2, 1)).await.unwrap();
    assert_eq!(events(&*first, "s").await, texts(0, 3));
    second.close().await.unwrap();
    Ok(())
}

pub(super) async fn d2_of_two_pending_sessions_of_one_id_one_is_stored(
    context: &Context,
) -> Outcome {
    context.needs(Capability::MultiInstance)?;
    let (first, second) = (context.open().await, context.beside().await);
    let one = first.create(&header("s"), 0).await.unwrap();
    let two = second.create(&full_header("s"), 1).await.unwrap();
    one.append(batch(0, 2)).await.unwrap();
    for refused in [code(two.append(batch(0, 1)).await), code(two.flush().await)] {
        assert!(["SESSION_ALREADY_OWNED", "SESSION_ALREADY_EXISTS"].contains(&refused));
    }
    let _ = two.close().await;
    second.close().await.unwrap();
    one.append(batch(2, 1)).await.unwrap();
    let session = context.reopen().await.read(&"s".into()).await.unwrap();
    assert_eq!((session.header, session.events), (header("s"), texts(0, 3)));
    Ok(())
}

pub(super) async fn d3_readers_take_no_lock(context: &Context) -> Outcome {
    context.needs(Capability::Readers)?;
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 2)).await.unwrap();
    let reader = context.backend.open_reader().await.unwrap();
    assert_eq!(events(&*reader, "s").await, texts(0, 2));
    // Neither is in the other's way, and the reader sees what it saw, or more.
    writer.append(batch(2, 2)).await.unwrap();
    let seen = events(&*reader, "s").await;
    assert!(seen == texts(0, 2) || seen == texts(0, 4));
    assert_eq!(events(&*context.backend.open_reader().await.unwrap(), "s").await, texts(0, 4));
    // Nor does it keep the next life away.
    let store = context.reopen().await;
    let (writer, _) = store.open_write(&"s".into()).await.unwrap();
    writer.append(batch(4, 1)).await.unwrap();
    drop(reader);
    Ok(())
}

pub(super) async fn d5_what_is_not_stored_leaves_nothing_to_others(context: &Context) -> Outcome {
    context.needs(Capability::Readers)?;
    let store = context.open().await;
    store.flush().await.unwrap();
    let before = context.backend.storage();
    assert_eq!(code(store.open_write(&"absent".into()).await), "SESSION_NOT_FOUND");
    let pending = store.create(&header("s"), 0).await.unwrap();
    let reader = context.backend.open_reader().await.unwrap();
    assert_eq!(reader.stat(&"s".into()).await, Ok(None));
    assert_eq!(code(reader.read(&"s".into()).await), "SESSION_NOT_FOUND");
    assert!(context.backend.storage() == before, "a claim has left something behind");
    pending.flush().await.unwrap();
    let reader = context.backend.open_reader().await.unwrap();
    assert_eq!(reader.stat(&"s".into()).await.unwrap().unwrap().event_count, 0);
    Ok(())
}

pub(super) async fn d6_a_store_in_use_says_by_whom(context: &Context) -> Outcome {
    context.needs(Capability::OneInstance)?;
    let store = context.open().await;
    for _ in 0..2 {
        let refused = context.backend.open().await.err().unwrap();
        assert_eq!(refused.code(), "STORE_IN_USE");
        assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
    }
    store_one(&*store, "s", batch(0, 1)).await;
    Ok(())
}

/// Whatever its writers were at.
pub(super) async fn d8_an_instance_that_is_closed_lets_go(context: &Context) -> Outcome {
    for life in 0..3 {
        let store = context.reopen().await;
        let id = format!("s{life}");
        let writer = store.create(&header(&id), 0).await.unwrap();
        writer.append(batch(0, 1)).await.unwrap();
        let _pending = store.create(&header("pending"), 0).await.unwrap();
        for earlier in 0..life {
            let id = format!("s{earlier}").as_str().into();
            let (writer, _) = store.open_write(&id).await.unwrap();
            writer.tail(1, "part".into()).await.unwrap();
        }
    }
    assert_eq!(ids(&*context.reopen().await).await, ["s0", "s1", "s2"]);
    Ok(())
}
