//! Fallback models in a harness.

use playhouse::{
    CancelCause, EventBody, NewEvent, Recovery, TurnEndReason,
    messages::{
        config::{ModelChoice, Route},
        retry::RetryPolicy,
    },
    models::scripted::Reply,
    plugin_api::{hook::Next, points::RequestError},
    policies::{
        Fallback, FallbackPolicy, Retry,
        fallback::{FellBack, SkipReason, Skipped},
    },
};

use super::rig::{Rig, always, create, fails, host, normal, reason_of, soon};

fn choice(route: &str) -> ModelChoice {
    let (provider, model) = route.split_once('/').unwrap();
    ModelChoice { provider: provider.into(), model: model.into(), reasoning_effort: None }
}

fn policy(routes: &[&str]) -> FallbackPolicy {
    FallbackPolicy::new(routes.iter().map(|route| choice(route))).unwrap()
}

fn to(routes: &[&str]) -> Fallback {
    Fallback::new(policy(routes))
}

fn fell_back(rig: &Rig) -> Vec<FellBack> {
    let log = rig.agent.session().log();
    log.iter().filter_map(|event| FellBack::read(&event.body)).collect()
}

fn error_code(reason: Option<TurnEndReason>) -> String {
    match reason {
        Some(TurnEndReason::Error(failure)) => failure.code,
        reason => panic!("{reason:?}"),
    }
}

const FAILED: &str = "TS1 SS1.1 SYS+ U H C AT";

/// One retry, and no more.
fn once() -> RetryPolicy {
    normal(1, &["SERVER"])
}

#[tokio::test(start_paused = true)]
async fn a_step_goes_on_with_another_route_once_retry_has_given_up() {
    let rig = Rig::new(once(), vec![fails("SERVER"); 2]).await;
    host(&rig.harness, to(&["q/n"])).await;
    let spare = rig.route("q", [Reply::text("ok"), Reply::text("again")]);
    assert_eq!(rig.prompt().await.text, "ok");
    let expected = format!(
        "{FAILED} llm/retry llm/retry-started AT llm/fallback M(n) H C A SE1.1 TE1(completed)"
    );
    assert_eq!(rig.steps(), expected);
    let [event] = &fell_back(&rig)[..] else { panic!() };
    assert_eq!((&event.from, &event.to), (&Route::new("p", "m"), &Some(choice("q/n"))));
    assert_eq!((&*event.failure.code, event.at.step), ("SERVER", 1));
    assert_eq!(spare.texts()[0], rig.model.texts()[0], "the other route is asked the same");
    // The session stays with it.
    assert_eq!(rig.prompt().await.text, "again");
    assert_eq!((rig.model.requests().len(), spare.requests()[1].config.model.as_str()), (2, "n"));
    rig.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_order_of_the_plugins_does_not_matter() {
    let rig = Rig::new(once(), vec![fails("SERVER"); 2]).await;
    rig.retry.stop().await;
    host(&rig.harness, to(&["q/n"])).await;
    host(&rig.harness, Retry::new()).await;
    rig.route("q", [Reply::text("ok")]);
    assert_eq!(rig.prompt().await.text, "ok");
    assert!(rig.steps().contains("AT llm/retry llm/retry-started AT llm/fallback"));
    rig.end().await;
}

#[tokio::test(start_paused = true)]
async fn each_route_has_the_retries_of_its_own_policy() {
    let rig = Rig::new(once(), vec![fails("SERVER"); 2]).await;
    host(&rig.harness, to(&["q/n", "r/o"])).await;
    rig.route("q", [fails("SERVER")]);
    rig.route("r", [Reply::text("ok")]);
    assert_eq!(rig.prompt().await.text, "ok");
    let providers: Vec<_> = rig.scheduled().into_iter().map(|retry| retry.provider).collect();
    assert_eq!(providers, ["p"], "the second route's policy allows none");
    let [first, second] = &fell_back(&rig)[..] else { panic!() };
    assert_eq!((&first.from, &second.from), (&Route::new("p", "m"), &Route::new("q", "n")));
    let skipped = Skipped { route: Route::new("q", "n"), reason: SkipReason::Failed };
    assert_eq!(second.skipped, [skipped]);
    rig.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_used_up_list_leaves_the_first_failure() {
    let rig = Rig::new(normal(0, &["SERVER"]), [fails("SERVER")]).await;
    // The failing route itself is in the list: no step goes in circles.
    host(&rig.harness, to(&["p/m", "gone/x", "q/n"])).await;
    let spare = rig.route("q", [fails("TIMEOUT")]);
    rig.prompt().await;
    assert_eq!(error_code(reason_of(&rig.agent)), "SERVER");
    assert_eq!((rig.model.requests().len(), spare.requests().len()), (1, 1));
    let expected =
        format!("{FAILED} llm/fallback M(n) H C AT llm/fallback SE1.1 TE1(error:SERVER)");
    assert_eq!(rig.steps(), expected);
    let [_, last] = &fell_back(&rig)[..] else { panic!() };
    assert_eq!((&*last.failure.code, &last.to), ("TIMEOUT", &None));
    let reasons: Vec<_> = last.skipped.iter().map(|skipped| skipped.reason).collect();
    assert_eq!(reasons, [SkipReason::Failed, SkipReason::Unregistered, SkipReason::Failed]);
    rig.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_another_code_stands() {
    let rig = Rig::new(RetryPolicy::default(), [fails("AUTH"), fails("QUOTA")]).await;
    host(&rig.harness, Fallback::new(policy(&["q/n"]).on_codes(["QUOTA"]).unwrap())).await;
    rig.route("q", [Reply::text("ok")]);
    rig.prompt().await;
    assert_eq!(rig.steps(), format!("{FAILED} SE1.1 TE1(error:AUTH)"));
    assert_eq!(rig.prompt().await.text, "ok");
    rig.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_nearest_policy_counts() {
    let rig = Rig::new(normal(0, &["SERVER"]), vec![fails("SERVER"); 4]).await;
    let fallback = to(&["q/n"]);
    host(&rig.harness, fallback.clone()).await;
    rig.route("q", [Reply::text("of the harness"), Reply::text("of the harness")]);
    rig.route("r", [Reply::text("of the agent")]);
    let (own, none) = (create(&rig.harness).await, create(&rig.harness).await);
    let set = fallback.set(own.scope(), policy(&["r/o"])).unwrap();
    fallback.set(none.scope(), None).unwrap();
    assert_eq!(rig.prompt().await.text, "of the harness");
    assert_eq!(soon(own.prompt("go")).await.unwrap().text, "of the agent");
    soon(none.prompt("go")).await.unwrap();
    assert_eq!(error_code(reason_of(&none)), "SERVER");
    set.remove();
    let plain = NewEvent::log_only(EventBody::ModelSelection(choice("p/m")));
    own.session().append(plain).await.unwrap();
    assert_eq!(soon(own.prompt("go")).await.unwrap().text, "of the harness");
    rig.end().await;
}

/// What another listener chose and failed counts as well.
#[tokio::test(start_paused = true)]
async fn a_route_that_somebody_else_chose_is_not_tried_again() {
    let rig = Rig::new(normal(0, &["SERVER"]), [fails("SERVER")]).await;
    host(&rig.harness, to(&["q/n", "r/o"])).await;
    rig.route("q", [fails("SERVER")]);
    rig.route("s", [fails("SERVER")]);
    rig.route("r", [Reply::text("ok")]);
    let detour = |error: RequestError, next: Next<_, _>| async move {
        let detour = match &*error.provider {
            "p" => choice("q/n"),
            "q" => choice("s/z"),
            _ => return next.run(error).await,
        };
        let selection = NewEvent::log_only(EventBody::ModelSelection(detour.clone()));
        error.agent.session().append(selection).await?;
        Ok(Recovery::RetryWith(detour))
    };
    rig.hooks().request_error.add(&rig.harness.world().scope, detour).unwrap();
    assert_eq!(rig.prompt().await.text, "ok");
    let [event] = &fell_back(&rig)[..] else { panic!() };
    assert_eq!((&event.from, &event.to), (&Route::new("s", "z"), &Some(choice("r/o"))));
    rig.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_without_a_limit_never_gives_a_route_up() {
    let replies = vec![fails("SERVER"), fails("SERVER"), Reply::text("at last")];
    let rig = Rig::new(always(), replies).await;
    host(&rig.harness, to(&["q/n"])).await;
    rig.route("q", [Reply::text("no")]);
    assert_eq!(rig.prompt().await.text, "at last");
    assert_eq!((rig.scheduled().len(), fell_back(&rig).len()), (2, 0));
    rig.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_beats_a_fallback() {
    let rig = Rig::new(RetryPolicy::default(), [fails("SERVER")]).await;
    host(&rig.harness, to(&["q/n"])).await;
    rig.route("q", [Reply::text("no")]);
    let id = rig.until("llm/retry").await;
    rig.agent.cancel(CancelCause::User);
    soon(rig.agent.outcome(&id, 0)).await.unwrap();
    assert_eq!(rig.steps(), format!("{FAILED} llm/retry SE1.1 TE1(aborted:user)"));
    rig.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_unloaded_fallback_does_nothing_more() {
    let rig = Rig::new(RetryPolicy::default(), [fails("SERVER")]).await;
    let fallback = host(&rig.harness, to(&["q/n"])).await;
    rig.route("q", [Reply::text("no")]);
    let id = rig.until("llm/retry").await;
    // Its listener is waiting for what retry says.
    fallback.stop().await;
    rig.retry.stop().await;
    soon(rig.agent.outcome(&id, 0)).await.unwrap();
    assert_eq!(rig.steps(), format!("{FAILED} llm/retry SE1.1 TE1(error:SERVER)"));
    rig.end().await;
}
