use super::*;

#[tokio::test]
async fn llm_83_replaced_content_leaves_value_and_meta_and_a_replaced_value_is_rendered() {
    let rig = Rig::new();
    rig.tool(
        tool_fn("int", "", |args: Args, _run| async move {
            if args.p == 0 {
                return Err("zero".into());
            }
            Ok(ToolOutput::new(json!(args.p)).with_meta(json!({"lines": 1})))
        })
        .output_schema(json!({"type": "integer"})),
    );
    // Both at once cannot be said.
    let replace = |replacement: Replacement| {
        move |_, _| {
            let replacement = Some(replacement.clone());
            std::future::ready(Ok(PostVerdict::Accept { replacement, contexts: vec![] }))
        }
    };
    let post = &rig.pipeline.hooks().post;
    let content = Replacement::Content(vec![ContentBlock::text("short")]);
    let added = post.add(&rig.scope, replace(content)).unwrap();
    let outcome = rig.call("int", json!({"p": 1})).await;
    assert_eq!(text(&outcome), "short");
    assert_eq!(outcome.value().unwrap().as_ref(), &json!(1));
    assert_eq!(outcome.meta(), Some(&json!({"lines": 1})));
    let outcome = rig.call("int", json!({"p": 0})).await;
    assert_eq!((text(&outcome).as_str(), outcome.is_error()), ("short", true));
    added.remove();
    let added = post.add(&rig.scope, replace(Replacement::Value(json!(42)))).unwrap();
    let outcome = rig.call("int", json!({"p": 1})).await;
    assert_eq!((text(&outcome).as_str(), outcome.value().unwrap().as_ref()), ("42", &json!(42)));
    let outcome = rig.call("int", json!({"p": 0})).await;
    assert!(text(&outcome).contains("replaced the value of a failed tool call"));
    added.remove();
    post.add(&rig.scope, replace(Replacement::Value(json!("x")))).unwrap();
    assert_eq!(code(&*rig.call("int", json!({"p": 1})).await), Some("INVALID_TOOL_OUTPUT"));
}

fn deferring(rig: &Rig) {
    rig.tool(tool_fn("defer", "", |args: Args, run: ToolRun| async move {
        run.defer_context(Message::user("body", "x"));
        run.conclude_turn();
        if args.p == 0 { Err(ToolError::coded("MyError", "MY_CODE", "zero")) } else { Ok("fine") }
    }));
    let wrap = |execution: ToolExecution, next: Next<ToolExecution, ToolOutcome>| async move {
        Ok(next.run(execution).await?.with_context(context("wrapper")))
    };
    rig.pipeline.hooks().execute.add(&rig.scope, wrap).unwrap();
}

#[tokio::test]
async fn llm_84_contexts_come_from_body_wrapper_and_post_in_this_order() {
    let rig = Rig::new();
    deferring(&rig);
    let post = |_, _| async {
        Ok(PostVerdict::Accept {
            replacement: Some(Replacement::Content(vec![ContentBlock::text("bounded")])),
            contexts: vec![context("post")],
        })
    };
    rig.pipeline.hooks().post.add(&rig.scope, post).unwrap();
    let outcome = rig.call("defer", json!({"p": 1})).await;
    assert_eq!(ids(&outcome), ["body", "wrapper", "post"]);
    assert_eq!((text(&outcome).as_str(), outcome.concludes_turn()), ("bounded", true));
    assert_eq!(outcome.value().unwrap().as_ref(), &json!("fine"));
    let outcome = rig.call("defer", json!({"p": 0})).await;
    assert_eq!((code(&outcome), outcome.concludes_turn()), (Some("MY_CODE"), false));
}

#[tokio::test]
async fn llm_84_a_block_makes_a_failure_and_keeps_only_its_own_contexts() {
    for (feedback, message) in [
        (vec![], "tool result blocked by post-execute policy"),
        (
            vec![ContentBlock::text("a"), ContentBlock::Reasoning("r".into())],
            "a\n[reasoning content]",
        ),
    ] {
        let rig = Rig::new();
        deferring(&rig);
        let post = move |_, _| {
            let verdict =
                PostVerdict::Block { feedback: feedback.clone(), contexts: vec![context("post")] };
            std::future::ready(Ok(verdict))
        };
        rig.pipeline.hooks().post.add(&rig.scope, post).unwrap();
        let outcome = rig.call("defer", json!({"p": 1})).await;
        assert_eq!(ids(&outcome), ["post"]);
        assert_eq!(outcome.error().unwrap().message(), message);
        assert!(!outcome.concludes_turn());
    }
}

#[tokio::test]
async fn llm_85_the_tool_that_was_called_has_the_last_word_and_may_not_panic() {
    let rig = Rig::new();
    let say = |text: &'static str| move |_: &ToolOutcome| Some(vec![ContentBlock::text(text)]);
    let (registry, scope) = (rig.pipeline.registry().clone(), rig.scope.clone());
    let own: Arc<Mutex<Option<Registration>>> = Arc::default();
    let mine = own.clone();
    let body = tool_fn("f", "", move |_: Args, _run| {
        let registration = mine.lock().unwrap().take();
        if let Some(registration) = registration {
            registration.remove();
            let other = tool_fn("f", "", |_: Args, _run| async { Ok("other") });
            registry.register(&scope, Arc::new(Finalizing(other, say("new")))).unwrap();
        }
        async { Ok("body") }
    });
    *own.lock().unwrap() = Some(rig.tool(Finalizing(body, say("old"))));
    assert_eq!(text(&*rig.call("f", json!({"p": 1})).await), "old");
    assert_eq!(text(&*rig.call("f", json!({"p": 1})).await), "new");
    let panics = tool_fn("panics", "", |_: Args, _run| async { Ok("x") });
    rig.tool(Finalizing(panics, |_: &ToolOutcome| panic!("finalize")));
    let outcome = rig.call("panics", json!({"p": 1})).await;
    assert_eq!((text(&outcome).as_str(), outcome.is_error()), ("Error: finalize", true));
}

#[tokio::test]
async fn llm_86_an_observer_that_panics_changes_nothing_and_the_others_are_told() {
    let rig = Rig::new();
    rig.pipeline.hooks().result.add(&rig.scope, |_| panic!("boom")).unwrap();
    let rig = rig.traced();
    assert_eq!(text(&*rig.ok().await), "7");
    assert_eq!(rig.log(), ["body", "post false", "result 7"]);
}

#[tokio::test]
async fn llm_87_only_a_success_concludes_the_turn() {
    let rig = Rig::new();
    deferring(&rig);
    let block = |_, _| async { Ok(PostVerdict::Block { feedback: vec![], contexts: vec![] }) };
    let blocked = rig.pipeline.hooks().post.add(&rig.scope, block).unwrap();
    assert!(!rig.call("defer", json!({"p": 1})).await.concludes_turn());
    blocked.remove();
    assert!(!rig.call("defer", json!({"p": 0})).await.concludes_turn());
    assert!(rig.call("defer", json!({"p": 1})).await.concludes_turn());
}
