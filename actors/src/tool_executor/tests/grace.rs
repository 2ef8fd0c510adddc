use playhouse_plugin_api::{
    hook::Next,
    tool::{PreVerdict, ToolCallContext, ToolSettled},
};
use ractor::{ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::time::Instant;

use super::*;

const UNKNOWN: &str = playhouse_messages::repair::OUTCOME_UNKNOWN_TEXT;

fn reason(rig: &Rig, at: usize) -> Option<String> {
    let events = rig.host.events.lock().unwrap();
    let EventBody::ToolResult(result) = &events[at].body else { panic!("{:?}", events[at]) };
    result.error.as_ref().and_then(|error| error.reason.clone())
}

#[tokio::test(start_paused = true)]
async fn a_body_that_ignores_the_cancel_is_dropped_after_the_grace_time() {
    let rig = Rig::new(10);
    let batch = rig.start("a:hang b:p c:x");
    quiet().await;
    let cancelled = Instant::now();
    rig.cancel.cancel(CancelCause::User);
    rig.open("b").await;
    assert!(!batch.is_finished());
    batch.await.unwrap().unwrap();
    let waited = cancelled.elapsed();
    assert!(waited >= DEFAULT_GRACE && waited < DEFAULT_GRACE + Duration::from_secs(1));
    assert_eq!(rig.result("a"), (UNKNOWN.into(), Some("TOOL_OUTCOME_UNKNOWN".into())));
    assert_eq!(reason(&rig, 2).as_deref(), Some("abandoned"));
    assert_eq!(rig.result("b").1.as_deref(), Some("ABORTED"));
    assert_eq!(rig.result("c").1.as_deref(), Some("ABORTED_BEFORE_DISPATCH"));
    quiet().await;
    assert_eq!(rig.executor.abandoned_running(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_ends_within_the_grace_time_keeps_its_own_failure() {
    let rig = Rig::new(10);
    let slow = |_: NoArgs, run: ToolRun| async move {
        run.cancel().cancelled().await;
        tokio::time::sleep(DEFAULT_GRACE - Duration::from_secs(1)).await;
        if true { Err(ToolError::coded("SlowError", "ROLLED_BACK", "undone")) } else { Ok("") }
    };
    rig.add(tool_fn("slow", "", slow));
    let batch = rig.start("a:slow");
    quiet().await;
    rig.cancel.cancel(CancelCause::User);
    batch.await.unwrap().unwrap();
    assert_eq!(rig.result("a"), ("Error: undone".into(), Some("ROLLED_BACK".into())));
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_hangs_is_given_up_and_the_body_never_runs() {
    let rig = Rig::new(10);
    let pre = |_, _: Next<ToolCallContext, PreVerdict>| std::future::pending();
    rig.executor.pipeline.hooks().pre.add(&rig.host.scope, pre).unwrap();
    let batch = rig.start("a:p b:p");
    quiet().await;
    rig.cancel.cancel(CancelCause::User);
    batch.await.unwrap().unwrap();
    assert_eq!(rig.result("a").1.as_deref(), Some("ABORTED_BEFORE_DISPATCH"));
    assert_eq!(rig.log(), "TC a · TR a · TC b · TR b");
    assert!(!rig.trace().iter().any(|line| line.starts_with("run")));
}

#[tokio::test(start_paused = true)]
async fn post_processing_that_hangs_is_given_up_and_shows_no_unapproved_value() {
    let rig = Rig::new(10);
    let post = |_: ToolSettled, _: Next<_, _>| std::future::pending();
    let hooks = rig.executor.pipeline.hooks();
    hooks.post.add(&rig.host.scope, post).unwrap();
    let published = Arc::new(AtomicUsize::new(0));
    let count = published.clone();
    let told = move |_: &ToolSettled| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    hooks.result.add(&rig.host.scope, told).unwrap();
    let batch = rig.start("a:fast");
    quiet().await;
    assert_eq!(rig.log(), "TC a");
    rig.cancel.cancel(CancelCause::User);
    batch.await.unwrap().unwrap();
    assert_eq!(rig.result("a").1.as_deref(), Some("ABORTED"));
    assert_eq!(published.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failing_batch_gives_a_hanging_sibling_up_after_the_grace_time() {
    let rig = Rig::new(10);
    *rig.host.refuse.lock().unwrap() = Some(("TC b".into(), Failure::unknown("veto")));
    let begun = Instant::now();
    assert_eq!(rig.start("a:hang b:p").await.unwrap(), Err(Failure::unknown("veto")));
    assert!(begun.elapsed() >= DEFAULT_GRACE);
    assert_eq!(rig.log(), "TC a");
}

/// Not on the paused clock: the body blocks its thread, which time cannot pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_blocks_its_thread_is_counted_until_it_returns() {
    let rig = Rig::new(10);
    let (entered, has_entered) = tokio::sync::oneshot::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let once = Mutex::new(Some((entered, released)));
    rig.add(tool_fn("block", "", move |_: NoArgs, _run| {
        let (entered, released) = once.lock().unwrap().take().unwrap();
        async move {
            let _ = entered.send(());
            let _ = released.recv();
            Ok("")
        }
    }));
    let block = ToolCallBlock { id: "a".into(), name: "block".into(), arguments: "{}".into() };
    let batch = tokio::spawn(rig.executor.execute(ToolBatch {
        host: rig.host.clone(),
        at: StepAt { turn: 1, step: 1 },
        calls: vec![block],
        max_parallel: 1,
        cancel: rig.cancel.clone(),
        grace: Duration::ZERO,
        supervisor: None,
        span: tracing::Span::none(),
    }));
    has_entered.await.unwrap();
    rig.cancel.cancel(CancelCause::Disposed);
    batch.await.unwrap().unwrap();
    assert_eq!(rig.result("a").0, UNKNOWN);
    assert_eq!(rig.executor.abandoned_running(), 1);
    release.send(()).unwrap();
    while rig.executor.abandoned_running() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Stands in for the agent's supervisor.
struct Watcher;

impl Actor for Watcher {
    type Msg = ();
    type State = Option<ActorCell>;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<Self::State, ActorProcessingErr> {
        Ok(None)
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<()>,
        event: SupervisionEvent,
        child: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorStarted(cell) = event {
            *child = Some(cell);
        }
        Ok(())
    }

    /// Kills the child that started last.
    async fn handle(
        &self,
        _: ActorRef<()>,
        (): (),
        child: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        if let Some(child) = child.take() {
            child.kill();
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_executor_is_a_failure_and_drops_its_bodies() {
    let mut rig = Rig::new(10);
    let (watcher, _) = Watcher::spawn(None, Watcher, ()).await.unwrap();
    rig.executor = rig.executor.clone().supervised_by(watcher.get_cell());
    struct Dropped(Arc<AtomicUsize>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let count = dropped.clone();
    let held = move |_: NoArgs, _run| {
        let guard = Dropped(count.clone());
        async move {
            std::future::pending::<()>().await;
            drop(guard);
            Ok("")
        }
    };
    rig.add(tool_fn("held", "", held).parallel());
    let batch = rig.start("a:held b:held");
    quiet().await;
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    watcher.cast(()).unwrap();
    let failure = batch.await.unwrap().unwrap_err();
    assert_eq!(failure.code, "TOOL_EXECUTOR_DOWN");
    quiet().await;
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    assert_eq!(rig.executor.abandoned_running(), 0);
    assert_eq!(rig.log(), "TC a · TC b");
    // The next batch has an executor of its own.
    rig.start("c:fast").await.unwrap().unwrap();
    assert_eq!(rig.result("c").0, "fast");
    watcher.stop(None);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_gone_takes_its_batch_along() {
    let rig = Rig::new(10);
    let batch = rig.start("a:p b:hang");
    quiet().await;
    batch.abort();
    quiet().await;
    rig.open("a").await;
    assert_eq!(rig.log(), "TC a · TC b");
    assert!(!rig.trace().contains(&"end a".to_owned()));
    assert_eq!(rig.executor.abandoned_running(), 0);
}
