//! From a response's bytes to chunks, however reads cut them. Pure.

use std::collections::VecDeque;

use playhouse_messages::chunk::{Failure, StreamChunk};

use super::{errors, translate::Translator};
use crate::http::{ResponseFacts, SseDecoder, Wire};

/// Takes bytes, gives chunks. Complete once the terminator was read.
#[derive(Debug)]
pub(super) struct Decoder {
    events: SseDecoder,
    /// `None` once the terminator was read.
    translator: Option<Translator>,
    ready: VecDeque<StreamChunk>,
}

impl Default for Decoder {
    fn default() -> Self {
        let translator = Some(Translator::default());
        Self { events: SseDecoder::default(), translator, ready: VecDeque::new() }
    }
}

impl Wire for Decoder {
    const REQUEST_ID: &'static [&'static str] = &["x-request-id", "x-deepseek-request-id"];

    fn push(&mut self, bytes: &[u8]) {
        self.events.push(bytes);
    }

    fn next(&mut self) -> Result<Option<StreamChunk>, Failure> {
        let mut out = Vec::new();
        loop {
            if let Some(chunk) = self.ready.pop_front() {
                return Ok(Some(chunk));
            }
            let Some(translator) = &mut self.translator else { return Ok(None) };
            let Some(data) = self.events.next_event()? else { return Ok(None) };
            if data == "[DONE]" {
                if let Some(translator) = self.translator.take() {
                    translator.finish(&mut out);
                }
            } else {
                translator.event(&data, &mut out)?;
            }
            self.ready.extend(out.drain(..));
        }
    }

    fn is_done(&self) -> bool {
        self.translator.is_none() && self.ready.is_empty()
    }

    fn closed() -> Failure {
        Failure::new("STREAM_CLOSED", "SSE stream ended without [DONE]")
    }

    fn refused(facts: &ResponseFacts<'_>, body: &[u8], provider: &str) -> Failure {
        errors::http(facts, body, provider)
    }
}
