//! Section 1.15: what stands in the logs of parent and child.

use playhouse_messages::event::EventBody;
use playhouse_subagents::descriptor::Descriptor;

use crate::rig::{Rig, held, told_by_children, trace};

#[tokio::test(start_paused = true)]
async fn orchestration_1_15_start_and_settle() {
    let rig = Rig::new([held("work", "work")]).await;
    let started = rig.start(&rig.root, "a", "work").await;
    let a = rig.agent("a");
    let header = a.session().header();
    assert_eq!(header.parent_session.as_ref().unwrap().as_str(), "root");
    assert_eq!((header.delegation_depth, rig.root.depth()), (Some(1), 0));
    let log = a.session().log();
    let first = log.get(0).unwrap();
    let descriptor = Descriptor::read(0, &first.body).unwrap().unwrap();
    assert_eq!(
        (descriptor.label.as_deref(), descriptor.provider.as_str()),
        (Some("Child a"), "spawn")
    );
    assert!(descriptor.recipe().is_some());
    let EventBody::InboxSpliced(splice) = &log.get(1).unwrap().body else { panic!("{log:?}") };
    let prompt = &splice.inserted[0];
    assert_eq!((&prompt.id, prompt.source.kind()), (&started.message, "delegation"));
    assert_eq!(prompt.source.get("senderSessionId"), Some("root"));
    rig.model.gate("work").open();
    rig.until_settled("a").await;
    rig.root.when_idle().await.unwrap();
    assert_eq!(
        trace(&a),
        "subagent/descriptor +turn(delegation) TS1 -turn U(delegation) A TE1(completed)"
    );
    assert_eq!(
        trace(&rig.root),
        "+turn(subagent-settled) TS1 -turn U(subagent-settled) A TE1(completed)"
    );
    assert_eq!(rig.told(), ["+run-1 spawn a", "-run-1 completed: done"]);
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_15_teardown_of_a_tree_is_child_first_and_wakes_nobody() {
    let rig = Rig::new([held("work", "work")]).await;
    rig.start(&rig.root, "b", "work").await;
    let b = rig.agent("b");
    rig.start(&b, "d", "work").await;
    let d = rig.agent("d");
    rig.model.gate("work").arrived(2).await;
    rig.service.drain_below(&[rig.root.agent().clone()]).await.unwrap();
    assert_eq!(rig.states(), [""; 0]);
    assert_eq!(rig.told()[2..], ["-run-2 aborted: ", "-run-1 aborted: "]);
    assert!(trace(&d).ends_with("TE1(aborted:parent)"), "{}", trace(&d));
    assert!(trace(&b).contains("TE1(aborted:parent)"), "{}", trace(&b));
    assert_eq!(told_by_children(&b), ["subagent-settled d"]);
    assert_eq!(trace(&rig.root), "+step(subagent-settled)");
    // The scope stays closed as long as the agent is there.
    let refused = rig.send(&rig.root, "b", "x").await.unwrap_err();
    assert_eq!(refused.code(), "DRAINING");
    rig.ends_clean().await;
}
