//! Continuable children: agents that outlive the call that started them.
//!
//! A continuable child is a durable session and, as long as it has something to do, an *activation*:
//! an agent in this process. Its inbox is its only queue. It settles when it is idle, has claimed all
//! that it was sent, and owns no resident child; then it is disposed, and its parent is told. A later
//! message of its parent resumes it from the store, by what its descriptor says.
//!
//! Three relations are apart: the service's scope *owns* the children, so that they outlive the
//! turn that started them; their *runtime parent* is who delegated, and is told; their supervisor
//! restarts their actors. An agent that is disposed takes all that was delegated below it along, child
//! first.
//!
//! - [`Continuations`]: the service, which code, other plugins and the tools below use.
//! - `machine`: all decisions, as a pure machine.
//! - `shell`: carries inputs to it and performs its effects.
//! - [`tools`]: `send_message`, `interrupt_agent`, `list_agents`, `wait_agent` and the child's
//!   `report`.

mod ending;
mod error;
mod hosting;
mod machine;
mod making;
mod request;
mod set_up;
mod shell;
pub mod tools;
mod watching;

use std::sync::Arc;

use playhouse_messages::{
    content::ContentBlock,
    event::{CancelCause, InboxTarget},
    id::{MessageId, SessionId},
    message::{Message, Source},
};
use playhouse_plugin_api::{
    agent::Agent,
    cancel::CancelToken,
    scope::{Registration, Scope, ScopeClosed},
    watch,
    world::World,
};

pub use self::{
    error::ContinuationError,
    request::{
        Activation, ActivationState, Authority, Contribution, ReportDelivery, StartContinuable,
        Started,
    },
};
use self::{
    machine::{DrainScope, Input, Lineage},
    making::Blueprint,
    shell::{Delivery, Shell},
};
use crate::{ChildProviders, Slots};

/// The service under which the plugin offers its [`Continuations`], in a harness with a store.
pub const CONTINUATIONS_SERVICE: &str = "subagents.continuations";

/// The continuable children of a harness. Clones are the same service.
///
/// Every operation checks its caller first: an [`Agent`] is the incarnation that is live now, not one
/// of the same id that was before it (`UNAUTHORIZED`).
#[derive(Clone, Debug)]
pub struct Continuations(Arc<Shell>);

impl Continuations {
    /// A service whose children are owned by `owner`: its closing disposes them. The plugin
    /// [`Subagents`](crate::Subagents) makes one; who makes another must also tell it of agents that
    /// are disposed, by [`Continuations::drain_below`].
    pub fn new(world: Arc<World>, providers: ChildProviders, slots: Slots, owner: Scope) -> Self {
        Self(Arc::new(Shell::new(world, providers, slots, owner)))
    }

    /// Starts a child by the provider of this name. Resolves once its prompt is **accepted**: from then
    /// on the child goes on whatever becomes of the caller, and its parent is told when it settles.
    ///
    /// Until then the request's token, or dropping the future, gives the start up.
    ///
    /// # Errors
    ///
    /// `PERSISTENCE_UNAVAILABLE`, `UNAUTHORIZED` for a parent that is not live, `DRAINING`,
    /// `ACTIVATION_CLOSING` for a parent that is being disposed, `NO_PROVIDER`,
    /// `UNSUPPORTED_CAPABILITY`, `SUBAGENT_DEPTH`, `SUBAGENT_CAPACITY`, `DUPLICATE_CHILD`,
    /// `ACTIVATION_SETUP_REVOKED`, `CANCELLED`, and what the creation fails with. Nothing is live then,
    /// and nobody is told; what the child's setup stored stays stored.
    pub async fn start(
        &self,
        provider: &str,
        start: StartContinuable,
    ) -> Result<Started, ContinuationError> {
        let lineage = self.0.caller(&start.request.parent)?;
        self.0.admitted(&lineage)?;
        let (blueprint, prompt) = Blueprint::of(&self.0, provider, &start)?;
        let (child, message) = (blueprint.id().clone(), prompt.id.clone());
        let StartContinuable { request, .. } = start;
        let delivery = Delivery {
            message: prompt,
            target: InboxTarget::NextTurn,
            wake: true,
            caller: request.parent,
            blueprint: Some(blueprint),
        };
        let input = |op| Input::Start { child: child.clone(), op };
        self.0.submit(&child, delivery, lineage, &request.cancel, input).await?;
        Ok(Started { child, message })
    }

    /// Gives a child another turn. A child that is only stored is resumed; one that is being disposed
    /// is waited for and then resumed. What is sent to one child is taken in order. Resolves once the
    /// message is **accepted**; `cancel`, or dropping the future, counts until then.
    ///
    /// # Errors
    ///
    /// `PERSISTENCE_UNAVAILABLE`, `UNAUTHORIZED` unless `parent` is the child's durable parent,
    /// `DRAINING`, `ACTIVATION_CLOSING`, `NOT_RESUMABLE` if the stored session is no continuable
    /// child's, `SUBAGENT_CAPACITY`, `ACTIVATION_SETUP_REVOKED`, `CANCELLED`, and what the resume fails
    /// with.
    pub async fn followup(
        &self,
        parent: &Agent,
        child: &SessionId,
        content: Vec<ContentBlock>,
        source: Source,
        cancel: &CancelToken,
    ) -> Result<MessageId, ContinuationError> {
        self.send(parent, child, content, source, InboxTarget::NextTurn, cancel).await
    }

    /// As [`Continuations::followup`], and joins the child's running turn at its next step; without one
    /// it opens a turn.
    ///
    /// # Errors
    ///
    /// As [`Continuations::followup`].
    pub async fn steer(
        &self,
        parent: &Agent,
        child: &SessionId,
        content: Vec<ContentBlock>,
        source: Source,
        cancel: &CancelToken,
    ) -> Result<MessageId, ContinuationError> {
        self.send(parent, child, content, source, InboxTarget::NextStep, cancel).await
    }

    /// As [`Continuations::followup`], for a message that may have been sent before: a child whose log
    /// knows its id gets it once. If it still waits there, the child is woken for it.
    ///
    /// # Errors
    ///
    /// As [`Continuations::followup`].
    pub async fn deliver(
        &self,
        parent: &Agent,
        child: &SessionId,
        message: Message,
        cancel: &CancelToken,
    ) -> Result<(), ContinuationError> {
        self.submit(parent, child, message, InboxTarget::NextTurn, cancel).await
    }

    async fn send(
        &self,
        parent: &Agent,
        child: &SessionId,
        content: Vec<ContentBlock>,
        source: Source,
        target: InboxTarget,
        cancel: &CancelToken,
    ) -> Result<MessageId, ContinuationError> {
        let message = Message::user_from(self.0.world.ids.message(), content, source);
        let id = message.id.clone();
        self.submit(parent, child, message, target, cancel).await?;
        Ok(id)
    }

    async fn submit(
        &self,
        parent: &Agent,
        child: &SessionId,
        message: Message,
        target: InboxTarget,
        cancel: &CancelToken,
    ) -> Result<(), ContinuationError> {
        let lineage = self.0.caller(parent)?;
        let caller = parent.clone();
        let delivery = Delivery { message, target, wake: true, caller, blueprint: None };
        let input = |op| Input::Deliver { child: child.clone(), op };
        self.0.submit(child, delivery, lineage, cancel, input).await
    }

    /// Ends the running turn of a child, and nothing else: its unclaimed input waits for the next
    /// message, its own children go on. Returns without waiting. A child that is stored, unknown or
    /// being disposed already is no error.
    ///
    /// # Errors
    ///
    /// `UNAUTHORIZED` unless the authority holds: an ancestor must be live, be above the target, and
    /// not be the target; a person must name the target's parent.
    pub fn interrupt(
        &self,
        target: &SessionId,
        authority: Authority,
    ) -> Result<(), ContinuationError> {
        match authority {
            Authority::User { parent } => self.0.interrupt(target, &parent, CancelCause::User),
            Authority::Ancestor(ancestor) => {
                self.0.caller(&ancestor)?;
                self.0.interrupt(target, ancestor.id(), CancelCause::Parent)
            }
        }
    }

    /// Tells a child's parent something. The child's turn goes on. Resolves once the parent has
    /// **accepted** it.
    ///
    /// # Errors
    ///
    /// `UNAUTHORIZED` unless `child` is the agent of a resident child, `ACTIVATION_CLOSING`,
    /// `PARENT_UNAVAILABLE`.
    pub async fn report(
        &self,
        child: &Agent,
        content: Vec<ContentBlock>,
        delivery: ReportDelivery,
    ) -> Result<MessageId, ContinuationError> {
        let lineage: Lineage = self.0.caller(child)?;
        let message = ending::report(self.0.world.ids.message(), child.id(), content);
        let id = message.id.clone();
        let delivery = Delivery {
            message,
            target: InboxTarget::NextStep,
            wake: delivery == ReportDelivery::NextStep,
            caller: child.clone(),
            blueprint: None,
        };
        // What is on its way cannot be called back, so there is nothing to cancel.
        let input = |op| Input::Report { child: child.id().clone(), op };
        self.0.submit(child.id(), delivery, lineage, &CancelToken::new(), input).await?;
        Ok(id)
    }

    /// Takes nothing any more, and disposes all children, child first; what they had not claimed
    /// stays in their logs. Resolves when nothing of them is left; goes on if the future is dropped.
    ///
    /// # Errors
    ///
    /// `ACTIVATION_TEARDOWN_FAILED`: all are released, with failures on the way.
    pub async fn drain(&self) -> Result<(), ContinuationError> {
        self.0.drain(DrainScope::All, true).await
    }

    /// As [`Continuations::drain`], for all below these agents, whoever stands in between: nothing is
    /// started or sent there until these agents are gone. Unclaimed input of the children is dropped,
    /// and what is told of their ends wakes nobody. Agents that are not live are left out.
    ///
    /// # Errors
    ///
    /// `ACTIVATION_TEARDOWN_FAILED`.
    pub async fn drain_below(&self, agents: &[Agent]) -> Result<(), ContinuationError> {
        self.0.drain_below(agents, false).await
    }

    /// Disposes these children of an agent, and what is below them; a later message resumes each. An
    /// id without a resident child is no error.
    ///
    /// # Errors
    ///
    /// `UNAUTHORIZED` for a parent that is not live, or a child of somebody else: nothing is done
    /// then. `ACTIVATION_TEARDOWN_FAILED`.
    pub async fn drain_children(
        &self,
        parent: &Agent,
        children: &[SessionId],
    ) -> Result<(), ContinuationError> {
        self.0.caller(parent)?;
        self.0.direct_children(parent.id(), children)?;
        self.0.drain(DrainScope::Children(children.to_vec()), false).await
    }

    /// All resident children, and those that are being made or disposed; parents before their
    /// children.
    pub fn activations(&self) -> Vec<Activation> {
        self.0.activations()
    }

    /// This child, if it is resident, being made or being disposed.
    pub fn activation(&self, child: &SessionId) -> Option<Activation> {
        self.0.activation(child)
    }

    /// Counts whatever changes in [`Continuations::activations`].
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Contributes to every child that is made or resumed from now on, in the order of registration,
    /// until `scope` closes or the registration is removed: then what it registered in resident
    /// children is undone at once. A contribution that fails, fails the child's making.
    ///
    /// # Errors
    ///
    /// The scope is closed.
    pub fn register_set_up(
        &self,
        scope: &Scope,
        contribution: Contribution,
    ) -> Result<Registration, ScopeClosed> {
        self.0.set_ups.register(scope, contribution)
    }
}
