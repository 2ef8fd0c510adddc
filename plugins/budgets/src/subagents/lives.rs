//! What was spent before counts after.

use playhouse_plugin_api::budget::Charged;

use super::*;

#[tokio::test]
async fn what_an_agent_and_those_below_it_spent_survives_a_resume() {
    let store = MemoryStore::new();
    let reopened = store.reopen();
    let script = || {
        fan_out(&["one", "two"])
            .rule(asked("one"), costing(Reply::text("ok"), 30))
            .rule(asked("two"), costing(Reply::text("ok"), 20))
            .reply(costing(Reply::text("ok"), 5))
    };
    let budgets = |it: AgentOptions| {
        it.budget(Budget::new().tokens(1000).steps(50))
            .tree_budget(Budget::new().tokens(1000).turns(10))
    };
    let house = House::with(script(), |it| it.store(store), Subagents::new(), 8).await;
    let root = house.agent(budgets).await;
    assert!(root.prompt("go").await.unwrap().is_completed());
    let count = |root: &Agent| {
        [
            used(root, false, Resource::Tokens),
            used(root, false, Resource::Steps),
            used(root, true, Resource::Tokens),
            used(root, true, Resource::Turns),
        ]
    };
    let before = count(&root);
    assert_eq!((before[2] - before[0], before[1], before[3]), (50, 2, 3));
    let id = root.id().clone();
    let log = root.session().log();
    let charged: Vec<_> = log.iter().filter_map(|event| Charged::read(&event.body)).collect();
    assert_eq!(charged.iter().map(|it| it.tokens).sum::<u64>(), 50, "{charged:?}");
    house.ends_clean().await;

    let house = House::with(script(), |it| it.store(reopened), Subagents::new(), 8).await;
    let again = house.harness.resume(id, NewAgent::new(budgets(options()))).await.unwrap();
    assert_eq!(count(&again), before);
    assert!(again.prompt("more").await.unwrap().is_completed());
    assert_eq!(used(&again, true, Resource::Tokens), before[2] + 5);
    house.ends_clean().await;
}

#[tokio::test]
async fn a_fork_has_spent_nothing() {
    let script = Script::new().reply(costing(Reply::text("ok"), 30));
    let house = House::new(script).await;
    let budget = Budget::new().tokens(1000);
    let root = house.agent(|it| it.budget(budget)).await;
    root.prompt("go").await.unwrap();
    let new = NewAgent::new(options().budget(budget));
    let fork = house.harness.fork(root.id().clone(), new).await.unwrap();
    assert_eq!([&root, &fork].map(|it| used(it, false, Resource::Tokens)), [30, 0]);
    house.ends_clean().await;
}

#[tokio::test]
async fn failed_attempts_count_what_they_reported_or_what_came() {
    use playhouse_models::scripted::{Fault, FaultKind};
    let cut = Reply::text("eight by").with_fault(Fault::new(FaultKind::Disconnect));
    let silent = Reply::error("SERVER", "nothing came");
    for (reply, tokens) in [(cut, true), (silent, false)] {
        let house = House::new(Script::sequence([reply])).await;
        let agent = house.agent(|it| it.budget(Budget::new().tokens(1000))).await;
        let outcome = agent.prompt("go").await.unwrap();
        assert!(matches!(outcome.reason, TurnEndReason::Error(_)));
        assert_eq!(used(&agent, false, Resource::Tokens) >= 2, tokens);
        house.ends_clean().await;
    }
}
