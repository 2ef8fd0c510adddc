//! Agents as plugins and programs see them.

mod awake;
mod cell;
mod model;
mod prompt;

use std::{
    borrow::Cow,
    fmt,
    future::Future,
    hash::{Hash, Hasher},
    sync::Arc,
};

pub use awake::StayAwake;
pub use cell::{AgentCell, AgentFault, AgentParts, AnnouncedCancel, Disposal};
pub use model::{AgentModel, SelectError};
use playhouse_messages::{
    chunk::Failure,
    event::{CancelCause, InboxTarget},
    id::{MessageId, SessionId},
    inbox::Inbox,
    machine::Status,
    message::{Message, Role, SharedMessage, Source},
    outcome::{Outcome, OutcomeFold, Progress},
    protocol::AgentMessage,
    session::{Edited, InboxEdit},
    session_state::AppendError,
};
pub use prompt::Prompt;
use tokio::sync::broadcast;
use tracing::Span;

use crate::{
    budget::{Account, BudgetStatus},
    cancel::CancelToken,
    options::{AgentOptions, Durability},
    registry::CancellingTree,
    scope::Scope,
    session::Session,
    slot::Gone,
    watch,
};

/// A live agent. Clones are the same one, and dropping them ends nothing.
///
/// Delivery has three verbs. [`Agent::followup`] asks for a turn of its own, [`Agent::steer`] joins
/// the running turn at its next step, [`Agent::inject`] adds context without waking anybody. A
/// message is **accepted** once these return: it stands in the log. All of them survive restarts of
/// the agent's actors without delivering twice; dropping their futures does not take a message back.
#[derive(Clone)]
pub struct Agent(Arc<AgentCell>);

/// Why an agent did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// It is disposed.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// It hibernates: this handle is of a life that is over.
    #[error(
        "agent \"{agent}\" hibernates: send by its id with `Harness::send` or `Harness::prompt`, or \
         get a handle of its next life from `Harness::wake`"
    )]
    Hibernated {
        /// The agent.
        agent: SessionId,
    },
    /// The log refuses it.
    #[error(transparent)]
    Refused(#[from] AppendError),
    /// Something runs.
    #[error("agent \"{agent}\" already has active work; wait with `when_idle`")]
    Busy {
        /// The agent.
        agent: SessionId,
    },
    /// The message was cancelled before a turn claimed it.
    #[error("message \"{id}\" was cancelled before a turn ran it; send it again to run it")]
    Dropped {
        /// The message.
        id: MessageId,
    },
    /// The log refused the end of the message's turn; [`Agent::errors`] told why.
    #[error(
        "turn {turn} is left open, its end was refused: dispose the agent and resume its session"
    )]
    LeftOpen {
        /// The turn.
        turn: u32,
    },
    /// Only user-role messages can be sent.
    #[error("message \"{id}\" has role {role:?}: only user messages can be sent to an agent")]
    NotUser {
        /// The message.
        id: MessageId,
        /// Its role.
        role: Role,
    },
}

impl AgentError {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Gone(gone) => gone.code(),
            Self::Hibernated { .. } => "AGENT_HIBERNATED",
            Self::Refused(error) => error.code(),
            Self::Busy { .. } => "AGENT_BUSY",
            Self::Dropped { .. } => "MESSAGE_CANCELED",
            Self::LeftOpen { .. } => "TURN_LEFT_OPEN",
            Self::NotUser { .. } => "NOT_A_USER_MESSAGE",
        }
    }
}

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl Agent {
    /// A handle to an agent in the world.
    pub fn new(cell: Arc<AgentCell>) -> Self {
        Self(cell)
    }

    /// The agent's id, which is its session's.
    pub fn id(&self) -> &SessionId {
        self.0.session.id()
    }

    /// Its session.
    pub fn session(&self) -> &Session {
        &self.0.session
    }

    /// The blueprint that this life of it was made from, if any: without one it cannot hibernate.
    pub fn blueprint(&self) -> Option<&Arc<str>> {
        self.0.blueprint.as_ref()
    }

    /// Keeps it from hibernating until the guard is dropped, for a reason that refusals name: work
    /// that is not a turn of its own and that its log does not know. Take it in a turn, or before
    /// the agent is live; one that falls asleep already is not kept awake.
    pub fn stay_awake(&self, reason: impl Into<Cow<'static, str>>) -> StayAwake {
        StayAwake::new(self.0.clone(), reason.into())
    }

    /// What it was made with.
    pub fn options(&self) -> &AgentOptions {
        &self.0.options
    }

    /// What it spends from; `None` if no budget counts.
    pub fn account(&self) -> Option<&Arc<Account>> {
        self.0.account.as_ref()
    }

    /// How far each budget that counts for it has got: its own first, then those of the trees that it
    /// stands in, from the nearest to the root's.
    pub fn budgets(&self) -> Vec<BudgetStatus> {
        self.account().map(|account| account.status()).unwrap_or_default()
    }

    /// Its scope: what is registered there is its own, and goes with it.
    pub fn scope(&self) -> &Scope {
        &self.0.scope
    }

    /// The scope that owns it: its closing disposes the agent.
    pub fn owner(&self) -> &Scope {
        &self.0.owner
    }

    /// The agent that delegated its work to it. Says who is told; not who owns or restarts it.
    pub fn runtime_parent(&self) -> Option<&SessionId> {
        self.0.lineage.first()
    }

    /// Its runtime parent, that one's, and so on, as far as they were known when it was made.
    pub fn lineage(&self) -> &Arc<[SessionId]> {
        &self.0.lineage
    }

    /// How deep in a tree of delegations it stands; 0 for a root. The more of what its header says
    /// and of what it was made with: a resume never lowers it.
    pub fn depth(&self) -> u32 {
        self.0.depth
    }

    /// When its log is made durable.
    pub fn durability(&self) -> Durability {
        self.options().durability.unwrap_or_default()
    }

    /// Whether it runs.
    pub fn status(&self) -> Status {
        *self.0.status.borrow()
    }

    /// Reads the status along; fast changes may be seen as one.
    pub fn watch_status(&self) -> watch::Receiver<Status> {
        self.0.status.subscribe()
    }

    /// Reads failures along, also those without a place in the log.
    pub fn errors(&self) -> broadcast::Receiver<AgentFault> {
        self.0.errors()
    }

    /// What waits in its inbox.
    pub fn inbox(&self) -> Inbox {
        self.session().view().inbox.clone()
    }

    /// Sends a prompt and waits for its own result: of the turn that claims it. A turn that failed
    /// (no model, a refused request) is a result like any other: see [`Outcome::is_completed`].
    ///
    /// Dropping the future stops the wait, not the turn. A turn that fails leaves what waits behind it
    /// in the inbox: the wait then goes on until a later send wakes the agent, or a cancel drops it.
    pub async fn prompt(&self, prompt: impl Into<Prompt>) -> Result<Outcome, AgentError> {
        let from = self.session().log().len();
        let id = self.followup(prompt).await?;
        self.outcome(&id, from).await
    }

    /// Waits for the result of a message that was accepted at or after seq `from`. The agent's
    /// disposal ends the wait with [`AgentError::Gone`], a turn that cannot be ended with
    /// [`AgentError::LeftOpen`].
    pub async fn outcome(&self, id: &MessageId, from: u64) -> Result<Outcome, AgentError> {
        let log = self.session().log();
        let mut fold = OutcomeFold::starting(&log, from, id.clone());
        let mut events = self.session().events(from);
        let mut disposal = self.0.disposal();
        let outcome = loop {
            let running = match fold.progress() {
                Progress::Ended(outcome) => break *outcome,
                Progress::Dropped => return Err(AgentError::Dropped { id: id.clone() }),
                Progress::Running { turn } => Some(turn),
                Progress::Unknown | Progress::Pending => None,
            };
            let event = tokio::select! {
                biased;
                event = events.next() => event,
                () = self.at_rest(), if running.is_some() => match (events.try_next(), running) {
                    // A turn's end comes before idle.
                    (Some(event), _) => event,
                    (None, turn) => {
                        return Err(AgentError::LeftOpen { turn: turn.unwrap_or_default() });
                    }
                },
                _ = disposal.wait_for(|state| *state == Disposal::Disposed) => {
                    // The last events came before the disposal was done.
                    match events.try_next() {
                        Some(event) => event,
                        None => return Err(self.gone(Gone)),
                    }
                }
            };
            fold.apply(&event.body);
        };
        Ok(outcome)
    }

    /// Why nobody answers.
    fn gone(&self, gone: Gone) -> AgentError {
        match self.0.is_asleep() {
            true => AgentError::Hibernated { agent: self.id().clone() },
            false => gone.into(),
        }
    }

    /// Resolves when nothing runs; never if the agent goes first.
    async fn at_rest(&self) {
        // The status is cheap to wait for; what it means is the driver's to say.
        let _ = self.watch_status().wait_for(|status| *status == Status::Idle).await;
        if self.when_idle().await.is_err() {
            std::future::pending().await
        }
    }

    /// Asks for a turn over this message, after those that were asked for before.
    pub async fn followup(&self, prompt: impl Into<Prompt>) -> Result<MessageId, AgentError> {
        self.send(prompt, InboxTarget::NextTurn, true).await
    }

    /// Joins the running turn at its next step boundary; opens a turn if none runs.
    pub async fn steer(&self, prompt: impl Into<Prompt>) -> Result<MessageId, AgentError> {
        self.send(prompt, InboxTarget::NextStep, true).await
    }

    /// Adds context for the next step, whenever that comes.
    pub async fn inject(&self, prompt: impl Into<Prompt>) -> Result<MessageId, AgentError> {
        self.send(prompt, InboxTarget::NextStep, false).await
    }

    /// Puts a message into either list, waking the agent or not.
    pub async fn send(
        &self,
        prompt: impl Into<Prompt>,
        target: InboxTarget,
        wake: bool,
    ) -> Result<MessageId, AgentError> {
        let message = match prompt.into() {
            Prompt::Text(text) => Message::user(self.0.ids.message(), text),
            Prompt::Content(content) => {
                Message::user_from(self.0.ids.message(), content, Source::user())
            }
            Prompt::Message(message) => *message,
        };
        self.deliver(message.into(), target, wake, false).await
    }

    /// As [`Agent::send`], for a message that may have been sent before: an id that the log knows is
    /// a success, and is not delivered twice.
    pub async fn send_again(
        &self,
        message: Message,
        target: InboxTarget,
        wake: bool,
    ) -> Result<MessageId, AgentError> {
        self.deliver(message.into(), target, wake, true).await
    }

    async fn deliver(
        &self,
        message: SharedMessage,
        target: InboxTarget,
        wake: bool,
        again: bool,
    ) -> Result<MessageId, AgentError> {
        if message.role != Role::User {
            return Err(AgentError::NotUser { id: message.id.clone(), role: message.role });
        }
        let accepted = self
            .0
            .actor
            .call(|tries, reply| AgentMessage::Send {
                message: message.clone(),
                target,
                wake,
                retry: again || tries > 0,
                reply,
            })
            .await
            .map_err(|gone| self.gone(gone))??;
        Ok(accepted.id)
    }

    /// Changes the inbox otherwise.
    pub async fn edit_inbox(&self, edit: InboxEdit) -> Result<Edited, AgentError> {
        let message = |_, reply| AgentMessage::Edit { edit: edit.clone(), reply };
        Ok(self.0.actor.call(message).await.map_err(|gone| self.gone(gone))??)
    }

    /// Ends the running turn and drops pending input. Everything that the turn runs sees it at once;
    /// what the user saw of the answer is kept. Returns without waiting; an idle agent only loses
    /// its pending input. See [`Agent::when_idle`].
    pub fn cancel(&self, cause: CancelCause) {
        self.cancel_with(cause, false);
    }

    /// As [`Agent::cancel`], and leaves pending input where it is if told to.
    pub fn cancel_with(&self, cause: CancelCause, keep_inbox: bool) {
        let announcement = self.0.announce(cause, keep_inbox);
        // Between two lives of the actor nobody hears it; the successor takes what is pending.
        let _ = self.0.actor.cast(AgentMessage::Cancel { announcement });
    }

    /// Cancels the agent and every agent below it, also those that are being made: all their tokens
    /// have fired when this returns, before anything is awaited. Await what it returns to know that
    /// all of them are idle or gone; who was delegated to meanwhile is reached then, and who does not
    /// stop in time is named.
    ///
    /// An agent that somebody wakes before it has come to rest is waited for, too. A tool or hook of
    /// the tree must not await it: it would wait for itself, until its own grace is over.
    ///
    /// ```
    /// # use playhouse_messages::event::CancelCause;
    /// # use playhouse_plugin_api::agent::Agent;
    /// # async fn run(agent: &Agent) {
    /// let cancelling = agent.cancel_tree(CancelCause::User);
    /// println!("{} agents and creations are told", cancelling.reached());
    /// let cancelled = cancelling.await;
    /// assert!(cancelled.unfinished.is_empty(), "all of them are idle or gone");
    /// # }
    /// ```
    pub fn cancel_tree(&self, cause: CancelCause) -> CancellingTree {
        self.0.registry.cancel_tree(self, cause)
    }

    /// Resolves when nothing runs: no turn, no maintenance. At once if so now.
    pub async fn when_idle(&self) -> Result<(), AgentError> {
        let idle = self.0.actor.call(|_, reply| AgentMessage::WhenIdle { reply }).await;
        idle.map_err(|gone| self.gone(gone))
    }

    /// Runs `task` while no turn can: messages are accepted meanwhile, and what they wake runs
    /// after. Fails at once if something runs already. A cancel fires the token that the task gets.
    pub async fn run_maintenance<F, Fut, T>(&self, task: F) -> Result<T, AgentError>
    where
        F: FnOnce(CancelToken) -> Fut,
        Fut: Future<Output = T>,
    {
        let granted = self.0.actor.call(|_, reply| AgentMessage::Maintain { reply }).await;
        if !granted.map_err(|gone| self.gone(gone))? {
            return Err(AgentError::Busy { agent: self.id().clone() });
        }
        let _lease = MaintenanceLease(&self.0);
        Ok(task(self.0.token()).await)
    }

    /// The span that the agent's work is traced in.
    pub fn span(&self) -> &Span {
        &self.0.span
    }

    /// The agent's place in the world, for the actors.
    pub fn cell(&self) -> &Arc<AgentCell> {
        &self.0
    }
}

impl PartialEq for Agent {
    /// The same incarnation, not just the same id.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Agent {}

impl Hash for Agent {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Agent({}, {:?})", self.id(), self.status())
    }
}

/// Gives the agent back, however the task ends.
struct MaintenanceLease<'a>(&'a AgentCell);

impl Drop for MaintenanceLease<'_> {
    fn drop(&mut self) {
        // A successor of the actor knows of no maintenance.
        let _ = self.0.actor.cast(AgentMessage::Maintained);
    }
}
