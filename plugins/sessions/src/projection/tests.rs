use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use playhouse_messages::{
    event::{Event, EventBody},
    header::SessionHeader,
};
use playhouse_plugin_api::{
    scope::Scope,
    store::{Store, StoreReader},
};
use serde_json::{Value, json};

use super::*;
use crate::rig::{Live, Watched, log, note, other, store};

/// Sums the numbers of notes, and counts how often it was asked to.
#[derive(Clone, Default)]
struct Sum {
    version: u32,
    applied: Arc<AtomicU64>,
}

impl Sum {
    fn version(version: u32) -> Self {
        Self { version, ..Self::default() }
    }

    fn applied(&self) -> u64 {
        self.applied.swap(0, Ordering::Relaxed)
    }
}

impl Projection for Sum {
    type State = u64;

    fn key(&self) -> &str {
        "sum"
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn init(&self) -> u64 {
        0
    }

    fn apply(&self, sum: &mut u64, event: &Event) -> bool {
        self.applied.fetch_add(1, Ordering::Relaxed);
        let EventBody::Custom { kind, data } = &event.body else { return false };
        let number = data["number"].as_u64().filter(|_| **kind == *"x/note").unwrap_or(0);
        *sum += number;
        number > 0
    }

    fn view(&self, sum: &u64) -> Option<Value> {
        Some((*sum).into())
    }
}

/// Fails at the first note of number 13; a host's own, without a view.
struct Superstitious;

impl Projection for Superstitious {
    type State = ();

    fn key(&self) -> &str {
        "superstitious"
    }

    fn version(&self) -> u32 {
        0
    }

    fn kinds(&self) -> Option<&[&str]> {
        Some(&["x/note"])
    }

    fn init(&self) {}

    fn apply(&self, _: &mut (), event: &Event) -> bool {
        let EventBody::Custom { data, .. } = &event.body else { return false };
        assert_ne!(data["number"], 13, "no thirteens");
        false
    }
}

fn with(sum: &Sum) -> (Projections, Scope) {
    let (projections, scope) = (Projections::new(), Scope::root("tests"));
    projections.register(&scope, sum.clone()).unwrap();
    (projections, scope)
}

fn seqs(changes: &mut Changes) -> Vec<(u64, Value)> {
    use futures::FutureExt;
    let mut told = Vec::new();
    while let Some(Some(change)) = changes.next().now_or_never() {
        match change {
            Told::Change(change) => told.push((change.cause_seq, change.view)),
            Told::Missed(missed) => told.push((missed, "missed".into())),
        }
    }
    told
}

#[test]
fn a_read_sees_all_that_was_appended_and_no_event_is_folded_twice() {
    let sum = Sum::default();
    let (projections, _scope) = with(&sum);
    let mut live = Live::new("s");
    assert_eq!(projections.snapshot(&live.session).as_of_seq, None);
    live.append([note(1), note(2)]);
    assert_eq!(projections.state_of::<u64>(&live.session, "sum").unwrap(), 3);
    live.append([note(4)]);
    let snapshot = projections.snapshot(&live.session);
    assert_eq!(json!(snapshot), json!({"asOfSeq": 2, "values": {"sum": 7}}));
    projections.catch_up(&live.session);
    assert_eq!(sum.applied(), 3);
    let error = projections.state_of::<String>(&live.session, "sum").unwrap_err();
    assert_eq!(error.code(), "PROJECTION_WRONG_TYPE");
    let error = projections.state_of::<u64>(&live.session, "none").unwrap_err();
    assert_eq!(error.code(), "PROJECTION_UNKNOWN");
}

#[test]
fn readers_on_many_threads_fold_every_event_once() {
    let sum = Sum::default();
    let (projections, _scope) = with(&sum);
    let mut live = Live::new("s");
    std::thread::scope(|threads| {
        for _ in 0..4 {
            let (projections, session) = (projections.clone(), live.session.clone());
            threads.spawn(move || {
                let mut last = 0;
                while last < 200 {
                    let seen = projections.state_of::<u64>(&session, "sum").unwrap();
                    assert!(seen >= last);
                    last = seen;
                }
            });
        }
        for _ in 0..200 {
            live.append([note(1)]);
        }
    });
    assert_eq!(sum.applied(), 200);
}

#[test]
fn a_projection_that_panics_is_given_up_for_that_session_alone() {
    let sum = Sum::default();
    let (projections, scope) = with(&sum);
    projections.register(&scope, Superstitious).unwrap();
    let (mut bad, mut good) = (Live::new("bad"), Live::new("good"));
    bad.append([note(13), note(1)]);
    good.append([note(1)]);
    let error = projections.state_of::<()>(&bad.session, "superstitious").unwrap_err();
    assert_eq!(error.code(), "PROJECTION_FAILED");
    assert!(error.to_string().contains("at event 0") && error.to_string().contains("thirteens"));
    bad.append([note(2)]);
    assert_eq!(projections.state_of::<u64>(&bad.session, "sum").unwrap(), 16);
    assert!(!projections.checkpoint(&bad.session).rows.contains_key("superstitious"));
    assert!(projections.state_of::<()>(&good.session, "superstitious").is_ok());
    let rows = projections.checkpoint(&good.session).rows;
    assert!(rows.contains_key("superstitious"), "a checkpoint has what has no view, too");
    assert!(!projections.snapshot(&good.session).values.contains_key("superstitious"));
}

#[test]
fn a_slow_subscriber_misses_changes_and_makes_nobody_wait() {
    let sum = Sum::default();
    let (projections, _scope) = with(&sum);
    let mut live = Live::new("s");
    projections.catch_up(&live.session);
    let mut changes = projections.changes();
    for _ in 0..1030 {
        live.append([note(1)]);
    }
    projections.catch_up(&live.session);
    let told = seqs(&mut changes);
    assert_eq!((told[0].clone(), told.len()), ((6, "missed".into()), 1025));
    assert_eq!(told[1024], (1029, 1030.into()));
}

#[tokio::test]
async fn a_cold_read_goes_on_from_the_cache_and_writes_back_what_it_found() {
    let watched = Watched::new();
    store(&watched.inner, SessionHeader::new("s".into(), 1), &log((0..6).map(note))).await;
    let sum = Sum::default();
    let (projections, _scope) = with(&sum);
    let cached = projections.cached_snapshot(&watched, &"s".into()).await.unwrap();
    assert_eq!(cached, None);
    let cold = projections.stored_snapshot(&watched, Some(&watched), &"s".into()).await.unwrap();
    assert_eq!(json!(cold), json!({"asOfSeq": 5, "values": {"sum": 15}}));
    assert_eq!((watched.took(), sum.applied()), (vec![0], 6));
    let again = projections.stored_snapshot(&watched, Some(&watched), &"s".into()).await.unwrap();
    assert_eq!(again, cold);
    assert_eq!((watched.took(), sum.applied()), (vec![5], 0), "the anchor, and nothing to fold");
    let (writer, _) = watched.open_write(&"s".into()).await.unwrap();
    let more = log((0..9).map(note));
    let more: Vec<_> = more.range(6..9).cloned().collect();
    writer.append(playhouse_plugin_api::store::EventBatch::encode(&more)).await.unwrap();
    let cached = projections.cached_snapshot(&watched, &"s".into()).await.unwrap().unwrap();
    assert_eq!((cached.as_of_seq, cached.values["sum"].clone()), (Some(5), 15.into()));
    assert_eq!(watched.took(), [0_u64; 0], "the cache alone");
    let grown: u64 = projections.stored_state(&watched, &"s".into(), "sum").await.unwrap();
    assert_eq!((grown, watched.took(), sum.applied()), (36, vec![5], 3));
    forget(&watched, &"s".into()).await.unwrap();
    assert_eq!(projections.cached_snapshot(&watched, &"s".into()).await.unwrap(), None);
}

#[tokio::test]
async fn one_more_projection_reads_from_the_start_and_the_others_do_not_fold_again() {
    let watched = Watched::new();
    store(&watched.inner, SessionHeader::new("s".into(), 1), &log([note(1), other(), note(2)]))
        .await;
    let sum = Sum::default();
    let (projections, scope) = with(&sum);
    projections.stored_snapshot(&watched, Some(&watched), &"s".into()).await.unwrap();
    assert_eq!((watched.took(), sum.applied()), (vec![0], 3));
    projections.register(&scope, Superstitious).unwrap();
    let state = projections.stored_state::<()>(&watched, &"s".into(), "superstitious").await;
    assert!(state.is_ok());
    assert_eq!((watched.took(), sum.applied()), (vec![0], 0));
}

#[tokio::test]
async fn a_log_that_shrank_and_grew_again_is_told_by_the_time_of_its_event() {
    let watched = Watched::new();
    let header = SessionHeader::new("s".into(), 1);
    store(&watched.inner, header.clone(), &log((0..4).map(note))).await;
    let (projections, _scope) = with(&Sum::default());
    projections.stored_snapshot(&watched, Some(&watched), &"s".into()).await.unwrap();
    watched.delete(&"s".into()).await.unwrap();
    let regrown = (0..6_u64).map(|seq| Arc::new(note(100).at(seq, 1000 + seq as i64)));
    store(&watched.inner, header, &regrown.collect()).await;
    watched.took();
    let cold = projections.stored_snapshot(&watched, None, &"s".into()).await.unwrap();
    assert_eq!((cold.values["sum"].clone(), watched.took()), (600.into(), vec![3, 0]));
}

mod scenario {
    use super::*;

    #[test]
    fn persistence_97_a_late_projection_has_the_same_state_and_tells_of_later_changes_only() {
        let early = Sum::default();
        let (projections, scope) = with(&early);
        let mut live = Live::new("s");
        projections.catch_up(&live.session);
        let mut changes = projections.changes();
        live.append((0..50).map(note));
        projections.catch_up(&live.session);
        assert_eq!(seqs(&mut changes).len(), 49, "a note of 0 changes nothing");

        struct Late(Sum);
        impl Projection for Late {
            type State = u64;
            fn key(&self) -> &str {
                "late"
            }
            fn version(&self) -> u32 {
                0
            }
            fn init(&self) -> u64 {
                self.0.init()
            }
            fn apply(&self, sum: &mut u64, event: &Event) -> bool {
                self.0.apply(sum, event)
            }
            fn view(&self, sum: &u64) -> Option<Value> {
                self.0.view(sum)
            }
        }
        projections.register(&scope, Late(Sum::default())).unwrap();
        let state = |key| projections.state_of::<u64>(&live.session, key).unwrap();
        assert_eq!(state("late"), state("sum"));
        assert_eq!(seqs(&mut changes), []);
        live.append([note(1)]);
        projections.catch_up(&live.session);
        assert_eq!(seqs(&mut changes), [(50, 1226.into()), (50, 1226.into())]);
    }

    #[test]
    fn persistence_98_an_event_that_changes_nothing_is_not_told() {
        let (projections, _scope) = with(&Sum::default());
        let mut live = Live::new("s");
        projections.catch_up(&live.session);
        let mut changes = projections.changes();
        live.append([other(), note(2), other()]);
        projections.catch_up(&live.session);
        assert_eq!(seqs(&mut changes), [(1, 2.into())]);
    }

    #[test]
    fn persistence_99_another_version_is_refused_until_the_last_registration_goes() {
        let projections = Projections::new();
        let root = Scope::root("root");
        let (first, second) = (root.child("first").unwrap(), root.child("second").unwrap());
        let sum = Sum::version(1);
        projections.register(&first, sum.clone()).unwrap();
        let shared = projections.register(&second, Sum::version(1)).unwrap();
        let mut live = Live::new("s");
        live.append([note(1)]);
        assert_eq!(projections.state_of::<u64>(&live.session, "sum").unwrap(), 1);
        let error = projections.register(&root, Sum::version(2)).unwrap_err();
        assert_eq!(error.code(), "PROJECTION_VERSION_CONFLICT");
        assert!(error.to_string().contains("version 1, not 2"), "{error}");
        first.close();
        assert_eq!(projections.state_of::<u64>(&live.session, "sum").unwrap(), 1);
        assert_eq!(sum.applied(), 1, "the shared one was folded once, and stays");
        assert!(projections.register(&root, Sum::version(2)).is_err());
        shared.remove();
        shared.remove();
        let gone = projections.state_of::<u64>(&live.session, "sum").unwrap_err();
        assert_eq!(gone.code(), "PROJECTION_UNKNOWN");
        projections.register(&root, Sum::version(2)).unwrap();
        assert_eq!(projections.state_of::<u64>(&live.session, "sum").unwrap(), 1);
        let closed = projections.register(&first, Sum::version(2)).unwrap_err();
        assert_eq!(closed.code(), "SCOPE_CLOSED");
    }

    #[tokio::test]
    async fn persistence_62_a_row_that_lags_behind_the_log_costs_the_tail() {
        let watched = Watched::new();
        store(&watched.inner, SessionHeader::new("s".into(), 1), &log((0..6).map(note))).await;
        let sum = Sum::default();
        let (projections, _scope) = with(&sum);
        projections.stored_snapshot(&watched, Some(&watched), &"s".into()).await.unwrap();
        // The process dies when more is durable, and before the row of that.
        let (writer, _) = watched.open_write(&"s".into()).await.unwrap();
        let more: Vec<_> = log((0..9).map(note)).range(6..9).cloned().collect();
        writer.append(playhouse_plugin_api::store::EventBatch::encode(&more)).await.unwrap();
        writer.close().await.unwrap();
        watched.took();
        sum.applied();
        let (projections, _scope) = with(&sum);
        let cold = projections.stored_snapshot(&watched, None, &"s".into()).await.unwrap();
        assert_eq!(json!(cold), json!({"asOfSeq": 8, "values": {"sum": 36}}));
        assert_eq!((watched.took(), sum.applied()), (vec![5], 3), "the anchor, and what is new");
    }

    #[tokio::test]
    async fn persistence_100_a_log_that_shrank_is_folded_anew() {
        let watched = Watched::new();
        let header = SessionHeader::new("s".into(), 1);
        store(&watched.inner, header.clone(), &log((0..81).map(note))).await;
        let (projections, _scope) = with(&Sum::default());
        let before = projections.stored_snapshot(&watched, Some(&watched), &"s".into()).await;
        assert_eq!(before.unwrap().as_of_seq, Some(80));
        watched.delete(&"s".into()).await.unwrap();
        store(&watched.inner, header, &log((0..60).map(note))).await;
        watched.took();
        let after =
            projections.stored_snapshot(&watched, Some(&watched), &"s".into()).await.unwrap();
        let sum = (0..60).sum::<u64>();
        assert_eq!((after.as_of_seq, after.values["sum"].clone()), (Some(59), sum.into()));
        assert_eq!(watched.took(), [80, 0], "the anchor was missing");
        let cached = projections.cached_snapshot(&watched, &"s".into()).await.unwrap();
        assert_eq!(cached, Some(after), "and the cache is right again");
    }

    #[tokio::test]
    async fn persistence_101_a_later_session_of_the_same_id_gets_none_of_the_rows() {
        let watched = Watched::new();
        store(&watched.inner, SessionHeader::new("s".into(), 1), &log((0..5).map(note))).await;
        let (projections, _scope) = with(&Sum::default());
        projections.stored_snapshot(&watched, Some(&watched), &"s".into()).await.unwrap();
        watched.delete(&"s".into()).await.unwrap();
        store(&watched.inner, SessionHeader::new("s".into(), 2), &log((10..20).map(note))).await;
        assert_eq!(projections.cached_snapshot(&watched, &"s".into()).await.unwrap(), None);
        watched.took();
        let cold = projections.stored_snapshot(&watched, None, &"s".into()).await.unwrap();
        assert_eq!(cold.values["sum"], (10..20).sum::<u64>());
        assert_eq!(watched.took(), [0]);
    }

    #[tokio::test]
    async fn persistence_102_a_state_of_another_shape_is_folded_anew_and_a_failed_write_serves() {
        let mut watched = Watched::new();
        store(&watched.inner, SessionHeader::new("s".into(), 1), &log((0..5).map(note))).await;
        let (projections, _scope) = with(&Sum::default());
        let record = json!({
            "identity": {"createdAt": 1},
            "rows": {"sum": {"ver": 0, "seq": 4, "time": 4, "val": "ten"}},
        });
        watched.put_value("projcache/s", record.to_string().into()).await.unwrap();
        watched.refuses_values = true;
        let cold =
            projections.stored_snapshot(&watched, Some(&watched), &"s".into()).await.unwrap();
        assert_eq!(cold.values["sum"], 10);
        for damaged in ["", "{", r#"{"identity":{"createdAt":1},"rows":[]}"#] {
            watched.refuses_values = false;
            watched.put_value("projcache/s", damaged.into()).await.unwrap();
            let cold = projections.stored_snapshot(&watched, None, &"s".into()).await.unwrap();
            assert_eq!(cold.values["sum"], 10, "{damaged:?}");
        }
    }

    #[tokio::test]
    async fn persistence_104_a_session_that_is_not_there_is_not_found_without_projections_too() {
        let watched = Watched::new();
        store(&watched.inner, SessionHeader::new("s".into(), 1), &log((0..5).map(note))).await;
        let none = Projections::new();
        let error = none.stored_snapshot(&watched, None, &"gone".into()).await.unwrap_err();
        assert_eq!(error.code(), "SESSION_NOT_FOUND");
        let there = none.stored_snapshot(&watched, None, &"s".into()).await.unwrap();
        assert_eq!(there.as_of_seq, Some(4));
        assert_eq!(none.cached_snapshot(&watched, &"s".into()).await.unwrap(), Some(there));
        assert_eq!(watched.took(), [0_u64; 0]);
        assert!(watched.get_value("projcache/s").await.unwrap().is_none());
    }
}
