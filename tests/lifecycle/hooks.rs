use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use playhouse::{
    AgentHandle, CancelCause, EventBody, Harness, Message, NewAgent, Recovery, Status,
    TurnEndReason,
    messages::{
        chunk::Failure,
        config::HeaderReason,
        machine::{Decision, Entry},
        message::{SharedMessage, Source},
    },
    models::scripted::{Reply, ScriptedAdapter},
    plugin_api::{
        hook::Next,
        points::{PreStep, RequestError, RequestProposal, TurnStopping},
        prompt::Section,
    },
};

use super::rig::{self, Diary, Pause, kinds, soon, turn_ends, user_texts};

struct Rig {
    harness: Harness,
    model: Arc<ScriptedAdapter>,
    agent: AgentHandle,
}

async fn rig(replies: impl IntoIterator<Item = Reply>) -> Rig {
    let (harness, model, _) = rig::in_memory(replies).await;
    let agent = harness.create(NewAgent::new(rig::options())).await.unwrap();
    Rig { harness, model, agent }
}

impl Rig {
    fn pre_step<F, Fut>(&self, listener: F)
    where
        F: Fn(PreStep, Next<PreStep, Decision>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Decision, Failure>> + Send + 'static,
    {
        self.harness.world().hooks.pre_step.add(self.agent.scope(), listener).unwrap();
    }

    /// Failures that the agent's subscribers were told of.
    fn faults(&self) -> Arc<Mutex<Vec<Failure>>> {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = told.clone();
        let hooks = &self.harness.world().hooks;
        let listener = move |fault: &playhouse::plugin_api::agent::AgentFault| {
            tell.lock().unwrap().push(fault.failure.clone());
        };
        hooks.error.add(&self.harness.world().scope, listener).unwrap();
        told
    }

    /// The agent is as usable as before, and the log is whole.
    async fn works(self) {
        let outcome = soon(self.agent.prompt("still there?")).await.unwrap();
        assert_eq!((outcome.text.as_str(), outcome.reason), ("yes", TurnEndReason::Completed));
        self.model.assert_consumed();
        soon(self.harness.shutdown()).await.unwrap();
    }
}

fn enter(messages: Vec<SharedMessage>) -> Decision {
    Decision::Enter(Entry { messages, ..Entry::default() })
}

/// A listener that does this on its first call, and nothing on later ones.
fn once() -> impl Fn() -> bool + Clone + Send + Sync + 'static {
    let calls = Arc::new(AtomicUsize::new(0));
    move || calls.fetch_add(1, Ordering::SeqCst) == 0
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn core_31_a_rejected_first_step_blocks_the_turn_without_a_step() {
        let rig = rig([Reply::text("yes")]).await;
        let first = once();
        rig.pre_step(move |input, next: Next<_, _>| {
            let reject = first();
            async move { if reject { Ok(Decision::Reject) } else { next.run(input).await } }
        });
        let outcome = rig.agent.prompt("no").await.unwrap();
        assert_eq!(outcome.reason, TurnEndReason::Blocked);
        let expected = ["agent/inbox/spliced", "turn/start", "agent/inbox/spliced", "turn/end"];
        assert_eq!(kinds(&rig.agent), expected);
        rig.works().await;
    }

    #[tokio::test]
    async fn core_37_and_38_a_rewritten_and_an_extra_message_are_logged_as_returned() {
        let rig = rig([Reply::text("ok"), Reply::text("yes")]).await;
        let first = once();
        rig.pre_step(move |input: PreStep, next: Next<_, _>| {
            let rewrite = first();
            async move {
                if !rewrite {
                    return next.run(input).await;
                }
                let claimed = input.messages[0].clone();
                assert_eq!(claimed.text(), "secret");
                let rewritten = Message::user("rewritten", "[redacted]");
                let extra = Message::user_from(
                    "extra",
                    vec![playhouse::ContentBlock::text("by the way")],
                    Source::of_kind("reminder"),
                );
                Ok(enter(vec![Arc::new(rewritten), Arc::new(extra)]))
            }
        });
        rig.agent.prompt("secret").await.unwrap();
        let log = rig.agent.session().log();
        let entered = log.iter().filter_map(|event| match &event.body {
            EventBody::UserMessage(message) => Some((message.id.to_string(), message.text())),
            _ => None,
        });
        let entered: Vec<_> = entered.collect();
        let expected = [("rewritten", "[redacted]"), ("extra", "by the way")];
        assert_eq!(entered, expected.map(|(id, text)| (id.to_owned(), text.to_owned())));
        let texts: Vec<_> = rig.model.captured()[0].messages.iter().map(|m| m.text()).collect();
        assert_eq!(texts, ["[redacted]", "by the way"]);
        rig.works().await;
    }

    #[tokio::test]
    async fn core_41_a_failure_or_a_panic_before_a_step_ends_the_turn_and_no_more() {
        for panics in [false, true] {
            let rig = rig([Reply::text("yes")]).await;
            let faults = rig.faults();
            let first = once();
            rig.pre_step(move |input, next: Next<_, _>| {
                let fail = first();
                async move {
                    assert!(!(fail && panics), "boom");
                    if fail { Err(Failure::new("MINE", "no")) } else { next.run(input).await }
                }
            });
            rig.agent.steer("steer").await.unwrap();
            soon(rig.agent.when_idle()).await.unwrap();
            let code = if panics { "PANIC" } else { "MINE" };
            let ends = turn_ends(&rig.agent);
            assert!(matches!(&ends[..], [TurnEndReason::Error(failure)] if failure.code == code));
            assert!(!kinds(&rig.agent).contains(&"step/start".to_owned()));
            let told: Vec<_> =
                faults.lock().unwrap().iter().map(|failure| failure.code.clone()).collect();
            assert_eq!(told, [code]);
            rig.works().await;
        }
    }

    #[tokio::test]
    async fn core_103_newest_19_a_changed_temperature_is_a_new_header_on_the_captured_route() {
        let rig = rig([Reply::text("one"), Reply::text("two"), Reply::text("yes")]).await;
        let hooks = &rig.harness.world().hooks;
        let warm = |mut input: RequestProposal, next: Next<_, _>| async move {
            if input.at.turn >= 2 {
                input.config.temperature = Some(0.5);
            }
            next.run(input).await
        };
        hooks.request.add(rig.agent.scope(), warm).unwrap();
        rig.agent.prompt("one").await.unwrap();
        rig.agent.prompt("two").await.unwrap();
        let agent = rig.agent.agent().clone();
        let model = rig.model.clone();
        rig.works().await;
        let log = agent.session().log();
        let headers = log.iter().filter_map(|event| match &event.body {
            EventBody::RequestHeader(data) => Some((data.reason, data.header.config.temperature)),
            _ => None,
        });
        let headers: Vec<_> = headers.collect();
        assert_eq!(headers, [(HeaderReason::Initial, None), (HeaderReason::Change, Some(0.5))]);
        let sent: Vec<_> = model.captured().iter().map(|r| r.config.temperature).collect();
        assert_eq!(sent, [None, Some(0.5), Some(0.5)]);
    }

    #[tokio::test]
    async fn core_104_newest_34_a_request_hook_that_changes_the_model_fails_the_step() {
        let rig = rig([Reply::text("yes")]).await;
        let hooks = &rig.harness.world().hooks;
        let first = once();
        let switch = move |mut input: RequestProposal, next: Next<_, _>| {
            if first() {
                input.config.model = "another".to_owned();
            }
            next.run(input)
        };
        hooks.request.add(rig.agent.scope(), switch).unwrap();
        let outcome = rig.agent.prompt("go").await.unwrap();
        let TurnEndReason::Error(failure) = outcome.reason else { panic!() };
        assert!(failure.message.contains("changed the model from `scripted/any`"), "{failure}");
        let log = kinds(&rig.agent);
        assert_eq!(log[3..], ["step/start", "step/end", "turn/end"]);
        assert!(rig.model.captured().is_empty());
        rig.works().await;
    }

    #[tokio::test]
    async fn core_46_a_failed_request_is_retried_in_the_same_step() {
        let replies = [Reply::error("SERVER", "down"), Reply::text("ok"), Reply::text("yes")];
        let rig = rig(replies).await;
        let diary = Diary::default();
        let note = diary.clone();
        rig.pre_step(move |input: PreStep, next: Next<_, _>| {
            note.note("pre-step");
            next.run(input)
        });
        let hooks = &rig.harness.world().hooks;
        let note = diary.clone();
        let count = move |input: RequestProposal, next: Next<_, _>| {
            note.note("request");
            next.run(input)
        };
        hooks.request.add(rig.agent.scope(), count).unwrap();
        let note = diary.clone();
        let retry = move |input: RequestError, _: Next<_, _>| {
            note.note(format!("error {} of {}", input.failure.code, input.provider));
            async { Ok(Recovery::Retry) }
        };
        hooks.request_error.add(rig.agent.scope(), retry).unwrap();
        let outcome = rig.agent.prompt("go").await.unwrap();
        assert_eq!((outcome.text.as_str(), outcome.reason), ("ok", TurnEndReason::Completed));
        assert_eq!(diary.read(), ["pre-step", "request", "error SERVER of scripted", "request"]);
        let log = kinds(&rig.agent);
        let answers = ["request/context", "assistant/attempt", "assistant/message", "step/end"];
        assert!(log.windows(4).any(|window| window == answers), "{log:?}");
        assert_eq!(user_texts(&rig.agent), ["go"]);
        rig.works().await;
    }

    #[tokio::test]
    async fn core_29_a_turn_that_is_steered_as_it_stops_runs_one_more_step() {
        let rig = rig([Reply::text("one"), Reply::text("two"), Reply::text("yes")]).await;
        let hooks = &rig.harness.world().hooks;
        let first = once();
        let steer = move |stopping: TurnStopping| {
            let steer = first();
            async move {
                if steer {
                    stopping.agent.steer("and then?").await?;
                }
                Ok(())
            }
        };
        hooks.turn_stopping.add(rig.agent.scope(), steer).unwrap();
        let outcome = rig.agent.prompt("go").await.unwrap();
        assert_eq!((outcome.text.as_str(), outcome.reason), ("two", TurnEndReason::Completed));
        assert_eq!(user_texts(&rig.agent), ["go", "and then?"]);
        assert_eq!(turn_ends(&rig.agent).len(), 1);
        rig.works().await;
    }

    #[tokio::test]
    async fn core_49_a_retry_that_is_decided_after_a_cancel_is_none() {
        let rig = rig([Reply::error("SERVER", "down"), Reply::text("yes")]).await;
        let pause = Pause::closed();
        let held = pause.clone();
        let retry = move |_: RequestError, _: Next<_, _>| {
            let held = held.clone();
            async move {
                held.pass().await;
                Ok(Recovery::Retry)
            }
        };
        let hooks = &rig.harness.world().hooks;
        hooks.request_error.add(rig.agent.scope(), retry).unwrap();
        let id = rig.agent.followup("go").await.unwrap();
        pause.arrived(1).await;
        rig.agent.cancel(CancelCause::User);
        pause.open();
        let outcome = soon(rig.agent.outcome(&id, 0)).await.unwrap();
        assert_eq!(outcome.reason, TurnEndReason::Aborted(CancelCause::User));
        let log = kinds(&rig.agent);
        assert_eq!(log[log.len() - 3..], ["assistant/attempt", "step/end", "turn/end"]);
        rig.works().await;
    }
}

/// Cancels while a hook waits, and again by a hook that then fails: what the log says of it.
async fn cancelled_at(window: &'static str, then_fails: bool) -> Vec<String> {
    let fails_first = window == "request-error";
    let replies = if fails_first {
        vec![Reply::error("SERVER", "down"), Reply::text("yes")]
    } else if window == "turn-stopping" {
        vec![Reply::text("done"), Reply::text("yes")]
    } else {
        vec![Reply::text("yes")]
    };
    let rig = rig(replies).await;
    let faults = rig.faults();
    let pause = Pause::closed();
    let held = pause.clone();
    let first = once();
    let wait = move || {
        let (held, wait) = (held.clone(), first());
        async move {
            if wait {
                held.pass().await;
                if then_fails {
                    return Err(Failure::new("LATE", "after the cancel"));
                }
            }
            Ok(())
        }
    };
    let world = rig.harness.world();
    let (hooks, scope) = (&world.hooks, rig.agent.scope());
    match window {
        "assembly" => {
            let section = Section::computed("slow", 0.0, move |_| {
                let waited = wait();
                async move {
                    waited.await?;
                    Ok(Some("prompt".to_owned()))
                }
            });
            world.prompts.section(scope, section).unwrap();
        }
        "pre-step" => rig.pre_step(move |input, next: Next<_, _>| {
            let waited = wait();
            async move {
                waited.await?;
                next.run(input).await
            }
        }),
        "request" => {
            let listener = move |input: RequestProposal, next: Next<_, _>| {
                let waited = wait();
                async move {
                    waited.await?;
                    next.run(input).await
                }
            };
            hooks.request.add(scope, listener).unwrap();
        }
        "request-error" => {
            let listener = move |input: RequestError, next: Next<_, _>| {
                let waited = wait();
                async move {
                    waited.await?;
                    next.run(input).await
                }
            };
            hooks.request_error.add(scope, listener).unwrap();
        }
        _ => {
            hooks.turn_stopping.add(scope, move |_| wait()).unwrap();
        }
    }
    let id = rig.agent.followup("go").await.unwrap();
    pause.arrived(1).await;
    rig.agent.cancel(CancelCause::User);
    pause.open();
    let outcome = soon(rig.agent.outcome(&id, 0)).await.unwrap();
    assert_eq!(outcome.reason, TurnEndReason::Aborted(CancelCause::User), "{window}");
    soon(rig.agent.when_idle()).await.unwrap();
    assert!(faults.lock().unwrap().is_empty(), "{window}: a cancel is no error");
    let log = kinds(&rig.agent);
    rig.works().await;
    log[3..].to_vec()
}

#[tokio::test]
async fn a_cancel_in_any_hook_ends_the_turn_as_aborted_even_if_the_hook_then_fails() {
    for then_fails in [false, true] {
        assert_eq!(cancelled_at("assembly", then_fails).await, ["turn/end"]);
        assert_eq!(cancelled_at("pre-step", then_fails).await, ["turn/end"]);
        let unsent = ["step/start", "step/end", "turn/end"];
        assert_eq!(cancelled_at("request", then_fails).await, unsent);
        let log = cancelled_at("request-error", then_fails).await;
        assert_eq!(log[log.len() - 3..], ["assistant/attempt", "step/end", "turn/end"]);
        let log = cancelled_at("turn-stopping", then_fails).await;
        assert_eq!(log[log.len() - 3..], ["assistant/message", "step/end", "turn/end"]);
    }
}

#[tokio::test]
async fn a_hook_that_ignores_a_cancel_is_abandoned_after_the_grace_time() {
    let grace = std::time::Duration::from_millis(50);
    let (harness, model) = rig::with(Harness::builder().grace(grace), [Reply::text("yes")]).await;
    let agent = harness.create(NewAgent::new(rig::options())).await.unwrap();
    let rig = Rig { harness, model, agent };
    let pause = Pause::closed();
    let held = pause.clone();
    let first = once();
    rig.pre_step(move |input, next: Next<_, _>| {
        let (held, wait) = (held.clone(), first());
        async move {
            if wait {
                held.pass().await;
            }
            next.run(input).await
        }
    });
    let id = rig.agent.followup("go").await.unwrap();
    pause.arrived(1).await;
    rig.agent.cancel(CancelCause::User);
    let outcome = soon(rig.agent.outcome(&id, 0)).await.unwrap();
    assert_eq!(outcome.reason, TurnEndReason::Aborted(CancelCause::User));
    rig.works().await;
}

#[tokio::test]
async fn observers_are_told_each_change_once_and_of_their_own_agents_only() {
    let replies = [Reply::text("one"), Reply::error("SERVER", "down"), Reply::text("other")];
    let (harness, _, _) = rig::in_memory(replies).await;
    let world = harness.world().clone();
    let owner = world.scope.child("team").unwrap();
    let new = || NewAgent::new(rig::options());
    let mine = harness.create(new().id("mine").owned_by(owner.clone())).await.unwrap();
    let other = harness.create(new().id("other")).await.unwrap();
    let diary = Diary::default();
    for (name, scope) in [("root", &world.scope), ("team", &owner), ("own", mine.scope())] {
        let note = diary.clone();
        let status = move |change: &playhouse::plugin_api::points::StatusChange| {
            note.note(format!("{name} {} {:?}", change.agent.id(), change.status));
        };
        world.hooks.status.add(scope, status).unwrap();
        let note = diary.clone();
        let error = move |fault: &playhouse::plugin_api::agent::AgentFault| {
            note.note(format!("{name} {} {}", fault.agent, fault.failure.code));
        };
        world.hooks.error.add(scope, error).unwrap();
        let note = diary.clone();
        let disposed = move |agent: &playhouse::Agent| {
            note.note(format!("{name} {} gone", agent.id()));
        };
        world.hooks.disposed.add(scope, disposed).unwrap();
    }
    let told = |from: usize| diary.read().split_off(from);
    mine.prompt("1").await.unwrap();
    mine.when_idle().await.unwrap();
    let both = |what: &str| ["root", "team", "own"].map(|name| format!("{name} mine {what}"));
    let running = both("Running");
    assert_eq!(told(0), [running.clone(), both("Idle")].concat());
    mine.prompt("2").await.unwrap();
    mine.when_idle().await.unwrap();
    assert_eq!(told(6), [running, both("SERVER"), both("Idle")].concat());
    other.prompt("3").await.unwrap();
    other.when_idle().await.unwrap();
    assert_eq!(told(15), ["root other Running", "root other Idle"]);
    mine.dispose().await.unwrap();
    // Its own listeners went with its scope.
    assert_eq!(told(17), ["root mine gone", "team mine gone"]);
    owner.close();
    other.dispose().await.unwrap();
    assert_eq!(told(19), ["root other gone"]);
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_was_registered_in_a_scope_is_gone_once_it_closes() {
    let replies = [Reply::text("one"), Reply::text("two")];
    let (harness, model, _) = rig::in_memory(replies).await;
    let world = harness.world();
    let owner = world.scope.child("team").unwrap();
    let agent = harness.create(NewAgent::new(rig::options())).await.unwrap();
    let extra = agent.scope().child("extra").unwrap();
    let diary = Diary::default();
    let note = diary.clone();
    let listener = move |input: PreStep, next: Next<_, _>| {
        note.note("pre-step");
        next.run(input)
    };
    world.hooks.pre_step.add(&extra, listener.clone()).unwrap();
    // A listener of a scope that the agent is not in hears nothing of it.
    world.hooks.pre_step.add(&owner, listener.clone()).unwrap();
    world.prompts.section(agent.scope(), Section::text("mine", 0.0, "You are mine.")).unwrap();
    let section = world.prompts.section(&world.scope, Section::text("all", 1.0, "And ours."));
    agent.prompt("go").await.unwrap();
    assert_eq!(diary.read(), [""; 0]);
    section.unwrap().remove();
    world.hooks.pre_step.add(agent.scope(), listener.clone()).unwrap();
    agent.prompt("go").await.unwrap();
    assert_eq!(diary.read(), ["pre-step"]);
    let systems = |at: usize| model.captured()[at].messages[0].text();
    assert_eq!(systems(0), "You are mine.\n\nAnd ours.");
    assert_eq!(systems(1), "You are mine.");
    agent.dispose().await.unwrap();
    let late = world.hooks.pre_step.add(agent.scope(), listener);
    assert_eq!(late.unwrap_err().code(), "SCOPE_CLOSED");
    assert_eq!(agent.status(), Status::Idle);
    harness.shutdown().await.unwrap();
}
