//! What lies in the storage, right or wrong.

use playhouse_messages::session::SessionCore;
use playhouse_messages::session_state::{KnownKinds, LoadError};
use playhouse_plugin_api::store::{EventBatch, StoreError};

use super::fixtures::*;
use super::{Capability, Context, Outcome};

/// Stores a good session and one with this header, and expects the refusal each time, of that one
/// alone.
async fn refused(context: &Context, header: &str, expected: &str, words: &[&str]) -> Outcome {
    context.needs(Capability::Plant)?;
    store_one(&*context.open().await, "good", batch(0, 2)).await;
    context.close().await;
    context.backend.plant(&"bad".into(), header);
    let store = context.open().await;
    for _ in 0..2 {
        for error in [
            store.read(&"bad".into()).await.err().unwrap(),
            store.open_write(&"bad".into()).await.err().unwrap(),
        ] {
            assert_eq!(error.code(), expected, "{error}");
            for word in words {
                assert!(error.to_string().contains(word), "{word}: {error}");
            }
        }
    }
    // It is not listed, and does not keep others from being.
    assert_eq!(ids(&*store).await, ["good"]);
    assert_eq!(
        code(store.create(&super::fixtures::header("bad"), 0).await),
        "SESSION_ALREADY_EXISTS"
    );
    let (writer, session) = store.open_write(&"good".into()).await.unwrap();
    assert_eq!(session.events, texts(0, 2));
    writer.append(batch(2, 1)).await.unwrap();
    Ok(())
}

pub(super) async fn c1_a_header_of_another_session_is_damage(context: &Context) -> Outcome {
    let header = r#"{"version":1,"id":"other","createdAt":1,"isSeeded":false}"#;
    refused(context, header, "STORE_CORRUPT", &["`bad`", "`other`"]).await
}

pub(super) async fn c2_a_header_of_another_version_asks_for_an_upgrade(
    context: &Context,
) -> Outcome {
    let newer = r#"{"version":99,"shape":["unknown"]}"#;
    refused(context, newer, "FORMAT_UNSUPPORTED", &["bad", "newer", "upgrade"]).await?;
    Ok(())
}

pub(super) async fn c2_a_header_that_is_none_is_damage(context: &Context) -> Outcome {
    refused(context, "[1]", "STORE_CORRUPT", &["`bad`", "header"]).await
}

/// A store serves the log; who loads it decides what it understands, before anything is made of it.
pub(super) async fn c3_a_required_kind_is_refused_where_the_log_is_loaded(
    context: &Context,
) -> Outcome {
    let store = context.open().await;
    let mut events = turns();
    events.push(texts(8, 1).remove(0));
    store_one(&*store, "s", EventBatch { first_seq: 0, events }).await;
    let session = context.reopen().await.read(&"s".into()).await.unwrap();
    let (header, log) = (session.header.clone(), session.log().unwrap());
    let refused = SessionCore::load(header.clone(), log.clone(), &KnownKinds::new()).unwrap_err();
    assert!(matches!(refused, LoadError::UnknownKind { seq: 8, .. }), "{refused}");
    let known: KnownKinds = ["x/y"].into_iter().collect();
    assert_eq!(SessionCore::load(header, log, &known).unwrap().log().len(), 9);
    Ok(())
}

pub(super) async fn c4_an_unknown_reason_is_kept_and_a_malformed_event_is_named(
    context: &Context,
) -> Outcome {
    let store = context.open().await;
    let end = |reason: &str| {
        let data = format!("{{\"turn\":1,\"reason\":{reason}}}");
        format!("{{\"type\":\"turn/end\",\"seq\":1,\"time\":1,\"data\":{data}}}")
    };
    let start = r#"{"type":"turn/start","seq":0,"time":1,"data":{"turn":1}}"#;
    let ends = [("new", r#"{"kind":"tomorrow","why":[1]}"#), ("malformed", "7")];
    for (id, reason) in ends {
        let events = vec![start.into(), end(reason).into()];
        store_one(&*store, id, EventBatch { first_seq: 0, events }).await;
    }
    let store = context.reopen().await;
    let session = store.read(&"new".into()).await.unwrap();
    let log = session.log().unwrap();
    assert_eq!(log.get(1).unwrap().to_json(), end(ends[0].1));
    SessionCore::load(session.header, log, &KnownKinds::new()).unwrap();
    let refused = store.read(&"malformed".into()).await.unwrap().log().err().unwrap();
    assert_eq!(refused.code(), "STORE_CORRUPT");
    assert!(refused.to_string().contains("event 1"), "{refused}");
    Ok(())
}

pub(super) async fn c5_refusals_say_what_was_expected_and_keep_their_codes(
    context: &Context,
) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 6)).await.unwrap();
    let refused = writer.append(batch(7, 2)).await.unwrap_err();
    let expected = StoreError::SequenceMismatch { id: "s".into(), expected: 6, got: 7 };
    assert_eq!(refused, expected);
    assert!(refused.to_string().contains("expected 6, got 7"), "{refused}");
    let absent = store.read(&"absent".into()).await.err().unwrap();
    assert!(absent.to_string().contains("`absent`"), "{absent}");
    assert!(absent.to_string().contains(&store.describe()), "{absent}");
    let owned = store.open_write(&"s".into()).await.err().unwrap();
    assert_eq!(owned, StoreError::AlreadyOwned { id: "s".into() });
    let exists = store.create(&header("s"), 0).await.err().unwrap();
    assert_eq!(exists, StoreError::AlreadyExists { id: "s".into() });
    Ok(())
}
