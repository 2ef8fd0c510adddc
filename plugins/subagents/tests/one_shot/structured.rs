//! Results by a schema.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use playhouse_messages::{content::ContentBlock, event::CancelCause};
use playhouse_models::scripted::Reply;
use playhouse_plugin_api::{
    hook::Next,
    tool::{PostVerdict, ToolFilter, ToolSettled, tool_fn},
};
use playhouse_subagents::{ChildRequest, StopReason, spawn, structured::STRUCTURED_OUTPUT};
use serde_json::{Value, json};

use crate::{House, code, house, on, results, step};

fn schema() -> Value {
    json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
}

fn counted(house: &House) -> ChildRequest {
    house.ask("count").output_schema(schema())
}

fn answer(n: impl Into<Value>) -> Reply {
    Reply::call(STRUCTURED_OUTPUT, json!({"n": n.into()}))
}

mod subagents {
    use super::*;

    #[tokio::test]
    async fn orchestration_1_6_a_wrong_answer_is_tried_again_in_the_turn_and_a_right_one_ends_it() {
        let house = house([step("count", 0, answer("three")), step("count", 1, answer(3))]).await;
        // The child's own tool is exempt from what masks inherited ones.
        let request = counted(&house).tool_filter(ToolFilter::allow(["subagent"]));
        let run = spawn(house.world(), request).await.unwrap();
        let result = run.result().await.unwrap();
        assert_eq!(result.stop_reason, StopReason::Completed);
        assert_eq!(result.structured, Some(json!({"n": 3})));
        let child = run.agent().unwrap();
        let codes: Vec<_> = results(child).iter().map(|r| code(r).map(str::to_owned)).collect();
        assert_eq!(codes, [Some("INVALID_ARGS".to_owned()), None]);
        assert_eq!(results(child)[1].message.text(), r#"{"recorded":true}"#);
        let requests = house.requests();
        assert_eq!(requests.len(), 2, "the call ends the turn");
        let tool = requests[0].tools.iter().find(|tool| tool.name == STRUCTURED_OUTPUT).unwrap();
        assert_eq!(tool.parameters, schema());
        assert!(requests[0].messages[0].text().contains("`structured_output`"));
        run.dispose().await.unwrap();
        house.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_14_5_prose_is_no_answer_and_a_blocked_one_may_be_given_again() {
        let prose = house([on("count", Reply::text("three"))]).await;
        let run = spawn(prose.world(), counted(&prose)).await.unwrap();
        let result = run.result().await.unwrap();
        assert_eq!((&result.stop_reason, &result.structured), (&StopReason::Error, &None));
        assert!(result.diagnostic.unwrap().contains("`structured_output`"));
        assert_eq!(prose.model.captured().len(), 1);
        run.dispose().await.unwrap();
        prose.ends_clean().await;

        let house = house([step("count", 0, answer(1)), step("count", 1, answer(2))]).await;
        let world = house.world();
        let calls = Arc::new(AtomicUsize::new(0));
        let block_first = move |settled: ToolSettled, next: Next<ToolSettled, PostVerdict>| {
            let first = calls.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                if first {
                    let feedback = vec![ContentBlock::text("count again")];
                    return Ok(PostVerdict::Block { feedback, contexts: Vec::new() });
                }
                next.run(settled).await
            }
        };
        world.tools.hooks().post.add(&world.scope, block_first).unwrap();
        let run = spawn(world, counted(&house)).await.unwrap();
        let result = run.result().await.unwrap();
        assert_eq!(result.structured, Some(json!({"n": 2})));
        assert_eq!(results(run.agent().unwrap())[0].message.text(), "count again");
        run.dispose().await.unwrap();
        house.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_6_after_an_answer_the_child_can_call_nothing() {
        let reply =
            answer(1).and_call("note", json!({})).and_call(STRUCTURED_OUTPUT, json!({"n": 2}));
        let house = house([on("count", reply)]).await;
        let note = tool_fn("note", "Notes", |_: Value, _| async { Ok("noted") });
        house.harness.register_tool(Arc::new(note)).unwrap();
        let run = spawn(house.world(), counted(&house)).await.unwrap();
        assert_eq!(run.result().await.unwrap().structured, Some(json!({"n": 1})));
        let results = results(run.agent().unwrap());
        for refused in &results[1..] {
            assert!(refused.message.text().contains("has been recorded"), "{refused:?}");
        }
        assert_eq!(results.len(), 3);
        run.dispose().await.unwrap();
        house.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_6_a_cancelled_child_without_an_answer_was_aborted() {
        let house = house([on("count", answer(1).at_gate("shut"))]).await;
        let request = counted(&house);
        let cancel = request.cancel.clone();
        let run = spawn(house.world(), request).await.unwrap();
        house.model.gate("shut").arrived(1).await;
        cancel.cancel(CancelCause::User);
        let result = run.result().await.unwrap();
        assert_eq!((result.stop_reason, result.structured), (StopReason::Aborted, None));
        run.dispose().await.unwrap();
        house.ends_clean().await;
    }
}
