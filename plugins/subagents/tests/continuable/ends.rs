//! How trees end: cancels, deaths, disposals, shutdowns.

use std::time::Duration;

use playhouse_messages::{event::CancelCause, invariants::Invariants};
use playhouse_plugin_api::{
    agent::Agent,
    creation::{AgentHandle, NewAgent},
};
use playhouse_stores::MemoryStore;
use playhouse_subagents::{CONTINUATIONS_SERVICE, Continuations};
use playhouse_supervisor::{plugin_host::RestartLimits, restart_policy::RestartPolicy};

use crate::rig::{Rig, held, last_told, told_by_children, trace};

#[tokio::test(start_paused = true)]
async fn orchestration_1_14_12_a_drain_below_one_agent_leaves_the_trees_of_others() {
    let rig = Rig::new([held("work", "work")]).await;
    let new = NewAgent::new(rig.root.options().clone()).id("other");
    let other = rig.harness.create(new).await.unwrap();
    rig.start(&rig.root, "a", "work").await;
    rig.start(&other, "b", "work").await;
    rig.service.drain_below(&[rig.root.agent().clone()]).await.unwrap();
    assert_eq!(rig.states(), ["b running"]);
    let request = playhouse_subagents::ChildRequest::new(&rig.root, "work");
    let refused = rig.try_start("c", request).await.unwrap_err();
    assert_eq!(refused.code(), "DRAINING");
    rig.start(&other, "c", "work").await;
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_disposed_parent_takes_its_descendants_along_child_first() {
    let rig = Rig::new([held("work", "work")]).await;
    rig.start(&rig.root, "a", "work").await;
    let a = rig.agent("a");
    rig.start(&a, "b", "work").await;
    rig.model.gate("work").arrived(2).await;
    rig.root.dispose().await.unwrap();
    assert_eq!((rig.states(), rig.slots.taken()), (vec![], 0));
    assert!(rig.harness.agents().is_empty());
    assert_eq!(rig.told()[2..], ["-run-2 aborted: ", "-run-1 aborted: "]);
    // Each heard of its child, and no turn came of it.
    assert_eq!(told_by_children(&a), ["subagent-settled b"]);
    assert_eq!(trace(&rig.root), "+step(subagent-settled)");
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn the_middle_of_a_tree_goes_with_what_is_below_it_and_its_parent_is_told() {
    let rig = Rig::new([held("work", "work")]).await;
    rig.start(&rig.root, "a", "work").await;
    let a = rig.agent("a");
    rig.start(&a, "b", "work").await;
    rig.model.gate("work").arrived(2).await;
    AgentHandle::new(a.clone()).dispose().await.unwrap();
    assert!(!rig.is_live("b"), "a disposal reaches what is below before it returns");
    rig.until_settled("a").await;
    assert_eq!(told_by_children(&rig.root), ["subagent-settled a"]);
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_tree_comes_to_rest_and_wakes_nobody() {
    let rig = Rig::new([held("work", "work"), held("lead", "lead")]).await;
    rig.root.followup("lead").await.unwrap();
    rig.model.gate("lead").arrived(1).await;
    rig.start(&rig.root, "a", "work").await;
    let a = rig.agent("a");
    rig.start(&a, "b", "work").await;
    rig.start(&a, "c", "work").await;
    rig.model.gate("work").arrived(3).await;
    let cancelling = rig.root.cancel_tree(CancelCause::User);
    assert_eq!(cancelling.reached(), 4);
    rig.until("all settle", || rig.states().is_empty()).await;
    rig.root.when_idle().await.unwrap();
    let expected = "TE1(aborted:user) +step(subagent-settled)";
    assert!(trace(&rig.root).ends_with(expected), "{}", trace(&rig.root));
    assert_eq!(rig.slots.taken(), 0);
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_whose_actors_die_is_restarted_and_goes_on() {
    for victim in ["agent", "session", "writer", "supervisor"] {
        let rig = Rig::new([held("work", "work")]).await;
        rig.start(&rig.root, "a", "work").await;
        rig.model.gate("work").arrived(1).await;
        rig.send(&rig.root, "a", "more").await.unwrap();
        let a = rig.agent("a");
        match victim {
            "agent" => a.cell().actor.live().unwrap().get_cell().kill(),
            "session" => a.session().cell().appender.live().unwrap().get_cell().kill(),
            "writer" => a.session().cell().writer.live().unwrap().get_cell().kill(),
            _ => a.cell().supervisor.live().unwrap().get_cell().kill(),
        }
        rig.model.gate("work").open();
        rig.until_settled("a").await;
        // What waited has run, also if the turn that died was closed by repair.
        assert!(trace(&a).ends_with("TE2(completed)"), "{victim}: {}", trace(&a));
        assert_eq!(rig.told(), ["+run-1 spawn a", "-run-1 completed: ok"], "{victim}");
        assert_eq!(told_by_children(&rig.root), ["subagent-settled a"], "{victim}");
        rig.harness.shutdown().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_tree_that_is_cancelled_at_any_moment_comes_to_rest() {
    for moment in 0..12 {
        let rig = Rig::new([held("work", "work")]).await;
        let mut all = vec![rig.root.agent().clone()];
        for parent in 0..4 {
            let parent: Agent = all[parent].clone();
            for child in 0..3 {
                let id = format!("{}.{child}", parent.id());
                rig.start(&parent, &id, "work").await;
                all.push(rig.agent(&id));
            }
        }
        for _ in 0..moment * 7 {
            tokio::task::yield_now().await;
        }
        drop(rig.root.cancel_tree(CancelCause::User));
        rig.until("all settle", || rig.states().is_empty()).await;
        rig.root.when_idle().await.unwrap();
        assert_eq!(rig.root.session().view().last_turn, 0, "what is cancelled wakes nobody");
        assert_eq!(told_by_children(&rig.root).len(), 3);
        for agent in &all {
            let log = agent.session().log();
            let kept = Invariants::of(&log).unwrap_or_else(|broken| panic!("{broken}"));
            assert!(kept.is_balanced(), "{}", trace(agent));
        }
        assert_eq!((rig.harness.agents().len(), rig.slots.taken()), (1, 0));
        rig.harness.shutdown().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_that_keeps_dying_is_given_up_and_its_parent_hears_why() {
    let never = RestartLimits {
        max_restarts: 0,
        within: Duration::from_secs(30),
        first_delay: Duration::ZERO,
        max_delay: Duration::ZERO,
    };
    let mut policy = RestartPolicy::default();
    policy.parts = never;
    let rules = [held("work", "work")];
    let rig = Rig::over(MemoryStore::new(), rules, |h| h.restart_policy(policy)).await;
    rig.start(&rig.root, "a", "work").await;
    let a = rig.agent("a");
    rig.start(&a, "b", "work").await;
    rig.model.gate("work").arrived(2).await;
    a.cell().actor.live().unwrap().get_cell().kill();
    rig.until_settled("a").await;
    assert!(!rig.is_live("b"));
    let notice = last_told(&rig.root, "subagent-settled");
    assert!(notice.starts_with("Sub-agent a failed.\nDiagnostic: the Agent actor"), "{notice}");
    rig.root.when_idle().await.unwrap();
    assert!(trace(&rig.root).contains("TE1(completed)"), "{}", trace(&rig.root));
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_leaves_children_that_another_harness_resumes() {
    let store = MemoryStore::new();
    let rig = Rig::over(store.clone(), [held("work", "work")], |harness| harness).await;
    rig.start(&rig.root, "a", "work").await;
    rig.model.gate("work").arrived(1).await;
    rig.send(&rig.root, "a", "parked").await.unwrap();
    let a = rig.agent("a");
    rig.ends_clean().await;
    assert!(trace(&a).ends_with("TE1(aborted:disposed)"), "{}", trace(&a));

    let rig = Rig::over(store.reopen(), [], |harness| harness).await;
    assert_eq!(rig.states(), [""; 0]);
    rig.send(&rig.root, "a", "go on").await.unwrap();
    let a = rig.agent("a");
    rig.until_settled("a").await;
    let turn = |turn: u32| format!("TS{turn} -turn U(delegation) A TE{turn}(completed)");
    let expected = format!("ES +turn(delegation) {} {}", turn(2), turn(3));
    assert!(trace(&a).ends_with(&expected), "{}", trace(&a));
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_drained_service_takes_nothing_any_more() {
    let rig = Rig::new([held("work", "work")]).await;
    rig.start(&rig.root, "a", "work").await;
    rig.model.gate("work").arrived(1).await;
    rig.service.drain().await.unwrap();
    assert_eq!((rig.is_live("a"), rig.states().len()), (false, 0));
    let refused = rig.send(&rig.root, "a", "x").await.unwrap_err();
    assert_eq!(refused.code(), "DRAINING");
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_goes_ends_its_children_and_the_next_one_resumes_them() {
    let mut rig = Rig::new([held("work", "work")]).await;
    rig.start(&rig.root, "a", "work").await;
    rig.model.gate("work").arrived(1).await;
    rig.send(&rig.root, "a", "parked").await.unwrap();
    rig.plugin.reload().await.unwrap();
    let services = rig.world().services.clone();
    let next = services.require::<Continuations>(CONTINUATIONS_SERVICE).unwrap();
    rig.service = Continuations::clone(&next);
    // The old instance may still be at it, and says so.
    while let Err(error) = rig.send(&rig.root, "a", "go on").await {
        assert_eq!(error.code(), "ACTIVATION_CLOSING");
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    let a = rig.agent("a");
    rig.until_settled("a").await;
    let turn = |turn: u32| format!("TS{turn} -turn U(delegation) A TE{turn}(completed)");
    assert!(trace(&a).ends_with(&format!("{} {}", turn(2), turn(3))), "{}", trace(&a));
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn selected_children_are_released_and_can_be_sent_to_again() {
    let rig = Rig::new([held("work", "work")]).await;
    rig.start(&rig.root, "a", "work").await;
    rig.start(&rig.root, "b", "work").await;
    let a = rig.agent("a");
    rig.start(&a, "c", "work").await;
    rig.model.gate("work").arrived(3).await;
    let foreign = rig.service.drain_children(&rig.root, &["c".into()]).await;
    assert_eq!(foreign.unwrap_err().code(), "UNAUTHORIZED");
    rig.service.drain_children(&rig.root, &["a".into(), "nobody".into()]).await.unwrap();
    assert_eq!(rig.states(), ["b running"]);
    assert_eq!(trace(&rig.root), "+step(subagent-settled)", "who releases is not woken by it");
    rig.model.gate("work").open();
    rig.send(&rig.root, "a", "again").await.unwrap();
    rig.until("all settle", || rig.states().is_empty()).await;
    rig.ends_clean().await;
}
