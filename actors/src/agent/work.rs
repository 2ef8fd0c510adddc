//! The asynchronous work of a step: assembly, hooks, the model, tools. Each piece runs in a task of
//! its own and reports its outcome; none decides anything.

use std::{future::Future, sync::Arc};

use playhouse_messages::{
    chunk::Failure,
    config::{CallConfig, ModelChoice},
    content::ToolCallBlock,
    event::StepAt,
    frame::attempt_id,
    machine::{Decision, Entry, Preparation, Proposal, Recovery, Streamed},
    message::SharedMessage,
    packed::TimedChunk,
    prepared::Prepared,
    protocol::ProviderMessage,
    request::{FrozenRequest, check_proposal},
    runtime_context::ContextSection,
    settlement::{AttemptStream, StreamEnd},
};
use playhouse_plugin_api::{
    agent::{Agent, AgentFault},
    cancel::CancelToken,
    hook::HookResult,
    points::{PreStep, RequestError, RequestProposal, TurnStopping},
    prompt::{AssembleContext, Assembly, render_prompt, runtime_sections},
    slot::Gone,
    tool::ToolBatch,
    world::World,
};
use ractor::ActorCell;

use super::{
    answer::{Answer, CHUNKS_AHEAD_MAX},
    checkpoint::checkpoint,
    host::AgentHost,
    tail::Tail,
};
use crate::provider::is_unserved;

/// For whom a piece of work runs.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) agent: Agent,
    pub(super) world: Arc<World>,
    pub(super) cancel: CancelToken,
}

impl Job {
    /// Awaits a hook chain: cooperatively, and after a cancel for the grace time only.
    async fn graceful<T>(&self, hooks: impl Future<Output = HookResult<T>>) -> HookResult<T> {
        let mut hooks = std::pin::pin!(hooks);
        tokio::select! {
            biased;
            outcome = &mut hooks => return outcome,
            () = self.cancel.cancelled() => {}
        }
        match tokio::time::timeout(self.world.limits.grace, hooks).await {
            Ok(outcome) => outcome,
            Err(_) => {
                tracing::warn!(agent = %self.agent.id(), "a hook was abandoned after a cancel");
                Err(aborted())
            }
        }
    }

    /// Awaits work that is safe to drop, until the turn is cancelled.
    pub(super) async fn until_cancelled<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        self.cancel.race(work).await.unwrap_or_else(|| Err(aborted()))
    }

    fn assemble_context(&self, choice: &ModelChoice) -> AssembleContext {
        AssembleContext {
            scope: self.agent.scope().clone(),
            choice: choice.clone(),
            cancel: self.cancel.clone(),
        }
    }
}

fn aborted() -> Failure {
    Failure::new("ABORTED", "the turn was cancelled")
}

/// S3 and S4: the prompt and tools, then the pre-step chain, whose default adds what the model has
/// to be told of the runtime.
pub(super) async fn propose(
    job: Job,
    at: StepAt,
    choice: ModelChoice,
    claimed: Vec<SharedMessage>,
    owed: bool,
) -> Result<Proposal, Failure> {
    job.until_cancelled(checkpoint(&job.agent)).await?;
    let context = job.assemble_context(&choice);
    let assembly = job.graceful(job.world.prompts.assemble(context)).await?;
    let sections = runtime_sections(&assembly)?;
    let prompt = render_prompt(&assembly).map(Arc::from);
    let tools = assembly.tools.iter().cloned().collect();
    job.agent.cell().set_assembly(Arc::new(assembly));

    let input = PreStep {
        agent: job.agent.clone(),
        at,
        messages: claimed.into(),
        owed,
        choice,
        cancel: job.cancel.clone(),
    };
    let (session, world) = (job.agent.session().clone(), job.world.clone());
    let enter = move |input: PreStep| {
        let told = session.view().runtime_context.clone();
        let candidate = told.candidate(&sections, || world.ids.message()).map(Arc::new);
        let mut messages = input.messages.to_vec();
        messages.extend(candidate.clone());
        let candidate = candidate.map(|message| message.id.clone());
        std::future::ready(Ok(Decision::Enter(Entry { messages, candidate, starts_series: false })))
    };
    let chain = job.world.hooks.pre_step.run(job.agent.scope(), input, enter);
    let decision = job.graceful(chain).await?;
    Ok(Proposal { decision, prompt, tools })
}

/// P1 to P3: the request chain, the provider's resolution, and the runtime facts as they are now.
pub(super) async fn prepare(
    job: Job,
    at: StepAt,
    choice: ModelChoice,
    seed: CallConfig,
) -> Result<Preparation, Failure> {
    let input =
        RequestProposal { agent: job.agent.clone(), at, config: seed, cancel: job.cancel.clone() };
    let keep = |input: RequestProposal| std::future::ready(Ok(input.config));
    let chain = job.world.hooks.request.run(job.agent.scope(), input, keep);
    let proposed = job.graceful(chain).await?;
    check_proposal(&choice, &proposed)?;
    let prepared = job.until_cancelled(resolve(&job.world, proposed.clone())).await?;
    let context = match job.agent.cell().assembly() {
        Some(assembly) => facts(&job, &choice, &assembly).await?,
        None => Vec::new(),
    };
    Ok(Preparation { proposed, prepared: Arc::new(prepared), context })
}

async fn facts(
    job: &Job,
    choice: &ModelChoice,
    assembly: &Assembly,
) -> Result<Vec<ContextSection>, Failure> {
    let context = job.assemble_context(choice);
    let refreshed = job.world.prompts.refresh_contexts(context, assembly);
    runtime_sections(&job.graceful(refreshed).await?)
}

async fn resolve(world: &World, config: CallConfig) -> Result<Prepared, Failure> {
    if world.models.adapter(&config.provider).is_none() {
        return Ok(Prepared::unserved(config));
    }
    let slot = world.providers.slot(&config.provider);
    let ask = |_, reply| ProviderMessage::Prepare { config: config.clone(), reply };
    match slot.call(ask).await {
        Ok(Err(failure)) if is_unserved(&failure) => Ok(Prepared::unserved(config)),
        Ok(prepared) => prepared,
        Err(Gone) => Err(Failure::new("SHUTTING_DOWN", "the harness is shutting down")),
    }
}

/// P8 and P9: checkpoint, dispatch, and the stream to its end.
pub(super) async fn dispatch(
    job: Job,
    at: StepAt,
    attempt: u64,
    prepared: Arc<Prepared>,
    request: FrozenRequest,
) -> Streamed {
    if let Err(failure) = job.until_cancelled(checkpoint(&job.agent)).await {
        return Streamed::NotStarted(failure);
    }
    let CallConfig { provider, model, .. } = prepared.config.clone();
    let mut answer = match Answer::open(&job, at, &prepared, request).await {
        Ok(answer) => answer,
        Err(failure) => return Streamed::NotStarted(failure),
    };
    let session = job.agent.session();
    let route = prepared.config.route();
    let shown = session.cell().feed().start(attempt_id(session.id(), attempt), at, route);
    let mut stream = AttemptStream::new(at, provider, model);
    let mut tail = Tail::new(&job.agent, at, &prepared.config);
    let mut arrived = Vec::with_capacity(CHUNKS_AHEAD_MAX);
    let mut end = None;
    while end.is_none() {
        end = job.cancel.race(tail.beside(answer.next(&mut arrived))).await.flatten();
        if job.cancel.is_cancelled() {
            break;
        }
        let time = job.world.clock.now_ms();
        let batch: Vec<TimedChunk> =
            arrived.drain(..).map(|chunk| TimedChunk { time, chunk }).collect();
        if batch.is_empty() {
            continue;
        }
        tail.about_to_show(&batch).await;
        for timed in &batch {
            stream.push(timed.clone());
        }
        shown.show(batch);
        if session.is_behind() {
            // The provider's credit: nobody takes its chunks meanwhile.
            job.cancel.race(session.caught_up()).await;
        }
    }
    let message_id = job.world.ids.message();
    Streamed::Stream { stream: Box::new(stream), end: end.unwrap_or(StreamEnd::Ended), message_id }
}

/// P10: what becomes of a failed attempt.
pub(super) async fn recover(
    job: Job,
    at: StepAt,
    prepared: Arc<Prepared>,
    failure: Failure,
) -> Result<Recovery, Failure> {
    let input = RequestError {
        agent: job.agent.clone(),
        at,
        provider: prepared.config.provider.clone(),
        model: prepared.config.model.clone(),
        failure,
        retry_policy: prepared.retry_policy.clone(),
        cancel: job.cancel.clone(),
    };
    let terminal = |_| std::future::ready(Ok(Recovery::Fail));
    job.graceful(job.world.hooks.request_error.run(job.agent.scope(), input, terminal)).await
}

/// P14: all calls of an answer.
pub(super) async fn run_tools(
    job: Job,
    at: StepAt,
    calls: Vec<ToolCallBlock>,
    supervisor: &ActorCell,
) -> Result<bool, Failure> {
    let host = AgentHost { agent: job.agent.clone(), world: job.world.clone() };
    let batch = ToolBatch {
        host: Arc::new(host),
        at,
        calls,
        max_parallel: job.world.limits.max_parallel_tool_calls(),
        cancel: job.cancel.clone(),
        grace: job.world.limits.grace,
        supervisor: Some(supervisor.clone()),
        span: tracing::Span::current(),
    };
    Ok(job.world.executor.execute(batch).await?.concluded)
}

/// S12: the turn owes nothing more, as far as the loop can tell.
pub(super) async fn stopping(job: Job, turn: u32) -> Result<(), Failure> {
    let input = TurnStopping { agent: job.agent.clone(), turn, cancel: job.cancel.clone() };
    job.graceful(job.world.hooks.turn_stopping.run(job.agent.scope(), input)).await
}

/// Makes the turn's end durable before idle is announced. A failure cannot be in the log any more.
pub(super) async fn rest(job: Job, turn: u32) {
    if let Err(failure) = checkpoint(&job.agent).await {
        let agent = job.agent.id().clone();
        tracing::warn!(%agent, %failure, "the end of a turn is not durable yet");
        let fault = AgentFault { agent, turn, step: 0, failure };
        job.world.hooks.error.tell(job.agent.scope(), &fault);
        job.agent.cell().tell_error(fault);
    }
}
