//! The hook points: every place where a plugin may have a say, or is told.
//!
//! The loop is never edited for a feature. Around-points wrap a default, serial points are awaited
//! in order, notify points are told.

use std::sync::Arc;

use playhouse_messages::{
    chunk::Failure,
    config::{CallConfig, ModelChoice},
    event::StepAt,
    machine::{Decision, Recovery, Status},
    message::SharedMessage,
    retry::RetryPolicy,
};

use crate::{
    agent::{Agent, AgentFault},
    cancel::CancelToken,
    hook::{Around, Notify, Serial},
};

/// The hook points of a harness's loop. Model streams are wrapped at
/// [`LlmRegistry::on_stream`](crate::llm::LlmRegistry::on_stream).
#[derive(Default)]
pub struct Hooks {
    /// Decides whether a proposed step opens, and with exactly which messages. Runs once for each
    /// proposed step, never on a retry. The default enters with the claimed messages and a
    /// runtime-context candidate.
    pub pre_step: Around<PreStep, Decision>,
    /// Replaces the call configuration of an attempt: sampling, limit, stop sequences. A change of
    /// provider, model or effort fails the step. The default keeps it.
    pub request: Around<RequestProposal, CallConfig>,
    /// Decides whether a failed attempt is retried, and on which route. The default does not.
    pub request_error: Around<RequestError, Recovery>,
    /// Runs when the turn owes nothing more; steering here runs another step.
    pub turn_stopping: Serial<TurnStopping>,
    /// Runs before a new agent's early input is released; a failure undoes the creation.
    pub created: Serial<Created>,
    /// Runs when an agent's disposal begins, after its work was cancelled and before anything that it
    /// owns, or it itself, is released: for what belongs to it and is owned by somebody else. A failure is
    /// among what the disposal returns; a listener that hangs is dropped after a while.
    pub disposing: Serial<Disposing>,
    /// Told when an agent is gone.
    pub disposed: Notify<Agent>,
    /// Told when an agent's public status changes.
    pub status: Notify<StatusChange>,
    /// Told of failures, also those without a place in the log.
    pub error: Notify<AgentFault>,
}

/// A proposed step.
///
/// What was claimed cannot be changed in place:
///
/// ```compile_fail,E0596
/// fn redact(input: playhouse_plugin_api::points::PreStep) {
///     let mut messages = input.messages;
///     messages[0].content.clear();
/// }
/// ```
#[derive(Debug, Clone)]
pub struct PreStep {
    /// Whose.
    pub agent: Agent,
    /// Which step would open.
    pub at: StepAt,
    /// The claimed messages. To change one, return a new one.
    pub messages: Arc<[SharedMessage]>,
    /// Whether the step comes even without messages: tool results wait for the model.
    pub owed: bool,
    /// The captured choice of model.
    pub choice: ModelChoice,
    /// Fires when the turn is cancelled.
    pub cancel: CancelToken,
}

/// An attempt's call configuration.
#[derive(Debug, Clone)]
pub struct RequestProposal {
    /// Whose.
    pub agent: Agent,
    /// The open step.
    pub at: StepAt,
    /// As it stands.
    pub config: CallConfig,
    /// Fires when the turn is cancelled.
    pub cancel: CancelToken,
}

/// A failed attempt.
#[derive(Debug, Clone)]
pub struct RequestError {
    /// Whose.
    pub agent: Agent,
    /// The open step.
    pub at: StepAt,
    /// The provider that failed.
    pub provider: String,
    /// The model under it.
    pub model: String,
    /// Its facts.
    pub failure: Failure,
    /// The route's policy.
    pub retry_policy: Option<RetryPolicy>,
    /// Fires when the turn is cancelled; a cancel beats a retry.
    pub cancel: CancelToken,
}

/// A turn that owes nothing more.
#[derive(Debug, Clone)]
pub struct TurnStopping {
    /// Whose.
    pub agent: Agent,
    /// Which.
    pub turn: u32,
    /// Fires when the turn is cancelled.
    pub cancel: CancelToken,
}

/// A new agent, or one that is live again.
#[derive(Debug, Clone)]
pub struct Created {
    /// Which.
    pub agent: Agent,
    /// How it came to be.
    pub source: CreatedFrom,
    /// Fires when the creation is given up.
    pub cancel: CancelToken,
}

/// How an agent came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreatedFrom {
    /// Made anew, with or without a seed, or forked.
    Startup,
    /// From its stored session.
    Resume,
}

/// An agent that is being disposed.
#[derive(Debug, Clone)]
pub struct Disposing {
    /// Which.
    pub agent: Agent,
    /// Whether its pending input stays in its log.
    pub keep_inbox: bool,
}

/// A change of an agent's public status.
#[derive(Debug, Clone)]
pub struct StatusChange {
    /// Whose.
    pub agent: Agent,
    /// To what.
    pub status: Status,
}
