//! The shell: carries inputs to the schedule and performs its effects.

use std::{
    collections::VecDeque,
    num::NonZeroUsize,
    sync::{Arc, atomic::AtomicUsize},
};

use playhouse_messages::{
    batch::{Batch, Effect, Input, PolicyOutcome},
    chunk::Failure,
    content::ToolCallBlock,
    event::{
        CancelCause, EventBody, NewEvent, Seq, StepAt, ToolCall as ToolCallEvent,
        ToolResult as ToolResultEvent,
    },
    message::Message,
    protocol::ToolExecutorMessage,
};
use playhouse_plugin_api::{
    cancel::CancelToken,
    delay,
    tool::{
        BatchHost, Judged, Settled, ToolBatch, ToolCallRequest, ToolDispatch, ToolError,
        ToolOutcome, ToolPipeline, parse_arguments,
    },
};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use serde_json::Value;
use tracing::Instrument;

use super::tasks::{Stage, Tasks};

/// One batch, while it runs.
pub(super) struct ToolExecutorActor;

/// What a batch needs.
pub(super) struct Setup {
    pub(super) pipeline: ToolPipeline,
    pub(super) batch: ToolBatch,
    pub(super) cap: NonZeroUsize,
    pub(super) abandoned: Arc<AtomicUsize>,
}

/// What a task reports with.
pub(super) enum Done {
    Logged(Seq),
    Judged(Judged),
    Settled(Settled),
    Finished(Arc<ToolOutcome>),
    /// And whether the result ends the turn.
    Recorded(bool),
    Failed(Failure),
}

impl From<Failure> for Done {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

type ToolMessage = ToolExecutorMessage<Done>;

impl Actor for ToolExecutorActor {
    type Msg = ToolMessage;
    type State = State;
    type Arguments = Setup;

    async fn pre_start(
        &self,
        myself: ActorRef<ToolMessage>,
        setup: Setup,
    ) -> Result<State, ActorProcessingErr> {
        Ok(State::new(myself, setup))
    }

    async fn handle(
        &self,
        myself: ActorRef<ToolMessage>,
        message: ToolMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        delay::before_message().await;
        match message {
            ToolMessage::Start { reply } => state.start(reply),
            ToolMessage::Abort => state.refresh_abort(),
            ToolMessage::Completed { task, outcome } => state.completed(task, outcome),
            ToolMessage::Overdue { task } => state.overdue(task),
        }
        state.perform();
        if state.ended {
            myself.stop(None);
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<ToolMessage>,
        _event: SupervisionEvent,
        _state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        // It has no children; the default would stop it if it ever had one.
        Ok(())
    }
}

/// A call of the batch.
struct Call {
    block: ToolCallBlock,
    arguments: Value,
    /// Its `tool/call`.
    seq: Option<Seq>,
    dispatch: Option<ToolDispatch>,
    settled: Option<Settled>,
}

pub(super) struct State {
    schedule: Batch,
    effects: VecDeque<Effect>,
    pipeline: ToolPipeline,
    host: Arc<dyn BatchHost>,
    at: StepAt,
    calls: Vec<Call>,
    tasks: Tasks<Done>,
    batch: ToolBatch,
    /// What the calls watch: fires with the turn's token, and when the batch fails.
    token: CancelToken,
    abort_seen: bool,
    reply: Option<RpcReplyPort<Result<bool, Failure>>>,
    ended: bool,
}

impl State {
    fn new(myself: ActorRef<ToolMessage>, setup: Setup) -> Self {
        let Setup { pipeline, mut batch, cap, abandoned } = setup;
        let calls: Vec<_> = std::mem::take(&mut batch.calls)
            .into_iter()
            .map(|block| Call {
                arguments: parse_arguments(&block.arguments),
                block,
                seq: None,
                dispatch: None,
                settled: None,
            })
            .collect();
        Self {
            schedule: Batch::new(calls.len(), cap),
            effects: VecDeque::new(),
            pipeline,
            host: batch.host.clone(),
            at: batch.at,
            calls,
            tasks: Tasks::new(myself, abandoned),
            token: batch.cancel.child(),
            batch,
            abort_seen: false,
            reply: None,
            ended: false,
        }
    }

    fn start(&mut self, reply: RpcReplyPort<Result<bool, Failure>>) {
        self.reply = Some(reply);
        self.tasks.watch(self.batch.cancel.cancelled_owned(), ToolMessage::Abort);
        self.refresh_abort();
        self.effects.extend(self.schedule.begin());
    }

    /// Tells the schedule of an abort as soon as the token shows it, whatever is in the mailbox.
    fn refresh_abort(&mut self) {
        if !self.abort_seen && self.batch.cancel.is_cancelled() {
            self.abort_seen = true;
            self.tasks.limit(self.batch.grace);
            self.effects.extend(self.schedule.apply(Input::AbortSeen));
        }
    }

    fn tell(&mut self, input: Input) {
        self.refresh_abort();
        self.effects.extend(self.schedule.apply(input));
        if self.schedule.has_failed() && !self.token.is_cancelled() {
            // What still runs is wanted no more: its results will not be recorded.
            let reason = "the tool batch failed".to_owned();
            self.token.cancel(CancelCause::Hook { reason });
            self.tasks.limit(self.batch.grace);
        }
    }

    fn completed(&mut self, task: u64, outcome: Done) {
        let Some((stage, index)) = self.tasks.reported(task) else { return };
        match outcome {
            Done::Failed(failure) => self.tell(Input::Failed(index, failure)),
            Done::Logged(seq) => {
                self.calls[index].seq = Some(seq);
                self.tell(Input::Logged(index));
            }
            Done::Judged(Judged::Run) => {
                self.tell(Input::PolicyDone(index, PolicyOutcome::Dispatch));
            }
            Done::Judged(Judged::Settled(settled)) | Done::Settled(settled) => {
                self.settled(stage, index, settled);
            }
            Done::Finished(outcome) => self.record(index, &outcome),
            Done::Recorded(concludes) => self.tell(Input::Committed { index, concludes }),
        }
    }

    fn settled(&mut self, stage: Stage, index: usize, settled: Settled) {
        self.calls[index].settled = Some(settled);
        self.tell(match stage {
            Stage::Policy => Input::PolicyDone(index, PolicyOutcome::Settled),
            _ => Input::BodySettled(index),
        });
    }

    /// Gives a stage up whose grace time is over.
    fn overdue(&mut self, task: u64) {
        let Some((stage, index)) = self.tasks.abandon(task) else { return };
        let call = &mut self.calls[index];
        let Some(dispatch) = call.dispatch.clone() else { return };
        tracing::warn!(call = %call.block.id, tool = call.block.name, ?stage, "given up after a cancel");
        match (stage, call.settled.take()) {
            (Stage::Finish, Some(settled)) => {
                let outcome = dispatch.finish_abandoned(settled);
                self.record(index, &outcome);
            }
            _ => self.settled(stage, index, dispatch.abandon()),
        }
    }

    fn perform(&mut self) {
        while let Some(effect) = self.effects.pop_front() {
            match effect {
                Effect::Classify(index) => {
                    let call = &self.calls[index];
                    let (name, arguments) = (&call.block.name, &call.arguments);
                    let registry = self.pipeline.registry();
                    let mode = registry.classify(self.host.scope(), name, arguments);
                    self.tell(Input::Classified(mode));
                }
                Effect::LogCall(index) => self.log_call(index),
                Effect::RunPolicy(index) => self.run_policy(index),
                Effect::StartBody(index) => {
                    if let Some(dispatch) = self.calls[index].dispatch.clone() {
                        let call = dispatch.call();
                        let (id, name) = (call.call_id(), call.name());
                        let span = tracing::info_span!(parent: &self.batch.span, "tool", %id, name);
                        let run = async move { Done::Settled(dispatch.run().await) };
                        let run = run.instrument(span);
                        self.tasks.start(Stage::Body, index, run);
                    }
                }
                Effect::Commit(index) => self.commit(index),
                Effect::AbortPair(index) => self.abort_pair(index),
                Effect::Finish(outcome) => {
                    if let Some(reply) = self.reply.take() {
                        // A caller that is gone kills this actor anyway.
                        let _ = reply.send(outcome);
                    }
                    self.ended = true;
                }
            }
        }
    }

    fn log_call(&mut self, index: usize) {
        let (host, event) = (self.host.clone(), self.call_event(index));
        let log = async move { host.append(event).await.map_or_else(Done::Failed, Done::Logged) };
        self.tasks.start(Stage::Log, index, log);
    }

    fn run_policy(&mut self, index: usize) {
        let (ids, checkpoint) = (self.host.clone(), self.host.clone());
        let call = &mut self.calls[index];
        let dispatch = self.pipeline.dispatch(ToolCallRequest {
            call_id: call.block.id.clone(),
            root_call_id: None,
            name: call.block.name.clone(),
            arguments: std::mem::take(&mut call.arguments),
            agent: self.host.agent(),
            scope: self.host.scope().clone(),
            at: Some(self.at),
            cancel: self.token.clone(),
            ids: Arc::new(move || ids.new_message_id()),
            checkpoint: Some(Arc::new(move || checkpoint.checkpoint())),
        });
        call.dispatch = Some(dispatch.clone());
        let judge = async move { Done::Judged(dispatch.judge().await) };
        self.tasks.start(Stage::Policy, index, judge);
    }

    fn commit(&mut self, index: usize) {
        let call = &self.calls[index];
        // Both were set on the way here; without them the lane would wait for ever.
        let (Some(dispatch), Some(settled)) = (call.dispatch.clone(), call.settled.clone()) else {
            let text = "tool batch: a call without an outcome was to be committed";
            return self.tell(Input::Failed(index, Failure::new("TOOL_BATCH_PROTOCOL", text)));
        };
        let finish = async move { Done::Finished(dispatch.finish(settled).await) };
        self.tasks.start(Stage::Finish, index, finish);
    }

    fn record(&mut self, index: usize, outcome: &Arc<ToolOutcome>) {
        let call = &mut self.calls[index];
        call.settled = None;
        call.dispatch = None;
        let event = self.result_event(index, outcome).citing(self.calls[index].seq);
        let (host, outcome) = (self.host.clone(), outcome.clone());
        self.tasks.start(Stage::Record, index, async move {
            let recorded = async {
                host.append(event).await?;
                for context in outcome.contexts() {
                    host.accept_context(context.clone()).await?;
                }
                Ok(outcome.concludes_turn())
            };
            recorded.await.map_or_else(Done::Failed, Done::Recorded)
        });
    }

    fn abort_pair(&mut self, index: usize) {
        let outcome = ToolOutcome::failure(ToolError::aborted_before_dispatch());
        let (call, result) = (self.call_event(index), self.result_event(index, &outcome));
        let host = self.host.clone();
        self.tasks.start(Stage::Record, index, async move {
            let recorded = async {
                let seq = host.append(call).await?;
                host.append(result.citing([seq])).await
            };
            recorded.await.map_or_else(Done::Failed, |_| Done::Recorded(false))
        });
    }

    fn call_event(&self, index: usize) -> NewEvent {
        let ToolCallBlock { id, name, arguments } = self.calls[index].block.clone();
        let StepAt { turn, step } = self.at;
        let data = ToolCallEvent { turn, step, call_id: id, name, arguments };
        NewEvent::log_only(EventBody::ToolCall(data))
    }

    fn result_event(&self, index: usize, outcome: &ToolOutcome) -> NewEvent {
        let StepAt { turn, step } = self.at;
        let message = Message::tool(
            self.host.new_message_id(),
            &self.calls[index].block.id,
            outcome.is_error(),
            outcome.content().to_vec(),
        );
        NewEvent::append(EventBody::ToolResult(ToolResultEvent {
            turn,
            step,
            message: Arc::new(message),
            error: outcome.error().and_then(ToolError::info).cloned(),
            meta: outcome.meta().cloned(),
        }))
    }
}
