use super::*;

/// Notes when policy is asked, and when a wrapper of the body runs.
fn watched(rig: Rig) -> Rig {
    let hooks = rig.pipeline.hooks();
    let note = rig.note();
    let pre = move |call, next: Next<_, _>| {
        note("pre");
        next.run(call)
    };
    hooks.pre.add(&rig.scope, pre).unwrap();
    let note = rig.note();
    let execute = move |execution: ToolExecution, next: Next<_, _>| {
        note("wrapper");
        next.run(execution)
    };
    hooks.execute.add(&rig.scope, execute).unwrap();
    rig.traced()
}

#[tokio::test]
async fn llm_72_a_name_of_no_tool_goes_through_policy_and_post_processing() {
    let rig = watched(Rig::new());
    let outcome = rig.call("gone", json!({})).await;
    assert_eq!(code(&outcome), Some("UNKNOWN_TOOL"));
    let expected = ["pre", "wrapper", "post true", "result Error: unknown tool \"gone\""];
    assert_eq!(rig.log(), expected);
    rig.pre(PreVerdict::Deny { reason: "no".into() });
    assert_eq!(text(&*rig.call("gone", json!({})).await), "Error: no");
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_told_after_policy() {
    let rig = Rig::new();
    let outcome = rig.call("t", json!({"p": "x"})).await;
    assert_eq!(text(&outcome), "Error: invalid arguments: \"p\" must be an integer");
    assert_eq!(code(&outcome), Some("INVALID_ARGS"));
    rig.pre(PreVerdict::Deny { reason: "no".into() });
    assert_eq!(text(&*rig.call("t", json!({"p": "x"})).await), "Error: no");
}

#[tokio::test]
async fn anchor_l17_arguments_that_are_no_json_are_refused_and_not_reshaped() {
    let rig = Rig::new();
    rig.tool(tool_fn("open", "", |args: std::collections::BTreeMap<String, Value>, _run| async {
        Ok(Json(args))
    }));
    let outcome = rig.call("open", json!("{\"p\":")).await;
    assert_eq!(text(&outcome), "Error: invalid arguments: \"arguments\" must be an object");
    assert_eq!(code(&outcome), Some("INVALID_ARGS"));
}

#[tokio::test]
async fn llm_73_a_denied_call_runs_neither_body_nor_wrappers_and_is_post_processed() {
    let rig = watched(Rig::new());
    rig.pre(PreVerdict::Deny { reason: "no".into() });
    let outcome = rig.ok().await;
    assert_eq!((text(&outcome).as_str(), outcome.error().unwrap().info()), ("Error: no", None));
    assert_eq!(rig.log(), ["pre", "post true", "result Error: no"]);
}

#[tokio::test]
async fn llm_74_a_failing_policy_is_final_and_only_finalized_and_observed() {
    let rig = Rig::new().traced();
    let note = rig.note();
    let finalize = move |_: &ToolOutcome| {
        note("finalize");
        None
    };
    rig.tool(Finalizing(tool_fn("f", "", |_: Args, _run| async { Ok("x") }), finalize));
    let fail = |_, _| async { Err(Failure::new("POLICY_DOWN", "sorry")) };
    let failing = rig.pipeline.hooks().pre.add(&rig.scope, fail).unwrap();
    assert_eq!(code(&*rig.call("f", json!({"p": 1})).await), Some("POLICY_DOWN"));
    failing.remove();
    rig.pipeline.hooks().pre.add(&rig.scope, |_, _| async { panic!("boom") }).unwrap();
    assert_eq!(code(&*rig.call("f", json!({"p": 1})).await), None);
    let expected = ["finalize", "result Error: sorry", "finalize", "result Error: panicked: boom"];
    assert_eq!(rig.log(), expected);
}

#[tokio::test]
async fn llm_75_guards_deny_what_policy_and_approval_allowed() {
    let rig = Rig::new();
    rig.pre(PreVerdict::Ask { reason: None });
    rig.pipeline.set_approval_gate(&rig.scope, Arc::new(Answer(Approval::AllowedOnce))).unwrap();
    let registry = rig.pipeline.registry();
    registry.guard(&rig.scope, |_| None).unwrap();
    let guard = registry.guard(&rig.scope, |call| Some(format!("not {}", call.name()))).unwrap();
    assert_eq!(text(&*rig.ok().await), "Error: not t");
    guard.remove();
    registry.guard(&rig.scope, |_| panic!("boom")).unwrap();
    assert_eq!(text(&*rig.ok().await), "Error: a guard of tool \"t\" panicked: boom");
    assert!(rig.log().is_empty());
}

struct Answer(Approval);

impl ApprovalGate for Answer {
    fn ask(&self, _: ToolCallContext, _: Option<String>) -> BoxFuture<'static, Approval> {
        std::future::ready(self.0).boxed()
    }
}

#[tokio::test]
async fn llm_76_each_answer_but_one_is_a_denial_of_its_own() {
    for (gate, reason, expected) in [
        (None, None, "Error: tool \"t\" requires approval (not yet supported)"),
        (None, Some("risky".to_owned()), "Error: risky"),
        (Some(Approval::AllowedOnce), None, "7"),
        (Some(Approval::Rejected), None, "Error: the user rejected tool \"t\""),
        (Some(Approval::Cancelled), None, "Error: approval for tool \"t\" was cancelled"),
        (
            Some(Approval::Unavailable),
            None,
            "Error: tool \"t\" requires approval, but no approval channel is available",
        ),
    ] {
        let rig = Rig::new();
        rig.pre(PreVerdict::Ask { reason });
        if let Some(answer) = gate {
            rig.pipeline.set_approval_gate(&rig.scope, Arc::new(Answer(answer))).unwrap();
        }
        assert_eq!(text(&*rig.ok().await), expected);
    }
    let rig = Rig::new();
    rig.pre(PreVerdict::Ask { reason: None });
    rig.pipeline.set_approval_gate(&rig.scope, Arc::new(Answer(Approval::AllowedOnce))).unwrap();
    let request = ToolCallRequest { agent: None, ..rig.request("t", json!({"p": 1})) };
    let outcome = rig.pipeline.execute_one(request).await;
    assert!(text(&outcome).ends_with("but the call has no agent to route it through"));
}

#[tokio::test]
async fn llm_76_a_cancel_while_approval_waits_answers_at_once() {
    struct Never(CancelToken);
    impl ApprovalGate for Never {
        fn ask(&self, _: ToolCallContext, _: Option<String>) -> BoxFuture<'static, Approval> {
            self.0.cancel(CancelCause::User);
            std::future::pending().boxed()
        }
    }
    let rig = Rig::new().traced();
    rig.pre(PreVerdict::Ask { reason: None });
    let gate = Arc::new(Never(rig.cancel.clone()));
    rig.pipeline.set_approval_gate(&rig.scope, gate).unwrap();
    assert_eq!(code(&*rig.ok().await), Some("ABORTED_BEFORE_DISPATCH"));
    assert_eq!(rig.log()[0], "post true");
}

#[tokio::test]
async fn llm_77_cancelled_before_it_begins_no_policy_runs() {
    let rig = Rig::new().traced();
    rig.pre(PreVerdict::Deny { reason: "no".into() });
    rig.cancel.cancel(CancelCause::User);
    let outcome = rig.ok().await;
    assert_eq!(text(&outcome), "Error: tool call aborted before dispatch");
    assert_eq!(rig.log(), ["result Error: tool call aborted before dispatch"]);
    // Arguments that nobody can store outrank even the cancel.
    let outcome = rig.call("t", json!({"p": u64::MAX})).await;
    assert_eq!(
        text(&outcome),
        "Error: tool execution arguments must be losslessly JSON-serializable"
    );
}
