//! A session, a machine, and the queues between them, each moved by hand.

use std::{collections::VecDeque, sync::Arc};

use super::{
    trace::trace,
    world::{Answer, World},
};
use crate::{
    chunk::Failure,
    config::ModelChoice,
    event::{CancelCause, InboxTarget, Seq},
    frame::FrameOutcome,
    header::SessionHeader,
    id::MessageId,
    invariants::{Invariants, check},
    log::Log,
    machine::{
        Completion, Effect, Input, LoopOptions, Machine, Moment, Recovery, Status, Streamed, Ticket,
    },
    message::{Message, SharedMessage},
    packed::TimedChunk,
    repair::UnsettledTail,
    request::FrozenRequest,
    session::{Accepted, Command, InboxEdit, Mint, Reply, SessionCore},
    session_state::{AppendError, KnownKinds, SessionState},
    settlement::AttemptStream,
};

/// Ids and times in order.
#[derive(Debug, Default)]
pub struct Count(u64);

impl Mint for Count {
    fn now(&mut self) -> i64 {
        self.0 += 1;
        self.0 as i64
    }

    fn message_id(&mut self) -> MessageId {
        self.0 += 1;
        format!("x{}", self.0).into()
    }
}

/// A request, and where the log stood when it was built.
#[derive(Debug, Clone)]
pub struct Sent {
    pub request: FrozenRequest,
    pub len: Seq,
    pub generation: u64,
}

pub struct Rig {
    pub core: SessionCore,
    pub machine: Machine,
    pub world: World,
    pub mint: Count,
    /// The current activity's first cause.
    pub token: Option<CancelCause>,
    /// How many tokens there were.
    pub tokens: u64,
    pub announced: u64,
    /// Announced and not delivered.
    pub cancels: VecDeque<(u64, CancelCause, bool)>,
    pub commands: VecDeque<Command>,
    pub replies: VecDeque<Reply>,
    pub work: Option<Effect>,
    pub statuses: Vec<Status>,
    pub reports: Vec<(u32, u32, Failure)>,
    pub accepted: Vec<(Ticket, Result<Accepted, AppendError>)>,
    pub maintenance: Vec<bool>,
    pub frames: Vec<FrameOutcome>,
    pub sent: Vec<Sent>,
    pub counts: Counts,
    /// The stops that the driver decided: time, token.
    pub stops: Vec<(u64, u64)>,
    /// Inputs so far.
    pub time: u64,
    tickets: Ticket,
    seen: Seq,
    attempt_open: bool,
    disposed: bool,
    /// Refuse the next event of this kind, as a damaged session would.
    pub veto: Option<&'static str>,
}

/// How often the world was asked.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub propose: u32,
    pub prepare: u32,
    pub recover: u32,
    pub stopping: u32,
}

pub fn options() -> LoopOptions {
    let initial = ModelChoice { provider: "p".into(), model: "m".into(), reasoning_effort: None };
    LoopOptions { initial: Some(initial), ..LoopOptions::default() }
}

pub fn m(id: &str) -> SharedMessage {
    Arc::new(Message::user(id, id))
}

fn load(log: Log) -> SessionCore {
    let header = Arc::new(SessionHeader::new("s".into(), 0));
    SessionCore::load(header, log, &KnownKinds::new()).unwrap()
}

impl Rig {
    pub fn new() -> Self {
        Self::with(options())
    }

    pub fn with(options: LoopOptions) -> Self {
        let mut rig = Self::held(options, Log::new());
        rig.input(Input::Maintained);
        rig
    }

    /// An agent that is being created over a balanced log.
    pub fn held(options: LoopOptions, log: Log) -> Self {
        let core = load(log);
        let generation = core.state().surface().content_generation();
        let turn = core.state().boundary().last_turn();
        Self::over(core, Machine::held(options, generation, turn, 0, false))
    }

    /// An agent that takes over after a crash.
    pub fn successor(log: Log) -> Self {
        Self::successor_with(log, None)
    }

    /// As [`Rig::successor`], with what was shown of an attempt that never settled.
    pub fn successor_with(log: Log, tail: Option<UnsettledTail>) -> Self {
        let (machine, repair) = Machine::successor(options(), 0, 0, tail);
        let mut rig = Self::over(load(log), machine);
        rig.commands.push_back(repair);
        rig
    }

    fn over(core: SessionCore, machine: Machine) -> Self {
        Self {
            seen: core.log().len(),
            // Ids of a log that was taken over must not come again.
            mint: Count(core.log().len() * 100),
            core,
            machine,
            world: World::default(),
            token: None,
            tokens: 0,
            announced: 0,
            cancels: VecDeque::new(),
            commands: VecDeque::new(),
            replies: VecDeque::new(),
            work: None,
            statuses: Vec::new(),
            reports: Vec::new(),
            accepted: Vec::new(),
            maintenance: Vec::new(),
            frames: Vec::new(),
            sent: Vec::new(),
            counts: Counts::default(),
            stops: Vec::new(),
            time: 0,
            tickets: 0,
            attempt_open: false,
            disposed: false,
            veto: None,
        }
    }

    pub fn input(&mut self, input: Input) {
        self.time += 1;
        let moment = Moment { cancelled: self.token.clone(), cancels_announced: self.announced };
        for effect in self.machine.on(input, &moment) {
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Command(command) => {
                self.vet(&command);
                self.commands.push_back(command);
            }
            Effect::NewToken => {
                self.token = None;
                self.tokens += 1;
            }
            Effect::Fire(cause) => {
                self.token.get_or_insert(cause);
            }
            Effect::Status(status) => {
                assert_ne!(self.statuses.last(), Some(&status), "invariant 43");
                self.statuses.push(status);
            }
            Effect::EndAttempt(outcome) => {
                assert!(std::mem::take(&mut self.attempt_open), "invariant 29");
                if let FrameOutcome::Committed { event_type, seq } = &outcome {
                    let event = self.core.log().get(*seq).unwrap();
                    assert_eq!(event.body.kind(), event_type, "invariant 29");
                }
                self.frames.push(outcome);
            }
            Effect::Report { turn, step, failure } => self.reports.push((turn, step, failure)),
            Effect::Accepted(ticket, accepted) => self.accepted.push((ticket, accepted)),
            Effect::Edited(_, edited) => {
                edited.unwrap();
            }
            Effect::Maintenance(_, granted) => self.maintenance.push(granted),
            work => {
                match &work {
                    Effect::Propose { .. } => self.counts.propose += 1,
                    Effect::Prepare { .. } => self.counts.prepare += 1,
                    Effect::Recover { .. } => self.counts.recover += 1,
                    Effect::Stopping { .. } => self.counts.stopping += 1,
                    Effect::Dispatch { .. } => {
                        assert_eq!(self.token, None, "a cancelled request is not sent");
                        assert!(!self.attempt_open, "invariant 29");
                    }
                    _ => {}
                }
                assert!(self.work.is_none(), "{work:?} beside {:?}", self.work);
                self.work = Some(work);
            }
        }
    }

    /// What must hold of every command at the moment when it is decided.
    fn vet(&mut self, command: &Command) {
        match command {
            Command::CloseTurn { reason, unless_steered, .. } => {
                assert!(self.cancels.is_empty(), "a turn closes ahead of an announced cancel");
                assert!(!self.attempt_open, "invariant 29");
                if let crate::event::TurnEndReason::Aborted(cause) = reason {
                    assert_eq!(Some(cause), self.token.as_ref(), "invariant 47");
                }
                if !unless_steered {
                    self.stops.push((self.time, self.tokens));
                }
            }
            Command::OpenTurn { .. } => {
                assert!(self.cancels.is_empty(), "a turn opens ahead of an announced cancel");
                assert!(!self.disposed, "invariant 45");
            }
            Command::Accept(accept) => {
                assert!(!(accept.open && self.disposed), "invariant 45");
            }
            Command::Admit(_) => assert_eq!(self.token, None, "invariant 27"),
            _ => {}
        }
    }

    /// The session takes its next command.
    pub fn session(&mut self) -> bool {
        let Some(command) = self.commands.pop_front() else { return false };
        let admits = matches!(command, Command::Admit(_));
        let vetoed = self.veto.is_some_and(|kind| kind == name_of(&command));
        let reply = if vetoed {
            self.veto = None;
            Reply::Refused(veto())
        } else {
            self.core.execute(command, &mut self.mint)
        };
        if let Reply::Admitted(admitted) = &reply {
            assert!(admits);
            let request = admitted.request.clone();
            let (len, generation) = (self.core.log().len(), admitted.generation);
            self.sent.push(Sent { request, len, generation });
        }
        self.replies.push_back(reply);
        true
    }

    /// The machine hears the session's next reply.
    pub fn reply(&mut self) -> bool {
        let Some(reply) = self.replies.pop_front() else { return false };
        self.input(Input::Reply(reply));
        true
    }

    pub fn quiet(&mut self) {
        while self.session() || self.reply() {}
    }

    /// Until nothing moves.
    pub fn run(&mut self) -> &mut Self {
        assert!(self.cancels.is_empty(), "an undelivered cancel parks everything");
        loop {
            self.quiet();
            if !self.complete() {
                return self;
            }
        }
    }

    /// Until a command or a piece of work of this name is next, and has not begun.
    pub fn before(&mut self, name: &str) -> &mut Self {
        for _ in 0..10_000 {
            if self.commands.front().is_some_and(|command| name_of(command) == name) {
                return self;
            }
            let idle = self.commands.is_empty() && self.replies.is_empty();
            if idle && self.work.as_ref().is_some_and(|work| work_name(work) == name) {
                return self;
            }
            if !(self.session() || self.reply() || self.complete()) {
                panic!("no {name}: {}", trace(self.core.log().iter()));
            }
        }
        panic!("never reaches {name}");
    }

    /// Until a command of this name has run, and its reply is on its way.
    pub fn after(&mut self, name: &str) -> &mut Self {
        self.before(name);
        while self.commands.front().is_some_and(|command| name_of(command) == name) {
            self.session();
        }
        self
    }

    pub fn send(&mut self, message: SharedMessage, target: InboxTarget, wake: bool) -> Ticket {
        self.tickets += 1;
        let ticket = self.tickets;
        self.input(Input::Send { ticket, message, target, wake, retry: false });
        ticket
    }

    pub fn followup(&mut self, id: &str) -> &mut Self {
        self.send(m(id), InboxTarget::NextTurn, true);
        self
    }

    pub fn steer(&mut self, id: &str) -> &mut Self {
        self.send(m(id), InboxTarget::NextStep, true);
        self
    }

    pub fn inject(&mut self, id: &str) -> &mut Self {
        self.send(m(id), InboxTarget::NextStep, false);
        self
    }

    pub fn remove(&mut self, id: &str) -> &mut Self {
        self.tickets += 1;
        let (ticket, edit) = (self.tickets, InboxEdit::Remove { id: id.into() });
        self.input(Input::Edit { ticket, edit });
        self
    }

    /// The cancel fires the token, and queues.
    pub fn announce(&mut self, cause: CancelCause, keep_inbox: bool) -> &mut Self {
        self.announced += 1;
        self.token.get_or_insert(cause.clone());
        self.cancels.push_back((self.announced, cause, keep_inbox));
        self
    }

    /// The first announced cancel arrives.
    pub fn deliver(&mut self) -> bool {
        let Some((announcement, cause, keep_inbox)) = self.cancels.pop_front() else {
            return false;
        };
        self.disposed |= cause == CancelCause::Disposed;
        self.input(Input::Cancel { announcement, cause, keep_inbox });
        true
    }

    pub fn cancel_by(&mut self, cause: CancelCause, keep_inbox: bool) -> &mut Self {
        self.announce(cause, keep_inbox).deliver();
        self
    }

    pub fn cancel(&mut self) -> &mut Self {
        self.cancel_by(CancelCause::User, false)
    }

    /// The work that is due gets done.
    pub fn complete(&mut self) -> bool {
        let Some(work) = self.work.take() else { return false };
        let (task, completion) = match work {
            Effect::Propose { task, claimed, .. } => {
                let told = self.core.state().runtime_context().clone();
                let id = self.mint.message_id();
                let proposal = self.world.propose(claimed, &told, id.as_str());
                (task, Completion::Proposed(proposal))
            }
            Effect::Prepare { task, seed, .. } => {
                (task, Completion::Prepared(self.world.prepare(seed)))
            }
            Effect::Dispatch { task, at, prepared, .. } => {
                let answer = self.world.answers.pop_front();
                let answer = answer.unwrap_or_else(|| super::world::says("hi"));
                let streamed = match answer {
                    Answer::NotStarted(failure) => Streamed::NotStarted(failure),
                    Answer::Stream(chunks, end) => {
                        self.attempt_open = true;
                        let config = &prepared.config;
                        let (provider, model) = (config.provider.clone(), config.model.clone());
                        let mut stream = AttemptStream::new(at, provider, model);
                        for chunk in chunks {
                            stream.push(TimedChunk { time: self.mint.now(), chunk });
                        }
                        let message_id = self.mint.message_id();
                        Streamed::Stream { stream: Box::new(stream), end, message_id }
                    }
                };
                (task, Completion::Streamed(streamed))
            }
            Effect::Recover { task, .. } => {
                let verdict = self.world.verdicts.pop_front().unwrap_or(Ok(Recovery::Fail));
                (task, Completion::Recovered(verdict))
            }
            Effect::RunTools { task, .. } => {
                let failure = self.world.executor.pop_front();
                let run = failure.map_or_else(|| Ok(self.run_tools()), Err);
                (task, Completion::ToolsRun(run))
            }
            Effect::Stopping { task, .. } => {
                let told = self.world.stopping.pop_front().map_or(Ok(()), Err);
                (task, Completion::Stopping(told))
            }
            Effect::Rest { task } => (task, Completion::Rested),
            work => panic!("not work: {work:?}"),
        };
        self.input(Input::Done(task, completion));
        true
    }

    /// What the log gained since the last call. The whole log keeps the invariants.
    pub fn news(&mut self) -> String {
        check(self.core.log()).unwrap();
        let range = self.seen..self.core.log().len();
        self.seen = range.end;
        trace(self.core.log().range(range))
    }

    /// As [`Rig::news`], without the inbox.
    pub fn steps(&mut self) -> String {
        let news = self.news();
        let words: Vec<_> = news.split(' ').filter(|word| !word.starts_with("IN")).collect();
        words.join(" ")
    }

    pub fn is_balanced(&self) -> bool {
        let mut invariants = Invariants::new();
        self.core.log().iter().try_for_each(|event| invariants.observe(event)).unwrap();
        invariants.is_balanced()
    }

    /// What the n-th request said: role and text of each message.
    pub fn request(&self, n: usize) -> String {
        let messages = self.sent[n].request.messages.messages();
        let words = messages.map(|message| {
            let role = format!("{:?}", message.role).to_lowercase();
            let text = message.text();
            format!("{}:{}", &role[..1], text.rsplit("\n\n").next().unwrap())
        });
        words.collect::<Vec<_>>().join(" ")
    }

    pub fn last_request(&self) -> String {
        self.request(self.sent.len() - 1)
    }

    pub fn state(&self) -> &SessionState {
        self.core.state()
    }
}

/// What a session says that refuses an event for no reason of the event's.
pub fn veto() -> AppendError {
    crate::inbox::InboxError { seq: 0, cause: crate::inbox::SpliceFault::Range }.into()
}

fn name_of(command: &Command) -> &'static str {
    match command {
        Command::Accept(_) => "Accept",
        Command::Edit(_) => "Edit",
        Command::OpenTurn { .. } => "OpenTurn",
        Command::Claim => "Claim",
        Command::StartStep(_) => "StartStep",
        Command::Admit(_) => "Admit",
        Command::Settle(_) => "Settle",
        Command::EndStep { .. } => "EndStep",
        Command::CloseTurn { .. } => "CloseTurn",
        Command::Repair { .. } => "Repair",
        Command::Append(_) => "Append",
    }
}

fn work_name(work: &Effect) -> &'static str {
    match work {
        Effect::Propose { .. } => "Propose",
        Effect::Prepare { .. } => "Prepare",
        Effect::Dispatch { .. } => "Dispatch",
        Effect::Recover { .. } => "Recover",
        Effect::RunTools { .. } => "RunTools",
        Effect::Stopping { .. } => "Stopping",
        Effect::Rest { .. } => "Rest",
        _ => "none",
    }
}
