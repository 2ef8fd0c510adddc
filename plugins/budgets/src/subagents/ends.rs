//! What runs out ends turns, of whole trees if it is a tree's.

use playhouse_messages::event::InboxTarget;
use playhouse_plugin_api::tool::{ToolRun, tool_fn};
use playhouse_subagents::ChildOptions;

use super::*;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

async fn with_a_tool(house: &House) {
    let tool = tool_fn("look", "Looks.", |_: Nothing, _: ToolRun| async { Ok("seen".to_owned()) });
    house.harness.register_tool(Arc::new(tool)).unwrap();
}

/// Calls the tool for ever.
fn looking() -> Script {
    Script::new().reply(costing(Reply::call("look", json!({})), 40))
}

#[tokio::test]
async fn each_resource_ends_the_turn_with_its_name_limit_and_use() {
    type Change = fn(AgentOptions) -> AgentOptions;
    let cases: [(Change, TurnEndReason); 6] = [
        (|it| it.budget(Budget::new().tokens(100)), out_of("tokens", 100, 120)),
        (|it| it.tree_budget(Budget::new().tokens(80)), out_of("tokens", 80, 80)),
        (|it| it.budget(Budget::new().cost(100)), out_of("cost", 100, 120)),
        (|it| it.budget(Budget::new().steps(2)), out_of("steps", 2, 2)),
        (|it| it.max_steps(2), out_of("steps", 2, 2)),
        (|it| it.tree_budget(Budget::new().tool_calls(2)), out_of("tool-calls", 2, 2)),
    ];
    for (change, reason) in cases {
        let house = House::new(looking()).await;
        with_a_tool(&house).await;
        let agent = house.agent(change).await;
        assert_eq!(agent.prompt("go").await.unwrap().reason, reason);
        house.ends_clean().await;
    }
}

#[tokio::test]
async fn steps_count_over_all_turns_and_max_steps_in_each() {
    let script = Script::sequence([
        Reply::call("look", json!({})),
        Reply::text("a"),
        Reply::call("look", json!({})),
        Reply::text("b"),
    ]);
    let house = House::new(script).await;
    with_a_tool(&house).await;
    let agent = house.agent(|it| it.max_steps(2).budget(Budget::new().steps(3))).await;
    assert!(agent.prompt("one").await.unwrap().is_completed());
    assert_eq!(agent.prompt("two").await.unwrap().reason, out_of("steps", 3, 3));
    house.ends_clean().await;
}

#[tokio::test]
async fn what_waits_in_the_inbox_stays() {
    let script = Script::new().reply(costing(Reply::call("look", json!({})).at_gate("gate"), 40));
    let house = House::new(script).await;
    with_a_tool(&house).await;
    let agent = house.agent(|it| it.budget(Budget::new().tokens(1))).await;
    let first = agent.followup("one").await.unwrap();
    let second = agent.followup("two").await.unwrap();
    house.model.gate("gate").open();
    let outcome = agent.outcome(&first, 0).await.unwrap();
    assert_eq!(outcome.reason, out_of("tokens", 1, 40));
    agent.when_idle().await.unwrap();
    assert_eq!(agent.inbox().list(InboxTarget::NextTurn).len(), 1);
    // Whoever asks on is told the same at once, and no request is sent.
    house.model.stage().record(true);
    agent.followup("three").await.unwrap();
    let outcome = agent.outcome(&second, 0).await.unwrap();
    assert_eq!(outcome.reason, out_of("tokens", 1, 40));
    assert!(house.model.captured().is_empty());
    house.ends_clean().await;
}

#[tokio::test]
async fn a_tree_that_runs_out_ends_every_turn_in_it_with_reason_budget() {
    let script = fan_out(&["slow", "slower", "spend"])
        .rule(asked("slow"), Reply::text("late").at_gate("never"))
        .rule(asked("spend"), costing(Reply::call("nothing", json!({})), 2000));
    let house = House::new(script).await;
    let root = house.agent(|it| it.tree_budget(Budget::new().tokens(1000))).await;
    let outcome = root.prompt("go").await.unwrap();
    assert!(matches!(&outcome.reason, TurnEndReason::Budget(spent) if spent.resource == "tokens"));
    house.harness.shutdown().await.unwrap();
    let born = house.born();
    assert_eq!(born.len(), 4);
    for agent in born {
        let ended = ends(&agent);
        assert!(
            matches!(&ended[..], [TurnEndReason::Budget(spent)] if spent.limit == 1000),
            "{}: {ended:?}",
            agent.id()
        );
    }
    assert_eq!(house.permits.held(), 0);
}

#[tokio::test]
async fn a_child_that_runs_out_is_an_error_result_that_names_the_resource() {
    let script = fan_out(&["spend"]).rule(asked("spend"), costing(Reply::call("x", json!({})), 70));
    let options = ChildOptions { budget: Some(Budget::new().tokens(60)), ..Default::default() };
    let subagents = Subagents::new().options(options);
    let house = House::with(script, |it| it, subagents, 8).await;
    let root = house.agent(|it| it).await;
    let outcome = root.prompt("go").await.unwrap();
    assert!(outcome.is_completed(), "{outcome:?}");
    let told = &outcome.text;
    assert!(told.contains("a budget ran out: 70 of 60 tokens used"), "{told}");
    house.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn time_that_is_over_ends_the_turns_of_the_tree_without_a_request() {
    let script = fan_out(&["slow"]).rule(asked("slow"), Reply::text("late").at_gate("never"));
    let house = House::new(script).await;
    let minute = Budget::new().wall_time(Duration::from_secs(60));
    let root = house.agent(|it| it.tree_budget(minute)).await;
    let began = tokio::time::Instant::now();
    let reason = root.prompt("go").await.unwrap().reason;
    assert!(
        matches!(&reason, TurnEndReason::Budget(spent) if spent.resource == "wall-time"),
        "{reason:?}"
    );
    assert_eq!(began.elapsed().as_secs(), 60);
    house.ends_clean().await;
}

#[tokio::test]
async fn siblings_wait_for_what_others_have_reserved() {
    let script = fan_out(&["a1", "a2", "a3", "a4"]).reply(costing(Reply::text("ok"), 10));
    let house = House::new(script).await;
    // Each request may answer with 10 tokens, and so reserves all that is left.
    let root = house.agent(|it| it.tree_budget(Budget::new().tokens(200))).await;
    let outcome = root.prompt("go").await.unwrap();
    assert!(outcome.is_completed(), "{:?}", outcome.reason);
    assert!(house.born().iter().all(|agent| ends(agent) == [TurnEndReason::Completed]));
    house.ends_clean().await;
}
