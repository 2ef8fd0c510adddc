//! The numbered scenarios, and loops.

use super::*;

#[tokio::test]
async fn orchestration_3_8_1_a_meta_with_two_faults_is_one_error_that_lists_both() {
    let rig = Rig::new().await;
    let odd = json!({"name": "n", "colour": "red"});
    let request = WorkflowRequest::new(rig.parent.agent(), odd.clone());
    let error = rig.engine.start(request, "await agent('x')").await.unwrap_err();
    assert_eq!(error.code(), "META_INVALID");
    let text = error.to_string();
    assert!(text.contains("description is missing") && text.contains("colour"), "{text}");
    // The tool's schema says the same before the engine is asked.
    let called = rig.call("workflow", json!({"script": "return 1", "meta": odd})).await;
    let text = called.error().unwrap().message().to_owned();
    assert!(text.contains("description") && text.contains("colour"), "{text}");
    assert_eq!((rig.puppets.counts(), rig.engine.live()), ((0, 0), Live::default()));
}

#[tokio::test]
async fn orchestration_3_8_2_thirty_calls_never_have_more_than_four_children_at_once() {
    let rig = Rig::new().await;
    let script = "const all = [];
        for (let n = 1; n <= 30; n++) all.push(agent(`job ${n}`));
        return (await Promise.all(all)).length";
    let (result, seen) = rig.run(script).await;
    assert_eq!((result.value, result.agents_started), (Some(json!(30)), 30));
    assert_eq!((rig.puppets.peak(), rig.puppets.counts()), (4, (30, 30)));
    assert_eq!(outcomes(&seen), vec![AgentOutcome::Completed; 30]);
    // First come, first served.
    let asked: Vec<_> = (1..=30).map(|n| format!("job {n}")).collect();
    assert_eq!(rig.puppets.prompts(), asked);
}

#[tokio::test]
async fn orchestration_3_8_3_a_failure_is_its_items_own_and_a_misuse_ends_the_script() {
    let rig = Rig::new().await;
    let script = "return parallel([
        () => agent('x'), () => agent('!fail'), () => { throw new Error('mine') }])";
    let (result, seen) = rig.run(script).await;
    assert_eq!(result.value, Some(json!(["re: x", null, null])));
    assert_eq!(outcomes(&seen), [AgentOutcome::Completed, AgentOutcome::Failed]);

    let script = "return parallel([async () => {
        try { return await agent('x', {lable: 'typo'}) } catch { return 'caught' } }])";
    let (result, _) = rig.run(script).await;
    let error = result.error.unwrap();
    assert_eq!((result.stop_reason, &*error.code), (WorkflowStop::Error, "UNSUPPORTED_OPTION"));
    assert!(error.message.contains("lable"), "{}", error.message);
}

#[tokio::test]
async fn orchestration_3_8_4_the_third_of_two_agents_ends_the_run_also_inside_parallel() {
    let rig = Rig::new().await;
    let (request, seen) = rig.request();
    let script = "return parallel([1, 2, 3].map((n) => async () => {
        try { return await agent(`!wait ${n}`) } catch { return null } }))";
    let run = rig.engine.start(request.max_total_agents(2), script).await.unwrap();
    let result = run.result().await;
    assert_eq!((result.stop_reason, result.agents_started), (WorkflowStop::Error, 2));
    assert_eq!(result.error.unwrap().code, "AGENT_CAP");
    run.dispose().await.unwrap();
    rig.is_clean(&seen);
}

#[tokio::test]
async fn orchestration_3_8_5_an_aborted_call_ends_a_script_that_waits_for_ever() {
    let rig = Rig::new().await;
    let mut request = rig.tool_request(
        "workflow",
        json!({
            "script": "agent('!hang'); agent('!hang too'); await new Promise(() => {})",
            "meta": meta(),
        }),
    );
    let abort = CancelToken::new();
    request.cancel = abort.clone();
    let called = rig.world().tools.execute_one(request);
    let aborting = async {
        rig.puppets.until_live(2).await;
        abort.cancel(CancelCause::User);
    };
    let (outcome, ()) = futures::join!(called, aborting);
    assert!(outcome.is_error());
    assert_eq!((rig.puppets.counts(), rig.engine.live()), ((2, 2), Live::default()));
}

#[tokio::test]
async fn orchestration_3_8_6_a_dead_worker_is_an_error_and_its_children_end_before_the_run() {
    let rig = Rig::new().await;
    let (request, seen) = rig.request();
    let puppets = rig.puppets.clone();
    let run = rig.engine.start_native(request, move |cx| async move {
        let both = cx.parallel([cx.agent("!hang"), cx.agent("!hang")]);
        let dying = async {
            puppets.until_live(2).await;
            panic!("the worker breaks");
        };
        let (_, ()): (Result<Vec<Value>, Halt>, ()) = futures::join!(both, dying);
        Ok(Value::Null)
    });
    let run = run.unwrap();
    let result = run.result().await;
    let error = result.error.unwrap();
    assert_eq!((result.stop_reason, &*error.code), (WorkflowStop::Error, "WORKER_DIED"));
    assert!(error.message.contains("the worker breaks"));
    run.dispose().await.unwrap();
    // Both ends come before the run's, which `is_clean` wants to be the last word.
    rig.is_clean(&seen);
    assert_eq!(outcomes(&seen), [AgentOutcome::Cancelled; 2]);
    assert_eq!(rig.puppets.counts(), (2, 2));
}

#[tokio::test]
async fn orchestration_3_8_7_what_is_no_plain_json_is_no_result() {
    let rig = Rig::new().await;
    for (script, why) in [
        ("const a = {}; a.b = [a]; return a", "cyclic"),
        ("return {f: () => 1}", "result.f is a function"),
        ("return [1, NaN]", "result[1] is not finite"),
        ("return [1, , 2]", "sparse"),
        ("return new Array(4e9)", "sparse"),
        ("return new Map()", "exotic"),
        ("return new Date()", "exotic"),
        ("return new (class A {})", "exotic"),
        ("return new Proxy({}, {})", "proxy"),
        ("return Symbol('x')", "symbol"),
        ("return 10n", "big_int"),
        ("return {[Symbol('x')]: 1}", "symbol"),
        ("return {get x() { throw 1 }}", "cannot be read"),
        ("let a = []; for (let n = 0; n < 200; n++) a = [a]; return a", "deeper"),
    ] {
        let (result, _) = rig.run(script).await;
        let error = result.error.unwrap();
        assert_eq!(error.code, "RESULT_UNSERIALIZABLE", "{script}: {}", error.message);
        let text = error.message.to_lowercase();
        assert!(text.contains(&why.to_lowercase()), "{script}: {text}");
    }
    for (script, value) in [
        ("", json!(null)),
        ("return undefined", json!(null)),
        (
            "return {a: 1, b: undefined, c: [undefined, 1.5, -0, 2**53]}",
            json!({"a": 1, "c": [null, 1.5, 0, 9007199254740992.0]}),
        ),
        (
            "const o = Object.create(null); o.x = 'ü\\u2028'; return [o, o]",
            json!([{"x": "ü\u{2028}"}, {"x": "ü\u{2028}"}]),
        ),
    ] {
        let (result, _) = rig.run(script).await;
        assert_eq!(result.value, Some(value), "{script}: {:?}", result.error);
    }
}

#[tokio::test]
async fn orchestration_3_8_8_a_loop_whose_rounds_are_used_up_is_budget_limited() {
    let rig = Rig::new().await;
    let report = |n: u32| {
        json!({"status": "continue", "summary": format!("round {n} was here"), "evidence": [],
            "nextSteps": ["go on"], "blocker": ""})
    };
    rig.puppets.report(report(1));
    rig.puppets.report(report(2));
    let outcome = rig.call("ralph", json!({"objective": "win", "maxRounds": 2})).await;
    let value = outcome.value().unwrap();
    assert_eq!(value["agentsStarted"], 2);
    let expected = json!({"status": "budget-limited", "roundsStarted": 2, "report": report(2)});
    assert_eq!(value["result"], expected);
    let prompts = rig.puppets.prompts();
    assert!(prompts[0].contains("none") && prompts[0].contains("1 of at most 2"));
    let second = &prompts[1];
    assert!(second.contains("round 1 was here") && !second.contains("round 2 was here"));
    assert!(prompts.iter().all(|prompt| prompt.contains("win")));
    assert_eq!((rig.puppets.counts(), rig.engine.live()), ((2, 2), Live::default()));
}

#[tokio::test]
async fn a_loop_ends_with_a_complete_report_and_names_the_round_that_failed() {
    let rig = Rig::new().await;
    let done = json!({"status": "complete", "summary": "did it", "evidence": ["the tests"],
        "nextSteps": [], "blocker": ""});
    rig.puppets.report(done.clone());
    let outcome = rig.call("ralph", json!({"objective": "win"})).await;
    let expected = json!({"status": "complete", "roundsStarted": 1, "report": done});
    assert_eq!(outcome.value().unwrap()["result"], expected);

    let more = json!({"status": "continue", "summary": "half", "evidence": [],
        "nextSteps": ["rest"], "blocker": ""});
    rig.puppets.report(more);
    let outcome = rig.call("ralph", json!({"objective": "win"})).await;
    let text = outcome.error().unwrap().message().to_owned();
    assert!(text.contains("round 2 failed") && text.contains("\"half\""), "{text}");
    for args in [json!({"objective": " "}), json!({"objective": "x", "maxRounds": 257})] {
        let outcome = rig.call("ralph", args).await;
        assert_eq!(outcome.error().unwrap().code(), Some("INVALID_ARGUMENT"));
    }
}
