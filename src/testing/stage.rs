//! A harness, a scripted model and an agent.

use std::{fmt, sync::Arc};

use playhouse_messages::chunk::Failure;
use playhouse_models::scripted::{Gate, Script, ScriptedAdapter};
use playhouse_plugin_api::{
    clock::{CountingIds, StepClock},
    creation::CreateError,
    llm::{LlmError, LlmRequest},
    world::World,
};

use super::{Victim, trace};
use crate::{Agent, AgentHandle, AgentOptions, Harness, HarnessBuilder, HarnessError, NewAgent};

/// The route that the scripted model serves.
pub const ROUTE: &str = "scripted";

/// What the clock says first, in epoch milliseconds.
pub const START_MS: u64 = 1_000;

/// A harness, a scripted model under the route `scripted`, and one agent that uses it.
pub struct Stage {
    harness: Harness,
    model: Arc<ScriptedAdapter>,
    options: AgentOptions,
    agent: AgentHandle,
}

/// What a stage is built from.
pub struct StageBuilder {
    model: ScriptedAdapter,
    harness: HarnessBuilder,
    options: AgentOptions,
}

/// Why a stage could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// The harness did not start.
    #[error(transparent)]
    Harness(#[from] HarnessError),
    /// The route of the scripted model is taken.
    #[error(transparent)]
    Model(#[from] LlmError),
    /// The agent was not made.
    #[error(transparent)]
    Create(#[from] CreateError),
}

impl StageError {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Harness(error) => error.code(),
            Self::Model(error) => error.code(),
            Self::Create(error) => error.code(),
        }
    }
}

impl Stage {
    /// A minimal harness whose model plays this script.
    pub async fn new(script: Script) -> Result<Self, StageError> {
        Self::minimal(script).start().await
    }

    /// A stage over [`minimal`](crate::minimal), to be changed.
    pub fn minimal(script: Script) -> StageBuilder {
        StageBuilder::new(script, crate::minimal())
    }

    /// A stage over [`base`](crate::base), to be changed.
    pub fn base(script: Script) -> StageBuilder {
        StageBuilder::new(script, crate::base())
    }

    /// The harness.
    pub fn harness(&self) -> &Harness {
        &self.harness
    }

    /// What agents and plugins share.
    pub fn world(&self) -> &Arc<World> {
        self.harness.world()
    }

    /// The agent.
    pub fn agent(&self) -> &AgentHandle {
        &self.agent
    }

    /// One more agent with the stage's options.
    pub async fn another(&self) -> Result<AgentHandle, CreateError> {
        self.harness.create(NewAgent::new(self.options.clone())).await
    }

    /// The scripted model.
    pub fn model(&self) -> &Arc<ScriptedAdapter> {
        &self.model
    }

    /// The gate of this name, which starts closed: see
    /// [`Reply::at_gate`](crate::models::scripted::Reply::at_gate).
    pub fn gate(&self, name: &str) -> Arc<Gate> {
        self.model.gate(name)
    }

    /// The requests that the model was sent so far.
    pub fn requests(&self) -> Vec<LlmRequest> {
        self.model.captured()
    }

    /// The agent's log in one line.
    pub fn trace(&self) -> String {
        trace(&self.agent.session().log())
    }

    /// Kills an actor that `agent` depends on, and waits until its successor stands. Returns whether
    /// there was one to kill and one came: a disposed agent has neither.
    pub async fn kill(&self, agent: &Agent, victim: Victim) -> bool {
        victim.kill(self.world(), agent).await
    }

    /// Shuts the harness down.
    pub async fn shutdown(&self) -> Result<(), Failure> {
        self.harness.shutdown().await
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage").field("harness", &self.harness).finish_non_exhaustive()
    }
}

impl StageBuilder {
    fn new(script: Script, harness: HarnessBuilder) -> Self {
        let harness = harness.ids(CountingIds::default()).clock(StepClock::starting_at(START_MS));
        let model = ScriptedAdapter::new(script);
        Self { model, harness, options: AgentOptions::new().model(ROUTE, "any") }
    }

    /// Changes the harness.
    #[must_use]
    pub fn harness(mut self, change: impl FnOnce(HarnessBuilder) -> HarnessBuilder) -> Self {
        self.harness = change(self.harness);
        self
    }

    /// Changes the agent's options.
    #[must_use]
    pub fn options(mut self, change: impl FnOnce(AgentOptions) -> AgentOptions) -> Self {
        self.options = change(self.options);
        self
    }

    /// Changes the scripted model.
    #[must_use]
    pub fn model(mut self, change: impl FnOnce(ScriptedAdapter) -> ScriptedAdapter) -> Self {
        self.model = change(self.model);
        self
    }

    /// Starts the harness, and makes the agent. Requests are recorded from the first on.
    pub async fn start(self) -> Result<Stage, StageError> {
        let Self { model, harness, options } = self;
        let harness = harness.start().await?;
        let model = Arc::new(model);
        model.stage().record(true);
        // The registration lasts as long as the harness.
        let _registration = harness.world().models.register([ROUTE], model.clone())?;
        let agent = harness.create(NewAgent::new(options.clone())).await?;
        Ok(Stage { harness, model, options, agent })
    }
}

impl fmt::Debug for StageBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}
