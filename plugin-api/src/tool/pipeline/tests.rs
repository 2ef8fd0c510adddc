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
    hook::Next,
    options::AgentOptions,
    registry::AgentRegistry,
    session::{Session, SessionCell},
    tool::{Json, Tool, ToolOutput, tool_fn},
};

mod scenario {
    use super::*;

    mod body;
    mod outcome;
    mod policy;
    mod timeout;
}

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

    fn tool(&self, tool: impl Tool) -> Registration {
        self.pipeline.registry().register(&self.scope, Arc::new(tool)).unwrap()
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
        let post = move |settled: ToolSettled, next: Next<_, _>| {
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

/// A tool whose body is another's, and whose last word is its own.
struct Finalizing<T, F>(T, F);

impl<T, F> Tool for Finalizing<T, F>
where
    T: Tool,
    F: Fn(&ToolOutcome) -> Option<Vec<ContentBlock>> + Send + Sync + 'static,
{
    fn schema(&self) -> &Arc<ToolSchema> {
        self.0.schema()
    }

    fn execute(
        &self,
        args: Value,
        run: ToolRun,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
        self.0.execute(args, run)
    }

    fn finalize(&self, _: &ToolCallContext, outcome: &ToolOutcome) -> Option<Vec<ContentBlock>> {
        self.1(outcome)
    }
}

fn agent(scope: &Scope) -> Agent {
    let header = Arc::new(SessionHeader::new("agent".into(), 0));
    let known = Arc::new(KnownKinds::default());
    let core = SessionCore::load(header, Log::default(), &known).unwrap();
    let session = Session::new(SessionCell::new(
        &core,
        0,
        known,
        None,
        0,
        crate::undurable::Undurable::new(0),
    ));
    let options = AgentOptions::default();
    let (owner, ids) = (scope.clone(), Arc::new(UuidIds));
    Agent::new(AgentCell::new(AgentParts {
        session,
        scope: scope.clone(),
        owner,
        options,
        account: None,
        blueprint: None,
        lineage: Arc::default(),
        depth: 0,
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
async fn a_cancel_during_post_processing_withholds_a_success() {
    let rig = Rig::new();
    let cancel = rig.cancel.clone();
    let post = move |settled: ToolSettled, next: Next<_, _>| {
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
