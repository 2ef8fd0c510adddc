//! One tool call, as hooks and the body see it.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use playhouse_messages::{
    event::StepAt,
    id::{CallId, MessageId},
    message::{Message, SharedMessage},
};
use serde_json::Value;

use crate::{agent::Agent, cancel::CancelToken, scope::Scope};

/// Mints message ids.
pub type MintMessageId = Arc<dyn Fn() -> MessageId + Send + Sync>;

/// The facts of one tool call. Immutable and shared: a hook can read the arguments and cannot
/// rewrite them.
#[derive(Clone)]
pub struct ToolCallContext(pub(crate) Arc<CallFacts>);

pub(crate) struct CallFacts {
    pub(crate) call_id: CallId,
    pub(crate) root_call_id: CallId,
    pub(crate) name: String,
    pub(crate) arguments: Value,
    pub(crate) agent: Option<Agent>,
    pub(crate) scope: Scope,
    pub(crate) at: Option<StepAt>,
    pub(crate) cancel: CancelToken,
}

impl ToolCallContext {
    /// The provider's id for the call.
    pub fn call_id(&self) -> &CallId {
        &self.0.call_id
    }

    /// The call that the model made; the call's own id unless it is nested in another.
    pub fn root_call_id(&self) -> &CallId {
        &self.0.root_call_id
    }

    /// Whether another call's body made this one.
    pub fn is_nested(&self) -> bool {
        self.0.call_id != self.0.root_call_id
    }

    /// The name that the model used; perhaps of no tool.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The arguments. A string if the model's text was not JSON.
    pub fn arguments(&self) -> &Value {
        &self.0.arguments
    }

    /// The calling agent.
    pub fn agent(&self) -> Option<&Agent> {
        self.0.agent.as_ref()
    }

    /// The calling agent's scope.
    pub fn scope(&self) -> &Scope {
        &self.0.scope
    }

    /// The step that asked for the call.
    pub fn at(&self) -> Option<StepAt> {
        self.0.at
    }

    /// The caller's token.
    pub fn cancel(&self) -> &CancelToken {
        &self.0.cancel
    }
}

impl fmt::Debug for ToolCallContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolCallContext")
            .field("call_id", self.call_id())
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

/// What the bodies of one call leave behind beside their value.
pub(crate) struct Collected {
    /// `None` once the call has settled: a task that the body left running adds nothing.
    contexts: Mutex<Option<Vec<SharedMessage>>>,
    concludes: AtomicBool,
}

impl Collected {
    pub(crate) fn new() -> Self {
        Self { contexts: Mutex::new(Some(Vec::new())), concludes: AtomicBool::new(false) }
    }

    pub(crate) fn take_contexts(&self) -> Vec<SharedMessage> {
        self.contexts().take().unwrap_or_default()
    }

    pub(crate) fn concludes(&self) -> bool {
        self.concludes.load(Ordering::Acquire)
    }

    fn contexts(&self) -> MutexGuard<'_, Option<Vec<SharedMessage>>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running call, as its body sees it.
#[derive(Clone)]
pub struct ToolRun {
    pub(crate) call: ToolCallContext,
    pub(crate) cancel: CancelToken,
    pub(crate) collected: Arc<Collected>,
    pub(crate) ids: MintMessageId,
}

impl ToolRun {
    /// The provider's id for the call.
    pub fn call_id(&self) -> &CallId {
        self.call.call_id()
    }

    /// The tool's name.
    pub fn name(&self) -> &str {
        self.call.name()
    }

    /// All facts of the call.
    pub fn call(&self) -> &ToolCallContext {
        &self.call
    }

    /// The calling agent.
    pub fn agent(&self) -> Option<&Agent> {
        self.call.agent()
    }

    /// The calling agent's scope.
    pub fn scope(&self) -> &Scope {
        self.call.scope()
    }

    /// Fires when the caller, a hook or the tool's time budget gives the call up.
    pub fn cancel(&self) -> &CancelToken {
        &self.cancel
    }

    /// A fresh id for a message.
    pub fn new_message_id(&self) -> MessageId {
        (self.ids)()
    }

    /// Gives the model a message beside the result: it reaches the inbox once the result is
    /// committed, and the model at the next step. Ignored after the call has settled.
    pub fn defer_context(&self, message: Message) {
        match self.collected.contexts().as_mut() {
            Some(contexts) => contexts.push(Arc::new(message)),
            None => {
                tracing::warn!(call = %self.call_id(), "context after the call settled: ignored")
            }
        }
    }

    /// Ends the turn after this batch if the call succeeds and nothing waits for the next step.
    pub fn conclude_turn(&self) {
        self.collected.concludes.store(true, Ordering::Release);
    }
}

impl fmt::Debug for ToolRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolRun").field("call", &self.call).finish_non_exhaustive()
    }
}
