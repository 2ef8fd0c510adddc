//! Forks: children that know what their parent has completed.

use playhouse_messages::{
    event::{EventBody, InboxTarget},
    header::Origin,
};
use playhouse_models::scripted::Reply;
use playhouse_subagents::{StopReason, descriptor::Descriptor, fork};

use crate::{assert_whole, house, on};

fn kinds(events: impl Iterator<Item = EventBody>) -> Vec<String> {
    events.map(|body| body.kind().to_owned()).collect()
}

mod subagents {
    use super::*;

    #[tokio::test]
    async fn orchestration_1_14_3_a_fork_of_a_parent_at_work_ends_its_seed_with_the_last_turn() {
        let house = house([
            on("first", Reply::text("one").at_gate("first")),
            on("second", Reply::text("two").at_gate("second")),
            on("task", Reply::text("child")),
        ])
        .await;
        let root = &house.root;
        root.followup("first").await.unwrap();
        house.model.gate("first").arrived(1).await;
        // Waits at the turn's end, and is the parent's.
        root.followup("second").await.unwrap();
        house.model.gate("first").open();
        house.model.gate("second").arrived(1).await;
        let before = root.session().log();
        let end = before.iter().rfind(|event| matches!(event.body, EventBody::TurnEnd(_)));
        let seed = end.unwrap().seq + 1;

        let run = fork(house.world(), house.ask("task").label("Fork it")).await.unwrap();
        let result = run.result().await.unwrap();
        assert_eq!(
            (result.text().as_str(), &result.stop_reason),
            ("child", &StopReason::Completed)
        );
        let child = run.agent().unwrap();
        let (session, header) = (child.session(), child.session().header().clone());
        assert_eq!((header.is_seeded, session.inherited_event_count()), (true, seed));
        assert_eq!((header.origin, header.delegation_depth), (Some(Origin::Subagent), Some(1)));
        assert_eq!(header.parent_session.as_ref(), Some(root.id()));
        let log = session.log();
        for (mine, inherited) in log.range(0..seed).zip(before.iter()) {
            assert_eq!(mine, inherited);
        }
        // There are no sandbox and approval policies to delegate yet.
        let own = kinds(log.range(seed..log.len()).map(|event| event.body.clone()));
        assert_eq!(
            own[..5],
            [
                "session/end-seed",
                "subagent/descriptor",
                "agent/inbox/spliced",
                "agent/inbox/spliced",
                "turn/start"
            ]
        );
        let EventBody::InboxSpliced(dropped) = &log.get(seed + 2).unwrap().body else { panic!() };
        assert_eq!((dropped.target, dropped.removed_count), (InboxTarget::NextTurn, 1));
        assert!(dropped.outcome.is_some() && dropped.inserted.is_empty());
        let descriptor = Descriptor::one_shot("fork", Some("Fork it".to_owned()));
        assert_eq!(Descriptor::of(&log, seed), Ok(Some(descriptor)));
        assert_eq!(session.view().last_turn, 2, "the child's own turn follows the parent's first");
        assert_whole(child);
        run.dispose().await.unwrap();

        house.model.gate("second").open();
        root.when_idle().await.unwrap();
        assert_whole(root);
        house.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_4_the_childs_first_request_begins_with_the_bytes_of_its_parents() {
        let house = house([
            on("first", Reply::text("one")),
            on("second", Reply::text("two")),
            on("task", Reply::text("child")),
        ])
        .await;
        house.root.prompt("first").await.unwrap();
        house.root.prompt("second").await.unwrap();
        house.root.when_idle().await.unwrap();
        let run = fork(house.world(), house.ask("task")).await.unwrap();
        run.result().await.unwrap();
        run.dispose().await.unwrap();
        let requests = house.requests();
        let [_, parents, childs] = &requests[..] else { panic!("{requests:?}") };
        assert_eq!(parents.tools, childs.tools);
        let (old, new) = (parents.body.to_bytes(), childs.body.to_bytes());
        let suffix = b"],\"tools\":";
        let cut = old.windows(suffix.len()).rposition(|window| window == suffix).unwrap();
        assert!(new.starts_with(&old[..cut]), "{:?}", childs.messages);
        assert!(new.ends_with(&old[cut..]), "the same tools in the same bytes");
        let texts: Vec<_> = childs.messages.iter().map(|message| message.text()).collect();
        assert!(texts.contains(&"two".to_owned()), "the answer to it, too: {texts:?}");
        house.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_4_a_fork_in_a_first_turn_has_no_seed() {
        let house = house([
            on("first", Reply::text("one").at_gate("first")),
            on("task", Reply::text("child")),
        ])
        .await;
        house.root.followup("first").await.unwrap();
        house.model.gate("first").arrived(1).await;
        let run = fork(house.world(), house.ask("task")).await.unwrap();
        assert_eq!(run.result().await.unwrap().text(), "child");
        let session = run.agent().unwrap().session();
        assert!(!session.header().is_seeded && session.inherited_event_count() == 0);
        assert_eq!(session.log().get(0).unwrap().body.kind(), "subagent/descriptor");
        run.dispose().await.unwrap();
        house.model.gate("first").open();
        house.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_5_a_fork_of_a_child_is_itself_and_not_its_ancestor() {
        let house = house([on("", Reply::text("done"))]).await;
        let child = house.spawn("task").await;
        child.result().await.unwrap();
        let parent = child.agent().unwrap();
        let request = playhouse_subagents::ChildRequest::new(parent, "further");
        let below = fork(house.world(), request).await.unwrap();
        below.result().await.unwrap();
        let session = below.agent().unwrap().session();
        let (log, seed) = (session.log(), session.inherited_event_count());
        let provider = |from| Descriptor::of(&log, from).unwrap().unwrap().provider;
        assert_eq!((provider(0).as_str(), provider(seed).as_str()), ("spawn", "fork"));
        assert_eq!(below.agent().unwrap().depth(), 2);
        child.dispose().await.unwrap();
        house.ends_clean().await;
    }
}
