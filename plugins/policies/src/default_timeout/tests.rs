use std::sync::Arc;

use playhouse_messages::message::Message;
use playhouse_plugin_api::tool::{ToolRun, tool_fn};
use serde_json::json;
use tokio::{sync::Notify, time::advance};

use super::*;
use crate::guard_rig::{Rig, code, text};

const BUDGET: Duration = Duration::from_millis(50);

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Any {}

/// Tools `polite` and `child` stop when they are told to, or when the gate opens; `deaf` only stops
/// at the gate; `own` has a budget of its own.
async fn rig() -> (Rig, Arc<Notify>) {
    let (rig, gate) =
        (Rig::new(DefaultTimeout::new(BUDGET).exempt(["child*"])).await, Arc::default());
    for name in ["polite", "child"] {
        let gate: Arc<Notify> = Arc::clone(&gate);
        rig.tool(tool_fn(name, "", move |_: Any, run: ToolRun| {
            let gate = gate.clone();
            async move {
                run.cancel().race(gate.notified()).await;
                run.defer_context(Message::user(run.new_message_id(), "x"));
                Ok("done")
            }
        }));
    }
    let opens = gate.clone();
    rig.tool(tool_fn("deaf", "", move |_: Any, _run| {
        let gate = opens.clone();
        async move {
            gate.notified().await;
            Ok("done")
        }
    }));
    let own = tool_fn("own", "", |_: Any, run: ToolRun| async move {
        run.cancel().cancelled().await;
        Ok("done")
    });
    rig.tool(own.timeout(Duration::from_millis(300)));
    (rig, gate)
}

#[tokio::test(start_paused = true)]
async fn a_tool_without_a_budget_gets_one_and_others_keep_theirs() {
    let (rig, gate) = rig().await;
    for (tool, shown) in [
        ("polite", "Error: tool call timed out after 50ms"),
        ("own", "Error: tool call timed out after 300ms"),
        ("none", "Error: unknown tool \"none\""),
    ] {
        assert_eq!(text(&*rig.call(tool, json!({})).await), shown);
    }
    let outcome = rig.call("polite", json!({})).await;
    assert_eq!((code(&outcome), outcome.contexts().len()), (Some("TOOL_TIMEOUT"), 1));
    // One that does not listen is awaited all the same, and one that is exempt runs on.
    for (tool, expected) in [("deaf", Some("TOOL_TIMEOUT")), ("child", None)] {
        let mut calling = Box::pin(rig.call(tool, json!({})));
        assert!((&mut calling).now_or_never().is_none());
        advance(4 * BUDGET).await;
        assert!((&mut calling).now_or_never().is_none());
        gate.notify_one();
        assert_eq!(code(&*calling.await), expected);
    }
    rig.harness.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_callers_cancel_that_comes_first_is_no_timeout() {
    let (rig, gate) = rig().await;
    let request = rig.request("deaf", json!({}));
    let cancel = request.cancel.clone();
    let mut calling = Box::pin(rig.world().tools.execute_one(request));
    assert!((&mut calling).now_or_never().is_none());
    cancel.cancel(CancelCause::User);
    assert!((&mut calling).now_or_never().is_none());
    advance(4 * BUDGET).await;
    assert!((&mut calling).now_or_never().is_none());
    gate.notify_one();
    assert_eq!(code(&*calling.await), Some("ABORTED"));
    rig.harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_budget_of_nothing_is_refused() {
    let harness = playhouse_supervisor::harness::Harness::builder();
    let error = harness.plugin(DefaultTimeout::new(Duration::ZERO)).start().await.unwrap_err();
    assert_eq!(error.code(), "INVALID_CONFIG");
}
