//! Forks of live and of stored sessions.

use std::sync::Arc;

use playhouse::{
    AgentHandle, CancelCause, CancelToken, ContentBlock, EventBody, Failure, ForkPoint, Harness,
    Message, NewEvent, TurnEndReason,
    messages::{
        event::{InboxTarget, Seq},
        header::Origin,
        invariants,
    },
    models::scripted::Reply,
    plugin_api::store::{StoreError, StoreReader},
    subagents::{ChildRequest, spawn},
    testing::{FaultyStore, StoreOp, trace},
};
use playhouse_stores::MemoryStore;
use serde_json::json;

use super::rig::{
    self, Pause, Watched, kinds, new, on, on_disk, open, plant, soon, spelled, stored,
    stubborn_tool, turn_ends, user_texts,
};

/// A parent that has run one turn and is idle.
async fn idle_parent(replies: &[&str]) -> (Harness, AgentHandle, MemoryStore) {
    let store = MemoryStore::new();
    let replies = replies.iter().map(|text| Reply::text(*text));
    let (harness, _) = on(Arc::new(store.clone()), replies).await;
    let parent = harness.create(new().id("parent").cwd("/w")).await.unwrap();
    parent.prompt("go").await.unwrap();
    parent.when_idle().await.unwrap();
    (harness, parent, store)
}

fn marker(agent: &AgentHandle) -> (Seq, bool) {
    let log = agent.session().log();
    let last = log.iter().rev().find_map(|event| match &event.body {
        EventBody::EndSeed(end) => Some((event.seq, end.inherited)),
        _ => None,
    });
    last.unwrap()
}

/// Where the log's first event of this kind is.
fn place(agent: &AgentHandle, kind: &str) -> Seq {
    kinds(agent).iter().position(|found| found == kind).unwrap() as Seq
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn persistence_75_a_fork_is_the_whole_log_a_marker_and_a_lineage() {
        let (harness, parent, store) = idle_parent(&["one", "child", "parent"]).await;
        let before = spelled(&parent);
        let child = harness.fork("parent", new().id("child")).await.unwrap();
        let len = before.len() as u64;
        assert_eq!(spelled(&child)[..before.len()], before);
        assert_eq!((child.session().log().len(), marker(&child)), (len + 1, (len, true)));
        let header = child.session().header();
        assert_eq!(header.parent_session.as_ref(), Some(parent.id()));
        assert!(header.is_seeded && header.cwd.as_deref() == Some("/w"));
        assert!(header.created_at >= parent.session().header().created_at);
        assert_eq!(child.session().inherited_event_count(), len);
        assert_eq!(spelled(&parent), before);
        // A fork is nobody's work.
        assert!(child.runtime_parent().is_none() && harness.children(parent.id()).is_empty());

        // The two have nothing to do with each other.
        assert_eq!(child.prompt("more").await.unwrap().text, "child");
        assert_eq!(spelled(&parent), before);
        assert_eq!(parent.prompt("more").await.unwrap().text, "parent");
        assert_eq!(user_texts(&child), ["go", "more"]);
        assert_eq!(child.session().view().last_turn, 2);
        parent.dispose().await.unwrap();
        assert!(harness.agent(child.id()).is_some());
        harness.shutdown().await.unwrap();
        assert_eq!(stored(&store.reopen(), child.id()).await, spelled(&child));
    }

    /// The newest loop forks anywhere: what was `OPEN_TURN` is closed with cause `forked`.
    #[tokio::test]
    async fn persistence_76_a_boundary_is_any_event_and_a_taken_id_is_told_first() {
        let (harness, parent, _) = idle_parent(&["one"]).await;
        let title = NewEvent::custom("x/title", json!({"title": "T"})).ignorable();
        let title = parent.session().append(title).await.unwrap().seq;
        let open = place(&parent, "request/header");
        let child = harness.fork(ForkPoint::at("parent", open), new()).await.unwrap();
        assert_eq!(marker(&child), (open + 1, true));
        assert_eq!(kinds(&child)[open as usize + 2..], ["step/end", "turn/end"]);
        assert_eq!(turn_ends(&child), [TurnEndReason::Forked]);
        invariants::check(&child.session().log()).unwrap();
        let child = harness.fork(ForkPoint::at("parent", title), new().id("taken")).await.unwrap();
        assert_eq!((marker(&child).0, turn_ends(&child).len()), (title + 1, 1));

        let far = || ForkPoint::at("parent", 99);
        let error = harness.fork(far(), new()).await.unwrap_err();
        assert_eq!(error.code(), "INVALID_BOUNDARY");
        let len = parent.session().log().len();
        assert!(error.to_string().contains(&format!("has {len} events")), "{error}");
        for _live_then_stored in 0..2 {
            let error = harness.fork(far(), new().id("taken")).await.unwrap_err();
            assert_eq!(error.code(), "SESSION_ALREADY_EXISTS");
            if let Some(taken) = harness.agent(&"taken".into()) {
                AgentHandle::new(taken).dispose().await.unwrap();
            }
        }
        let error = harness.fork("nobody", new()).await.unwrap_err();
        assert_eq!(error.code(), "SESSION_NOT_FOUND");
        let error = harness.fork("parent", new().seed(Vec::new())).await.unwrap_err();
        assert_eq!(error.code(), "INVALID_ARGUMENT");
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn persistence_77_a_parent_at_work_is_forked_where_its_last_turn_ended() {
        let store = Arc::new(MemoryStore::new());
        let replies = [Reply::text("one"), Reply::text("two").at_gate("g"), Reply::text("child")];
        let (harness, model) = on(store, replies).await;
        let parent = harness.create(new().id("parent")).await.unwrap();
        parent.prompt("go").await.unwrap();
        let end = place(&parent, "turn/end");
        let second = parent.followup("on").await.unwrap();
        model.gate("g").arrived(1).await;
        let before = spelled(&parent);
        let child = harness.fork(ForkPoint::at("parent", end), new()).await.unwrap();
        assert_eq!(child.session().log().len(), end + 2);
        assert_eq!(turn_ends(&child), [TurnEndReason::Completed]);
        assert_eq!(child.prompt("else").await.unwrap().text, "child");
        assert_eq!(spelled(&parent), before);
        model.gate("g").open();
        assert_eq!(soon(parent.outcome(&second, 0)).await.unwrap().text, "two");
        harness.shutdown().await.unwrap();
    }

    /// A sub-agent begins with its task alone, however far its parent has got.
    #[tokio::test]
    async fn persistence_81_a_child_of_a_first_turn_has_no_seed_and_is_one_deeper() {
        let replies = [Reply::text("one").at_gate("g"), Reply::text("child")];
        let (harness, model) = on(Arc::new(MemoryStore::new()), replies).await;
        let parent = harness.create(new().id("parent")).await.unwrap();
        parent.followup("go").await.unwrap();
        model.gate("g").arrived(1).await;
        let before = spelled(&parent);
        let request = ChildRequest::new(&parent, "a task");
        let _handle = spawn(harness.world(), request).await.unwrap();
        let child = harness.children(parent.id()).remove(0);
        let header = child.session().header();
        assert!(!header.is_seeded && child.session().inherited_event_count() == 0);
        assert_eq!(header.parent_session.as_ref(), Some(parent.id()));
        assert_eq!((parent.depth(), child.depth()), (0, 1));
        soon(child.when_idle()).await.unwrap();
        let texts = user_texts(&child);
        assert!(texts[0] == "a task" && !texts.contains(&"go".to_owned()), "{texts:?}");
        assert!(!kinds(&child).contains(&"session/end-seed".to_owned()));

        assert_eq!(spelled(&parent)[..before.len()], before);
        harness.shutdown().await.unwrap();
    }

    /// There is no compaction yet: a bracket of a plugin stands for its own.
    #[tokio::test]
    async fn persistence_78_a_bracket_that_is_open_at_the_cut_lies_before_the_childs_marker() {
        let (harness, parent, _) = idle_parent(&["one"]).await;
        let start = NewEvent::custom("compaction/start", json!({"turn": null})).ignorable();
        let start = parent.session().append(start).await.unwrap().seq;
        let child = harness.fork(ForkPoint::at("parent", start), new()).await.unwrap();
        // Stale in the child, whose life begins behind it; open in the parent, which has no marker.
        assert!(start < marker(&child).0);
        assert!(!kinds(&parent).contains(&"session/end-seed".to_owned()));
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn persistence_79_the_seed_is_stored_once_with_its_marker() {
        let store = Watched::new();
        let (harness, _) = on(Arc::new(store.clone()), [Reply::text("one")]).await;
        let parent = harness.create(new().id("parent")).await.unwrap();
        parent.prompt("go").await.unwrap();
        parent.when_idle().await.unwrap();
        let before = store.diary().len();
        let child = harness.fork("parent", new().id("child")).await.unwrap();
        let seed = parent.session().log().len() + 1;
        let marks = *child.session().marks().borrow();
        assert_eq!((marks.written, marks.durable), (seed, seed));
        for _ in 0..2 {
            child.session().flush().await.unwrap();
        }
        let appends: Vec<_> =
            store.diary()[before..].iter().filter(|op| op.starts_with("append")).cloned().collect();
        assert_eq!(appends, [format!("append {seed}")]);
        assert_eq!(stored(&store.inner, child.id()).await, spelled(&child));
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn persistence_80_a_fork_of_a_fork_names_its_parent_and_has_one_marker_of_its_own() {
        let (harness, parent, _) = idle_parent(&["one"]).await;
        let child = harness.fork("parent", new().id("child")).await.unwrap();
        let grandchild = harness.fork("child", new().id("grandchild")).await.unwrap();
        let mut lineage = Vec::new();
        let mut next = Some(grandchild.id().clone());
        while let Some(agent) = next.and_then(|id| harness.agent(&id)) {
            next = agent.session().header().parent_session.clone();
            lineage.push(agent.id().to_string());
        }
        assert_eq!(lineage, ["grandchild", "child", "parent"]);
        let inherited = child.session().log().len();
        assert_eq!(grandchild.session().inherited_event_count(), inherited);
        assert_eq!(marker(&grandchild), (inherited, true));
        assert_eq!(parent.session().log().len() + 2, grandchild.session().log().len());
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn persistence_82_a_replacement_keeps_its_range_and_sources() {
        let (harness, parent, _) = idle_parent(&["one", "child"]).await;
        let message = |text: &str| EventBody::UserMessage(Arc::new(Message::user("summary", text)));
        let at = place(&parent, "user/message");
        let summary = NewEvent::replace(message("go, in short"), at, at, vec![at]);
        let replaced = parent.session().append(summary).await.unwrap();
        let child = harness.fork("parent", new()).await.unwrap();
        assert_eq!(child.session().log().get(replaced.seq), Some(&replaced));
        let texts = |agent: &AgentHandle| -> Vec<String> {
            let view = agent.session().view();
            view.history.iter().map(|entry| entry.message.text()).collect()
        };
        assert_eq!(texts(&child), texts(&parent));
        assert!(texts(&child).contains(&"go, in short".to_owned()));
        assert_eq!(child.prompt("on").await.unwrap().text, "child");
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_138_a_fork_in_a_tools_body_gets_forked_results_and_leaves_the_parent_at_work() {
        let store = Arc::new(MemoryStore::new());
        let calls = Reply::call("work", "{}").and_call("work", "{}");
        let replies = [calls, Reply::text("child"), Reply::text("parent")];
        let (harness, _) = on(store, replies).await;
        let pause = Pause::closed();
        harness.register_tool(stubborn_tool("work", pause.clone())).unwrap();
        let parent = harness.create(new().id("parent")).await.unwrap();
        let id = parent.followup("go").await.unwrap();
        pause.arrived(1).await;
        let child = harness.fork("parent", new()).await.unwrap();
        let words = trace(&child.session().log());
        assert!(
            words.ends_with(
                "TC(work) ES TR!(TOOL_OUTCOME_UNKNOWN) TR!(TOOL_NOT_STARTED) SE1.1 TE1(forked)"
            ),
            "{words}"
        );
        assert_eq!(child.prompt("on").await.unwrap().text, "child");
        assert_eq!(child.session().view().last_turn, 2);
        pause.open();
        assert_eq!(soon(parent.outcome(&id, 0)).await.unwrap().text, "parent");
        assert_eq!(pause.count(), 2, "the child ran none of its parent's calls");
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn newest_37_a_pending_prompt_is_inherited_and_runs_at_the_next_wake() {
        let (harness, parent, _) = idle_parent(&["one", "two", "three"]).await;
        parent.send("waits", InboxTarget::NextTurn, false).await.unwrap();
        let child = harness.fork("parent", new()).await.unwrap();
        soon(child.when_idle()).await.unwrap();
        assert_eq!(child.inbox().list(InboxTarget::NextTurn)[0].text(), "waits");
        child.prompt("wake").await.unwrap();
        assert_eq!(user_texts(&child), ["go", "waits", "wake"]);
        assert_eq!(parent.inbox().len(), 1);
        harness.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_only_stored_is_forked_and_not_claimed() {
    let (first, parent, _) = idle_parent(&["one"]).await;
    first.shutdown().await.unwrap();
    let log = spelled(&parent);
    for kind in on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(kind, dir.path()).await;
        plant(&*store, "parent", &log).await;
        let (harness, _) = on(store.clone(), [Reply::text("child")]).await;
        // Somebody else writes it meanwhile.
        let (writer, _) = store.open_write(&"parent".into()).await.unwrap();
        let child = harness.fork("parent", new().id("child")).await.unwrap();
        writer.close().await.unwrap();
        assert_eq!(spelled(&child)[..log.len()], log, "{kind}");
        assert_eq!(child.prompt("on").await.unwrap().text, "child");
        harness.shutdown().await.unwrap();

        let store = open(kind, dir.path()).await;
        assert_eq!(stored(&*store, parent.id()).await, log, "{kind}: the source is untouched");
        let found = store.read(child.id()).await.unwrap();
        assert_eq!(found.inherited_event_count, log.len() as u64);
        let (harness, _) = on(store, []).await;
        let child = harness.resume("child", new()).await.unwrap();
        assert_eq!(child.session().inherited_event_count(), log.len() as u64);
        assert!(child.runtime_parent().is_none(), "{kind}: still nobody's work");
        harness.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn without_a_store_a_live_session_is_forked_in_memory() {
    let (harness, _) = rig_in_memory([Reply::text("one"), Reply::text("child")]).await;
    let parent = harness.create(new().id("parent")).await.unwrap();
    parent.prompt("go").await.unwrap();
    let child = harness.fork("parent", new()).await.unwrap();
    assert_eq!(child.prompt("on").await.unwrap().text, "child");
    assert_eq!(harness.fork("gone", new()).await.unwrap_err().code(), "SESSION_NOT_FOUND");
    harness.shutdown().await.unwrap();
}

async fn rig_in_memory(
    replies: impl IntoIterator<Item = Reply>,
) -> (Harness, Arc<playhouse::models::scripted::ScriptedAdapter>) {
    crate::lifecycle::rig::with(Harness::builder(), replies).await
}

#[tokio::test]
async fn a_delegated_fork_is_its_parents_work_one_level_down() {
    let (harness, parent, store) = idle_parent(&["one"]).await;
    let new_child = || new().id("child").delegated_by(&parent);
    let child = harness.fork("parent", new_child()).await.unwrap();
    assert_eq!((child.depth(), child.runtime_parent()), (1, Some(parent.id())));
    assert_eq!(child.session().header().origin, Some(Origin::Subagent));
    let fork = harness.fork("child", new()).await.unwrap();
    assert_eq!((fork.depth(), fork.runtime_parent()), (1, None), "as deep, and nobody's");
    harness.shutdown().await.unwrap();
    let (harness, _) = on(Arc::new(store.reopen()), []).await;
    let child = harness.resume("child", new()).await.unwrap();
    assert_eq!(child.runtime_parent().map(ToString::to_string), Some("parent".to_owned()));
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_fork_that_fails_before_its_setup_leaves_nothing() {
    let store = FaultyStore::new(MemoryStore::new());
    let (harness, _) = on(Arc::new(store.clone()), [Reply::text("one"), Reply::text("two")]).await;
    let parent = harness.create(new().id("parent")).await.unwrap();
    parent.prompt("go").await.unwrap();
    parent.when_idle().await.unwrap();
    let error = || StoreError::Full { path: "/disk".into() };
    for op in [StoreOp::Create, StoreOp::Append, StoreOp::Flush] {
        store.fail(op, 1, error());
        let failed = harness.fork("parent", new().id("child")).await.unwrap_err();
        assert_eq!(failed.code(), "STORE_FULL", "{op:?}");
        assert_eq!(store.stat(&"child".into()).await.unwrap(), None, "{op:?}");
    }
    let cancel = CancelToken::new();
    cancel.cancel(CancelCause::User);
    let given_up = harness.fork("parent", new().id("child").cancelled_by(cancel)).await;
    assert_eq!(given_up.unwrap_err().code(), "ABORTED");
    assert_eq!(store.stat(&"child".into()).await.unwrap(), None);

    // From the setup on what is stored stays, as of any creation, and nothing lives.
    let no = |_| async { Err(Failure::new("NO", "no")) };
    let failed = harness.fork("parent", new().id("child").set_up(no)).await.unwrap_err();
    assert_eq!(failed.code(), "NO");
    assert!(harness.agent(&"child".into()).is_none());
    let child = harness.resume("child", new()).await.unwrap();
    assert_eq!(child.prompt("on").await.unwrap().text, "two");
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_fork_that_is_given_up_while_the_store_is_slow_is_taken_back() {
    let store = Watched::new();
    let (harness, _) = on(Arc::new(store.clone()), [Reply::text("one")]).await;
    let parent = harness.create(new().id("parent")).await.unwrap();
    parent.prompt("go").await.unwrap();
    parent.when_idle().await.unwrap();
    store.state.flushes.hold();
    let cancel = CancelToken::new();
    let forking = {
        let (harness, new) = (harness.clone(), new().id("child").cancelled_by(cancel.clone()));
        tokio::spawn(async move { harness.fork("parent", new).await })
    };
    store.state.flushes.reached().await;
    cancel.cancel(CancelCause::User);
    assert_eq!(soon(forking).await.unwrap().unwrap_err().code(), "ABORTED");
    store.state.flushes.release();
    // The shutdown awaits the claims that are being given back.
    harness.shutdown().await.unwrap();
    assert_eq!(store.inner.reopen().stat(&"child".into()).await.unwrap(), None);
}

#[tokio::test]
async fn an_image_of_the_source_is_the_childs_too() {
    let (harness, parent, _) = idle_parent(&["one", "two"]).await;
    let put = harness.world().attachments.put(rig::gif().into(), None).await.unwrap();
    parent.inject([ContentBlock::image(&put)]).await.unwrap();
    let child = harness.fork("parent", new()).await.unwrap();
    let inherited = child.inbox().list(InboxTarget::NextStep)[0].clone();
    assert_eq!(inherited.content, vec![ContentBlock::image(&put)]);
    harness.shutdown().await.unwrap();
}
