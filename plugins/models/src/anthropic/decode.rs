//! From a response's bytes to chunks, however reads cut them. Pure.

use std::collections::VecDeque;

use playhouse_messages::chunk::{Failure, StreamChunk};

use super::{errors, translate::Translator};
use crate::http::{ResponseFacts, SseDecoder, Wire};

/// Takes bytes, gives chunks. Complete once the message has stopped.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    events: SseDecoder,
    translator: Translator,
    ready: VecDeque<StreamChunk>,
}

impl Wire for Decoder {
    const REQUEST_ID: &'static [&'static str] = &["request-id"];

    fn push(&mut self, bytes: &[u8]) {
        self.events.push(bytes);
    }

    fn next(&mut self) -> Result<Option<StreamChunk>, Failure> {
        while self.ready.is_empty() && !self.translator.is_done() {
            let Some(data) = self.events.next_event()? else { break };
            self.translator.event(&data, &mut self.ready)?;
        }
        Ok(self.ready.pop_front())
    }

    fn is_done(&self) -> bool {
        self.translator.is_done() && self.ready.is_empty()
    }

    fn closed() -> Failure {
        Failure::new("STREAM_CLOSED", "SSE stream ended without message_stop")
    }

    fn refused(facts: &ResponseFacts<'_>, body: &[u8], provider: &str) -> Failure {
        errors::http(facts, body, provider)
    }
}
