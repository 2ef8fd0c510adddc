use playhouse_plugin_api::{
    hook::Next,
    tool::{
        PostVerdict, PreVerdict, Replacement, ToolCallContext, ToolFilter, ToolOutput, ToolSettled,
    },
};
use serde_json::json;

use super::*;

const ABORTED: &str = "Error: tool call aborted before dispatch";

#[tokio::test(start_paused = true)]
async fn core_83_both_start_before_either_ends_and_results_keep_the_order() {
    let rig = Rig::new(10);
    let batch = rig.start("a:p b:p");
    quiet().await;
    rig.open("b").await;
    rig.open("a").await;
    assert_eq!(batch.await.unwrap(), Ok(BatchOutcome { concluded: false }));
    // Where a body's first note falls among the appends is the runtime's affair.
    let mut trace = rig.trace();
    trace.retain(|line| !line.starts_with("run"));
    assert_eq!(trace, ["TC a", "TC b", "end b", "end a", "TR a", "TR b"]);
    assert_eq!(rig.result("a"), ("result of a".into(), None));
}

#[tokio::test(start_paused = true)]
async fn core_84_an_exclusive_call_splits_the_batch() {
    let rig = Rig::new(10);
    let batch = rig.start("p1:p x:x p2:p");
    for call in ["p1", "x", "p2"] {
        quiet().await;
        assert_eq!(
            rig.trace().iter().rfind(|line| line.starts_with("run")).unwrap(),
            &format!("run {call}")
        );
        rig.open(call).await;
    }
    batch.await.unwrap().unwrap();
    assert_eq!(rig.log(), "TC p1 · TR p1 · TC x · TR x · TC p2 · TR p2");
}

/// Replaces the tool `p` by one of the other mode as soon as `call` has its result.
fn swap_on_result(rig: &Rig, call: &'static str, from: &'static str, parallel: bool) {
    let other = Rig {
        host: rig.host.clone(),
        executor: rig.executor.clone(),
        cancel: rig.cancel.clone(),
        cap: 1,
    };
    let old = other.gated(from, !parallel);
    let old = Mutex::new(Some(old));
    let told = move |settled: &ToolSettled| {
        if settled.call.call_id() == call
            && let Some(old) = old.lock().unwrap().take()
        {
            old.remove();
            other.gated(from, parallel);
        }
    };
    rig.executor.pipeline.hooks().result.add(&rig.host.scope, told).unwrap();
}

#[tokio::test(start_paused = true)]
async fn core_85_an_exclusive_calls_result_reclassifies_the_next() {
    let rig = Rig::new(10);
    swap_on_result(&rig, "a", "y", true);
    let batch = rig.start("a:x b:y c:y");
    quiet().await;
    assert_eq!(rig.log(), "TC a");
    rig.open("a").await;
    assert_eq!(rig.log(), "TC a · TR a · TC b · TC c");
    rig.open("c").await;
    rig.open("b").await;
    batch.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn core_86_a_call_made_exclusive_mid_pool_waits_for_the_pool() {
    let rig = Rig::new(2);
    swap_on_result(&rig, "a", "y", false);
    let batch = rig.start("a:p b:p c:y d:p");
    quiet().await;
    rig.open("a").await;
    assert_eq!(rig.log(), "TC a · TC b · TR a");
    rig.open("b").await;
    assert_eq!(rig.log(), "TC a · TC b · TR a · TR b · TC c");
    rig.open("c").await;
    rig.open("d").await;
    batch.await.unwrap().unwrap();
    assert!(rig.log().ends_with("TC c · TR c · TC d · TR d"));
}

#[tokio::test(start_paused = true)]
async fn core_87_the_order_examples_word_for_word() {
    let rig = Rig::new(2);
    let batch = rig.start("a:p b:p c:p d:p");
    quiet().await;
    assert_eq!(rig.log(), "TC a · TC b");
    rig.open("b").await;
    assert_eq!(rig.log(), "TC a · TC b");
    rig.open("a").await;
    rig.open("c").await;
    rig.open("d").await;
    batch.await.unwrap().unwrap();
    assert_eq!(rig.log(), "TC a · TC b · TR a · TR b · TC c · TC d · TR c · TR d");

    let rig = Rig::new(2);
    let _batch = rig.start("a:p b:p c:p d:p");
    quiet().await;
    rig.open("a").await;
    assert_eq!(rig.log(), "TC a · TC b · TR a · TC c");

    for (cap, tool) in [(1, "p"), (10, "x")] {
        let rig = Rig::new(cap);
        let batch = rig.start(&format!("a:{tool} b:{tool}"));
        quiet().await;
        rig.open("a").await;
        rig.open("b").await;
        batch.await.unwrap().unwrap();
        assert_eq!(rig.log(), "TC a · TR a · TC b · TR b");
    }
}

#[tokio::test(start_paused = true)]
async fn core_87_a_cap_of_zero_is_refused() {
    let rig = Rig::new(0);
    let failure = rig.start("a:p").await.unwrap().unwrap_err();
    assert_eq!(failure.message, "maxParallelToolCalls must be a positive integer");
    assert!(rig.trace().is_empty());
}

#[tokio::test(start_paused = true)]
async fn core_88_policy_and_post_processing_keep_the_models_order() {
    let rig = Rig::new(3);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hooks = rig.executor.pipeline.hooks();
    let log = seen.clone();
    let pre = move |call: ToolCallContext, next: Next<_, _>| {
        log.lock().unwrap().push(format!("pre {}", call.call_id()));
        next.run(call)
    };
    hooks.pre.add(&rig.host.scope, pre).unwrap();
    let log = seen.clone();
    let post = move |settled: ToolSettled, next: Next<_, _>| {
        log.lock().unwrap().push(format!("post {}", settled.call.call_id()));
        next.run(settled)
    };
    hooks.post.add(&rig.host.scope, post).unwrap();
    let batch = rig.start("a:p b:p c:p");
    quiet().await;
    for call in ["c", "b", "a"] {
        rig.open(call).await;
    }
    batch.await.unwrap().unwrap();
    assert_eq!(*seen.lock().unwrap(), ["pre a", "pre b", "pre c", "post a", "post b", "post c"]);
}

#[tokio::test(start_paused = true)]
async fn core_89_contexts_of_overlapping_calls_are_accepted_in_the_models_order() {
    let rig = Rig::new(10);
    let batch = rig.start("a:ctx b:ctx");
    quiet().await;
    rig.open("b").await;
    rig.open("a").await;
    batch.await.unwrap().unwrap();
    assert_eq!(rig.trace(), ["TC a", "TC b", "TR a", "CTX of-a", "TR b", "CTX of-b"]);
}

#[tokio::test(start_paused = true)]
async fn core_90_a_denied_call_has_its_result_and_its_sibling_runs() {
    let rig = Rig::new(10);
    let pre = |call: ToolCallContext, next: Next<_, _>| async move {
        if call.call_id() == "a" {
            return Ok(PreVerdict::Deny { reason: "not now".into() });
        }
        next.run(call).await
    };
    rig.executor.pipeline.hooks().pre.add(&rig.host.scope, pre).unwrap();
    let batch = rig.start("a:p b:p");
    quiet().await;
    rig.open("b").await;
    batch.await.unwrap().unwrap();
    assert_eq!(rig.result("a"), ("Error: not now".into(), None));
    assert_eq!(rig.result("b").0, "result of b");
    assert!(!rig.trace().contains(&"run a".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn core_91_and_newest_49_an_abort_before_the_batch_pairs_every_call() {
    let rig = Rig::new(10);
    rig.cancel.cancel(CancelCause::User);
    let outcome = rig.start("a:p b:p x:x").await.unwrap();
    assert_eq!(outcome, Ok(BatchOutcome::default()));
    assert_eq!(rig.log(), "TC a · TR a · TC b · TR b · TC x · TR x");
    for call in ["a", "b", "x"] {
        assert_eq!(rig.result(call), (ABORTED.into(), Some("ABORTED_BEFORE_DISPATCH".into())));
    }
}

#[tokio::test(start_paused = true)]
async fn core_92_an_abort_while_policy_waits_gives_the_call_its_own_result() {
    let rig = Rig::new(10);
    let host = rig.host.clone();
    let pre = move |_, _| {
        let gate = host.gate("policy");
        async move {
            gate.notified().await;
            Ok(PreVerdict::Deny { reason: "policy's own words".into() })
        }
    };
    rig.executor.pipeline.hooks().pre.add(&rig.host.scope, pre).unwrap();
    let batch = rig.start("a:p b:p");
    quiet().await;
    rig.cancel.cancel(CancelCause::User);
    quiet().await;
    assert_eq!(rig.log(), "TC a");
    rig.open("policy").await;
    batch.await.unwrap().unwrap();
    assert_eq!(rig.result("a").0, "Error: policy's own words");
    assert_eq!(rig.result("b").0, ABORTED);
    assert!(!rig.trace().iter().any(|line| line.starts_with("run")));
}

#[tokio::test(start_paused = true)]
async fn core_93_an_abort_mid_pool_commits_the_started_and_parks_their_contexts() {
    let rig = Rig::new(2);
    let batch = rig.start("a:ctx b:p c:p x:x");
    quiet().await;
    rig.cancel.cancel(CancelCause::User);
    quiet().await;
    assert_eq!(rig.log(), "TC a · TC b");
    rig.open("b").await;
    rig.open("a").await;
    batch.await.unwrap().unwrap();
    assert_eq!(rig.log(), "TC a · TC b · TR a · TR b · TC c · TR c · TC x · TR x");
    assert!(rig.trace().contains(&"CTX of-a".to_owned()));
    // Both bodies returned values, which the abort overtook.
    assert_eq!(rig.result("a"), ("Error: tool call aborted".into(), Some("ABORTED".into())));
    assert_eq!(rig.result("x").0, ABORTED);
    assert!(!rig.trace().contains(&"run x".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn an_abort_in_a_commit_starts_nothing_more() {
    let rig = Rig::new(10);
    *rig.host.trip.lock().unwrap() = Some(("TR a".into(), rig.cancel.clone()));
    let batch = rig.start("a:x b:x");
    quiet().await;
    rig.open("a").await;
    batch.await.unwrap().unwrap();
    assert_eq!(rig.result("a").0, "result of a");
    assert_eq!(rig.result("b").0, ABORTED);
    assert!(!rig.trace().contains(&"run b".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn an_abort_that_only_the_token_shows_yet_starts_nothing_more() {
    let rig = Rig::new(1);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    let pre = move |call: ToolCallContext, next: Next<_, _>| {
        log.lock().unwrap().push(call.call_id().to_string());
        next.run(call)
    };
    rig.executor.pipeline.hooks().pre.add(&rig.host.scope, pre).unwrap();
    let told = asked.clone();
    let result = move |settled: &ToolSettled| {
        told.lock().unwrap().push(format!("result of {}", settled.call.call_id()));
    };
    rig.executor.pipeline.hooks().result.add(&rig.host.scope, result).unwrap();
    *rig.host.trip.lock().unwrap() = Some(("CTX of-a".into(), rig.cancel.clone()));
    let batch = rig.start("a:ctx b:p");
    quiet().await;
    rig.open("a").await;
    batch.await.unwrap().unwrap();
    assert_eq!(rig.result("b").0, ABORTED);
    // A pair of the executor's own: the call never reached the tool layer.
    assert_eq!(*asked.lock().unwrap(), ["a", "result of a"]);
}

#[tokio::test(start_paused = true)]
async fn an_abort_at_the_call_record_gives_the_call_its_own_aborted_result() {
    let rig = Rig::new(10);
    *rig.host.trip.lock().unwrap() = Some(("TC a".into(), rig.cancel.clone()));
    rig.start("a:p b:p").await.unwrap().unwrap();
    assert_eq!(rig.log(), "TC a · TR a · TC b · TR b");
    assert_eq!(rig.result("a").0, ABORTED);
}

#[tokio::test(start_paused = true)]
async fn core_94_and_newest_52_a_refused_append_surfaces_after_the_bodies_settle() {
    let rig = Rig::new(3);
    let full = Failure::new("STORE_FULL", "no space");
    *rig.host.refuse.lock().unwrap() = Some(("TC c".into(), full.clone()));
    let batch = rig.start("a:p b:p c:p d:p");
    quiet().await;
    assert!(!batch.is_finished());
    rig.open("b").await;
    assert!(!batch.is_finished());
    rig.open("a").await;
    assert_eq!(batch.await.unwrap(), Err(full));
    // Drained results are not committed; the caller closes the calls.
    assert_eq!(rig.log(), "TC a · TC b");
}

#[tokio::test(start_paused = true)]
async fn a_failing_batch_tells_its_running_siblings_to_stop() {
    let rig = Rig::new(3);
    let polite = |_: NoArgs, run: ToolRun| async move {
        run.cancel().cancelled().await;
        Ok("stopped")
    };
    rig.add(tool_fn("polite", "", polite).parallel());
    let full = Failure::new("STORE_FULL", "no space");
    *rig.host.refuse.lock().unwrap() = Some(("TC b".into(), full.clone()));
    let begun = tokio::time::Instant::now();
    assert_eq!(rig.start("a:polite b:p").await.unwrap(), Err(full));
    assert!(begun.elapsed() < DEFAULT_GRACE, "told, not given up");
    assert!(!rig.cancel.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn newest_50_a_refused_result_keeps_the_results_before_it() {
    let rig = Rig::new(10);
    *rig.host.refuse.lock().unwrap() = Some(("TR b".into(), Failure::unknown("veto")));
    let batch = rig.start("a:x b:x c:x");
    quiet().await;
    rig.open("a").await;
    rig.open("b").await;
    assert_eq!(batch.await.unwrap(), Err(Failure::unknown("veto")));
    assert_eq!(rig.log(), "TC a · TR a · TC b");
}

#[tokio::test(start_paused = true)]
async fn core_95_a_disposal_parks_the_contexts_of_a_tool_that_returns() {
    let rig = Rig::new(10);
    let batch = rig.start("a:ctx");
    quiet().await;
    rig.cancel.cancel(CancelCause::Disposed);
    rig.open("a").await;
    assert_eq!(batch.await.unwrap(), Ok(BatchOutcome { concluded: false }));
    assert_eq!(rig.trace(), ["TC a", "TR a", "CTX of-a"]);
}

#[tokio::test(start_paused = true)]
async fn core_96_llm_19_arguments_are_logged_raw_and_read_leniently() {
    let rig = Rig::new(10);
    rig.start_with("a:fast", "{\"x\":").await.unwrap().unwrap();
    let (text, code) = rig.result("a");
    assert_eq!(text, "Error: invalid arguments: \"arguments\" must be an object");
    assert_eq!(code.as_deref(), Some("INVALID_ARGS"));
    {
        let events = rig.host.events.lock().unwrap();
        let EventBody::ToolCall(call) = &events[0].body else { panic!() };
        assert_eq!(call.arguments, "{\"x\":");
    }
    let rig = Rig::new(10);
    rig.start_with("a:fast", "").await.unwrap().unwrap();
    assert_eq!(rig.result("a").0, "fast");
}

#[tokio::test(start_paused = true)]
async fn core_97_a_coded_failure_and_meta_are_logged() {
    let rig = Rig::new(10);
    rig.add(tool_fn("coded", "", |_: NoArgs, _run| async {
        if true { Err(ToolError::coded("MyError", "MY_CODE", "sorry")) } else { Ok("") }
    }));
    rig.add(tool_fn("meta", "", |_: NoArgs, run: ToolRun| async move {
        run.conclude_turn();
        Ok(ToolOutput::from("shown").with_meta(json!({"lines": 3})))
    }));
    let outcome = rig.start("a:coded b:meta").await.unwrap().unwrap();
    assert!(outcome.concluded);
    assert_eq!(rig.result("a"), ("Error: sorry".into(), Some("MY_CODE".into())));
    let events = rig.host.events.lock().unwrap();
    let EventBody::ToolResult(result) = &events[3].body else { panic!() };
    assert_eq!(result.meta, Some(json!({"lines": 3})));
    assert_eq!(result.message.is_error, Some(false));
}

#[tokio::test(start_paused = true)]
async fn core_98_replaced_content_stays_under_the_models_call_id() {
    let rig = Rig::new(10);
    let post = |_, _| async {
        let content = vec![playhouse_messages::content::ContentBlock::text("shorter")];
        let replacement = Some(Replacement::Content(content));
        Ok(PostVerdict::Accept { replacement, contexts: Vec::new() })
    };
    rig.executor.pipeline.hooks().post.add(&rig.host.scope, post).unwrap();
    rig.start("a:fast").await.unwrap().unwrap();
    assert_eq!(rig.result("a").0, "shorter");
}

#[tokio::test(start_paused = true)]
async fn core_99_a_tool_that_the_agent_does_not_see_is_unknown() {
    let rig = Rig::new(10);
    let registry = rig.executor.pipeline.registry();
    registry.restrict(&rig.host.scope, ToolFilter::deny(["fast"])).unwrap();
    rig.start("a:fast b:never").await.unwrap().unwrap();
    for (call, text) in
        [("a", "Error: unknown tool \"fast\""), ("b", "Error: unknown tool \"never\"")]
    {
        assert_eq!(rig.result(call), (text.into(), Some("UNKNOWN_TOOL".into())));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_checkpoint_is_the_calls_result_and_the_body_does_not_run() {
    let rig = Rig::new(10);
    *rig.host.checkpoint.lock().unwrap() = Err(Failure::new("STORE_FULL", "no space"));
    rig.start("a:p b:p").await.unwrap().unwrap();
    assert_eq!(rig.result("a"), ("Error: no space".into(), Some("STORE_FULL".into())));
    assert!(!rig.trace().iter().any(|line| line.starts_with("run")));
}

#[tokio::test(start_paused = true)]
async fn a_panicking_or_failing_sibling_loses_no_other_result() {
    let rig = Rig::new(10);
    let panics = |_: NoArgs, _run| async {
        if true {
            panic!("boom");
        }
        Ok("")
    };
    rig.add(tool_fn("panics", "", panics).parallel());
    let fails = |_: NoArgs, _run| async { if true { Err("no".into()) } else { Ok("") } };
    rig.add(tool_fn("fails", "", fails).parallel());
    let batch = rig.start("a:panics b:p c:fails");
    quiet().await;
    rig.open("b").await;
    batch.await.unwrap().unwrap();
    assert_eq!(rig.result("a"), ("Error: boom".into(), None));
    assert_eq!(rig.result("b").0, "result of b");
    assert_eq!(rig.result("c").0, "Error: no");
}

#[tokio::test(start_paused = true)]
async fn an_empty_batch_ends_at_once() {
    let rig = Rig::new(1);
    assert_eq!(rig.start("").await.unwrap(), Ok(BatchOutcome::default()));
}
