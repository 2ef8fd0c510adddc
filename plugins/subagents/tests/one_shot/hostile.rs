//! Providers, callers and moments that nobody hopes for.

use std::{future::Future, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{chunk::Failure, event::CancelCause, retry::Backoff};
use playhouse_models::scripted::Reply;
use playhouse_subagents::{
    Capabilities, ChildError, ChildGroup, ChildProvider, ChildRequest, ChildResult, ChildRetries,
    Run, StopReason, spawn,
};

use crate::{house, house_with, on};

/// No wait here may last for ever.
async fn within<F: Future>(wait: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("it hangs")
}

/// Polls a future so often, or to its end; whether it has ended.
async fn polled<F: Future + Unpin>(future: &mut F, polls: usize) -> bool {
    for _ in 0..polls {
        if futures::poll!(&mut *future).is_ready() {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

/// Panics where its name says.
struct Panics(&'static str);

impl ChildProvider for Panics {
    fn name(&self) -> &str {
        self.0
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn start(&self, _: ChildRequest) -> BoxFuture<'static, Result<Run, ChildError>> {
        let at = self.0;
        assert_ne!(at, "call", "it panics when it is called");
        let result = async move {
            assert_ne!(at, "result", "it panics with its result");
            Ok(ChildResult::new(StopReason::Completed))
        };
        let disposal = async move {
            assert_ne!(at, "disposal", "it panics in its disposal");
            Ok::<(), Failure>(())
        };
        async move {
            assert_ne!(at, "start", "it panics when it starts");
            Ok(Run::new("panicking".into(), None, result.boxed(), disposal.boxed()))
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_panic_of_a_provider_is_a_failure_of_its_child_and_every_start_has_its_end() {
    let house = house([on("good", Reply::text("good"))]).await;
    let (told, providers) = (Arc::<std::sync::Mutex<(u32, u32)>>::default(), house.providers());
    let (starts, ends) = (told.clone(), told.clone());
    let (scope, life) = (&house.world().scope, providers.lifecycle());
    life.started.add(scope, move |_| starts.lock().unwrap().0 += 1).unwrap();
    life.ended.add(scope, move |_| ends.lock().unwrap().1 += 1).unwrap();
    for (at, code) in [
        ("call", "PANIC"),
        ("start", "PANIC"),
        ("result", "PANIC"),
        ("disposal", "SUBAGENT_DISPOSAL"),
    ] {
        providers.register(scope, Arc::new(Panics(at))).unwrap();
        let group = ChildGroup::new(house.world()).provider(at);
        let failed = within(group.run(house.ask("x"))).await.unwrap_err();
        assert_eq!(failed.code(), code, "{at}: {failed}");
        assert!(format!("{failed}").contains("it panics"), "{at}: {failed}");
    }
    // Its siblings are none the worse for it.
    let group = ChildGroup::new(house.world());
    assert_eq!(within(group.run(house.ask("good"))).await.unwrap().text(), "good");
    within(async {
        while *told.lock().unwrap() != (3, 3) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    house.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn children_that_are_cancelled_at_any_moment_after_their_start_were_aborted() {
    for yields in 0..100 {
        let house = house([on("", Reply::text("said").at_gate("never"))]).await;
        let mut runs = Vec::new();
        for at in 0..2 {
            runs.push(spawn(house.world(), house.ask(&format!("n{at}"))).await.unwrap());
        }
        for _ in 0..yields % 20 {
            tokio::task::yield_now().await;
        }
        let cancelling = house.root.cancel_tree(CancelCause::User);
        for run in &runs {
            let result = within(run.result()).await.unwrap();
            assert_eq!(result.stop_reason, StopReason::Aborted, "{yields}: {result:?}");
            run.dispose().await.unwrap();
        }
        assert!(within(async { cancelling.await }).await.unfinished.is_empty());
        // Its tasks end on other threads, so they are not counted here.
        within(house.harness.shutdown()).await.unwrap();
    }
}

#[tokio::test]
async fn a_group_that_is_dropped_at_any_moment_of_its_work_leaves_nothing() {
    for polls in 0..60 {
        let house = house_with(
            [on("", Reply::text("said"))],
            |plugin| plugin.max_children(4),
            |builder| builder,
        )
        .await;
        let group = ChildGroup::new(house.world());
        let requests = (0..6).map(|at| house.ask(&format!("n{at}"))).collect::<Vec<_>>();
        {
            let mut all = std::pin::pin!(group.join_all(requests));
            polled(&mut all, polls).await;
        }
        within(house.ends_clean()).await;
    }
}

#[tokio::test]
async fn a_group_that_is_cancelled_at_any_moment_ends_and_leaves_nothing() {
    for polls in 0..60 {
        let house = house([on("", Reply::text("said"))]).await;
        let group = ChildGroup::new(house.world());
        let requests = (0..4).map(|at| house.ask(&format!("n{at}"))).collect::<Vec<_>>();
        let mut all = std::pin::pin!(group.join_all(requests));
        let over = polled(&mut all, polls).await;
        group.cancel(CancelCause::User);
        if !over {
            within(&mut all).await;
        }
        assert_eq!((house.children().len(), house.slots.taken()), (0, 0), "{polls}");
        within(house.ends_clean()).await;
    }
}

#[tokio::test]
async fn one_slot_is_enough_for_everything_that_goes_one_after_the_other() {
    let house = house_with(
        [on("", Reply::text("said"))],
        |plugin| plugin.max_children(1),
        |builder| builder,
    )
    .await;
    let group = ChildGroup::new(house.world());
    let outcomes = within(group.map(0..10, 1, |at| house.ask(&format!("n{at}")))).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let pipeline = group
        .pipeline(|item: &u32| house.ask(&format!("first {item}")))
        .then(|item, _| house.ask(&format!("second {item}")));
    let outcomes = within(pipeline.run(0..5, 0)).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    drop(pipeline);
    house.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn no_backoff_makes_a_retry_panic() {
    let house = house([on("", Reply::error("BAD_REQUEST", "no"))]).await;
    let group = ChildGroup::new(house.world());
    for jitter_ratio in [2.0, 1e300, f64::INFINITY, f64::NAN, -5.0] {
        let backoff = Backoff { initial_delay_ms: 500, max_delay_ms: 1_000, jitter_ratio };
        let failed = group.retry(ChildRetries { max: 3, backoff }, || house.ask("x")).await;
        assert_eq!(failed.unwrap_err().code(), "SUBAGENT_FAILED");
    }
    house.ends_clean().await;
}

#[tokio::test]
async fn a_parent_that_goes_while_its_children_are_made_takes_them_with_it() {
    for polls in 0..40 {
        let house = house([on("", Reply::text("said"))]).await;
        {
            let starts = (0..3).map(|at| spawn(house.world(), house.ask(&format!("n{at}"))));
            let mut starts = std::pin::pin!(futures::future::join_all(starts));
            let over = polled(&mut starts, polls).await;
            within(house.root.dispose()).await.unwrap();
            if !over {
                within(&mut starts).await;
            }
        }
        within(house.ends_clean()).await;
    }
}
