//! The retry plugin in a harness.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use playhouse::{
    EventBody, Failure, Message, NewEvent, Recovery, TurnEndReason,
    messages::{
        config::{HeaderReason, ModelChoice},
        retry::{Backoff, RetryPolicy},
    },
    models::scripted::{Fault, FaultKind, Reply},
    plugin_api::{
        hook::Next,
        points::{RequestError, RequestProposal},
        prompt::Section,
    },
    policies::Retry,
};

use super::rig::{Rig, always, asks_for, fails, host, normal, reason_of, soon};

type NextRecovery = Next<RequestError, Recovery>;

/// A listener that counts, and passes on.
macro_rules! counted {
    ($point:expr, $scope:expr) => {{
        let count = Arc::new(AtomicUsize::new(0));
        let counter = count.clone();
        let listener = move |input, next: Next<_, _>| {
            counter.fetch_add(1, Ordering::Relaxed);
            next.run(input)
        };
        $point.add($scope, listener).unwrap();
        move || count.load(Ordering::Relaxed)
    }};
}

fn last_header(rig: &Rig) -> HeaderReason {
    let log = rig.agent.session().log();
    let reason = log.iter().rev().find_map(|event| match &event.body {
        EventBody::RequestHeader(data) => Some(data.reason),
        _ => None,
    });
    reason.unwrap()
}

const FAILED: &str = "TS1 SS1.1 SYS+ U H C AT";

#[tokio::test(start_paused = true)]
async fn by_default_delays_are_spread_as_the_ids_are() {
    let mut delays = Vec::new();
    for _ in 0..2 {
        let rig = Rig::new(RetryPolicy::default(), vec![fails("SERVER"); 6]).await;
        rig.retry.stop().await;
        host(&rig.harness, Retry::new()).await;
        rig.prompt().await;
        let chain: Vec<_> = rig.scheduled().iter().map(|retry| retry.delay_ms).collect();
        let mut middle = 500.0;
        for delay in &chain {
            assert!((middle * 0.9..=middle * 1.1).contains(delay), "{chain:?}");
            middle *= 2.0;
        }
        assert_ne!(chain[1], chain[0] * 2.0, "each is spread by itself");
        delays.push(chain);
        rig.end().await;
    }
    assert_eq!(delays[0], delays[1], "the same ids, the same delays");
}

#[tokio::test(start_paused = true)]
async fn a_reload_does_not_give_the_budget_back() {
    let rig = Rig::new(normal(2, &["SERVER"]), vec![fails("SERVER"); 5]).await;
    let retry = rig.retry.clone();
    let reload = move |error: RequestError, next: NextRecovery| {
        let retry = retry.clone();
        async move {
            let verdict = next.run(error).await;
            retry.reload().await?;
            verdict
        }
    };
    rig.hooks().request_error.add_first(&rig.harness.world().scope, reload).unwrap();
    rig.prompt().await;
    assert_eq!(rig.model.requests().len(), 3);
    let chain: Vec<_> =
        rig.scheduled().into_iter().map(|retry| (retry.retry_id, retry.retry)).collect();
    assert_eq!(chain[0].0, chain[1].0);
    assert_eq!([chain[0].1, chain[1].1], [1, 2]);
    rig.end().await;
}

#[tokio::test(start_paused = true)]
async fn another_step_has_a_budget_of_its_own() {
    let replies = [fails("SERVER"), Reply::text("one"), fails("SERVER"), Reply::text("two")];
    let rig = Rig::new(normal(1, &["SERVER"]), replies).await;
    assert_eq!(rig.prompt().await.text, "one");
    assert_eq!(rig.prompt().await.text, "two");
    assert_eq!(rig.scheduled().iter().map(|retry| retry.retry).collect::<Vec<_>>(), [1, 1]);
    rig.end().await;
}

mod scenario {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn core_46_llm_56_retry_twice_then_success() {
        let rig = Rig::new(
            RetryPolicy::default(),
            [fails("SERVER"), fails("TRANSPORT"), Reply::text("ok")],
        )
        .await;
        let world = rig.harness.world();
        let assemblies = counted!(world.prompts.on_assemble(), &world.scope);
        let pre_steps = counted!(world.hooks.pre_step, &world.scope);
        let requests = counted!(world.hooks.request, &world.scope);
        let outcome = rig.prompt().await;
        assert_eq!((&*outcome.text, &outcome.reason), ("ok", &TurnEndReason::Completed));
        let retried = "llm/retry llm/retry-started";
        let expected = format!("{FAILED} {retried} AT {retried} A SE1.1 TE1(completed)");
        assert_eq!(rig.steps(), expected);
        assert_eq!((assemblies(), pre_steps(), requests()), (1, 1, 3));
        assert_eq!(rig.model.prepared.load(Ordering::Relaxed), 3);
        let [first, second] = &rig.scheduled()[..] else { panic!() };
        assert_eq!((first.retry, second.retry), (1, 2));
        assert_eq!(first.retry_id, second.retry_id);
        assert_eq!((&*first.failure.code, &*second.failure.code), ("SERVER", "TRANSPORT"));
        assert_eq!(rig.model.waits(), [500, 1000]);
        let bodies: Vec<_> = rig.model.requests().iter().map(|r| r.body.to_bytes()).collect();
        assert!(bodies.len() == 3 && bodies[1..] == bodies[..2], "a failure leaves no trace");
        rig.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn core_47_a_listener_that_compacts_is_followed_by_the_retry() {
        let replies = [Reply::text("one"), fails("SERVER"), Reply::text("ok")];
        let rig = Rig::new(RetryPolicy::default(), replies).await;
        let world = rig.harness.world();
        world.prompts.section(&world.scope, Section::text("rules", 0.0, "Be brief.")).unwrap();
        rig.prompt().await;
        let compact = |error: RequestError, next: NextRecovery| async move {
            let session = error.agent.session().clone();
            let log = session.log();
            let node = |kind: &str| log.iter().find(|event| event.body.kind() == kind).unwrap().seq;
            let (start, end) = (node("user/message"), node("assistant/message"));
            let summary = EventBody::UserMessage(Arc::new(Message::user("summary", "They met.")));
            session.append(NewEvent::replace(summary, start, end, vec![start, end])).await?;
            next.run(error).await
        };
        rig.hooks().request_error.add_first(&world.scope, compact).unwrap();
        assert_eq!(rig.prompt().await.text, "ok");
        let texts = rig.model.texts();
        assert_eq!(texts[1], ["Be brief.", "go", "one", "go"]);
        assert_eq!(texts[2], ["Be brief.", "They met.", "go"]);
        assert!(
            rig.steps().ends_with("AT U~ llm/retry llm/retry-started H A SE2.1 TE2(completed)")
        );
        assert_eq!(last_header(&rig), HeaderReason::Series);
        rig.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn core_48_a_retry_with_other_sampling_logs_the_change() {
        let rig = Rig::new(RetryPolicy::default(), [fails("SERVER"), Reply::text("ok")]).await;
        let cool = |mut input: RequestProposal, next: Next<_, _>| async move {
            if input.agent.session().view().failed_attempts > 0 {
                input.config.temperature = Some(0.5);
            }
            next.run(input).await
        };
        rig.hooks().request.add(rig.agent.scope(), cool).unwrap();
        assert_eq!(rig.prompt().await.text, "ok");
        let expected = format!("{FAILED} llm/retry llm/retry-started H A SE1.1 TE1(completed)");
        assert_eq!(rig.steps(), expected);
        assert_eq!(last_header(&rig), HeaderReason::Change);
        let sent: Vec<_> = rig.model.requests().iter().map(|r| r.config.temperature).collect();
        assert_eq!(sent, [None, Some(0.5)]);
        rig.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn core_49_llm_61_a_cancel_during_the_wait_ends_it() {
        for policy in [RetryPolicy::default(), always()] {
            let rig = Rig::new(policy, [fails("SERVER"), Reply::text("no")]).await;
            let id = rig.until("llm/retry").await;
            rig.agent.cancel(playhouse::CancelCause::User);
            let outcome = soon(rig.agent.outcome(&id, 0)).await.unwrap();
            assert_eq!(outcome.reason, TurnEndReason::Aborted(playhouse::CancelCause::User));
            assert_eq!(rig.steps(), format!("{FAILED} llm/retry SE1.1 TE1(aborted:user)"));
            assert_eq!(rig.model.requests().len(), 1);
            rig.end().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn core_50_a_listener_that_fails_ends_the_turn_with_its_error() {
        let rig = Rig::new(RetryPolicy::default(), [fails("AUTH")]).await;
        let broken = |_: RequestError, _: NextRecovery| async { Err(Failure::new("MINE", "no")) };
        rig.hooks().request_error.add(rig.agent.scope(), broken).unwrap();
        rig.prompt().await;
        assert_eq!(rig.steps(), format!("{FAILED} SE1.1 TE1(error:MINE)"));
        rig.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn core_51_llm_57_a_code_that_is_not_listed_is_terminal() {
        let down = Fault::new(FaultKind::Error).with_status(401).with_message("who are you?");
        let reply = Reply::default().with_fault(Fault { code: Some("AUTH".into()), ..down });
        let rig = Rig::new(RetryPolicy::default(), [reply]).await;
        let failure = Failure { status: Some(401), ..Failure::new("AUTH", "who are you?") };
        assert_eq!(rig.prompt().await.reason, TurnEndReason::Error(failure));
        assert_eq!(rig.steps(), format!("{FAILED} SE1.1 TE1(error:AUTH)"));
        rig.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn llm_58_a_used_up_budget_leaves_the_failure() {
        let rig = Rig::new(RetryPolicy::default(), vec![fails("SERVER"); 7]).await;
        rig.prompt().await;
        assert_eq!(rig.model.requests().len(), 6);
        assert!(rig.steps().ends_with("llm/retry-started AT SE1.1 TE1(error:SERVER)"));
        let retries: Vec<_> = rig.scheduled().iter().map(|retry| retry.retry).collect();
        assert_eq!(retries, [1, 2, 3, 4, 5]);
        assert_eq!(rig.model.waits(), [500, 1_000, 2_000, 4_000, 8_000]);
        rig.end().await;
    }

    /// A provider that says when to come back is never asked earlier.
    #[tokio::test(start_paused = true)]
    async fn llm_59_l85_a_provider_s_delay_is_obeyed_or_the_retry_given_up() {
        let default = RetryPolicy::default;
        for (policy, asked, waited) in [
            (default(), 700, Some(700)),
            (default(), 10_000, Some(10_000)),
            (default(), 17_000, None),
            (always(), 10_000, Some(10_000)),
            (always(), 17_000, Some(500)),
        ] {
            let rig = Rig::new(policy, [asks_for(asked), Reply::text("ok")]).await;
            rig.prompt().await;
            assert_eq!(rig.model.waits(), waited.as_slice(), "{asked}");
            let end = if waited.is_some() { "TE1(completed)" } else { "TE1(error:RATE_LIMIT)" };
            assert!(rig.steps().ends_with(end), "{asked}: {}", rig.steps());
            rig.end().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn l85_a_longer_limit_waits_as_long_as_it_is_told() {
        let backoff = Backoff { max_delay_ms: 60_000, ..Backoff::default() };
        let retryable_codes = vec!["RATE_LIMIT".to_owned()];
        let policy = RetryPolicy::Normal { max_retries: 5, retryable_codes, backoff };
        let rig = Rig::new(policy, [asks_for(17_000), Reply::text("ok")]).await;
        assert_eq!(rig.prompt().await.text, "ok");
        assert_eq!(rig.model.waits(), [17_000]);
        assert_eq!(rig.scheduled()[0].delay_ms, 17_000.0);
        rig.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn llm_62_without_a_limit_others_are_asked_first() {
        let other = ModelChoice { provider: "p".into(), model: "n".into(), reasoning_effort: None };
        for verdict in [Recovery::Retry, Recovery::RetryWith(other)] {
            let rig = Rig::new(always(), [fails("AUTH"), Reply::text("ok")]).await;
            let said = verdict.clone();
            let say = move |_: RequestError, _: NextRecovery| {
                let said = said.clone();
                async { Ok(said) }
            };
            rig.hooks().request_error.add(rig.agent.scope(), say).unwrap();
            assert_eq!(rig.prompt().await.text, "ok");
            assert_eq!(rig.scheduled(), [], "{verdict:?}");
            rig.end().await;
        }
        let rig = Rig::new(always(), [fails("AUTH"), Reply::text("ok")]).await;
        let raise = |_: RequestError, _: NextRecovery| async { Err(Failure::new("MINE", "no")) };
        rig.hooks().request_error.add(rig.agent.scope(), raise).unwrap();
        assert_eq!(rig.prompt().await.text, "ok");
        let [retry] = &rig.scheduled()[..] else { panic!() };
        assert_eq!((&*retry.failure.code, retry.max_retries), ("AUTH", None));
        rig.end().await;
    }

    /// A cancel while others are asked is no reason to write a retry.
    #[tokio::test(start_paused = true)]
    async fn llm_62_a_cancel_while_others_are_asked_ends_it() {
        let rig = Rig::new(always(), [fails("AUTH")]).await;
        let cancel = |error: RequestError, next: NextRecovery| async move {
            error.agent.cancel(playhouse::CancelCause::User);
            next.run(error).await
        };
        rig.hooks().request_error.add(rig.agent.scope(), cancel).unwrap();
        rig.prompt().await;
        assert_eq!(rig.steps(), format!("{FAILED} SE1.1 TE1(aborted:user)"));
        rig.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn llm_63_another_policy_starts_another_chain() {
        let replies = [fails("SERVER"), fails("SERVER"), fails("SERVER"), Reply::text("ok")];
        let rig = Arc::new(Rig::new(RetryPolicy::default(), replies).await);
        let weak = Arc::downgrade(&rig);
        let change = move |input: RequestProposal, next: Next<_, _>| {
            if input.agent.session().view().failed_attempts == 2 {
                weak.upgrade().unwrap().set_policy(normal(9, &["SERVER"]));
            }
            next.run(input)
        };
        rig.hooks().request.add(rig.agent.scope(), change).unwrap();
        assert_eq!(rig.prompt().await.text, "ok");
        let [one, two, three] = &rig.scheduled()[..] else { panic!() };
        assert_eq!([one.retry, two.retry, three.retry], [1, 2, 1]);
        assert!(one.retry_id == two.retry_id && two.retry_id != three.retry_id);
        assert_ne!(two.policy_key, three.policy_key);
        assert_eq!((two.max_retries, three.max_retries), (Some(5), Some(9)));
        Arc::into_inner(rig).unwrap().end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn llm_64_unloading_the_plugin_ends_its_waits() {
        for policy in [RetryPolicy::default(), always()] {
            let rig = Rig::new(policy, [fails("SERVER"), Reply::text("no")]).await;
            let id = rig.until("llm/retry").await;
            rig.retry.stop().await;
            soon(rig.agent.outcome(&id, 0)).await.unwrap();
            assert_eq!(rig.steps(), format!("{FAILED} llm/retry SE1.1 TE1(error:SERVER)"));
            rig.end().await;
        }
    }

    /// A chain that was begun before the plugin went still runs through it.
    #[tokio::test(start_paused = true)]
    async fn llm_64_a_listener_that_was_captured_before_says_nothing() {
        for policy in [RetryPolicy::default(), always()] {
            let rig = Rig::new(policy, [fails("SERVER")]).await;
            let verdicts = Arc::new(Mutex::new(Vec::new()));
            let (retry, heard) = (rig.retry.clone(), verdicts.clone());
            let unload = move |error: RequestError, next: NextRecovery| {
                let (retry, heard) = (retry.clone(), heard.clone());
                async move {
                    retry.stop().await;
                    let verdict = next.run(error).await?;
                    heard.lock().unwrap().push(verdict.clone());
                    Ok(verdict)
                }
            };
            rig.hooks().request_error.add_first(&rig.harness.world().scope, unload).unwrap();
            rig.prompt().await;
            assert_eq!(*verdicts.lock().unwrap(), [Recovery::Fail]);
            assert_eq!(rig.steps(), format!("{FAILED} SE1.1 TE1(error:SERVER)"));
            rig.end().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn llm_65_a_closed_stream_is_retried_only_if_its_code_is_listed() {
        for (policy, end) in [
            (RetryPolicy::default(), "TE1(error:STREAM_CLOSED)"),
            (normal(5, &["SERVER", "STREAM_CLOSED"]), "TE1(completed)"),
        ] {
            let cut = Reply::text("so far").with_fault(Fault::new(FaultKind::Cut));
            let rig = Rig::new(policy, [cut, Reply::text("ok")]).await;
            rig.prompt().await;
            assert!(rig.steps().ends_with(end), "{}", rig.steps());
            assert_eq!(
                reason_of(&rig.agent) == Some(TurnEndReason::Completed),
                end.contains("compl")
            );
            rig.end().await;
        }
    }
}
