//! What others contribute to children.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures::FutureExt;
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{agent::Agent, prompt::Section, scope::Registration};
use playhouse_subagents::{ChildRequest, continuable::Contribution};

use crate::rig::{Rig, held};

fn section(rig: &Rig, name: &'static str) -> Contribution {
    let world = rig.world().clone();
    Arc::new(move |child: Agent| {
        let section = Section::text(name, 130.0, format!("the words of {name}"));
        let installed = world.prompts.section(child.scope(), section);
        async move { Ok(vec![installed?]) }.boxed()
    })
}

fn system_of_last(rig: &Rig) -> String {
    rig.model.captured().last().map(|request| request.messages[0].text()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_7_a_contribution_is_in_every_child_until_it_is_removed() {
    let rig = Rig::new([held("work", "work"), held("more", "work")]).await;
    let scope = rig.world().scope.child("contributor").unwrap();
    rig.service.register_set_up(&scope, section(&rig, "test:one")).unwrap();
    rig.start(&rig.root, "a", "work").await;
    rig.model.gate("work").arrived(1).await;
    assert!(system_of_last(&rig).contains("the words of test:one"));
    // Taken back from a child that is resident.
    scope.close();
    rig.send(&rig.root, "a", "more").await.unwrap();
    rig.model.gate("work").open();
    rig.until_settled("a").await;
    assert!(!system_of_last(&rig).contains("the words of test:one"));
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_7_a_contribution_that_fails_or_is_revoked_undoes_the_child() {
    let rig = Rig::new([]).await;
    let scope = rig.world().scope.child("contributor").unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let count = ran.clone();
    let fails: Contribution = Arc::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Err::<Vec<Registration>, _>(Failure::new("NOT_TODAY", "not today")) }.boxed()
    });
    let failing = rig.service.register_set_up(&scope, fails).unwrap();
    let request = || ChildRequest::new(&rig.root, "work");
    let failed = rig.try_start("a", request()).await.unwrap_err();
    assert_eq!((failed.code(), ran.load(Ordering::Relaxed)), ("NOT_TODAY", 1));
    failing.remove();

    let revoked = scope.clone();
    let revokes: Contribution = Arc::new(move |_| {
        revoked.close();
        async { Ok(Vec::new()) }.boxed()
    });
    rig.service.register_set_up(&scope, revokes).unwrap();
    let failed = rig.try_start("b", request()).await.unwrap_err();
    assert_eq!(failed.code(), "ACTIVATION_SETUP_REVOKED");
    assert_eq!((rig.states().len(), rig.slots.taken(), rig.told().len()), (0, 0, 0));
    rig.start(&rig.root, "c", "work").await;
    rig.ends_clean().await;
}
