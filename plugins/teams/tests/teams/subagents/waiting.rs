use std::time::Duration;

use playhouse_messages::event::CancelCause;
use playhouse_plugin_api::cancel::CancelToken;
use playhouse_teams::{NewMessage, NewTask, Waited};
use serde_json::json;

use crate::rig::{Rig, held, turns};

const LONG: Duration = Duration::from_secs(3_600);

#[tokio::test(start_paused = true)]
async fn orchestration_18_7_8_a_wait_returns_at_once_if_nobody_else_works() {
    let rig = Rig::new([]).await;
    rig.spawn("rev", "go").await;
    rig.until_inactive("rev").await;
    rig.lead.when_idle().await.unwrap();
    let before = tokio::time::Instant::now();
    let waited = rig.call(&rig.lead, "wait_agent", json!({})).await.unwrap();
    assert_eq!(waited["timedOut"], false);
    assert_eq!(waited["noProgress"]["reason"], "no-active-peer");
    assert!(waited["noProgress"]["message"].is_string());
    assert_eq!(before.elapsed(), Duration::ZERO);
    let id = rig.seat.team().unwrap().named("rev").unwrap().id.clone();
    assert_eq!(turns(&rig.stored_log(&id).await), 1, "a wait wakes nobody");
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_6_a_wait_ends_with_the_next_commit_or_status_or_in_time() {
    let rig = Rig::new([held("work", "work")]).await;
    rig.spawn("rev", "work").await;
    rig.model.gate("work").arrived(1).await;
    let cancel = CancelToken::new();
    let before = tokio::time::Instant::now();
    let waited = rig.seat.wait(Duration::from_secs(10), &cancel).await.unwrap();
    assert_eq!((waited, before.elapsed()), (Waited::TimedOut, Duration::from_secs(10)));

    let new = NewTask { subject: "s".into(), description: "d".into(), ..NewTask::default() };
    let rev = rig.seat_of("rev");
    let (waited, made) = tokio::join!(rig.seat.wait(LONG, &cancel), rev.create_task(new));
    made.unwrap();
    assert_eq!(waited.unwrap(), Waited::Changed);

    let (waited, sent) =
        tokio::join!(rig.seat.wait(LONG, &cancel), rig.send(NewMessage::quiet("rev", "x")));
    sent.unwrap();
    assert_eq!(waited.unwrap(), Waited::Changed);

    let gate = rig.model.gate("work");
    let (waited, ()) = tokio::join!(rig.seat.wait(LONG, &cancel), async { gate.open() });
    assert_eq!(waited.unwrap(), Waited::Changed);
    rig.until_inactive("rev").await;
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_cancelled_with_its_caller_and_ends_with_its_team() {
    let rig = Rig::new([held("work", "work")]).await;
    rig.spawn("rev", "work").await;
    rig.model.gate("work").arrived(1).await;
    let cancel = CancelToken::new();
    let wait = rig.seat.wait(LONG, &cancel);
    let (waited, _) = tokio::join!(wait, async { cancel.cancel(CancelCause::User) });
    assert_eq!(waited.unwrap_err().code(), "CANCELLED");
    // Nobody else is told that it is over.
    let (seat, never) = (rig.seat.clone(), CancelToken::new());
    let (waited, ended) = tokio::join!(seat.wait(LONG, &never), rig.lead.dispose());
    ended.unwrap();
    assert!(matches!(&waited, Ok(Waited::Changed)) || waited.is_err(), "{waited:?}");
    rig.harness.shutdown().await.unwrap();
}
