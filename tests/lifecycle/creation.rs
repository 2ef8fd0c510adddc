use std::sync::Arc;

use playhouse::{
    CancelCause, CancelToken, Harness, NewAgent, NewEvent, SessionId, TurnEndReason,
    messages::chunk::Failure,
    models::scripted::Reply,
    plugin_api::{
        agent::Disposal,
        store::{ListQuery, StoreReader},
    },
};
use playhouse_stores::MemoryStore;
use serde_json::json;

use super::rig::{self, Diary, Gated, Pause, kinds, soon, stored_kinds, user_texts};

fn new(id: &str) -> NewAgent {
    NewAgent::new(rig::options()).id(id)
}

fn refused<T>() -> Result<T, Failure> {
    Err(Failure::new("REFUSED", "not this one"))
}

/// Notes whether an agent was announced, and announced gone.
fn announcements(harness: &Harness) -> Diary {
    let diary = Diary::default();
    let scope = &harness.world().scope;
    let note = diary.clone();
    let created = move |_| {
        note.note("created");
        async { Ok(()) }
    };
    harness.world().hooks.created.add(scope, created).unwrap();
    let note = diary.clone();
    harness.world().hooks.disposed.add(scope, move |_| note.note("disposed")).unwrap();
    diary
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn core_124_a_creation_that_was_given_up_before_does_nothing() {
        let (harness, _, store) = rig::in_memory([]).await;
        let diary = announcements(&harness);
        let cancel = CancelToken::new();
        cancel.cancel(CancelCause::Hook { reason: "no error object".to_owned() });
        let error = harness.create(new("a").cancelled_by(cancel)).await.unwrap_err();
        assert_eq!(error.code(), "ABORTED");
        assert_eq!(error.to_string(), "agent \"a\" creation aborted: it was cancelled");
        assert!(harness.agents().is_empty());
        assert!(store.list(ListQuery::default()).await.unwrap().sessions.is_empty());
        assert_eq!(diary.read(), [""; 0]);
        harness.create(new("a")).await.unwrap();
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_125_a_claim_that_arrives_after_the_creation_was_given_up_is_given_back() {
        let store = Gated::new(MemoryStore::new(), Pause::closed());
        let (harness, _) = rig::on(store.clone(), []).await;
        let cancel = CancelToken::new();
        let creation = {
            let (harness, cancel) = (harness.clone(), cancel.clone());
            tokio::spawn(async move { harness.create(new("a").cancelled_by(cancel)).await })
        };
        store.opening.arrived(1).await;
        cancel.cancel(CancelCause::User);
        // The store still hangs.
        let error = soon(creation).await.unwrap().unwrap_err();
        assert_eq!(error.code(), "ABORTED");
        assert_eq!(*store.state.closed.borrow(), 0);
        store.opening.open();
        store.closed(1).await;
        harness.create(new("a")).await.unwrap();
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn newest_64_a_closed_owner_gives_up_a_hung_resume_and_the_id_is_free_at_once() {
        let memory = MemoryStore::new();
        let (harness, _) = rig::on(Arc::new(memory.clone()), [Reply::text("one")]).await;
        let agent = harness.create(new("a")).await.unwrap();
        agent.prompt("go").await.unwrap();
        harness.shutdown().await.unwrap();

        let store = Gated::new(memory.reopen(), Pause::closed());
        let (harness, _) = rig::on(store.clone(), [Reply::text("two")]).await;
        let owner = harness.world().scope.child("owner").unwrap();
        let resuming = {
            let (harness, owner) = (harness.clone(), owner.clone());
            tokio::spawn(async move { harness.resume("a", new("a").owned_by(owner)).await })
        };
        store.opening.arrived(1).await;
        owner.close();
        let error = soon(resuming).await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "agent \"a\" creation aborted: its owner is closed");
        store.opening.open();
        store.closed(1).await;
        let agent = harness.resume("a", new("a")).await.unwrap();
        assert_eq!(agent.prompt("again").await.unwrap().text, "two");
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_126_newest_61_a_failed_setup_releases_everything_and_keeps_what_was_stored() {
        let (harness, model, store) =
            rig::in_memory([Reply::text("hi"), Reply::text("hello")]).await;
        let diary = announcements(&harness);
        let gone = diary.clone();
        let setup = move |agent: playhouse::Agent| {
            let gone = gone.clone();
            async move {
                agent.scope().on_close(move || gone.note("scope closed")).unwrap();
                let note = NewEvent::custom("test/note", json!({"n": 1})).ignorable();
                agent.session().append(note).await?;
                agent.followup("early").await?;
                refused()
            }
        };
        let error = harness.create(new("a").set_up(setup)).await.unwrap_err();
        assert_eq!((error.code(), error.to_string().as_str()), ("REFUSED", "not this one"));
        assert!(harness.agents().is_empty());
        assert!(model.captured().is_empty());
        // Never live, so neither announced nor announced gone.
        assert_eq!(diary.read(), ["scope closed"]);
        let id = SessionId::from("a");
        assert_eq!(stored_kinds(&*store, &id).await, ["test/note", "agent/inbox/spliced"]);

        let agent = harness.resume("a", new("a")).await.unwrap();
        assert_eq!(agent.inbox().len(), 1);
        assert_eq!(agent.prompt("late").await.unwrap().text, "hello");
        assert_eq!(user_texts(&agent), ["early", "late"]);
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_127_newest_62_a_failing_created_listener_undoes_the_creation_and_skips_later_ones()
     {
        let store = Gated::new(MemoryStore::new(), Pause::opened());
        let (harness, model) = rig::on(store.clone(), []).await;
        let diary = store.state.diary.clone();
        let hooks = &harness.world().hooks;
        let scope = &harness.world().scope;
        let note = diary.clone();
        let listener = move |created: playhouse::plugin_api::points::Created| {
            let note = note.clone();
            async move {
                note.note("created");
                created.agent.followup("early").await?;
                created.agent.scope().on_close(move || note.note("scope closed")).unwrap();
                refused()
            }
        };
        hooks.created.add(scope, listener).unwrap();
        let note = diary.clone();
        let skipped = move |_| {
            note.note("a later listener");
            async { Ok(()) }
        };
        hooks.created.add(scope, skipped).unwrap();
        let note = diary.clone();
        hooks.disposed.add(scope, move |_| note.note("disposed")).unwrap();
        let error = soon(harness.create(new("a"))).await.unwrap_err();
        assert_eq!(error.code(), "REFUSED");
        assert_eq!(diary.read(), ["created", "scope closed", "handle closed", "disposed"]);
        assert!(model.captured().is_empty());
        let id = SessionId::from("a");
        assert_eq!(stored_kinds(&store.inner, &id).await, ["agent/inbox/spliced"]);
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_128_newest_65_early_input_is_durable_at_once_and_runs_after_the_creation() {
        let (harness, model, store) =
            rig::in_memory([Reply::text("first"), Reply::text("second")]).await;
        let pause = Pause::closed();
        let held = pause.clone();
        let listener = move |created: playhouse::plugin_api::points::Created| {
            let held = held.clone();
            async move {
                created.agent.followup("from the listener").await?;
                held.pass().await;
                Ok(())
            }
        };
        harness.world().hooks.created.add(&harness.world().scope, listener).unwrap();
        let setup = |agent: playhouse::Agent| async move {
            agent.followup("from the setup").await?;
            agent.session().flush().await?;
            Ok(())
        };
        let creation = {
            let harness = harness.clone();
            tokio::spawn(async move { harness.create(new("a").set_up(setup)).await })
        };
        pause.arrived(1).await;
        let early = harness.agent(&"a".into()).unwrap();
        assert_eq!(kinds(&early), ["agent/inbox/spliced", "agent/inbox/spliced"]);
        assert_eq!(stored_kinds(&*store, early.id()).await[0], "agent/inbox/spliced");
        assert!(model.captured().is_empty());
        pause.open();
        let agent = soon(creation).await.unwrap().unwrap();
        soon(agent.when_idle()).await.unwrap();
        assert_eq!(user_texts(&agent), ["from the setup", "from the listener"]);
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_129_an_owner_that_closes_during_setup_leaves_nothing() {
        let (harness, _, _) = rig::in_memory([]).await;
        let owner = harness.world().scope.child("owner").unwrap();
        let pause = Pause::closed();
        let held = pause.clone();
        let setup = move |_| {
            let held = held.clone();
            async move {
                held.pass().await;
                Ok(())
            }
        };
        let creation = {
            let (harness, owner) = (harness.clone(), owner.clone());
            let new = new("a").owned_by(owner).set_up(setup);
            tokio::spawn(async move { harness.create(new).await })
        };
        pause.arrived(1).await;
        owner.close();
        let error = soon(creation).await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "agent \"a\" creation aborted: its owner is closed");
        pause.open();
        assert!(harness.agents().is_empty());
        harness.create(new("a")).await.unwrap();
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_130_of_two_creations_of_one_id_one_wins() {
        let store = Gated::new(MemoryStore::new(), Pause::closed());
        let (harness, _) = rig::on(store.clone(), [Reply::text("won")]).await;
        let race = {
            let harness = harness.clone();
            tokio::spawn(
                async move { tokio::join!(harness.create(new("a")), harness.create(new("a"))) },
            )
        };
        store.opening.arrived(1).await;
        store.opening.open();
        let (first, second) = soon(race).await.unwrap();
        assert_eq!(second.unwrap_err().code(), "SESSION_ALREADY_EXISTS");
        let winner = first.unwrap();
        assert_eq!(winner.prompt("go").await.unwrap().text, "won");
        // Nor does a creation of another harness on the same store touch the winner.
        let (other, _) = rig::on(Arc::new(store.inner.clone()), []).await;
        let loser = other.create(new("a")).await.unwrap_err();
        assert_eq!(loser.code(), "SESSION_ALREADY_EXISTS");
        assert_eq!(harness.agents().len(), 1);
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_131_a_stale_handle_does_nothing_to_the_next_agent_of_its_id() {
        let (harness, _) =
            rig::with(Harness::builder(), [Reply::text("one"), Reply::text("two")]).await;
        let stale = harness.create(new("a")).await.unwrap();
        assert_eq!(stale.prompt("go").await.unwrap().text, "one");
        stale.dispose().await.unwrap();
        let fresh = harness.create(new("a")).await.unwrap();
        stale.dispose().await.unwrap();
        assert_eq!(stale.followup("?").await.unwrap_err().code(), "DISPOSED");
        assert!(
            stale.session().append(NewEvent::custom("x", json!({})).ignorable()).await.is_err()
        );
        assert_eq!(harness.agent(&"a".into()).as_ref(), Some(fresh.agent()));
        assert_ne!(*stale, *fresh);
        assert_eq!(fresh.prompt("go").await.unwrap().text, "two");
        harness.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn a_panic_of_the_setup_is_a_failed_creation() {
    let (harness, _, _) = rig::in_memory([]).await;
    let later = |_| async { panic!("in its future") };
    let at_once = |agent: playhouse::Agent| {
        // Not yet in a future.
        assert!(agent.id().as_str().is_empty(), "at once");
        async { Ok(()) }
    };
    let error = soon(harness.create(new("a").set_up(later))).await.unwrap_err();
    assert_eq!((error.code(), error.to_string().as_str()), ("PANIC", "panicked: in its future"));
    let error = soon(harness.create(new("a").set_up(at_once))).await.unwrap_err();
    assert_eq!((error.code(), error.to_string().as_str()), ("PANIC", "panicked: at once"));
    assert!(harness.agents().is_empty());
    // All of both was released: the id, and its storage.
    harness.create(new("a")).await.unwrap();
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn dropping_the_future_gives_the_creation_up() {
    let store = Gated::new(MemoryStore::new(), Pause::opened());
    let (harness, _) = rig::on(store.clone(), []).await;
    let pause = Pause::closed();
    let held = pause.clone();
    let setup = move |_| {
        let held = held.clone();
        async move {
            held.pass().await;
            Ok(())
        }
    };
    let creation = {
        let harness = harness.clone();
        tokio::spawn(async move { harness.create(new("a").set_up(setup)).await })
    };
    pause.arrived(1).await;
    creation.abort();
    store.closed(1).await;
    assert!(harness.agents().is_empty());
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn the_cancel_of_a_creation_fires_only_if_it_is_given_up() {
    let (harness, _, _) = rig::in_memory([]).await;
    let token = Arc::new(std::sync::Mutex::new(None));
    let kept = token.clone();
    let keep = move |created: playhouse::plugin_api::points::Created| {
        *kept.lock().unwrap() = Some(created.cancel);
        async { Ok(()) }
    };
    harness.world().hooks.created.add(&harness.world().scope, keep).unwrap();
    let outer = CancelToken::new();
    harness.create(new("a").cancelled_by(outer.clone())).await.unwrap();
    let token = token.lock().unwrap().take().unwrap();
    assert!(!token.is_cancelled());
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn closing_the_owner_disposes_the_agent() {
    let (harness, _, store) = rig::in_memory([Reply::text("...").at_gate("never")]).await;
    let owner = harness.world().scope.child("owner").unwrap();
    let agent = harness.create(new("a").owned_by(owner.clone())).await.unwrap();
    let waiting = {
        let agent = agent.clone();
        tokio::spawn(async move { agent.prompt("go").await })
    };
    let mut status = agent.watch_status();
    status.wait_for(|status| *status == playhouse::Status::Running).await.unwrap();
    owner.close();
    let mut disposal = agent.cell().disposal();
    soon(disposal.wait_for(|state| *state == Disposal::Disposed)).await.unwrap();
    assert!(harness.agents().is_empty());
    let outcome = soon(waiting).await.unwrap();
    let aborted = TurnEndReason::Aborted(CancelCause::Disposed);
    match outcome {
        Ok(outcome) => assert_eq!(outcome.reason, aborted),
        Err(error) => assert_eq!(error.code(), "MESSAGE_CANCELED"),
    }
    rig::assert_stored(&*store, &agent).await;
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_harness_whose_root_died_refuses_creations() {
    let (harness, _, _) = rig::in_memory([]).await;
    let agent = harness.create(new("a")).await.unwrap();
    let root = agent.cell().supervisor.live().unwrap().try_get_supervisor().unwrap();
    root.kill();
    let mut states = harness.watch();
    let failed = |state: &playhouse::HarnessState| *state != playhouse::HarnessState::Running;
    soon(states.wait_for(failed)).await.unwrap();
    let error = soon(harness.create(new("b"))).await.unwrap_err();
    assert_eq!(error.code(), "SHUTTING_DOWN");
    soon(harness.shutdown()).await.unwrap();
}

#[tokio::test]
async fn closing_the_owner_disposes_an_agent_whose_supervisor_has_just_died() {
    let (harness, _, store) = rig::in_memory([]).await;
    for between_two_lives in [false, true] {
        let owner = harness.world().scope.child("owner").unwrap();
        let agent = harness.create(new(&format!("a-{between_two_lives}")).owned_by(owner.clone()));
        let agent = soon(agent).await.unwrap();
        let supervisor = agent.cell().supervisor.live().unwrap();
        supervisor.kill();
        if between_two_lives {
            // As its root does when it hears of the death.
            agent.cell().supervisor.vacate(supervisor.get_id());
        }
        owner.close();
        let mut disposal = agent.cell().disposal();
        soon(disposal.wait_for(|state| *state == Disposal::Disposed)).await.unwrap();
        assert!(harness.agents().is_empty());
        soon(harness.resume(agent.id().clone(), new("a"))).await.unwrap_err();
    }
    assert!(store.list(ListQuery::default()).await.unwrap().sessions.is_empty());
    soon(harness.shutdown()).await.unwrap();
}

#[tokio::test]
async fn a_creation_that_the_death_of_the_root_meets_fails_and_gives_its_storage_back() {
    let store = Gated::new(MemoryStore::new(), Pause::opened());
    let (harness, _) = rig::on(store.clone(), []).await;
    let other = harness.create(new("other")).await.unwrap();
    let root = other.cell().supervisor.live().unwrap().try_get_supervisor().unwrap();
    let pause = Pause::closed();
    let held = pause.clone();
    let setup = move |_| {
        let held = held.clone();
        async move {
            held.pass().await;
            Ok(())
        }
    };
    let creation = {
        let harness = harness.clone();
        tokio::spawn(async move { harness.create(new("a").set_up(setup)).await })
    };
    pause.arrived(1).await;
    root.kill();
    assert_eq!(soon(creation).await.unwrap().unwrap_err().code(), "SHUTTING_DOWN");
    store.closed(2).await;
    assert!(harness.agents().is_empty());
    soon(harness.shutdown()).await.unwrap();
}
