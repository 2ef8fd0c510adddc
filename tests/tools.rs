//! Tool batches as a user of the library sees them.

use std::{sync::Arc, time::Duration};

use playhouse::{
    CancelCause, ToolError, ToolRun, TurnEndReason,
    messages::message::{Role, SharedMessage},
    models::scripted::{Reply, Script},
    testing::Stage,
    tool_fn,
};
use tokio::sync::{Semaphore, watch};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct NoArgs {}

/// Counts bodies that have started, and lets them end one by one.
struct Lane {
    started: watch::Sender<usize>,
    exits: Semaphore,
}

impl Lane {
    /// Registers a tool whose bodies go through the lane.
    fn tool(stage: &Stage, name: &str, parallel: bool) -> Arc<Self> {
        let lane = Arc::new(Self { started: watch::Sender::new(0), exits: Semaphore::new(0) });
        let body = lane.clone();
        let tool = tool_fn(name, "", move |_: NoArgs, _run: ToolRun| {
            let lane = body.clone();
            async move {
                lane.started.send_modify(|count| *count += 1);
                let exit = lane.exits.acquire().await.map_err(ToolError::from_error)?;
                exit.forget();
                Ok("done")
            }
        });
        stage.harness().register_tool(Arc::new(tool.parallel_if(move |_| parallel))).unwrap();
        lane
    }

    /// Whether so many have started, once everything that can happen has happened.
    async fn reaches(&self, count: usize) -> bool {
        let mut started = self.started.subscribe();
        // Under paused time, a second passes only when nothing else can.
        let reached = started.wait_for(|started| *started >= count);
        tokio::time::timeout(Duration::from_secs(1), reached).await.is_ok()
    }
}

fn results(messages: &[SharedMessage]) -> Vec<(String, String)> {
    let results = messages.iter().filter(|message| message.role == Role::Tool);
    let pair = |message: &SharedMessage| {
        (message.tool_call_id.as_ref().unwrap().to_string(), message.text())
    };
    results.map(pair).collect()
}

mod scenario {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn llm_97_an_abort_pairs_running_and_pending_calls_and_the_next_request_has_them_all() {
        let calls = Reply::call("wait", "{}").and_call("wait", "{}").and_call("wait", "{}");
        let stage = Stage::new(Script::sequence([calls, Reply::text("Ready.")])).await.unwrap();
        let lane = Lane::tool(&stage, "wait", false);
        let id = stage.agent().followup("Go").await.unwrap();
        assert!(lane.reaches(1).await);
        stage.agent().cancel(CancelCause::User);
        lane.exits.add_permits(1);
        let outcome = stage.agent().outcome(&id, 0).await.unwrap();
        assert_eq!(outcome.reason, TurnEndReason::Aborted(CancelCause::User));
        let tail = "A(wait,wait,wait) TC(wait) TR!(ABORTED) TC(wait) TR!(ABORTED_BEFORE_DISPATCH) \
                    TC(wait) TR!(ABORTED_BEFORE_DISPATCH) SE1.1 TE1(aborted:user)";
        assert!(stage.trace().ends_with(tail), "{}", stage.trace());
        assert_eq!(*lane.started.borrow(), 1);

        assert_eq!(stage.agent().prompt("Well?").await.unwrap().text, "Ready.");
        let requests = stage.requests();
        let messages = &requests.last().unwrap().messages;
        let asked = messages.iter().find(|message| message.role == Role::Assistant).unwrap();
        let asked: Vec<_> = asked.tool_calls().map(|call| call.id.to_string()).collect();
        let (answered, texts): (Vec<_>, Vec<_>) = results(messages).into_iter().unzip();
        assert_eq!(answered, asked);
        let before = "Error: tool call aborted before dispatch";
        assert_eq!(texts, ["Error: tool call aborted", before, before]);
        stage.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn llm_99_a_changed_cap_counts_from_the_next_batch_on() {
        let first = Reply::call("alone", "{}").and_call("wait", "{}").and_call("wait", "{}");
        let second = Reply::call("wait", "{}").and_call("wait", "{}");
        let script = Script::sequence([first, second, Reply::text("Ready.")]);
        let stage = Stage::minimal(script)
            .harness(|harness| harness.max_parallel_tool_calls(10))
            .start()
            .await
            .unwrap();
        let (alone, lane) = (Lane::tool(&stage, "alone", false), Lane::tool(&stage, "wait", true));
        let id = stage.agent().followup("Go").await.unwrap();
        assert!(alone.reaches(1).await);
        stage.world().limits.set_max_parallel_tool_calls(1);
        alone.exits.add_permits(1);
        assert!(lane.reaches(2).await, "the first batch keeps its cap");
        lane.exits.add_permits(2);
        assert!(lane.reaches(3).await);
        assert!(!lane.reaches(4).await, "the second batch has the new one");
        lane.exits.add_permits(2);
        assert_eq!(stage.agent().outcome(&id, 0).await.unwrap().text, "Ready.");
        stage.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn anchor_l15_malformed_arguments_are_an_error_for_the_model_and_the_turn_goes_on() {
        #[derive(serde::Deserialize, schemars::JsonSchema)]
        struct Add {
            a: i64,
        }
        let bad = || Reply::call("add", "{\"a\": 1");
        let script = Script::sequence([bad(), Reply::call("add", "{\"a\": 1}"), Reply::text("2.")]);
        let stage = Stage::new(script).await.unwrap();
        let add =
            || tool_fn("add", "", |args: Add, _run| async move { Ok(format!("{}", args.a + 1)) });
        stage.harness().register_tool(Arc::new(add())).unwrap();
        assert_eq!(stage.agent().prompt("Go").await.unwrap().text, "2.");
        let requests = stage.requests();
        let texts = results(&requests.last().unwrap().messages).into_iter().map(|(_, text)| text);
        let refused = "Error: invalid arguments: \"arguments\" must be an object";
        assert_eq!(texts.collect::<Vec<_>>(), [refused, "2"]);
        stage.shutdown().await.unwrap();

        // A model that never learns is stopped.
        let script = Script::sequence((0..5).map(|_| bad()));
        let stage = Stage::minimal(script).options(|options| options.max_steps(3)).start().await;
        let stage = stage.unwrap();
        stage.harness().register_tool(Arc::new(add())).unwrap();
        let outcome = stage.agent().prompt("Go").await.unwrap();
        assert!(!outcome.is_completed(), "{:?}", outcome.reason);
        assert_eq!(stage.requests().len(), 3);
        stage.shutdown().await.unwrap();
    }
}
