//! What became of one message: from its id to the turn that claimed it to that turn's end.

use serde_json::Value;

use crate::{
    chunk::{StreamChunk, Usage},
    event::{EventBody, InboxSpliced, InboxTarget, Seq, TurnEndReason},
    id::{CallId, MessageId},
    log::Log,
    packed::{StreamRecord, expand},
};

/// The tool whose call carries a structured result.
pub const STRUCTURED_OUTPUT_TOOL: &str = "structured_output";

/// What a turn made of a message. A turn that failed or was aborted has an outcome too, often with
/// an empty `text`: [`Outcome::is_completed`] tells, and `reason` says why.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The turn that claimed it.
    pub turn: u32,
    /// Why that turn ended.
    pub reason: TurnEndReason,
    /// The last answer's text; of a turn without an answer, what its last attempt had streamed.
    pub text: String,
    /// What the turn's model calls cost, failed attempts included.
    pub usage: Option<Usage>,
    /// The arguments of the first successful call of [`STRUCTURED_OUTPUT_TOOL`].
    pub structured: Option<Value>,
}

impl Outcome {
    /// Whether the turn came to its end by itself: not failed, not aborted, not cut.
    pub fn is_completed(&self) -> bool {
        self.reason == TurnEndReason::Completed
    }
}

/// How far a message got.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// The log does not hold it yet.
    Unknown,
    /// It waits in the inbox.
    Pending,
    /// It was cancelled before a turn claimed it.
    Dropped,
    /// A turn claimed it and runs.
    Running {
        /// The turn.
        turn: u32,
    },
    /// Its turn ended.
    Ended(Box<Outcome>),
}

/// Follows one message through a log.
#[derive(Debug, Clone)]
pub struct OutcomeFold {
    id: MessageId,
    at: At,
    open_turn: Option<u32>,
}

#[derive(Debug, Clone)]
enum At {
    Unknown,
    Pending { target: InboxTarget, position: u64 },
    Dropped,
    Running(Box<Running>),
    Ended(Box<Outcome>),
}

#[derive(Debug, Clone, Default)]
struct Running {
    turn: u32,
    answer: Option<String>,
    streamed: String,
    usage: Option<Usage>,
    calls: Vec<(CallId, String)>,
    structured: Option<Value>,
}

impl OutcomeFold {
    /// Follows the message from the event at `from` on, which comes no later than the message's
    /// splice.
    pub fn starting(log: &Log, from: Seq, id: MessageId) -> Self {
        let boundary = log.range(0..from).rev().find_map(|event| match &event.body {
            EventBody::TurnStart(data) => Some(Some(data.turn)),
            EventBody::TurnEnd(_) => Some(None),
            _ => None,
        });
        Self { id, at: At::Unknown, open_turn: boundary.flatten() }
    }

    /// Folds a whole log from an event on.
    pub fn fold(log: &Log, from: Seq, id: MessageId) -> Progress {
        let mut fold = Self::starting(log, from, id);
        for event in log.range(from..log.len()) {
            fold.apply(&event.body);
        }
        fold.progress()
    }

    /// How far the message got.
    pub fn progress(&self) -> Progress {
        match &self.at {
            At::Unknown => Progress::Unknown,
            At::Pending { .. } => Progress::Pending,
            At::Dropped => Progress::Dropped,
            At::Running(running) => Progress::Running { turn: running.turn },
            At::Ended(outcome) => Progress::Ended(outcome.clone()),
        }
    }

    /// The outcome, once there is one.
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.at {
            At::Ended(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Follows the next event.
    pub fn apply(&mut self, body: &EventBody) {
        match body {
            EventBody::TurnStart(data) => self.open_turn = Some(data.turn),
            EventBody::InboxSpliced(splice) => self.spliced(splice),
            _ => {}
        }
        if let At::Running(running) = &mut self.at {
            running.apply(body);
        }
        if let EventBody::TurnEnd(data) = body {
            self.open_turn = None;
            if let At::Running(running) = &mut self.at {
                let outcome = std::mem::take(&mut **running).end(data.reason.clone());
                self.at = At::Ended(Box::new(outcome));
            }
        }
    }

    fn spliced(&mut self, splice: &InboxSpliced) {
        let start = u64::from(splice.start);
        let end = start + u64::from(splice.removed_count);
        if let At::Pending { target, position } = &mut self.at
            && *target == splice.target
            && *position >= start
        {
            if *position < end {
                self.at = match (splice.is_claim(), self.open_turn) {
                    (true, Some(turn)) => {
                        At::Running(Box::new(Running { turn, ..Running::default() }))
                    }
                    _ => At::Dropped,
                };
            } else {
                *position = *position - (end - start) + splice.inserted.len() as u64;
            }
        }
        // An id that was dropped may enter again, as an edit of itself.
        let entered = splice.inserted.iter().position(|message| message.id == self.id);
        if let (At::Unknown | At::Dropped, Some(entered)) = (&self.at, entered) {
            let position = start + entered as u64;
            self.at = At::Pending { target: splice.target, position };
        }
    }
}

impl Running {
    fn apply(&mut self, body: &EventBody) {
        match body {
            EventBody::AssistantMessage(data) => {
                if !data.message.content.is_empty() {
                    self.answer = Some(data.message.text());
                }
                self.cost(data.usage.or_else(|| streamed_usage(&data.stream)));
            }
            EventBody::AssistantAttempt(data) => {
                let text: String = expand(&data.stream)
                    .into_iter()
                    .filter_map(|timed| match timed.chunk {
                        StreamChunk::TextDelta { text, .. } => Some(text),
                        _ => None,
                    })
                    .collect();
                if !text.is_empty() {
                    self.streamed = text;
                }
                self.cost(streamed_usage(&data.stream));
            }
            EventBody::ToolCall(data) if data.name == STRUCTURED_OUTPUT_TOOL => {
                self.calls.push((data.call_id.clone(), data.arguments.clone()));
            }
            EventBody::ToolResult(data) if self.structured.is_none() => {
                let answered = data.message.tool_call_id.as_ref();
                let call = self.calls.iter().position(|(id, _)| Some(id) == answered);
                if let Some(call) = call {
                    let (_, arguments) = self.calls.swap_remove(call);
                    if data.message.is_error != Some(true) {
                        self.structured = serde_json::from_str(&arguments).ok();
                    }
                }
            }
            _ => {}
        }
    }

    fn cost(&mut self, usage: Option<Usage>) {
        if let Some(usage) = usage {
            self.usage.get_or_insert_default().add(&usage);
        }
    }

    fn end(self, reason: TurnEndReason) -> Outcome {
        let Self { turn, answer, streamed, usage, structured, .. } = self;
        Outcome { turn, reason, text: answer.unwrap_or(streamed), usage, structured }
    }
}

fn streamed_usage(records: &[StreamRecord]) -> Option<Usage> {
    records.iter().rev().find_map(|record| match record {
        StreamRecord::Chunk { chunk: StreamChunk::Usage { usage }, .. } => Some(*usage),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::{
        event::{AssistantAttempt, AssistantMessage, NewEvent, ToolCall},
        inbox::Inbox,
        message::Message,
        testing::{Script, assistant},
    };
    use InboxTarget::{NextStep, NextTurn};

    #[derive(Default)]
    struct Session {
        script: Script,
        inbox: Inbox,
    }

    impl Session {
        fn splice(&mut self, splice: InboxSpliced) {
            self.inbox.apply(0, &splice).unwrap();
            self.script.log_only(EventBody::InboxSpliced(splice));
        }

        fn send(&mut self, target: InboxTarget, id: &str) {
            let splice = self.inbox.insert_at_tail(target, Arc::new(Message::user(id, id)));
            self.splice(splice.unwrap());
        }

        fn claim(&mut self, target: InboxTarget) {
            for splice in self.inbox.claim(target).0 {
                self.splice(splice);
            }
        }

        fn answer(&mut self, turn: u32, text: &str, calls: &[&str], tokens: u64) {
            let usage = Usage { output_tokens: tokens, ..Usage::default() };
            self.script.push(NewEvent::append(EventBody::AssistantMessage(AssistantMessage {
                turn,
                step: 1,
                message: Arc::new(assistant("a", text, calls)),
                stream: vec![],
                usage: Some(usage),
                interrupted: false,
            })));
        }

        fn of(&self, id: &str) -> Progress {
            OutcomeFold::fold(&self.script.log, 0, id.into())
        }
    }

    #[test]
    fn each_prompt_has_its_own_turn() {
        let mut session = Session::default();
        session.send(NextTurn, "a");
        session.send(NextTurn, "b");
        assert_eq!(session.of("a"), Progress::Pending);
        assert_eq!(session.of("z"), Progress::Unknown);
        session.script.turn(1);
        session.claim(NextTurn);
        assert_eq!(session.of("a"), Progress::Running { turn: 1 });
        assert_eq!(session.of("b"), Progress::Pending);
        session.script.step(1, 1);
        session.answer(1, "hi", &[], 3);
        session.script.end_step(1, 1).end_turn(1, TurnEndReason::Completed);
        let Progress::Ended(outcome) = session.of("a") else { panic!() };
        assert_eq!((outcome.turn, &*outcome.text, outcome.structured), (1, "hi", None));
        assert_eq!(outcome.usage.unwrap().output_tokens, 3);
        session.script.turn(2);
        session.claim(NextTurn);
        session.script.end_turn(2, TurnEndReason::Blocked);
        let Progress::Ended(outcome) = session.of("b") else { panic!() };
        assert_eq!((outcome.turn, outcome.reason), (2, TurnEndReason::Blocked));
        let Progress::Ended(outcome) = session.of("a") else { panic!() };
        assert_eq!(outcome.turn, 1, "later turns change nothing");
    }

    #[test]
    fn positions_follow_other_splices() {
        let mut session = Session::default();
        session.send(NextTurn, "x");
        session.send(NextTurn, "a");
        session.send(NextStep, "s");
        let front = session.inbox.prepend(NextTurn, Arc::new(Message::user("f", "f"))).unwrap();
        session.splice(front);
        let gone = session.inbox.remove(&"x".into()).unwrap();
        session.splice(gone);
        assert_eq!(session.of("x"), Progress::Dropped);
        session.script.turn(1);
        session.claim(NextTurn);
        assert_eq!(session.of("f"), Progress::Running { turn: 1 });
        assert_eq!(session.of("s"), Progress::Running { turn: 1 });
        assert_eq!(session.of("a"), Progress::Pending);
        // An edit of itself keeps it pending; an edit to another id drops it.
        let edit = session.inbox.replace(&"a".into(), Arc::new(Message::user("a", "A"))).unwrap();
        session.splice(edit.unwrap());
        assert_eq!(session.of("a"), Progress::Pending);
        let edit = session.inbox.replace(&"a".into(), Arc::new(Message::user("b", "B"))).unwrap();
        session.splice(edit.unwrap());
        assert_eq!(session.of("a"), Progress::Dropped);
        assert_eq!(session.of("b"), Progress::Pending);
    }

    #[test]
    fn a_fold_that_starts_inside_a_turn_knows_it() {
        let mut session = Session::default();
        session.script.turn(1).step(1, 1);
        let from = session.script.log.len();
        session.send(NextStep, "s");
        session.script.end_step(1, 1);
        session.claim(NextStep);
        let progress = OutcomeFold::fold(&session.script.log, from, "s".into());
        assert_eq!(progress, Progress::Running { turn: 1 });
    }

    #[test]
    fn a_turn_without_an_answer_gives_what_it_streamed() {
        let mut session = Session::default();
        session.send(NextTurn, "a");
        session.script.turn(1);
        session.claim(NextTurn);
        session.script.step(1, 1);
        let stream = serde_json::from_value(json!([
            {"type": "text-chunks", "time0": 1, "index": 0, "dt": [1], "texts": ["par", "tial"]},
            {"type": "chunk", "time": 3, "chunk": {"type": "usage", "usage": {"inputTokens": 5, "outputTokens": 1}}},
        ]));
        session.script.log_only(EventBody::AssistantAttempt(AssistantAttempt {
            turn: 1,
            step: 1,
            stream: stream.unwrap(),
        }));
        session.script.end_step(1, 1).end_turn(1, TurnEndReason::Interrupted);
        let Progress::Ended(outcome) = session.of("a") else { panic!() };
        assert_eq!(outcome.text, "partial");
        assert_eq!(outcome.usage.unwrap().input_tokens, 5);
    }

    #[test]
    fn the_first_successful_structured_call_counts() {
        let mut session = Session::default();
        session.send(NextTurn, "a");
        session.script.turn(1);
        session.claim(NextTurn);
        session.script.step(1, 1);
        session.answer(1, "", &["c1", "c2", "c3"], 1);
        let mut call = |id: &str, arguments: &str, is_error: bool| {
            session.script.log_only(EventBody::ToolCall(ToolCall {
                turn: 1,
                step: 1,
                call_id: id.into(),
                name: STRUCTURED_OUTPUT_TOOL.into(),
                arguments: arguments.into(),
            }));
            let message = Message::tool(format!("r{id}"), &id.into(), is_error, vec![]);
            session.script.push(NewEvent::append(EventBody::ToolResult(
                crate::event::ToolResult {
                    turn: 1,
                    step: 1,
                    message: Arc::new(message),
                    error: None,
                    meta: None,
                },
            )));
        };
        call("c1", r#"{"n":1}"#, true);
        call("c2", r#"{"n":2}"#, false);
        call("c3", r#"{"n":3}"#, false);
        session.script.end_step(1, 1).end_turn(1, TurnEndReason::Completed);
        let Progress::Ended(outcome) = session.of("a") else { panic!() };
        assert_eq!(outcome.structured, Some(json!({"n": 2})));
    }
}
