use playhouse_messages::message::Message;
use playhouse_plugin_api::tool::{ToolRun, tool_fn};
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::guard_rig::{Rig, code, text};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Any {}

async fn rig() -> Rig {
    let policy = DefaultTimeout::new(Duration::from_millis(50)).exempt(["child*"]);
    let rig = Rig::new(policy).await;
    for name in ["polite", "child"] {
        let polite = tool_fn(name, "", |_: Any, run: ToolRun| async move {
            run.cancel().race(tokio::time::sleep(Duration::from_millis(200))).await;
            run.defer_context(Message::user(run.new_message_id(), "x"));
            Ok("done")
        });
        rig.tool(polite);
    }
    let own = tool_fn("own", "", |_: Any, run: ToolRun| async move {
        run.cancel().cancelled().await;
        Ok("done")
    });
    rig.tool(own.timeout(Duration::from_millis(300)));
    rig.tool(tool_fn("deaf", "", |_: Any, _run| async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok("done")
    }));
    rig
}

#[tokio::test(start_paused = true)]
async fn a_tool_without_a_budget_gets_one_and_others_keep_theirs() {
    let rig = rig().await;
    for (tool, shown, took) in [
        ("polite", "Error: tool call timed out after 50ms", 50),
        ("deaf", "Error: tool call timed out after 50ms", 200),
        ("own", "Error: tool call timed out after 300ms", 300),
        ("child", "done", 200),
        ("none", "Error: unknown tool \"none\"", 0),
    ] {
        let begun = Instant::now();
        let outcome = rig.call(tool, json!({})).await;
        assert_eq!(text(&outcome), shown);
        let elapsed = begun.elapsed().as_millis();
        assert!((took..took + 5).contains(&elapsed), "{tool} took {elapsed} ms");
    }
    let outcome = rig.call("polite", json!({})).await;
    assert_eq!((code(&outcome), outcome.contexts().len()), (Some("TOOL_TIMEOUT"), 1));
    rig.harness.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_callers_cancel_that_comes_first_is_no_timeout() {
    let rig = rig().await;
    let request = rig.request("deaf", json!({}));
    let cancel = request.cancel.clone();
    let cancelling = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        cancel.cancel(CancelCause::User);
    };
    let (outcome, ()) = tokio::join!(rig.world().tools.execute_one(request), cancelling);
    assert_eq!(code(&outcome), Some("ABORTED"));
    rig.harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_budget_of_nothing_is_refused() {
    let policy = DefaultTimeout::new(Duration::ZERO);
    let harness = playhouse_supervisor::harness::Harness::builder();
    let error = harness.plugin(policy).start().await.unwrap_err();
    assert_eq!(error.code(), "INVALID_CONFIG");
}
