use std::time::Duration;

use playhouse_messages::{
    config::ToolSchema,
    event::CancelCause,
    header::SessionHeader,
    log::Log,
    message::{Message, SharedMessage},
    session::SessionCore,
    session_state::KnownKinds,
};
use serde_json::json;

use super::*;
use crate::{
    agent::{AgentCell, AgentParts},
    clock::UuidIds,
    options::AgentOptions,
    registry::AgentRegistry,
    session::{Session, SessionCell},
    tool::{Json, Tool, ToolOutput, tool_fn},
};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Args {
    p: i64,
}

struct Rig {
    pipeline: ToolPipeline,
    scope: Scope,
    cancel: CancelToken,
    log: Arc<Mutex<Vec<String>>>,
}

impl Rig {
    fn new() -> Self {
        let rig = Self {
            pipeline: ToolPipeline::default(),
            scope: Scope::root("root"),
            cancel: CancelToken::new(),
            log: Arc::default(),
        };
        let note = rig.note();
        rig.tool(tool_fn("t", "", move |args: Args, _run| {
            note("body");
            async move { Ok(Json(args.p)) }
        }));
        rig
    }

    fn tool(&self, tool: impl Tool) {
        self.pipeline.registry().register(&self.scope, Arc::new(tool)).unwrap();
    }

    fn note(&self) -> impl Fn(&str) + Clone + Send + Sync + 'static {
        let log = self.log.clone();
        move |line: &str| log.lock().unwrap().push(line.to_owned())
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Notes post-processing and observed results.
    fn traced(self) -> Self {
        let note = self.note();
        let post = move |settled: ToolSettled, next: crate::hook::Next<_, _>| {
            note(&format!("post {}", settled.outcome.is_error()));
            next.run(settled)
        };
        self.pipeline.hooks().post.add(&self.scope, post).unwrap();
        let note = self.note();
        let result =
            move |settled: &ToolSettled| note(&format!("result {}", text(&settled.outcome)));
        self.pipeline.hooks().result.add(&self.scope, result).unwrap();
        self
    }

    fn pre(&self, verdict: PreVerdict) {
        let pre = move |_, _| std::future::ready(Ok(verdict.clone()));
        self.pipeline.hooks().pre.add(&self.scope, pre).unwrap();
    }

    fn request(&self, name: &str, arguments: Value) -> ToolCallRequest {
        ToolCallRequest {
            call_id: "c1".into(),
            root_call_id: None,
            name: name.to_owned(),
            arguments,
            agent: Some(agent(&self.scope)),
            scope: self.scope.clone(),
            at: None,
            cancel: self.cancel.clone(),
            ids: Arc::new(|| "m1".into()),
            checkpoint: None,
        }
    }

    async fn call(&self, name: &str, arguments: Value) -> Arc<ToolOutcome> {
        self.pipeline.execute_one(self.request(name, arguments)).await
    }

    async fn ok(&self) -> Arc<ToolOutcome> {
        self.call("t", json!({"p": 7})).await
    }
}

fn agent(scope: &Scope) -> Agent {
    let header = Arc::new(SessionHeader::new("agent".into(), 0));
    let known = Arc::new(KnownKinds::default());
    let core = SessionCore::load(header, Log::default(), &known).unwrap();
    let session = Session::new(SessionCell::new(&core, 0, known, None, 0));
    let options = AgentOptions::default();
    let (owner, ids) = (scope.clone(), Arc::new(UuidIds));
    Agent::new(AgentCell::new(AgentParts {
        session,
        scope: scope.clone(),
        owner,
        options,
        lineage: Arc::default(),
        registry: AgentRegistry::new(),
        ids,
        span: tracing::Span::none(),
    }))
}

fn text(outcome: &ToolOutcome) -> String {
    playhouse_messages::content::joined_text(outcome.content())
}

fn code(outcome: &ToolOutcome) -> Option<&str> {
    outcome.error().and_then(ToolError::code)
}

fn context(id: &str) -> SharedMessage {
    Arc::new(Message::user(id, "ctx"))
}

fn ids(outcome: &ToolOutcome) -> Vec<&str> {
    outcome.contexts().iter().map(|message| message.id.as_str()).collect()
}

#[tokio::test]
async fn a_success_passes_all_stages_in_order() {
    let rig = Rig::new().traced();
    let outcome = rig.ok().await;
    assert_eq!(outcome.value().unwrap().as_ref(), &json!(7));
    assert_eq!(rig.log(), ["body", "post false", "result 7"]);
}

#[tokio::test]
async fn a_failing_policy_is_final_and_a_denial_is_post_processed() {
    let rig = Rig::new().traced();
    rig.pre(PreVerdict::Deny { reason: "no".into() });
    assert_eq!(text(&*rig.ok().await), "Error: no");
    assert_eq!(rig.log(), ["post true", "result Error: no"]);
    let rig = Rig::new().traced();
    let fail = |_, _| async { Err(Failure::new("POLICY_DOWN", "sorry")) };
    rig.pipeline.hooks().pre.add(&rig.scope, fail).unwrap();
    assert_eq!(code(&*rig.ok().await), Some("POLICY_DOWN"));
    assert_eq!(rig.log(), ["result Error: sorry"]);
    let rig = Rig::new().traced();
    rig.pipeline.hooks().pre.add(&rig.scope, |_, _| async { panic!("boom") }).unwrap();
    assert_eq!(code(&*rig.ok().await), None);
    assert_eq!(rig.log(), ["result Error: panicked: boom"]);
}

struct Answer(Approval);

impl ApprovalGate for Answer {
    fn ask(&self, _: ToolCallContext, _: Option<String>) -> BoxFuture<'static, Approval> {
        std::future::ready(self.0).boxed()
    }
}

#[tokio::test]
async fn approval_answers_are_denials_or_let_the_call_pass() {
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
async fn a_cancel_while_approval_waits_answers_at_once() {
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
async fn guards_deny_what_policy_and_approval_allowed() {
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

#[tokio::test]
async fn cancelled_before_it_begins_no_policy_runs() {
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

#[tokio::test]
async fn a_cancel_overtakes_an_allowance_and_not_a_denial() {
    for (verdict, expected) in [
        (PreVerdict::Allow, "Error: tool call aborted before dispatch"),
        (PreVerdict::Deny { reason: "no".into() }, "Error: no"),
    ] {
        let rig = Rig::new().traced();
        let cancel = rig.cancel.clone();
        let pre = move |_, _| {
            cancel.cancel(CancelCause::User);
            std::future::ready(Ok(verdict.clone()))
        };
        rig.pipeline.hooks().pre.add(&rig.scope, pre).unwrap();
        assert_eq!(text(&*rig.ok().await), expected);
        assert_eq!(rig.log()[0], "post true");
    }
}

#[tokio::test]
async fn unknown_tools_and_bad_arguments_are_told_after_policy() {
    let rig = Rig::new();
    let outcome = rig.call("gone", json!({})).await;
    assert_eq!(
        (text(&outcome).as_str(), code(&outcome)),
        ("Error: unknown tool \"gone\"", Some("UNKNOWN_TOOL"))
    );
    let outcome = rig.call("t", json!({"p": "x"})).await;
    assert_eq!(text(&outcome), "Error: invalid arguments: \"p\" must be an integer");
    assert_eq!(code(&outcome), Some("INVALID_ARGS"));
    let outcome = rig.call("t", json!("{\"p\":")).await;
    assert_eq!(text(&outcome), "Error: invalid arguments: \"arguments\" must be an object");
    rig.pre(PreVerdict::Deny { reason: "no".into() });
    assert_eq!(text(&*rig.call("gone", json!({})).await), "Error: no");
}

#[tokio::test]
async fn panics_of_a_body_are_plain_failures() {
    let rig = Rig::new();
    rig.tool(tool_fn("late", "", |_: Args, _run| async move {
        if true {
            panic!("boom");
        }
        Ok("x")
    }));
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
        fn finalize(&self, _: &ToolCallContext, _: &ToolOutcome) -> Option<Vec<ContentBlock>> {
            panic!("finalize")
        }
    }
    let schema = tool_fn("early", "", |_: Args, _run| async { Ok("") }).schema().clone();
    rig.tool(Early(schema));
    let outcome = rig.call("late", json!({"p": 1})).await;
    assert_eq!((text(&outcome).as_str(), code(&outcome)), ("Error: boom", None));
    assert_eq!(text(&*rig.call("early", json!({"p": 1})).await), "Error: finalize");
}

#[tokio::test]
async fn a_failed_checkpoint_keeps_the_body_from_running() {
    let rig = Rig::new();
    let full = || std::future::ready(Err(Failure::new("STORE_FULL", "no space"))).boxed();
    let request =
        ToolCallRequest { checkpoint: Some(Arc::new(full)), ..rig.request("t", json!({"p": 1})) };
    let outcome = rig.pipeline.execute_one(request).await;
    assert_eq!((text(&outcome).as_str(), code(&outcome)), ("Error: no space", Some("STORE_FULL")));
    assert!(rig.log().is_empty());
}

#[tokio::test]
async fn a_wrapper_cannot_detach_the_caller() {
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
    let detach = |execution: ToolExecution, next: crate::hook::Next<_, _>| {
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
async fn a_wrapper_may_cancel_the_body_retry_and_answer_itself() {
    let rig = Rig::new();
    let give_up = |execution: ToolExecution, next: crate::hook::Next<_, _>| {
        let own = CancelToken::new();
        own.cancel(CancelCause::User);
        next.run(ToolExecution { cancel: own, ..execution })
    };
    let added = rig.pipeline.hooks().execute.add(&rig.scope, give_up).unwrap();
    assert_eq!(code(&*rig.ok().await), Some("ABORTED_BEFORE_DISPATCH"));
    added.remove();
    let twice = |execution: ToolExecution, next: crate::hook::Next<ToolExecution, ToolOutcome>| async move {
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

#[tokio::test]
async fn only_the_own_bodys_content_is_believed_and_outputs_are_checked() {
    let rig = Rig::new();
    let shown = tool_fn("shown", "", |args: Args, _run| async move {
        Ok(ToolOutput::new(json!(args.p)).showing(vec![ContentBlock::text("shown")]))
    });
    rig.tool(shown.output_schema(json!({"type": "integer", "maximum": 9})));
    let outcome = rig.call("shown", json!({"p": 1})).await;
    assert_eq!(text(&outcome), "shown");
    let bad = rig.call("shown", json!({"p": 10})).await;
    assert_eq!(code(&bad), Some("INVALID_TOOL_OUTPUT"));
    assert!(text(&bad).starts_with("Error: tool \"shown\" returned invalid output: \"value\" "));
    // The outcome of another dispatch is rendered anew from its value.
    let stolen = ToolOutcome::clone(&outcome);
    let steal = move |_, _| std::future::ready(Ok(stolen.clone()));
    rig.pipeline.hooks().execute.add(&rig.scope, steal).unwrap();
    assert_eq!(text(&*rig.call("shown", json!({"p": 2})).await), "1");
}

#[tokio::test(start_paused = true)]
async fn a_time_budget_ends_in_a_timeout_whatever_the_body_returns() {
    let rig = Rig::new();
    let slow = tool_fn("slow", "", |_: Args, run: ToolRun| async move {
        run.cancel().cancelled().await;
        Ok("too late")
    });
    rig.tool(slow.timeout(Duration::from_millis(250)));
    let outcome = rig.call("slow", json!({"p": 1})).await;
    assert_eq!(text(&outcome), "Error: tool call timed out after 250ms");
    assert_eq!(code(&outcome), Some("TOOL_TIMEOUT"));
}

fn deferring(rig: &Rig) {
    rig.tool(tool_fn("defer", "", |args: Args, run: ToolRun| async move {
        run.defer_context(Message::user("body", "x"));
        run.conclude_turn();
        if args.p == 0 { Err(ToolError::coded("MyError", "MY_CODE", "zero")) } else { Ok("fine") }
    }));
    let wrap = |execution: ToolExecution, next: crate::hook::Next<ToolExecution, ToolOutcome>| async move {
        Ok(next.run(execution).await?.with_context(context("wrapper")))
    };
    rig.pipeline.hooks().execute.add(&rig.scope, wrap).unwrap();
}

#[tokio::test]
async fn contexts_come_from_body_wrapper_and_post_in_this_order() {
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
async fn a_block_makes_a_failure_and_keeps_only_its_own_contexts() {
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
async fn a_replaced_value_is_checked_rendered_and_only_for_a_success() {
    let rig = Rig::new();
    rig.tool(
        tool_fn("int", "", |args: Args, _run| async move {
            if args.p == 0 { Err("zero".into()) } else { Ok(Json(args.p)) }
        })
        .output_schema(json!({"type": "integer"})),
    );
    let replace = |value: Value| {
        move |_, _| {
            let replacement = Some(Replacement::Value(value.clone()));
            std::future::ready(Ok(PostVerdict::Accept { replacement, contexts: vec![] }))
        }
    };
    let post = &rig.pipeline.hooks().post;
    let added = post.add(&rig.scope, replace(json!(42))).unwrap();
    assert_eq!(text(&*rig.call("int", json!({"p": 1})).await), "42");
    let outcome = rig.call("int", json!({"p": 0})).await;
    assert!(text(&outcome).contains("replaced the value of a failed tool call"));
    added.remove();
    post.add(&rig.scope, replace(json!("x"))).unwrap();
    assert_eq!(code(&*rig.call("int", json!({"p": 1})).await), Some("INVALID_TOOL_OUTPUT"));
}

#[tokio::test]
async fn a_cancel_during_post_processing_withholds_a_success() {
    let rig = Rig::new();
    let cancel = rig.cancel.clone();
    let post = move |settled: ToolSettled, next: crate::hook::Next<_, _>| {
        cancel.cancel(CancelCause::User);
        next.run(settled)
    };
    rig.pipeline.hooks().post.add(&rig.scope, post).unwrap();
    assert_eq!(code(&*rig.ok().await), Some("ABORTED"));
}

#[tokio::test]
async fn an_outcome_is_told_once_even_if_post_processing_ends_as_it_is_given_up() {
    let rig = Rig::new().traced();
    let dispatch = rig.pipeline.dispatch(rig.request("t", json!({"p": 1})));
    let settled = dispatch.run().await;
    dispatch.finish(settled.clone()).await;
    assert_eq!(code(&dispatch.finish_abandoned(settled)), Some("ABORTED"));
    assert_eq!(rig.log(), ["body", "post false", "result 1"]);
}

#[tokio::test]
async fn an_abandoned_call_says_what_is_known() {
    let rig = Rig::new();
    rig.tool(tool_fn("hang", "", |_: Args, run: ToolRun| async move {
        run.defer_context(Message::user("before", "x"));
        std::future::pending::<()>().await;
        Ok("")
    }));
    let dispatch = rig.pipeline.dispatch(rig.request("hang", json!({"p": 1})));
    assert!(matches!(dispatch.judge().await, Judged::Run));
    let outcome = dispatch.finish(dispatch.abandon()).await;
    assert_eq!(code(&outcome), Some("ABORTED_BEFORE_DISPATCH"));
    let dispatch = rig.pipeline.dispatch(rig.request("hang", json!({"p": 1})));
    assert!(dispatch.run().now_or_never().is_none());
    let outcome = dispatch.finish(dispatch.abandon()).await;
    assert_eq!(text(&outcome), playhouse_messages::repair::OUTCOME_UNKNOWN_TEXT);
    let info = outcome.error().unwrap().info().unwrap();
    assert_eq!(
        (info.name.as_str(), info.reason.as_deref()),
        ("ToolOutcomeUnknownError", Some("abandoned"))
    );
    assert_eq!(ids(&outcome), ["before"]);
}
