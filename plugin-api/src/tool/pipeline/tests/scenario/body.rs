use super::*;

#[tokio::test]
async fn llm_78_a_wrapper_cannot_detach_the_caller() {
    let rig = Rig::new();
    let cancel = rig.cancel.clone();
    rig.tool(tool_fn("wait", "", move |_: Args, run: ToolRun| {
        let cancel = cancel.clone();
        async move {
            cancel.cancel(CancelCause::Parent);
            run.cancel().cancelled().await;
            run.defer_context(Message::user(run.new_message_id(), "seen"));
            run.conclude_turn();
            Ok(format!("{:?}", run.cancel().cause()))
        }
    }));
    let detach = |execution: ToolExecution, next: Next<_, _>| {
        next.run(ToolExecution { cancel: CancelToken::new(), ..execution })
    };
    rig.pipeline.hooks().execute.add(&rig.scope, detach).unwrap();
    let outcome = rig.call("wait", json!({"p": 1})).await;
    // The body ended well; the abort overtook it. What it deferred is kept.
    assert_eq!(text(&outcome), "Error: tool call aborted");
    assert_eq!((code(&outcome), ids(&outcome)), (Some("ABORTED"), vec!["m1"]));
    assert!(!outcome.concludes_turn());
}

#[tokio::test]
async fn llm_79_a_body_that_ignores_the_abort_is_awaited_and_only_its_success_is_overtaken() {
    for (late, expected) in [
        (Ok("late"), ("Error: tool call aborted", Some("ABORTED"))),
        (Err(ToolError::coded("E", "STOPPED", "gave up")), ("Error: gave up", Some("STOPPED"))),
    ] {
        let (rig, gate) = (Rig::new(), Arc::new(tokio::sync::Notify::new()));
        let opens = gate.clone();
        rig.tool(tool_fn("deaf", "", move |_: Args, _run| {
            let (gate, late) = (gate.clone(), late.clone());
            async move {
                gate.notified().await;
                late
            }
        }));
        let mut calling = Box::pin(rig.call("deaf", json!({"p": 1})));
        assert!(calling.as_mut().now_or_never().is_none());
        rig.cancel.cancel(CancelCause::User);
        assert!(calling.as_mut().now_or_never().is_none());
        opens.notify_one();
        let outcome = calling.await;
        assert_eq!((text(&outcome).as_str(), code(&outcome)), expected);
    }
}

#[tokio::test]
async fn a_wrapper_may_cancel_the_body_retry_and_answer_itself() {
    let rig = Rig::new();
    let give_up = |execution: ToolExecution, next: Next<_, _>| {
        let own = CancelToken::new();
        own.cancel(CancelCause::User);
        next.run(ToolExecution { cancel: own, ..execution })
    };
    let added = rig.pipeline.hooks().execute.add(&rig.scope, give_up).unwrap();
    assert_eq!(code(&*rig.ok().await), Some("ABORTED_BEFORE_DISPATCH"));
    added.remove();
    let twice = |execution: ToolExecution, next: Next<ToolExecution, ToolOutcome>| async move {
        next.clone().run(execution.clone()).await?;
        next.run(execution).await
    };
    let added = rig.pipeline.hooks().execute.add(&rig.scope, twice).unwrap();
    assert_eq!(text(&*rig.ok().await), "7");
    assert_eq!(rig.log(), ["body", "body"]);
    added.remove();
    let answer = |_, _| async { Ok(ToolOutcome::success(json!({"own": 1}))) };
    let added = rig.pipeline.hooks().execute.add(&rig.scope, answer).unwrap();
    assert_eq!(text(&*rig.ok().await), "{\"own\":1}");
    added.remove();
    rig.pipeline
        .hooks()
        .execute
        .add(&rig.scope, |_, _| async { Err(Failure::unknown("w")) })
        .unwrap();
    let rig = rig.traced();
    assert_eq!(text(&*rig.ok().await), "Error: w");
    assert_eq!(rig.log()[2..], ["result Error: w"]);
}

fn shown(rig: &Rig) {
    let shown = tool_fn("shown", "", |args: Args, _run| async move {
        Ok(ToolOutput::new(json!(args.p)).showing(vec![ContentBlock::text("shown")]))
    });
    rig.tool(shown.output_schema(json!({"type": "integer", "maximum": 9})));
}

#[tokio::test]
async fn llm_80_a_wrappers_success_is_checked_and_rendered_anew() {
    let rig = Rig::new();
    shown(&rig);
    let authentic = rig.call("shown", json!({"p": 1})).await;
    assert_eq!(text(&authentic), "shown");
    // Another dispatch made this content: here it is only what somebody wrote.
    let foreign = ToolOutcome::clone(&authentic).with_context(context("kept"));
    let answer = move |_, _| std::future::ready(Ok(foreign.clone()));
    let added = rig.pipeline.hooks().execute.add(&rig.scope, answer).unwrap();
    let outcome = rig.call("shown", json!({"p": 2})).await;
    assert_eq!((text(&outcome).as_str(), ids(&outcome)), ("1", vec!["kept"]));
    added.remove();
    let answer = |_, _| async { Ok(ToolOutcome::success(json!("ten"))) };
    rig.pipeline.hooks().execute.add(&rig.scope, answer).unwrap();
    let outcome = rig.call("shown", json!({"p": 2})).await;
    assert_eq!(code(&outcome), Some("INVALID_TOOL_OUTPUT"));
}

#[tokio::test]
async fn llm_81_a_bodys_value_that_breaks_the_tools_own_schema_is_a_failure() {
    let rig = Rig::new();
    shown(&rig);
    let outcome = rig.call("shown", json!({"p": 10})).await;
    assert_eq!(code(&outcome), Some("INVALID_TOOL_OUTPUT"));
    let text = text(&outcome);
    assert!(
        text.starts_with("Error: tool \"shown\" returned invalid output: \"value\" "),
        "{text}"
    );
}

#[tokio::test]
async fn llm_82_bodies_that_fail_say_so_with_a_code_only_if_they_have_one() {
    struct Early(Arc<ToolSchema>);
    impl Tool for Early {
        fn schema(&self) -> &Arc<ToolSchema> {
            &self.0
        }
        fn execute(
            &self,
            _: Value,
            _: ToolRun,
        ) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
            panic!("early")
        }
    }
    let rig = Rig::new();
    let early = tool_fn("early", "", |_: Args, _run| async { Ok("") }).schema().clone();
    rig.tool(Early(early));
    rig.tool(tool_fn("fails", "", |args: Args, _run| async move {
        match args.p {
            0 => Err("sorry".into()),
            1 => Err(ToolError::coded("MyError", "MY_CODE", "sorry")),
            2 => panic!("late"),
            _ => Ok("fine"),
        }
    }));
    for (tool, p, expected) in [
        ("fails", 0, ("Error: sorry", None)),
        ("fails", 1, ("Error: sorry", Some("MY_CODE"))),
        ("fails", 2, ("Error: late", None)),
        ("early", 0, ("Error: early", None)),
        ("fails", 3, ("fine", None)),
    ] {
        let outcome = rig.call(tool, json!({"p": p})).await;
        assert_eq!((text(&outcome).as_str(), code(&outcome)), expected);
    }
}

#[tokio::test]
async fn llm_88_nobody_can_change_a_calls_arguments() {
    let rig = Rig::new();
    // Whoever is handed arguments has a copy of their own, or a shared reference.
    let note = rig.note();
    rig.tool(tool_fn("greedy", "", move |mut args: Value, run: ToolRun| {
        args["p"] = json!("changed");
        note(&run.call().arguments().to_string());
        async { Ok("done") }
    }));
    let note = rig.note();
    let post = move |settled: ToolSettled, next: Next<_, _>| {
        let mut copy = settled.call.arguments().clone();
        copy["p"] = json!("changed, too");
        note(&settled.call.arguments().to_string());
        next.run(settled)
    };
    rig.pipeline.hooks().post.add(&rig.scope, post).unwrap();
    let mut original = json!({"p": [1, 2]});
    let dispatch = rig.pipeline.dispatch(rig.request("greedy", original.clone()));
    original["p"] = json!("changed after the call was made");
    let settled = dispatch.run().await;
    dispatch.finish(settled).await;
    assert_eq!(rig.log(), ["{\"p\":[1,2]}", "{\"p\":[1,2]}"]);
}
