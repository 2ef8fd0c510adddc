//! Who an agent's children are.

use bytes::Bytes;
use playhouse_messages::{event::CancelCause, id::SessionId};
use playhouse_models::scripted::Reply;
use playhouse_plugin_api::cancel::CancelToken;
use playhouse_stores::MemoryStore;
use playhouse_subagents::{
    Activity, ChildRequest, ChildRow, Diagnostic, Known, fork, list_children, list_descendants,
    spawn,
};

use crate::{House, house_with, on};

/// Of each row its depth, and its label and what it does, or what is wrong with it.
fn seen(rows: &[ChildRow]) -> Vec<String> {
    let one = |row: &ChildRow| match &row.known {
        Known::Child { descriptor, activity, has_children } => format!(
            "{} {} {}{}",
            row.depth,
            descriptor.label.as_deref().unwrap_or("-"),
            activity.as_str(),
            if *has_children { " +" } else { "" }
        ),
        Known::Diagnostic { reason, .. } => format!("{} {}", row.depth, reason.as_str()),
        _ => unreachable!(),
    };
    rows.iter().map(one).collect()
}

async fn below(house: &House) -> Vec<ChildRow> {
    list_descendants(house.world(), house.root.id(), &CancelToken::new()).await.unwrap()
}

async fn stored_house() -> (House, MemoryStore) {
    let store = MemoryStore::new();
    let again = store.clone();
    let rules = [on("wait", Reply::text("x").at_gate("shut")), on("", Reply::text("done"))];
    (house_with(rules, |plugin| plugin, |builder| builder.store(again)).await, store)
}

mod subagents {
    use super::*;

    #[tokio::test]
    async fn orchestration_1_9_live_and_stored_children_are_listed_and_none_is_loaded() {
        let (house, _store) = stored_house().await;
        let start = |parent: &playhouse_plugin_api::agent::Agent, prompt: &str| {
            let request = ChildRequest::new(parent, prompt).label(prompt);
            spawn(house.world(), request)
        };
        let old = start(&house.root, "old").await.unwrap();
        let below_old = start(old.agent().unwrap(), "below").await.unwrap();
        below_old.result().await.unwrap();
        old.result().await.unwrap();
        old.dispose().await.unwrap();
        house.root.prompt("a turn").await.unwrap();
        let forked = fork(house.world(), house.ask("forked").label("forked")).await.unwrap();
        forked.result().await.unwrap();
        forked.dispose().await.unwrap();
        let idle = start(&house.root, "idle").await.unwrap();
        idle.result().await.unwrap();
        let busy = start(&house.root, "wait").await.unwrap();
        house.model.gate("shut").arrived(1).await;

        let mut children =
            list_children(house.world(), house.root.id(), &CancelToken::new()).await.unwrap();
        children.sort_by_key(|row| row.created_at);
        let expected = ["1 old ready +", "1 forked ready", "1 idle idle", "1 wait running"];
        let mut found = seen(&children);
        found.sort();
        let mut sorted = expected.map(str::to_owned);
        sorted.sort();
        assert_eq!(found, sorted);
        let all = below(&house).await;
        let at = |id: &SessionId| all.iter().position(|row| row.id == *id).unwrap();
        assert_eq!(at(below_old.id()), at(old.id()) + 1, "right below its parent");
        let row = &all[at(below_old.id())];
        assert_eq!((row.depth, &row.parent), (2, old.id()));
        assert!(matches!(row.known, Known::Child { activity: Activity::Stored, .. }));
        assert_eq!(house.harness.agents().len(), 3, "the root, the idle one and the busy one");
        busy.dispose().await.unwrap();
        idle.dispose().await.unwrap();
        house.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_9_what_cannot_be_read_is_a_row_and_keeps_nobody_else_out() {
        let (house, store) = stored_house().await;
        let mut ids = Vec::new();
        for prompt in ["fine", "strange", "damaged"] {
            let run = spawn(house.world(), house.ask(prompt).label(prompt)).await.unwrap();
            run.result().await.unwrap();
            run.dispose().await.unwrap();
            ids.push(run.id().clone());
        }
        let strange = r#"{"seq":0,"time":1,"type":"subagent/descriptor","data":{"version":2,"mode":"one-shot","provider":"spawn","depth":1}}"#;
        store.damage(&ids[1], 0, Bytes::from_static(strange.as_bytes()));
        store.damage(&ids[2], 0, Bytes::from_static(b"no event"));
        let rows = below(&house).await;
        let of = |id: &SessionId| rows.iter().find(|row| row.id == *id).unwrap();
        assert_eq!(seen(std::slice::from_ref(of(&ids[0]))), ["1 fine ready"]);
        let reason = |id: &SessionId| match &of(id).known {
            Known::Diagnostic { reason, cause } => (*reason, cause.clone()),
            known => panic!("{known:?}"),
        };
        let (corrupt, cause) = reason(&ids[1]);
        assert_eq!(corrupt, Diagnostic::Corrupt);
        assert!(cause.contains("depth"), "{cause}");
        assert_eq!(reason(&ids[2]).0, Diagnostic::Unavailable);
        house.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_9_a_cancelled_listing_says_so() {
        let (house, _) = stored_house().await;
        let cancel = CancelToken::new();
        cancel.cancel(CancelCause::User);
        let refused = list_children(house.world(), house.root.id(), &cancel).await.unwrap_err();
        assert_eq!(refused.code(), "CANCELLED");
        house.ends_clean().await;
    }
}
