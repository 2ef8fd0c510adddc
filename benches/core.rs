//! What the functional core costs: folds, derivation, the loop machine, the batch schedule. No
//! runtime, no tasks, no disk.

use std::{hint::black_box, num::NonZeroUsize, sync::Arc};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use playhouse::messages::{
    batch::{self, Batch, Concurrency, PolicyOutcome},
    chunk::{FinishReason, StreamChunk},
    config::ModelChoice,
    event::{InboxTarget, NewEvent, StepAt},
    header::SessionHeader,
    history::History,
    id::MessageId,
    log::Log,
    machine::{
        Completion, Decision, Effect, Entry, Input, LoopOptions, Machine, Moment, Preparation,
        Proposal, Streamed,
    },
    message::Message,
    packed::TimedChunk,
    prepared::Prepared,
    session::{Command, Mint, Reply, SessionCore},
    session_state::KnownKinds,
    settlement::{AttemptStream, StreamEnd},
    testing::Script,
};

/// Ids and times in order.
#[derive(Debug, Default)]
struct Count(u64);

impl Mint for Count {
    fn now(&mut self) -> i64 {
        self.0 += 1;
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    fn message_id(&mut self) -> MessageId {
        self.0 += 1;
        format!("x{}", self.0).into()
    }
}

/// A session and the machine that drives it, moved without a runtime.
#[derive(Debug)]
struct Pure {
    core: SessionCore,
    machine: Machine,
    mint: Count,
    turns: u64,
}

impl Pure {
    fn new() -> Self {
        let header = Arc::new(SessionHeader::new("s".into(), 0));
        let core = SessionCore::load(header, Log::new(), &KnownKinds::new())
            .expect("an empty log is legal");
        let initial =
            ModelChoice { provider: "p".into(), model: "m".into(), reasoning_effort: None };
        let options = LoopOptions { initial: Some(initial), ..LoopOptions::default() };
        let machine = Machine::held(options, 0, 0, 0, false);
        let mut pure = Self { core, machine, mint: Count::default(), turns: 0 };
        pure.run(Input::Maintained);
        pure
    }

    /// After this many turns.
    fn after(turns: u64) -> Self {
        let mut pure = Self::new();
        for _ in 0..turns {
            pure.turn();
        }
        pure
    }

    /// One prompt, one answer of text: eleven events the first time.
    fn turn(&mut self) {
        self.turns += 1;
        let message = Arc::new(Message::user(format!("m{}", self.turns), "What is next?"));
        let target = InboxTarget::NextTurn;
        self.run(Input::Send { ticket: self.turns, message, target, wake: true, retry: false });
        assert!(self.machine.is_idle());
    }

    fn run(&mut self, input: Input) {
        let moment = Moment::default();
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let effects = self.machine.on(input, &moment);
            inputs.extend(effects.into_iter().rev().filter_map(|effect| self.perform(effect)));
        }
    }

    fn perform(&mut self, effect: Effect) -> Option<Input> {
        Some(match effect {
            Effect::Command(command) => Input::Reply(self.core.execute(command, &mut self.mint)),
            Effect::Propose { task, claimed, .. } => {
                let entry = Entry { messages: claimed, ..Entry::default() };
                let decision = Decision::Enter(entry);
                let prompt = Ok("You answer.".into());
                let proposal = Proposal { decision, prompt, tools: Arc::new([]) };
                Input::Done(task, Completion::Proposed(Ok(proposal)))
            }
            Effect::Prepare { task, seed, .. } => {
                let prepared = Arc::new(Prepared::unserved(seed.clone()));
                let preparation = Preparation { proposed: seed, prepared, context: Vec::new() };
                Input::Done(task, Completion::Prepared(Ok(preparation)))
            }
            Effect::Dispatch { task, at, .. } => {
                Input::Done(task, Completion::Streamed(self.answer(at)))
            }
            Effect::Stopping { task, .. } => Input::Done(task, Completion::Stopping(Ok(()))),
            Effect::Rest { task } => Input::Done(task, Completion::Rested),
            _ => return None,
        })
    }

    fn answer(&mut self, at: StepAt) -> Streamed {
        let mut stream = AttemptStream::new(at, "p".into(), "m".into());
        let words = ["First", " this", ", then", " that", "."];
        let deltas = words.map(|text| StreamChunk::TextDelta { index: 0, text: text.into() });
        let finish = StreamChunk::Finish { reason: FinishReason::Stop, replay_state: None };
        for chunk in deltas.into_iter().chain([finish]) {
            stream.push(TimedChunk { time: self.mint.now(), chunk });
        }
        let message_id = self.mint.message_id();
        Streamed::Stream { stream: Box::new(stream), end: StreamEnd::Ended, message_id }
    }
}

fn machine(c: &mut Criterion) {
    let mut group = c.benchmark_group("machine and session, one turn");
    for turns in [0, 1_000] {
        group.bench_function(BenchmarkId::new("after turns", turns), |b| {
            let mut pure = Pure::after(turns);
            let start = turns + 256;
            b.iter(|| {
                // Bounded, so that the figure is of a log of this length.
                if pure.turns > start {
                    pure = Pure::after(turns);
                }
                pure.turn();
            });
        });
    }
    group.finish();
}

fn folds(c: &mut Criterion) {
    let mut group = c.benchmark_group("append the events of one turn");
    for turns in [10, 1_000] {
        let mut pure = Pure::after(turns);
        let core = pure.core.clone();
        let before = core.log().len();
        pure.turn();
        let events: Vec<NewEvent> = pure.core.log().range(before..u64::MAX).map(renewed).collect();
        group.throughput(Throughput::Elements(events.len() as u64));
        group.bench_function(BenchmarkId::new("after turns", turns), |b| {
            b.iter_batched(
                || (core.clone(), events.clone(), Count::default()),
                |(mut core, events, mut mint)| {
                    for event in events {
                        let reply = core.execute(Command::Append(vec![event]), &mut mint);
                        assert!(matches!(reply, Reply::Appended(_)));
                    }
                    core
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();

    let mut group = c.benchmark_group("fold a log from its start");
    for turns in [10, 1_000] {
        let log = Pure::after(turns).core.log().clone();
        let header = Arc::new(SessionHeader::new("s".into(), 0));
        group.throughput(Throughput::Elements(log.len()));
        group.bench_function(BenchmarkId::new("turns", turns), |b| {
            b.iter(|| {
                SessionCore::load(header.clone(), black_box(log.clone()), &KnownKinds::new())
            });
        });
    }
    group.finish();
}

/// The same event, not committed.
fn renewed(event: &Arc<playhouse::Event>) -> NewEvent {
    let event = (**event).clone();
    let (body, surface) = (event.body, event.surface);
    NewEvent { body, surface, sources: event.sources, ignorable: event.ignorable }
}

fn derive(c: &mut Criterion) {
    let mut group = c.benchmark_group("derive history");
    for messages in [10_u32, 1_000, 10_000] {
        let mut script = Script::new();
        for turn in 1..=messages / 2 {
            script.turn(turn).step(turn, 1);
            script.push(playhouse::messages::testing::user(&format!("m{turn}"), "And then?"));
            script.assistant("Then this.", &[]);
            script.end_step(turn, 1).end_turn(turn, playhouse::TurnEndReason::Completed);
        }
        group.throughput(Throughput::Elements(u64::from(messages)));
        group.bench_function(BenchmarkId::new("messages", messages), |b| {
            b.iter(|| History::derive(black_box(&script.log), &script.surface));
        });
    }
    group.finish();
}

fn schedule(c: &mut Criterion) {
    let mut group = c.benchmark_group("schedule a batch");
    for (name, mode) in [("parallel", Concurrency::Parallel), ("exclusive", Concurrency::Exclusive)]
    {
        group.throughput(Throughput::Elements(16));
        group.bench_function(BenchmarkId::new("16 calls", name), |b| b.iter(|| drive(16, mode)));
    }
    group.finish();
}

/// Plays a batch whose bodies end in the order in which they began.
fn drive(calls: usize, mode: Concurrency) -> Batch {
    let cap = NonZeroUsize::new(10).expect("not zero");
    let mut batch = Batch::new(calls, cap);
    let mut effects = std::collections::VecDeque::from(batch.begin());
    while let Some(effect) = effects.pop_front() {
        let input = match effect {
            batch::Effect::Classify(_) => batch::Input::Classified(mode),
            batch::Effect::LogCall(index) => batch::Input::Logged(index),
            batch::Effect::RunPolicy(index) => {
                batch::Input::PolicyDone(index, PolicyOutcome::Dispatch)
            }
            batch::Effect::StartBody(index) => batch::Input::BodySettled(index),
            batch::Effect::Commit(index) | batch::Effect::AbortPair(index) => {
                batch::Input::Committed { index, concludes: false }
            }
            batch::Effect::Finish(outcome) => {
                assert_eq!(outcome, Ok(false));
                continue;
            }
        };
        effects.extend(batch.apply(input));
    }
    batch
}

criterion_group!(benches, machine, folds, derive, schedule);
criterion_main!(benches);
