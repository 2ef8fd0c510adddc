//! Headers and logs that the cases write.

use std::sync::Arc;

use bytes::Bytes;
use playhouse_messages::event::TurnEndReason;
use playhouse_messages::header::{Origin, SessionHeader};
use playhouse_messages::id::SessionId;
use playhouse_messages::testing::{Script, user};
use playhouse_plugin_api::store::{EventBatch, ListQuery, Store, StoreError, StoreReader};

pub(crate) fn header(id: &str) -> Arc<SessionHeader> {
    let mut header = SessionHeader::new(SessionId::from(id), 1);
    header.cwd = Some("/w".to_owned());
    Arc::new(header)
}

/// A header with every field.
pub(super) fn full_header(id: &str) -> Arc<SessionHeader> {
    let mut header = (*header(id)).clone();
    header.parent_session = Some("p".into());
    header.is_seeded = true;
    header.origin = Some(Origin::Subagent);
    header.delegation_depth = Some(2);
    header.agent_preset = Some("name".to_owned());
    Arc::new(header)
}

/// Small events of an unknown kind.
pub(crate) fn texts(first_seq: u64, count: u64) -> Vec<Bytes> {
    let text = |seq| format!("{{\"type\":\"x/y\",\"seq\":{seq},\"time\":1,\"data\":{{}}}}");
    (first_seq..first_seq + count).map(|seq| Bytes::from(text(seq))).collect()
}

pub(crate) fn batch(first_seq: u64, count: u64) -> EventBatch {
    EventBatch { first_seq, events: texts(first_seq, count) }
}

/// An event of an unknown kind with this data.
pub(super) fn event(seq: u64, data: &str) -> Bytes {
    Bytes::from(format!("{{\"type\":\"x/y\",\"seq\":{seq},\"time\":1,\"data\":{data}}}"))
}

pub(super) fn one(first_seq: u64, event: Bytes) -> EventBatch {
    EventBatch { first_seq, events: vec![event] }
}

/// A whole turn, seqs 0 to 5.
pub(super) fn one_turn() -> EventBatch {
    EventBatch { first_seq: 0, events: turns()[..6].to_vec() }
}

/// The turn after it, seqs 6 and 7.
pub(super) fn second_turn() -> EventBatch {
    EventBatch { first_seq: 6, events: turns()[6..].to_vec() }
}

/// Both.
pub(super) fn turns() -> Vec<Bytes> {
    let mut script = Script::new();
    script.turn(1).push(user("m-1", "hello"));
    script.step(1, 1).assistant("hi", &[]);
    script.end_step(1, 1).end_turn(1, TurnEndReason::Completed);
    script.turn(2).end_turn(2, TurnEndReason::Completed);
    script.log.iter().map(|event| Bytes::from(event.to_json())).collect()
}

pub(super) fn code<T>(result: Result<T, StoreError>) -> &'static str {
    result.err().map_or("ok", |error| error.code())
}

pub(super) async fn ids(store: &dyn Store) -> Vec<String> {
    let page = store.list(ListQuery::default()).await.unwrap();
    page.sessions.iter().map(|stat| stat.header.id.to_string()).collect()
}

pub(super) async fn events<R: StoreReader + ?Sized>(store: &R, id: &str) -> Vec<Bytes> {
    store.read(&id.into()).await.unwrap().events
}

/// Makes a session of these events and lets it go.
pub(super) async fn store_one(store: &dyn Store, id: &str, batch: EventBatch) {
    let writer = store.create(&header(id), 0).await.unwrap();
    writer.append(batch).await.unwrap();
    writer.close().await.unwrap();
}
