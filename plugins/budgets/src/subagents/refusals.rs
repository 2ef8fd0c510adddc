//! What is refused before it is there.

use playhouse_messages::config::ModelChoice;
use playhouse_plugin_api::agent::SelectError;

use super::*;

#[tokio::test]
async fn one_child_too_many_and_one_level_too_deep_are_tool_errors() {
    for (budget, told) in [
        (Budget::new().live_children(1), "allows 1 live-children, and this would be 2"),
        (Budget::new().depth(0), "allows 0 depth, and this would be 1"),
    ] {
        let script = fan_out(&["one", "two"]).reply(Reply::text("ok"));
        let store = MemoryStore::new();
        let kept = store.reopen();
        let house = House::with(script, |it| it.store(store), Subagents::new(), 8).await;
        let root = house.agent(|it| it.tree_budget(budget)).await;
        let outcome = root.prompt("go").await.unwrap();
        assert!(outcome.is_completed(), "{outcome:?}");
        assert!(outcome.text.contains(told), "{}", outcome.text);
        let ids: Vec<SessionId> = house.born().iter().map(|agent| agent.id().clone()).collect();
        house.ends_clean().await;
        let mut stored = playhouse_plugin_api::store::all_sessions(&kept);
        while let Some(listed) = futures::StreamExt::next(&mut stored).await {
            let id = listed.unwrap().header.id.clone();
            assert!(ids.contains(&id), "{id} was refused, and is stored");
        }
    }
}

#[tokio::test]
async fn an_unpriced_route_is_refused_at_creation_and_when_it_is_selected() {
    let house = House::new(Script::new()).await;
    let costly = options().tree_budget(Budget::new().cost(1_000_000));
    let unpriced = costly.clone().model("scripted", "other");
    let refused = house.harness.create(NewAgent::new(unpriced)).await.unwrap_err();
    assert_eq!(refused.code(), "UNPRICED_ROUTE");
    let agent = house.harness.create(NewAgent::new(costly)).await.unwrap();
    let other =
        ModelChoice { provider: "scripted".into(), model: "other".into(), reasoning_effort: None };
    let refused = agent.model().select(other.clone()).await.unwrap_err();
    assert!(matches!(&refused, SelectError::Budget(_)) && refused.code() == "UNPRICED_ROUTE");
    let free = house.agent(|it| it).await;
    free.model().select(other).await.unwrap();
    house.ends_clean().await;
}

#[tokio::test]
async fn a_budget_that_nobody_enforces_is_refused() {
    let harness = Harness::builder().start().await.unwrap();
    let options = options().budget(Budget::new().tokens(5));
    let refused = harness.create(NewAgent::new(options)).await.unwrap_err();
    assert_eq!(refused.code(), "BUDGETS_NOT_ENFORCED");
    harness.shutdown().await.unwrap();
}
