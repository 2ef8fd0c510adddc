//! Permits, over a whole harness.

use playhouse_messages::event::CancelCause;
use playhouse_plugin_api::cancel::CancelToken;

use super::*;

/// Each level delegates one level further, with one permit for all.
#[tokio::test]
async fn requests_of_one_tree_cannot_wait_for_each_other() {
    let script = Script::new()
        .rule(asked("go").after_tool("*"), Reply::text("{{results}}"))
        .rule(asked("level 1").after_tool("*"), Reply::text("{{results}}"))
        .rule(asked("level 2").after_tool("*"), Reply::text("{{results}}"))
        .rule(asked("go"), delegating(&["level 1", "level 1"]))
        .rule(asked("level 1"), delegating(&["level 2", "level 2"]))
        .rule(asked("level 2"), delegating(&["level 3"]))
        .rule(asked("level 3"), Reply::text("deep"));
    let house = House::with(script, |it| it, Subagents::new(), 1).await;
    let root = house.agent(|it| it).await;
    let outcome = root.prompt("go").await.unwrap();
    assert_eq!(outcome.text.matches("deep").count(), 4, "{}", outcome.text);
    assert_eq!(house.permits.held(), 0);
    house.ends_clean().await;
}

#[tokio::test]
async fn a_cancel_ends_the_wait_for_a_permit() {
    let script = Script::new().reply(Reply::text("ok").at_gate("gate"));
    let house = House::with(script, |it| it, Subagents::new(), 1).await;
    let (first, second) = (house.agent(|it| it).await, house.agent(|it| it).await);
    let id = first.followup("one").await.unwrap();
    let held = house.model.gate("gate");
    held.arrived(1).await;
    let waiting = second.followup("two").await.unwrap();
    while house.permits.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    second.cancel(CancelCause::User);
    let reason = second.outcome(&waiting, 0).await.unwrap().reason;
    assert_eq!(reason, TurnEndReason::Aborted(CancelCause::User));
    assert_eq!((house.permits.held(), house.permits.waiting()), (1, 0));
    held.open();
    assert!(first.outcome(&id, 0).await.unwrap().is_completed());
    assert_eq!(house.permits.held(), 0);
    house.ends_clean().await;
}

#[tokio::test]
async fn a_lone_agent_is_served_before_the_next_of_a_tree_that_is_ahead() {
    let script = fan_out(&["a", "b", "c", "d", "e", "f"])
        .rule(asked("alone"), Reply::text("ok"))
        .reply(Reply::text("ok").at_gate("gate"));
    let house = House::with(script, |it| it, Subagents::new(), 2).await;
    house.model.stage().record(true);
    let (root, lone) = (house.agent(|it| it).await, house.agent(|it| it).await);
    let id = root.followup("go").await.unwrap();
    while house.permits.waiting() < 4 {
        tokio::task::yield_now().await;
    }
    let alone = lone.followup("alone").await.unwrap();
    while house.permits.waiting() < 5 {
        tokio::task::yield_now().await;
    }
    house.model.gate("gate").open();
    assert!(lone.outcome(&alone, 0).await.unwrap().is_completed());
    assert!(root.outcome(&id, 0).await.unwrap().is_completed());
    let asked = house.model.captured();
    // The root's, the two that were held at the gate, and then the lone one before the four others.
    assert_eq!(asked[3].session_id.as_ref(), Some(lone.id()));
    house.ends_clean().await;
}

/// The queueing alone, since the clock is paused. With 2,000 busy agents, in real time, it is measured by
/// `playhouse stress --fair`.
#[tokio::test(start_paused = true)]
async fn a_lone_agent_s_median_turn_beside_a_busy_tree_is_about_that_alone() {
    const TURNS: usize = 9;
    let script = Script::new().reply(Reply::text("ok").paced(200, 0));
    let house = House::with(script, |it| it, Subagents::new(), 16).await;
    let (root, lone) = (house.agent(|it| it).await, house.agent(|it| it).await);
    let median = async || {
        let mut took = Vec::new();
        for _ in 0..TURNS {
            let began = tokio::time::Instant::now();
            assert!(lone.prompt("go").await.unwrap().is_completed());
            took.push(began.elapsed());
        }
        took.sort();
        took[TURNS / 2]
    };
    let alone = median().await;
    let over = CancelToken::new();
    let mut busy = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let new = NewAgent::new(options()).delegated_by(root.agent());
        let agent = house.harness.create(new.owned_by(root.scope().clone())).await.unwrap();
        let over = over.clone();
        busy.spawn(async move {
            while !over.is_cancelled() {
                assert!(agent.prompt("go").await.unwrap().is_completed());
            }
        });
    }
    while house.permits.held() < 15 || house.permits.waiting() < 100 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let beside = median().await;
    over.cancel(CancelCause::User);
    while let Some(ended) = busy.join_next().await {
        ended.unwrap();
    }
    println!("alone {alone:?}, beside {beside:?}");
    assert!(2 * beside <= 3 * alone, "alone {alone:?}, beside {beside:?}");
    assert_eq!(house.permits.held(), 0);
    house.ends_clean().await;
}
