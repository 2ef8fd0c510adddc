//! Deaths, disposals and dropped futures.

use std::sync::{Arc, Mutex};

use playhouse_messages::machine::Status;
use playhouse_models::scripted::Reply;
use playhouse_plugin_api::{agent::Agent, creation::AgentHandle};
use playhouse_subagents::{
    ChildGroup, ChildRequest, StopReason,
    fork::{FORK, fork},
    spawn::{SPAWN, spawn},
};

use crate::{House, assert_whole, code, house, on, results, step};

/// Kills the actor in a slot and waits for its successor.
macro_rules! kill {
    ($slot:expr) => {{
        let victim = $slot.live().unwrap();
        victim.kill();
        $slot.next(Some(victim.get_id())).await.unwrap();
    }};
}

fn delegate(prompt: &str) -> Reply {
    Reply::call("subagent", serde_json::json!({"description": "d", "prompt": prompt}))
}

#[tokio::test]
async fn a_childs_result_comes_whichever_of_its_actors_dies() {
    for (victim, stopped) in [
        ("session", StopReason::Completed),
        ("writer", StopReason::Completed),
        ("agent", StopReason::Error),
        ("supervisor", StopReason::Error),
    ] {
        let house = house([on("work", Reply::text("done").at_gate("work"))]).await;
        let run = house.spawn("work").await;
        house.model.gate("work").arrived(1).await;
        let child = run.agent().unwrap().clone();
        let cell = child.session().cell();
        match victim {
            "session" => kill!(cell.appender),
            "writer" => kill!(cell.writer),
            "agent" => kill!(child.cell().actor),
            _ => kill!(child.cell().supervisor),
        }
        if stopped == StopReason::Completed {
            house.model.gate("work").open();
        }
        let result = run.result().await.unwrap();
        assert_eq!(result.stop_reason, stopped, "{victim}");
        match stopped {
            StopReason::Completed => assert_eq!(result.text(), "done"),
            _ => {
                let told = result.diagnostic.unwrap();
                assert_eq!(told, "its turn was interrupted by a crash", "{victim}");
            }
        }
        run.dispose().await.unwrap();
        assert_whole(&child);
        house.ends_clean().await;
    }
}

#[tokio::test]
async fn a_middle_node_that_goes_takes_along_what_is_below_it_and_fails_its_call_alone() {
    let house = house([
        step("top", 0, delegate("middle")),
        step("top", 1, Reply::text("{{results}}")),
        on("middle", delegate("leaf")),
        on("leaf", Reply::text("never").at_gate("shut")),
    ])
    .await;
    let world = house.world().clone();
    let gone = Arc::new(Mutex::new(Vec::new()));
    let record = gone.clone();
    let listener = move |agent: &Agent| record.lock().unwrap().push(agent.id().clone());
    world.hooks.disposed.add(&world.scope, listener).unwrap();
    let asked = house.root.followup("top").await.unwrap();
    house.model.gate("shut").arrived(1).await;
    let middle = house.children().remove(0);
    let leaf = house.harness.children(middle.id()).remove(0);
    assert_eq!((middle.depth(), leaf.depth()), (1, 2));
    AgentHandle::new(middle.clone()).dispose().await.unwrap();
    let outcome = house.root.outcome(&asked, 0).await.unwrap();
    assert!(outcome.is_completed(), "{outcome:?}");
    assert_eq!(code(&results(&house.root)[0]), Some("SUBAGENT_ABORTED"));
    assert_eq!(*gone.lock().unwrap(), [leaf.id().clone(), middle.id().clone()], "bottom up");
    for agent in [&leaf, &middle] {
        assert_whole(agent);
    }
    assert_eq!(house.slots.taken(), 0);
    house.ends_clean().await;
}

#[tokio::test]
async fn closing_the_scope_that_owns_children_ends_them_and_not_their_parent() {
    let house =
        house([on("first", Reply::text("one")), on("", Reply::text("never").at_gate("shut"))])
            .await;
    house.root.prompt("first").await.unwrap();
    house.root.followup("supervise").await.unwrap();
    let owner = house.world().scope.child("owner").unwrap();
    let ask = |prompt: &str| house.ask(prompt).owned_by(owner.clone());
    let runs = [
        spawn(house.world(), ask("fresh")).await.unwrap(),
        fork(house.world(), ask("forked")).await.unwrap(),
    ];
    house.model.gate("shut").arrived(3).await;
    owner.close();
    for run in &runs {
        assert_eq!(run.result().await.unwrap().stop_reason, StopReason::Aborted);
        run.dispose().await.unwrap();
        assert_whole(run.agent().unwrap());
    }
    house.until_alone().await;
    assert_eq!(house.root.status(), Status::Running);
    assert_eq!(spawn(house.world(), ask("late")).await.unwrap_err().code(), "ABORTED");
    house.ends_clean().await;
}

/// At how many polls of the runtime after its start a race is dropped.
const POLLS: usize = 400;

async fn polls(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

async fn dropped_after(house: House, provider: &'static str, count: usize) -> usize {
    house.root.prompt("first").await.unwrap();
    let group = ChildGroup::new(house.world()).provider(provider);
    let root = house.root.agent().clone();
    let requests = ["a", "b"].map(|prompt| ChildRequest::new(&root, prompt));
    let racing = tokio::spawn(async move { group.race(requests).await });
    polls(count).await;
    racing.abort();
    let _ = racing.await;
    let left = house.children().len();
    house.until_alone().await;
    assert_whole(&house.root);
    house.ends_clean().await;
    left
}

#[test]
fn a_race_that_is_dropped_at_any_moment_leaves_no_child() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.event_interval(1).enable_all().build().unwrap();
    runtime.block_on(async {
        for provider in [SPAWN, FORK] {
            let mut left = Vec::new();
            for count in (0..POLLS).step_by(8) {
                let rules =
                    [on("first", Reply::text("one")), on("", Reply::text("never").at_gate("shut"))];
                left.push(dropped_after(house(rules).await, provider, count).await);
            }
            assert!(left.contains(&0) && left.contains(&2), "some moment is not met: {left:?}");
        }
    });
}
