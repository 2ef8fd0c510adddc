use tokio::{sync::Notify, time::advance};

use super::*;

const BUDGET: Duration = Duration::from_millis(50);

/// What a body does with its token.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Manners {
    /// Stops when it fires.
    Polite,
    /// Works until the gate opens, whatever fires.
    Deaf,
}

/// A tool that works until its gate opens, and fails then if told to.
fn slow(name: &str, gate: &Arc<Notify>, manners: Manners, fails: bool) -> impl Tool + use<> {
    let gate = gate.clone();
    let tool = tool_fn(name, "", move |_: Args, run: ToolRun| {
        let gate = gate.clone();
        async move {
            match manners {
                Manners::Polite => drop(run.cancel().race(gate.notified()).await),
                Manners::Deaf => gate.notified().await,
            }
            if fails { Err(ToolError::coded("E", "STOPPED", "gave up")) } else { Ok("done") }
        }
    });
    tool.timeout(BUDGET)
}

async fn code_of(rig: &Rig, name: &str) -> Option<String> {
    code(&*rig.call(name, json!({"p": 1})).await).map(str::to_owned)
}

#[tokio::test(start_paused = true)]
async fn llm_111_a_budget_ends_in_a_timeout_whatever_the_body_returns() {
    for fails in [false, true] {
        let (rig, gate) = (Rig::new(), Arc::new(Notify::new()));
        rig.tool(slow("polite", &gate, Manners::Polite, fails));
        let outcome = rig.call("polite", json!({"p": 1})).await;
        assert_eq!(text(&outcome), "Error: tool call timed out after 50ms");
        assert_eq!(code(&outcome), Some("TOOL_TIMEOUT"));
        // One that does not listen is awaited all the same.
        rig.tool(slow("deaf", &gate, Manners::Deaf, fails));
        let mut calling = Box::pin(code_of(&rig, "deaf"));
        assert!(calling.as_mut().now_or_never().is_none());
        advance(4 * BUDGET).await;
        assert!(calling.as_mut().now_or_never().is_none());
        gate.notify_one();
        assert_eq!(calling.await.as_deref(), Some("TOOL_TIMEOUT"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_ends_in_time_has_no_timeout() {
    let (rig, gate) = (Rig::new(), Arc::new(Notify::new()));
    rig.tool(slow("deaf", &gate, Manners::Deaf, false));
    let mut calling = Box::pin(code_of(&rig, "deaf"));
    assert!(calling.as_mut().now_or_never().is_none());
    advance(BUDGET - Duration::from_millis(1)).await;
    assert!(calling.as_mut().now_or_never().is_none());
    gate.notify_one();
    assert_eq!(calling.await, None);
}

#[tokio::test(start_paused = true)]
async fn llm_111_a_callers_abort_that_comes_first_is_no_timeout() {
    for manners in [Manners::Polite, Manners::Deaf] {
        for (fails, expected) in [(false, "ABORTED"), (true, "STOPPED")] {
            let (rig, gate) = (Rig::new(), Arc::new(Notify::new()));
            rig.tool(slow("slow", &gate, manners, fails));
            let mut calling = Box::pin(code_of(&rig, "slow"));
            assert!(calling.as_mut().now_or_never().is_none());
            advance(BUDGET / 5).await;
            rig.cancel.cancel(CancelCause::User);
            if manners == Manners::Deaf {
                assert!(calling.as_mut().now_or_never().is_none());
                advance(4 * BUDGET).await;
                assert!(calling.as_mut().now_or_never().is_none());
                gate.notify_one();
            }
            assert_eq!(calling.await.as_deref(), Some(expected));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn llm_111_an_outer_deadline_is_not_taken_for_the_tools_own() {
    let (rig, gate) = (Rig::new(), Arc::new(Notify::new()));
    rig.tool(slow("slow", &gate, Manners::Polite, false));
    let deadline = CancelToken::new();
    let outer = deadline.clone();
    let wrap = move |execution: ToolExecution, next: Next<_, _>| {
        next.run(ToolExecution { cancel: outer.clone(), ..execution })
    };
    let wrapped = rig.pipeline.hooks().execute.add(&rig.scope, wrap).unwrap();
    let mut calling = Box::pin(code_of(&rig, "slow"));
    assert!(calling.as_mut().now_or_never().is_none());
    deadline.cancel(CancelCause::Hook { reason: "an outer deadline".to_owned() });
    assert_eq!(calling.await.as_deref(), Some("ABORTED"));
    wrapped.remove();
    assert_eq!(code_of(&rig, "slow").await.as_deref(), Some("TOOL_TIMEOUT"));
}

#[tokio::test(start_paused = true)]
async fn llm_111_a_shadow_in_the_agents_scope_has_its_own_budget() {
    let root = Scope::root("root");
    let rig = Rig { scope: root.child("agent").unwrap(), ..Rig::new() };
    let gate = Arc::new(Notify::new());
    let registry = rig.pipeline.registry();
    registry.register(&root, Arc::new(slow("slow", &gate, Manners::Polite, false))).unwrap();
    let shadow = tool_fn("slow", "", |_: Args, run: ToolRun| async move {
        run.cancel().cancelled().await;
        Ok("done")
    });
    let shadow = rig.tool(shadow.timeout(Duration::from_millis(120)));
    for expected in [120, 50] {
        let outcome = rig.call("slow", json!({"p": 1})).await;
        assert_eq!(text(&outcome), format!("Error: tool call timed out after {expected}ms"));
        shadow.remove();
    }
}

#[tokio::test(start_paused = true)]
async fn llm_111_waiting_for_approval_takes_nothing_of_the_budget() {
    struct Thinking(Arc<Notify>);
    impl ApprovalGate for Thinking {
        fn ask(&self, _: ToolCallContext, _: Option<String>) -> BoxFuture<'static, Approval> {
            let thought = self.0.clone();
            async move {
                thought.notified().await;
                Approval::AllowedOnce
            }
            .boxed()
        }
    }
    let (rig, gate, thought) = (Rig::new(), Arc::new(Notify::new()), Arc::new(Notify::new()));
    rig.pre(PreVerdict::Ask { reason: None });
    rig.pipeline.set_approval_gate(&rig.scope, Arc::new(Thinking(thought.clone()))).unwrap();
    rig.tool(slow("slow", &gate, Manners::Polite, false));
    let mut calling = Box::pin(rig.call("slow", json!({"p": 1})));
    assert!(calling.as_mut().now_or_never().is_none());
    advance(100 * BUDGET).await;
    thought.notify_one();
    assert!(calling.as_mut().now_or_never().is_none());
    advance(BUDGET / 2).await;
    gate.notify_one();
    assert_eq!(text(&*calling.await), "done");
}

#[tokio::test(start_paused = true)]
async fn llm_111_post_processing_does_not_see_the_budgets_token() {
    let rig = Rig::new();
    rig.tool(slow("slow", &Arc::default(), Manners::Polite, false));
    let note = rig.note();
    let post = move |settled: ToolSettled, next: Next<_, _>| {
        note(&format!("cancelled: {}", settled.call.cancel().is_cancelled()));
        next.run(settled)
    };
    rig.pipeline.hooks().post.add(&rig.scope, post).unwrap();
    assert_eq!(code_of(&rig, "slow").await.as_deref(), Some("TOOL_TIMEOUT"));
    assert_eq!(rig.log(), ["cancelled: false"]);
}
