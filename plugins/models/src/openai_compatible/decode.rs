//! From a response's bytes to chunks, however reads cut them. Pure.

use std::collections::VecDeque;

use playhouse_messages::chunk::{Failure, StreamChunk};

use super::{
    sse::{EVENT_BYTES_MAX, SseDecoder, TooLong},
    translate::Translator,
};

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

impl Decoder {
    /// Takes what a read gave.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.events.push(bytes);
    }

    /// The next chunk, or `None` if more bytes are needed or the answer is complete.
    pub(super) fn next(&mut self) -> Result<Option<StreamChunk>, Failure> {
        let mut out = Vec::new();
        loop {
            if let Some(chunk) = self.ready.pop_front() {
                return Ok(Some(chunk));
            }
            let Some(translator) = &mut self.translator else { return Ok(None) };
            let event = self.events.next().map_err(|TooLong| {
                let message = format!("an SSE event is longer than {EVENT_BYTES_MAX} bytes");
                Failure::new("MALFORMED_RESPONSE", message)
            })?;
            let Some(data) = event else { return Ok(None) };
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

    /// Whether the terminator was read and every chunk taken.
    pub(super) fn is_done(&self) -> bool {
        self.translator.is_none() && self.ready.is_empty()
    }

    /// The failure of a body that ends before the answer is complete.
    pub(super) fn closed() -> Failure {
        Failure::new("STREAM_CLOSED", "SSE stream ended without [DONE]")
    }
}
