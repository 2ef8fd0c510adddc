//! What every tool call goes through: create, policy, approval, guards, body, post-processing,
//! finalizing, result.
//!
//! A call never fails towards its caller: whatever goes wrong is an outcome that the model can
//! read. The stages are three, so that an executor can overlap bodies and keep the rest in order:
//! [`ToolDispatch::judge`], [`ToolDispatch::run`], [`ToolDispatch::finish`].

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    chunk::Failure, content::ContentBlock, event::StepAt, id::CallId, json::check_lossless,
};
use serde_json::Value;

use super::{
    Approval, ApprovalGate, PostVerdict, PreVerdict, Replacement, ToolCallContext, ToolError,
    ToolExecution, ToolHooks, ToolOutcome, ToolRegistry, ToolRun, ToolSettled,
    call::{CallFacts, Collected, MintMessageId},
    registry::RegisteredTool,
};
use crate::{
    agent::Agent,
    cancel::CancelToken,
    hook::panic_text,
    scope::{Registration, Scope, ScopeClosed, ScopeId},
};

mod body;

/// Makes what is logged safe before a body may have effects.
pub type Checkpoint = Arc<dyn Fn() -> BoxFuture<'static, Result<(), Failure>> + Send + Sync>;

/// Runs tool calls through policy, body and post-processing. Clones are the same pipeline.
#[derive(Clone, Default)]
pub struct ToolPipeline(Arc<Inner>);

#[derive(Default)]
struct Inner {
    registry: ToolRegistry,
    hooks: ToolHooks,
    gates: Arc<Mutex<Vec<Gate>>>,
}

struct Gate {
    key: u64,
    scope: ScopeId,
    gate: Arc<dyn ApprovalGate>,
}

/// A tool call to run.
pub struct ToolCallRequest {
    /// The provider's id for the call.
    pub call_id: CallId,
    /// The call that the model made, if this one is nested in it.
    pub root_call_id: Option<CallId>,
    /// The tool's name.
    pub name: String,
    /// The arguments; a string if they were not JSON.
    pub arguments: Value,
    /// The calling agent.
    pub agent: Option<Agent>,
    /// The calling agent's scope.
    pub scope: Scope,
    /// The step that asked.
    pub at: Option<StepAt>,
    /// The caller's token.
    pub cancel: CancelToken,
    /// Mints ids for messages that the body defers.
    pub ids: MintMessageId,
    /// Awaited before the body; a failure keeps it from running.
    pub checkpoint: Option<Checkpoint>,
}

/// What policy made of a call.
#[derive(Debug)]
pub enum Judged {
    /// Its body is to run.
    Run,
    /// It has an outcome without its body.
    Settled(Settled),
}

/// An outcome that has not been post-processed.
#[derive(Debug, Clone)]
pub struct Settled {
    outcome: Box<ToolOutcome>,
    /// No post-processing: something on the way failed, rather than the call.
    is_final: bool,
}

/// One call on its way. Clones are the same call; each stage is to run once, in order.
#[derive(Clone)]
pub struct ToolDispatch(Arc<DispatchInner>);

struct DispatchInner {
    pipeline: ToolPipeline,
    id: u64,
    call: ToolCallContext,
    collected: Arc<Collected>,
    ids: MintMessageId,
    checkpoint: Option<Checkpoint>,
    /// The tool that finalizes, as visible when the call was made.
    finalizer: Option<Arc<RegisteredTool>>,
    body_started: AtomicBool,
    /// Somebody has begun to finalize.
    published: AtomicBool,
}

impl ToolPipeline {
    /// A pipeline over this registry, without hooks.
    pub fn new(registry: ToolRegistry) -> Self {
        Self(Arc::new(Inner { registry, ..Inner::default() }))
    }

    /// The tools.
    pub fn registry(&self) -> &ToolRegistry {
        &self.0.registry
    }

    /// The hook points.
    pub fn hooks(&self) -> &ToolHooks {
        &self.0.hooks
    }

    /// Installs who is asked about calls of the agents at or below `scope`. The nearest gate is
    /// asked, the newest of one scope.
    pub fn set_approval_gate(
        &self,
        scope: &Scope,
        gate: Arc<dyn ApprovalGate>,
    ) -> Result<Registration, ScopeClosed> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        let gates = self.0.gates.clone();
        let registration = scope.on_close(move || {
            gates.lock().unwrap_or_else(PoisonError::into_inner).retain(|gate| gate.key != key);
        })?;
        let mut gates = self.0.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.push(Gate { key, scope: scope.id(), gate });
        Ok(registration)
    }

    fn approval_gate(&self, scope: &Scope) -> Option<Arc<dyn ApprovalGate>> {
        let gates = self.0.gates.lock().unwrap_or_else(PoisonError::into_inner);
        scope.chain().find_map(|scope| {
            let gate = gates.iter().rev().find(|gate| gate.scope == scope.id())?;
            Some(gate.gate.clone())
        })
    }

    /// Creates a call.
    pub fn dispatch(&self, request: ToolCallRequest) -> ToolDispatch {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let ToolCallRequest { call_id, root_call_id, name, arguments, agent, scope, .. } = request;
        let finalizer = self.registry().lookup(&scope, &name);
        let call = ToolCallContext(Arc::new(CallFacts {
            root_call_id: root_call_id.unwrap_or_else(|| call_id.clone()),
            call_id,
            name,
            arguments,
            agent,
            scope,
            at: request.at,
            cancel: request.cancel,
        }));
        ToolDispatch(Arc::new(DispatchInner {
            pipeline: self.clone(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            call,
            collected: Arc::new(Collected::new()),
            ids: request.ids,
            checkpoint: request.checkpoint,
            finalizer,
            body_started: AtomicBool::new(false),
            published: AtomicBool::new(false),
        }))
    }

    /// Runs a call through all stages.
    pub async fn execute_one(&self, request: ToolCallRequest) -> Arc<ToolOutcome> {
        let dispatch = self.dispatch(request);
        let settled = match dispatch.judge().await {
            Judged::Run => dispatch.run().await,
            Judged::Settled(settled) => settled,
        };
        dispatch.finish(settled).await
    }
}

impl fmt::Debug for ToolPipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolPipeline").field("registry", self.registry()).finish_non_exhaustive()
    }
}

impl ToolDispatch {
    /// The call's facts.
    pub fn call(&self) -> &ToolCallContext {
        &self.0.call
    }

    /// Whether the body was entered.
    pub fn body_started(&self) -> bool {
        self.0.body_started.load(Ordering::Acquire)
    }

    /// Runs policy, approval and guards.
    pub async fn judge(&self) -> Judged {
        let (call, hooks) = (self.call(), self.0.pipeline.hooks());
        // Outranks a cancel: arguments that no store can keep are the caller's defect.
        if check_lossless(call.arguments()).is_err() {
            let text = "tool execution arguments must be losslessly JSON-serializable";
            return Judged::ended(ToolError::new(text));
        }
        if call.cancel().is_cancelled() {
            return Judged::ended(ToolError::aborted_before_dispatch());
        }
        let verdict =
            hooks.pre.run(call.scope(), call.clone(), |_| async { Ok(PreVerdict::Allow) }).await;
        match verdict {
            Err(failure) => return Judged::ended(ToolError::from_failure(&failure)),
            Ok(PreVerdict::Deny { reason }) => return Judged::denied(ToolError::new(reason)),
            Ok(PreVerdict::Ask { reason }) => match self.ask(reason).await {
                Ok(()) => {}
                Err(judged) => return judged,
            },
            Ok(PreVerdict::Allow) => {}
        }
        if let Some(reason) = self.0.pipeline.registry().denial(call) {
            return Judged::denied(ToolError::new(reason));
        }
        // After the guards: a denial wins over a cancel.
        if call.cancel().is_cancelled() {
            return Judged::denied(ToolError::aborted_before_dispatch());
        }
        Judged::Run
    }

    async fn ask(&self, reason: Option<String>) -> Result<(), Judged> {
        let call = self.call();
        let name = call.name();
        let deny = |text: String| Err(Judged::denied(ToolError::new(text)));
        let Some(gate) = self.0.pipeline.approval_gate(call.scope()) else {
            return deny(reason.unwrap_or_else(|| {
                format!("tool \"{name}\" requires approval (not yet supported)")
            }));
        };
        if call.agent().is_none() {
            return deny(format!(
                "tool \"{name}\" requires approval, but the call has no agent to route it through"
            ));
        }
        let asked = AssertUnwindSafe(async { gate.ask(call.clone(), reason).await }).catch_unwind();
        match call.cancel().race(asked).await {
            None => Err(Judged::denied(ToolError::aborted_before_dispatch())),
            Some(Err(panic)) => Err(Judged::ended(ToolError::new(panic_text(&*panic)))),
            Some(Ok(Approval::AllowedOnce)) => Ok(()),
            Some(Ok(Approval::Rejected)) => deny(format!("the user rejected tool \"{name}\"")),
            Some(Ok(Approval::Cancelled)) => {
                deny(format!("approval for tool \"{name}\" was cancelled"))
            }
            Some(Ok(Approval::Unavailable)) => deny(format!(
                "tool \"{name}\" requires approval, but no approval channel is available"
            )),
        }
    }

    /// Runs the body within its wrappers. The future may be dropped, which drops the body; the
    /// outcome is then [`ToolDispatch::abandon`].
    pub async fn run(&self) -> Settled {
        let call = self.call();
        let execution = ToolExecution { call: call.clone(), cancel: call.cancel().clone() };
        let dispatch = self.clone();
        let base = move |execution: ToolExecution| {
            let dispatch = dispatch.clone();
            async move { Ok(dispatch.body(execution.cancel).await) }
        };
        let ran = self.0.pipeline.hooks().execute.run(call.scope(), execution, base).await;
        let (outcome, is_final) = match ran {
            Ok(outcome) => (self.trusted(outcome), false),
            Err(failure) => (ToolOutcome::failure(ToolError::from_failure(&failure)), true),
        };
        self.settle(outcome, is_final)
    }

    /// The outcome of a call whose stage was dropped: unknown if the body had started.
    pub fn abandon(&self) -> Settled {
        let outcome = if self.body_started() {
            ToolOutcome::verbatim(ToolError::abandoned())
        } else {
            ToolOutcome::failure(ToolError::aborted_before_dispatch())
        };
        self.settle(outcome, true)
    }

    /// Adds what the bodies deferred, before what wrappers added, and lets a cancel overtake.
    fn settle(&self, mut outcome: ToolOutcome, is_final: bool) -> Settled {
        let mut contexts = self.0.collected.take_contexts();
        contexts.append(&mut outcome.contexts);
        outcome.contexts = contexts;
        Settled { outcome: Box::new(self.overtaken(outcome)), is_final }
    }

    fn overtaken(&self, outcome: ToolOutcome) -> ToolOutcome {
        if self.call().cancel().is_cancelled() {
            outcome.overtaken(self.body_started())
        } else {
            outcome
        }
    }

    /// Runs post-processing and finalizing, and tells the observers.
    pub async fn finish(&self, settled: Settled) -> Arc<ToolOutcome> {
        let Settled { outcome, is_final } = settled;
        if is_final {
            return self.publish(*outcome);
        }
        let (call, outcome) = (self.call(), Arc::<ToolOutcome>::from(outcome));
        let settled = ToolSettled { call: call.clone(), outcome: outcome.clone() };
        let accept = |_| async { Ok(PostVerdict::accept()) };
        let verdict = self.0.pipeline.hooks().post.run(call.scope(), settled, accept).await;
        let outcome = Arc::unwrap_or_clone(outcome);
        let outcome = match verdict {
            Err(failure) => ToolOutcome {
                contexts: outcome.contexts,
                ..ToolOutcome::failure(ToolError::from_failure(&failure))
            },
            Ok(PostVerdict::Accept { replacement, mut contexts }) => {
                let mut outcome = self.replaced(outcome, replacement);
                outcome.contexts.append(&mut contexts);
                outcome
            }
            Ok(PostVerdict::Block { feedback, contexts }) => ToolOutcome {
                content: feedback.clone(),
                contexts,
                ..ToolOutcome::failure(ToolError::new(block_message(&feedback)))
            },
        };
        self.publish(self.overtaken(outcome))
    }

    /// As [`ToolDispatch::finish`], for a call whose post-processing was given up: a success is
    /// withheld as aborted, since nobody approved what it shows.
    pub fn finish_abandoned(&self, settled: Settled) -> Arc<ToolOutcome> {
        let Settled { outcome, is_final } = settled;
        self.publish(if is_final { *outcome } else { outcome.overtaken(self.body_started()) })
    }

    fn replaced(&self, outcome: ToolOutcome, replacement: Option<Replacement>) -> ToolOutcome {
        match replacement {
            None => outcome,
            Some(Replacement::Content(content)) => ToolOutcome { content, ..outcome },
            Some(Replacement::Value(_)) if outcome.is_error() => {
                let text = "post-execute policy replaced the value of a failed tool call";
                let failure = ToolOutcome::failure(ToolError::new(text));
                ToolOutcome { contexts: outcome.contexts, ..failure }
            }
            Some(Replacement::Value(value)) => {
                let ToolOutcome { contexts, meta, .. } = outcome;
                ToolOutcome { contexts, meta, ..self.rendered(&value) }
            }
        }
    }

    /// Finalizes and tells the observers, once. Post-processing that ends just as it is given up
    /// comes second, or is stuck in the finalizer: neither must be waited for or told of again.
    fn publish(&self, outcome: ToolOutcome) -> Arc<ToolOutcome> {
        if self.0.published.swap(true, Ordering::AcqRel) {
            return Arc::new(outcome);
        }
        self.finalized(outcome)
    }

    fn finalized(&self, mut outcome: ToolOutcome) -> Arc<ToolOutcome> {
        let call = self.call();
        outcome.concludes_turn = !outcome.is_error() && self.0.collected.concludes();
        if let Some(entry) = &self.0.finalizer {
            let finalize = || entry.tool().finalize(call, &outcome);
            match catch_unwind(AssertUnwindSafe(finalize)) {
                Ok(None) => {}
                Ok(Some(content)) => outcome.content = content,
                Err(panic) => {
                    let failure = ToolOutcome::failure(ToolError::new(panic_text(&*panic)));
                    outcome = ToolOutcome { contexts: outcome.contexts, ..failure };
                }
            }
        }
        let outcome = Arc::new(outcome);
        let settled = ToolSettled { call: call.clone(), outcome: outcome.clone() };
        self.0.pipeline.hooks().result.tell(call.scope(), &settled);
        outcome
    }
}

impl fmt::Debug for ToolDispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ToolDispatch").field(self.call()).finish()
    }
}

impl Judged {
    /// Something on the way failed: no post-processing.
    fn ended(error: ToolError) -> Self {
        Self::Settled(Settled { outcome: Box::new(ToolOutcome::failure(error)), is_final: true })
    }

    /// Policy said no: post-processing sees it, so that counters do.
    fn denied(error: ToolError) -> Self {
        Self::Settled(Settled { outcome: Box::new(ToolOutcome::failure(error)), is_final: false })
    }
}

fn block_message(feedback: &[ContentBlock]) -> String {
    if feedback.is_empty() {
        return "tool result blocked by post-execute policy".to_owned();
    }
    let line = |block: &ContentBlock| match block {
        ContentBlock::Text(text) => text.clone(),
        other => format!("[{} content]", other.kind()),
    };
    feedback.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests;
