//! Making agents: the request, the handle, and the seam that the supervisor implements.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;
use playhouse_messages::{
    chunk::Failure, event::SharedEvent, header::Origin, id::SessionId,
    protocol::AgentSupervisorMessage,
};

use crate::{
    agent::Agent, cancel::CancelToken, fork::ForkPoint, options::AgentOptions, scope::Scope,
    slot::Gone,
};

/// Runs while a new agent is not yet live: registers in its scope, appends to its session. A
/// failure undoes the creation; events already stored stay stored.
pub type SetUp = Arc<dyn Fn(Agent) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync>;

/// What to make an agent from.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct NewAgent {
    /// Its id; a fresh one if absent.
    pub id: Option<SessionId>,
    /// Its options.
    pub options: AgentOptions,
    /// The scope that owns it: closing the scope disposes it. The harness's if absent.
    pub owner: Option<Scope>,
    /// The scope whose registrations it sees; the owner if absent.
    pub within: Option<Scope>,
    /// The agent that delegates to it, and is told of it. Not the owner.
    pub runtime_parent: Option<SessionId>,
    /// Its working directory; absolute.
    pub cwd: Option<String>,
    /// How it came to be, for navigation.
    pub origin: Option<Origin>,
    /// How deep in a tree of delegations it stands; a resume takes the header's word if that is more.
    pub delegation_depth: Option<u32>,
    /// The preset that it is composed from, for its header.
    pub agent_preset: Option<String>,
    /// Events to start from; `Some` of none still marks the end of the seed.
    pub seed: Option<Vec<SharedEvent>>,
    /// Runs before it is live.
    pub set_up: Option<SetUp>,
    /// The blueprint that it is made from. Options, owner, the scope that it sees and the set-up are
    /// the blueprint's then, and must be left out here.
    pub blueprint: Option<String>,
    /// Gives the creation up.
    pub cancel: Option<CancelToken>,
}

impl NewAgent {
    /// An agent with these options.
    pub fn new(options: AgentOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// An agent made from the blueprint that is registered under this name, which its header keeps: it
    /// may hibernate, and can be woken by its id.
    pub fn blueprint(name: impl Into<String>) -> Self {
        Self { blueprint: Some(name.into()), ..Self::default() }
    }

    /// With this id.
    #[must_use]
    pub fn id(mut self, id: impl Into<SessionId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Owned by this scope.
    #[must_use]
    pub fn owned_by(mut self, owner: Scope) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Seeing what is registered in this scope and above it, whoever owns it.
    #[must_use]
    pub fn within(mut self, scope: Scope) -> Self {
        self.within = Some(scope);
        self
    }

    /// Delegated to by this agent.
    #[must_use]
    pub fn delegated_by(mut self, parent: &Agent) -> Self {
        self.runtime_parent = Some(parent.id().clone());
        self.origin = Some(Origin::Subagent);
        self.delegation_depth = Some(parent.depth().saturating_add(1));
        self.cwd.clone_from(&parent.session().header().cwd);
        self
    }

    /// In this working directory, which must be absolute.
    #[must_use]
    pub fn cwd(mut self, cwd: impl Into<String>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// Starting from these events.
    #[must_use]
    pub fn seed(mut self, events: Vec<SharedEvent>) -> Self {
        self.seed = Some(events);
        self
    }

    /// Set up by this before it is live.
    #[must_use]
    pub fn set_up<F, Fut>(mut self, set_up: F) -> Self
    where
        F: Fn(Agent) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.set_up = Some(Arc::new(move |agent| Box::pin(set_up(agent))));
        self
    }

    /// Given up when this token fires.
    #[must_use]
    pub fn cancelled_by(mut self, cancel: CancelToken) -> Self {
        self.cancel = Some(cancel);
        self
    }
}

impl fmt::Debug for NewAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewAgent")
            .field("id", &self.id)
            .field("blueprint", &self.blueprint)
            .field("options", &self.options)
            .field("runtime_parent", &self.runtime_parent)
            .finish_non_exhaustive()
    }
}

/// Makes agents.
pub trait AgentMaker: Send + Sync + 'static {
    /// Makes an agent. All or nothing: a failure releases everything first, but events that the
    /// setup stored stay stored. Dropping the future gives the creation up.
    fn create(&self, new: NewAgent) -> BoxFuture<'static, Result<AgentHandle, CreateError>>;

    /// Makes an agent over a stored session: its log is balanced first. `new.id` names it; the
    /// header's facts overrule `new`'s.
    fn resume(&self, new: NewAgent) -> BoxFuture<'static, Result<AgentHandle, CreateError>>;

    /// The live agent of this id, made anew from its session and its blueprint if there is none. Any
    /// number of callers share one making, which goes on if they go; a life that is just ending is
    /// awaited first.
    ///
    /// Fails with `NO_STORE`, `SESSION_NOT_FOUND`, `NO_BLUEPRINT` if its header names none,
    /// `UNKNOWN_BLUEPRINT` if that is not registered, and as [`AgentMaker::resume`].
    fn wake(&self, id: SessionId) -> BoxFuture<'static, Result<Agent, CreateError>>;

    /// Makes an agent over a copy of a session's log up to an event, which may be any. The source,
    /// live or stored, is read and not touched: no claim is taken, and afterwards the two have
    /// nothing to do with each other. A live source gives what is accepted, durable or not; what
    /// has been streamed of an open attempt is not in the log, and so not in the child.
    ///
    /// The child's log is the inherited events with their seqs, the marker of the cut, and closers
    /// with cause `forked` for what was open there. Pending input is inherited, and waits for the
    /// next wake. Its header names the source as `parentSession`; working directory and depth are
    /// the source's unless `new` says otherwise. With a store all of it is **durable** before the
    /// setup runs.
    ///
    /// All or nothing as [`AgentMaker::create`]; what failed before the setup is not stored.
    ///
    /// Fails with `SESSION_NOT_FOUND`, `SESSION_ALREADY_EXISTS` if `new.id` is taken (told before
    /// anything about the boundary), `INVALID_BOUNDARY` if there is no such event, and
    /// `INVALID_ARGUMENT` if `new` has a seed of its own.
    fn fork(
        &self,
        from: ForkPoint,
        new: NewAgent,
    ) -> BoxFuture<'static, Result<AgentHandle, CreateError>>;
}

/// Why an agent could not be made.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", .0.message)]
pub struct CreateError(pub Failure);

impl CreateError {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        &self.0.code
    }
}

impl From<Failure> for CreateError {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

impl From<CreateError> for Failure {
    fn from(error: CreateError) -> Self {
        error.0
    }
}

/// The right to dispose an agent. Dropping it ends nothing: the agent lives until
/// [`AgentHandle::dispose`], the closing of its owner's scope, or the harness's shutdown.
#[derive(Debug, Clone)]
pub struct AgentHandle {
    agent: Agent,
}

impl AgentHandle {
    /// The right to dispose this agent.
    pub fn new(agent: Agent) -> Self {
        Self { agent }
    }

    /// The agent.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Ends the agent's work and that of every agent it owns, drops its pending input, makes its
    /// log durable, and releases everything. Idempotent: every caller awaits the same end. Always
    /// finishes; what went wrong on the way is returned after.
    pub async fn dispose(&self) -> Result<(), Failure> {
        self.end(false).await
    }

    /// As [`AgentHandle::dispose`], and leaves pending input in the log for a resume to find.
    pub async fn dispose_keeping_inbox(&self) -> Result<(), Failure> {
        self.end(true).await
    }

    async fn end(&self, keep_inbox: bool) -> Result<(), Failure> {
        let dispose = |_, reply| AgentSupervisorMessage::Dispose { keep_inbox, reply };
        // A closed slot means that it is done.
        let cell = self.agent.cell();
        cell.supervisor.call(dispose).await.unwrap_or_else(|Gone| cell.end())
    }
}

impl std::ops::Deref for AgentHandle {
    type Target = Agent;

    fn deref(&self) -> &Agent {
        &self.agent
    }
}
