//! Orchestration from code.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use playhouse_messages::{event::CancelCause, retry::Backoff};
use playhouse_models::scripted::Reply;
use playhouse_plugin_api::cancel::CancelToken;
use playhouse_subagents::{ChildFailed, ChildGroup, ChildOutcome, ChildRetries, StopReason};

use crate::{house, house_with, on};

fn texts(outcomes: Vec<ChildOutcome>) -> Vec<String> {
    let text = |outcome: ChildOutcome| match outcome {
        Ok(result) => result.text(),
        Err(failed) => failed.code().to_owned(),
    };
    outcomes.into_iter().map(text).collect()
}

#[tokio::test]
async fn all_are_awaited_in_order_and_one_that_fails_fails_nobody_else() {
    let house = house([
        on("slow", Reply::text("slow").at_gate("slow")),
        on("bad", Reply::error("BAD_REQUEST", "no")),
        on("quick", Reply::text("quick")),
    ])
    .await;
    let group = ChildGroup::new(house.world());
    let requests = ["slow", "bad", "quick"].map(|prompt| house.ask(prompt));
    let (outcomes, ()) = tokio::join!(group.join_all(requests), async {
        house.model.gate("slow").arrived(1).await;
        // The quick one is disposed by now, or soon: it does not wait for the slow one.
        let mut changes = house.world().agents.watch();
        while house.children().len() > 1 {
            changes.changed().await.unwrap();
        }
        house.model.gate("slow").open();
    });
    assert_eq!(texts(outcomes), ["slow", "SUBAGENT_FAILED", "quick"]);
    assert_eq!((house.children().len(), house.slots.taken()), (0, 0));
    house.ends_clean().await;
}

#[tokio::test]
async fn the_first_to_complete_wins_and_nothing_of_the_losers_is_left_when_the_race_returns() {
    let house = house([
        on("hang", Reply::text("never").at_gate("shut")),
        on("bad", Reply::error("BAD_REQUEST", "no")),
        on("win", Reply::text("won").at_gate("go")),
    ])
    .await;
    let group = ChildGroup::new(house.world());
    let requests = ["hang", "bad", "win", "hang"].map(|prompt| house.ask(prompt));
    let (winner, ()) = tokio::join!(group.race(requests), async {
        house.model.gate("shut").arrived(2).await;
        house.model.gate("go").open();
    });
    assert_eq!(winner.unwrap().text(), "won");
    assert_eq!((house.children().len(), house.slots.taken()), (0, 0));

    let failed = group.race(["bad", "bad"].map(|prompt| house.ask(prompt))).await.unwrap_err();
    assert_eq!(failed.iter().map(ChildFailed::code).collect::<Vec<_>>(), ["SUBAGENT_FAILED"; 2]);
    assert!(group.race([]).await.unwrap_err().is_empty());
    house.ends_clean().await;
}

#[tokio::test]
async fn a_map_has_never_more_children_than_its_limit_and_keeps_the_order() {
    let house = house_with(
        [on("", Reply::text("on {{prompt}}"))],
        |plugin| plugin.max_children(3),
        |builder| builder,
    )
    .await;
    let group = ChildGroup::new(house.world());
    // With more than three at once some would be refused.
    let outcomes = group.map(0..20, 3, |at| house.ask(&format!("input {at}"))).await;
    let expected: Vec<_> = (0..20).map(|at| format!("on input {at}")).collect();
    assert_eq!(texts(outcomes), expected);
    assert_eq!(house.slots.taken(), 0);
    house.ends_clean().await;
}

#[tokio::test]
async fn an_item_goes_through_its_stages_without_waiting_for_others() {
    let house = house([
        on("draft slow", Reply::text("slow draft").at_gate("slow")),
        on("draft bad", Reply::error("BAD_REQUEST", "no")),
        on("draft quick", Reply::text("quick draft")),
        on("review", Reply::text("ok: {{prompt}}").at_gate("review")),
    ])
    .await;
    let group = ChildGroup::new(house.world());
    let pipeline = group
        .pipeline(|item: &&str| house.ask(&format!("draft {item}")))
        .then(|_, draft| house.ask(&format!("review the {}", draft.text())));
    let (outcomes, ()) = tokio::join!(pipeline.run(["slow", "bad", "quick"], 3), async {
        house.model.gate("slow").arrived(1).await;
        // One item is in its second stage while another is in its first.
        house.model.gate("review").arrived(1).await;
        house.model.gate("review").open();
        house.model.gate("slow").open();
    });
    let expected = ["ok: review the slow draft", "SUBAGENT_FAILED", "ok: review the quick draft"];
    assert_eq!(texts(outcomes), expected);
    drop(pipeline);
    house.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_child_is_tried_again_after_the_delays_of_the_policy() {
    let house = house([
        on("try 0", Reply::error("BAD_REQUEST", "no")),
        on("try 1", Reply::error("BAD_REQUEST", "no")),
        on("try 2", Reply::text("third time")),
        on("cut", Reply::text("half").with_finish("length")),
    ])
    .await;
    let group = ChildGroup::new(house.world());
    let backoff = Backoff { initial_delay_ms: 1_000, max_delay_ms: 60_000, jitter_ratio: 0.0 };
    let tries = Arc::new(AtomicUsize::new(0));
    let request = || house.ask(&format!("try {}", tries.fetch_add(1, Ordering::Relaxed)));
    let started = tokio::time::Instant::now();
    let outcome = group.retry(ChildRetries { max: 2, backoff }, request).await;
    assert_eq!(outcome.unwrap().text(), "third time");
    assert_eq!(started.elapsed().as_millis(), 3_000, "one second, then two");

    tries.store(0, Ordering::Relaxed);
    let outcome = group.retry(ChildRetries { max: 1, backoff }, request).await;
    assert_eq!(outcome.unwrap_err().code(), "SUBAGENT_FAILED");
    assert_eq!(tries.load(Ordering::Relaxed), 2);

    let cut = group.retry(ChildRetries::default(), || house.ask("cut")).await.unwrap_err();
    assert_eq!(cut.code(), "SUBAGENT_MAX_TOKENS", "another try would be cut as well");
    assert_eq!(cut.result().unwrap().text(), "half");
    house.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn one_cancel_ends_children_waits_and_what_was_still_to_start() {
    let house = house([
        on("hang", Reply::text("never").at_gate("shut")),
        on("bad", Reply::error("BAD_REQUEST", "no")),
    ])
    .await;
    let cancel = CancelToken::new();
    let group = ChildGroup::new(house.world()).cancelled_by(&cancel);
    let retries = ChildRetries {
        max: 9,
        backoff: Backoff { initial_delay_ms: 1 << 30, max_delay_ms: 1 << 30, jitter_ratio: 0.0 },
    };
    let started = tokio::time::Instant::now();
    let (mapped, retried, ()) = tokio::join!(
        group.map(["hang"; 5], 2, |prompt| house.ask(prompt)),
        group.retry(retries, || house.ask("bad")),
        async {
            house.model.gate("shut").arrived(2).await;
            cancel.cancel(CancelCause::User);
        }
    );
    let codes = texts(mapped);
    assert_eq!(codes[..2], ["SUBAGENT_ABORTED"; 2], "{codes:?}");
    assert_eq!(codes[2..], ["ABORTED"; 3], "{codes:?}");
    assert!(retried.is_err());
    assert_eq!(started.elapsed().as_millis(), 0);
    assert_eq!((house.children().len(), house.slots.taken()), (0, 0));

    // A request's own token counts as well, for that child alone.
    let group = ChildGroup::new(house.world());
    let (own, other) = (house.ask("hang"), house.ask("hang"));
    let one = own.cancel.clone();
    let (outcomes, ()) = tokio::join!(group.join_all([own, other]), async {
        house.model.gate("shut").arrived(4).await;
        one.cancel(CancelCause::User);
        let mut changes = house.world().agents.watch();
        while house.children().len() > 1 {
            changes.changed().await.unwrap();
        }
        house.model.gate("shut").open();
    });
    let [Err(ChildFailed::Stopped(aborted)), Ok(done)] = &outcomes[..] else {
        panic!("{outcomes:?}")
    };
    assert_eq!((&aborted.stop_reason, done.text().as_str()), (&StopReason::Aborted, "never"));
    house.ends_clean().await;
}

#[tokio::test]
async fn a_dropped_future_takes_its_children_along_and_the_parents_disposal_waits_for_them() {
    for dispose_parent in [false, true] {
        let house = house([on("hang", Reply::text("never").at_gate("shut"))]).await;
        let group = ChildGroup::new(house.world());
        let requests = ["hang"; 3].map(|prompt| house.ask(prompt));
        let racing = tokio::spawn(async move { group.race(requests).await });
        house.model.gate("shut").arrived(3).await;
        racing.abort();
        assert!(racing.await.unwrap_err().is_cancelled());
        if dispose_parent {
            house.root.dispose().await.unwrap();
            assert!(house.harness.agents().is_empty());
            assert_eq!(house.slots.taken(), 0);
        }
        house.ends_clean().await;
    }
}
