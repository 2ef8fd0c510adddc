//! How a model attempt ends in the log: exactly one settlement, or none that can be written.

use std::collections::HashSet;

use crate::{
    assembler::BlockAssembler,
    chunk::{Failure, FinishReason},
    content::{ContentBlock, ToolCallBlock},
    event::{AssistantAttempt, AssistantMessage, EventBody, NewEvent, StepAt},
    id::MessageId,
    message::{Message, Role, Source},
    packed::{StreamPacker, StreamRecord, TimedChunk},
};

/// A started attempt as far as its chunks have arrived.
#[derive(Debug, Clone)]
pub struct AttemptStream {
    /// The step that the attempt serves.
    pub at: StepAt,
    /// The route, for attribution.
    pub provider: String,
    /// The model.
    pub model: String,
    packer: StreamPacker,
    assembler: BlockAssembler,
    chunks: u64,
}

impl AttemptStream {
    /// An attempt without chunks.
    pub fn new(at: StepAt, provider: String, model: String) -> Self {
        let (packer, assembler) = (StreamPacker::new(), BlockAssembler::new());
        Self { at, provider, model, packer, assembler, chunks: 0 }
    }

    /// Records a chunk for the log and for the answer.
    pub fn push(&mut self, timed: TimedChunk) {
        self.assembler.push(&timed.chunk);
        self.packer.push(timed);
        self.chunks += 1;
    }

    /// How many chunks arrived.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// The packed stream so far.
    pub fn records(&self) -> &[StreamRecord] {
        self.packer.records()
    }
}

/// How the chunks of an attempt stopped coming.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEnd {
    /// The stream ended by itself, or was cut by a cancel.
    Ended,
    /// Stream middleware failed; adapters fail by a finish chunk instead.
    Thrown(Failure),
}

/// What to log for an attempt, and what it means for the step.
#[derive(Debug, Clone, PartialEq)]
pub enum Settlement {
    /// A whole answer.
    Message {
        /// `assistant/message`.
        event: NewEvent,
        /// The calls to run, in order.
        calls: Vec<ToolCallBlock>,
        /// The output limit cut it; no call of it runs.
        max_tokens: bool,
    },
    /// Cancelled after something visible had arrived: the prefix is kept.
    Interrupted {
        /// `assistant/message` with `interrupted: true`.
        event: NewEvent,
    },
    /// Cancelled before anything visible had arrived.
    Cancelled {
        /// `assistant/attempt`.
        event: NewEvent,
    },
    /// The provider failed; a request-error hook may retry.
    Failed {
        /// `assistant/attempt`.
        event: NewEvent,
        /// The provider's facts.
        failure: Failure,
    },
    /// Middleware failed; the step fails with its error.
    Thrown {
        /// `assistant/attempt`.
        event: NewEvent,
        /// The middleware's error.
        failure: Failure,
    },
    /// The blocks do not assemble; nothing is logged, and the step fails.
    Unassembled {
        /// What is wrong with them.
        failure: Failure,
    },
}

/// Settles an attempt by the table of the newest specification, section 11.
///
/// `cancelled` is the token's state at this moment: a cancel that is seen after the last chunk still
/// interrupts the attempt.
pub fn settle(
    stream: AttemptStream,
    end: StreamEnd,
    cancelled: bool,
    message_id: MessageId,
) -> Settlement {
    let AttemptStream { at, provider, model, packer, assembler, .. } = stream;
    let records = packer.finish();
    let attempt = |records| {
        NewEvent::log_only(EventBody::AssistantAttempt(AssistantAttempt {
            turn: at.turn,
            step: at.step,
            stream: records,
        }))
    };
    let message = |content: Vec<ContentBlock>, replay_state, records, interrupted| {
        // Opaque provider data is JSON by construction.
        let replay_state = serde_json::to_value(replay_state).unwrap_or_default();
        let replay_state = (!replay_state.is_null()).then_some(replay_state);
        let message = Message {
            id: message_id.clone(),
            role: Role::Assistant,
            tool_call_id: None,
            is_error: None,
            content,
            source: Source::model(&provider, &model, replay_state.as_ref()),
        };
        NewEvent::append(EventBody::AssistantMessage(AssistantMessage {
            turn: at.turn,
            step: at.step,
            message: message.into(),
            stream: records,
            usage: assembler.usage(),
            interrupted,
        }))
    };
    if cancelled {
        let content = assembler.interrupted();
        return if content.is_empty() {
            Settlement::Cancelled { event: attempt(records) }
        } else {
            let replay_state = assembler.interrupted_replay_state();
            Settlement::Interrupted { event: message(content, replay_state, records, true) }
        };
    }
    if let StreamEnd::Thrown(failure) = end {
        return Settlement::Thrown { event: attempt(records), failure };
    }
    let reason = assembler.finish_reason();
    if let FinishReason::Error { failure } | FinishReason::Aborted { failure } = reason {
        return Settlement::Failed { event: attempt(records), failure };
    }
    match assembler.assemble() {
        Err(fault) => {
            let failure = Failure::new(fault.code(), fault.to_string());
            Settlement::Unassembled { failure }
        }
        Ok(assembled) if !distinct(&assembled.content) => {
            let text = "the model called tools with an empty id, or two of one id";
            let failure = Failure::new("INVALID_TOOL_CALL_ID", text);
            Settlement::Failed { event: attempt(records), failure }
        }
        Ok(assembled) => {
            let max_tokens = reason == FinishReason::MaxTokens;
            let event = message(assembled.content, assembled.replay_state, records, false);
            let calls = match event.body.message() {
                Some(message) if !max_tokens => message.tool_calls().cloned().collect(),
                _ => Vec::new(),
            };
            Settlement::Message { event, calls, max_tokens }
        }
    }
}

/// Whether results can be told apart: a message whose calls cannot would fail every later request.
fn distinct(content: &[ContentBlock]) -> bool {
    let mut ids = HashSet::new();
    content.iter().all(|block| match block {
        ContentBlock::ToolCall(call) => !call.id.as_str().is_empty() && ids.insert(&call.id),
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{StreamChunk, Usage};

    fn stream(chunks: Vec<StreamChunk>) -> AttemptStream {
        let mut stream = AttemptStream::new(StepAt { turn: 1, step: 1 }, "p".into(), "m".into());
        for (time, chunk) in chunks.into_iter().enumerate() {
            stream.push(TimedChunk { time: time as i64, chunk });
        }
        stream
    }

    fn text(text: &str) -> StreamChunk {
        StreamChunk::TextDelta { index: 0, text: text.into() }
    }

    fn call(args: &str) -> StreamChunk {
        StreamChunk::ToolCallDelta {
            index: 1,
            id: "c".into(),
            name: Some("f".into()),
            arguments_delta: args.into(),
        }
    }

    fn finish(reason: FinishReason) -> StreamChunk {
        StreamChunk::Finish { reason, replay_state: None }
    }

    fn kind(settlement: &Settlement) -> &'static str {
        match settlement {
            Settlement::Message { .. } => "message",
            Settlement::Interrupted { .. } => "interrupted",
            Settlement::Cancelled { .. } => "cancelled",
            Settlement::Failed { .. } => "failed",
            Settlement::Thrown { .. } => "thrown",
            Settlement::Unassembled { .. } => "unassembled",
        }
    }

    mod scenario {
        use super::*;

        #[test]
        fn newest_11_the_settlement_table() {
            let error = |code: &str| FinishReason::Error { failure: Failure::new(code, "x") };
            let open = StreamChunk::BlockStart { index: 3, block_type: "hologram".into() };
            for (chunks, end, cancelled, expected) in [
                (vec![text("hi"), finish(FinishReason::Stop)], StreamEnd::Ended, false, "message"),
                (vec![text("hi")], StreamEnd::Ended, false, "message"),
                (vec![finish(FinishReason::Stop)], StreamEnd::Ended, false, "message"),
                (vec![text("hi"), finish(error("SERVER"))], StreamEnd::Ended, false, "failed"),
                (vec![text("hi")], StreamEnd::Thrown(Failure::unknown("x")), false, "thrown"),
                (vec![text("hi")], StreamEnd::Ended, true, "interrupted"),
                (
                    vec![text("hi"), finish(FinishReason::Stop)],
                    StreamEnd::Ended,
                    true,
                    "interrupted",
                ),
                (vec![text("  ")], StreamEnd::Ended, true, "cancelled"),
                (vec![call("{")], StreamEnd::Ended, true, "cancelled"),
                (vec![], StreamEnd::Thrown(Failure::unknown("x")), true, "cancelled"),
                (vec![open], StreamEnd::Ended, false, "unassembled"),
            ] {
                let settlement = settle(stream(chunks.clone()), end, cancelled, "a".into());
                assert_eq!(kind(&settlement), expected, "{chunks:?} cancelled={cancelled}");
            }
        }

        #[test]
        fn core_23_a_cut_answer_keeps_its_text_and_runs_no_call() {
            let chunks = vec![text("Let me"), call("{\"p"), finish(FinishReason::MaxTokens)];
            let Settlement::Message { event, calls, max_tokens } =
                settle(stream(chunks), StreamEnd::Ended, false, "a".into())
            else {
                panic!("a cut answer is a message")
            };
            assert!(max_tokens && calls.is_empty());
            let message = event.body.message().unwrap();
            assert_eq!(message.content, [ContentBlock::text("Let me")]);
        }

        #[test]
        fn core_65_an_interrupted_answer_keeps_prefix_and_usage() {
            let usage = Usage { input_tokens: 3, output_tokens: 1, ..Usage::default() };
            let chunks = vec![text("He"), call("{"), StreamChunk::Usage { usage }];
            let Settlement::Interrupted { event } =
                settle(stream(chunks), StreamEnd::Ended, true, "a".into())
            else {
                panic!("visible text makes a message")
            };
            let EventBody::AssistantMessage(data) = &event.body else { panic!() };
            assert!(data.interrupted && data.usage == Some(usage) && data.stream.len() == 3);
            assert_eq!(data.message.content, [ContentBlock::text("He")]);
        }
    }
}
