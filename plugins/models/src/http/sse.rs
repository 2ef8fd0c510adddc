//! Server-sent events, decoded as bytes arrive.
//!
//! Why not a crate: `eventsource-stream` 0.2 holds everything back after one invalid byte until the
//! body ends, and waits for a byte after a lone CR; `sse-stream` 0.3 ends the stream at an invalid
//! byte; neither bounds what it buffers. The rules of the format are few.

use playhouse_messages::chunk::Failure;

/// An event that grows beyond this many bytes is refused.
const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Takes bytes, gives the data of complete events.
///
/// Lines end in LF, CR or CRLF wherever reads cut them. Data lines join with LF; comments, other
/// fields and events without data give nothing. An event counts once its blank line is there; text is
/// decoded by whole events, so a character that reads cut apart is whole, and invalid bytes become
/// U+FFFD.
#[derive(Debug, Default)]
pub struct SseDecoder {
    /// The bytes that are not yet lines; those before `at` are done with.
    buffer: Vec<u8>,
    at: usize,
    /// How far past `at` no line end was found.
    scanned: usize,
    data: Vec<u8>,
    has_data: bool,
    /// The last line ended in a CR that was the last byte: an LF that follows belongs to it.
    skip_lf: bool,
    started: bool,
}

fn too_long() -> Failure {
    let message = format!("an SSE event is longer than {EVENT_BYTES_MAX} bytes");
    Failure::new("MALFORMED_RESPONSE", message)
}

impl SseDecoder {
    /// Takes what a read gave.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The data of the next complete event.
    ///
    /// # Errors
    ///
    /// `MALFORMED_RESPONSE` for an event that grows beyond 16 MiB.
    pub fn next_event(&mut self) -> Result<Option<String>, Failure> {
        if !self.started {
            // A prefix of a byte order mark has to wait for the rest.
            if self.buffer.len() < BOM.len() && BOM.starts_with(&self.buffer) {
                return Ok(None);
            }
            self.started = true;
            if self.buffer.starts_with(BOM) {
                self.at = BOM.len();
            }
        }
        loop {
            if self.skip_lf && self.at < self.buffer.len() {
                self.skip_lf = false;
                if self.buffer[self.at] == b'\n' {
                    self.at += 1;
                }
            }
            let from = self.at + self.scanned;
            let end = self.buffer[from..].iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let Some(end) = end.map(|offset| from + offset) else {
                self.scanned = self.buffer.len() - self.at;
                let held = self.scanned + self.data.len();
                return if held > EVENT_BYTES_MAX { Err(too_long()) } else { Ok(None) };
            };
            let start = std::mem::replace(&mut self.at, end + 1);
            self.scanned = 0;
            self.skip_lf = self.buffer[end] == b'\r';
            if start < end {
                self.line(start, end);
                if self.data.len() > EVENT_BYTES_MAX {
                    return Err(too_long());
                }
            } else if std::mem::take(&mut self.has_data) {
                let data = std::mem::take(&mut self.data);
                return Ok(Some(String::from_utf8(data).unwrap_or_else(|error| {
                    String::from_utf8_lossy(error.as_bytes()).into_owned()
                })));
            }
        }
    }

    fn line(&mut self, start: usize, end: usize) {
        let line = &self.buffer[start..end];
        let value = match line.strip_prefix(b"data") {
            Some([]) => &[],
            Some([b':', value @ ..]) => value.strip_prefix(b" ").unwrap_or(value),
            _ => return,
        };
        if std::mem::replace(&mut self.has_data, true) {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode<'a>(reads: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let mut decoder = SseDecoder::default();
        let mut events = Vec::new();
        for read in reads {
            decoder.push(read);
            while let Some(event) = decoder.next_event().unwrap() {
                events.push(event);
            }
        }
        events
    }

    /// Whole, cut at every byte, and byte by byte.
    fn check(body: &[u8], expected: &[&str]) {
        assert_eq!(decode([body]), expected);
        for at in 0..=body.len() {
            assert_eq!(decode([&body[..at], &body[at..]]), expected, "cut at {at}");
        }
        assert_eq!(decode(body.chunks(1)), expected);
    }

    #[test]
    fn lines_end_in_lf_cr_or_crlf() {
        check(b"data: a\n\ndata: b\r\n\r\ndata: c\r\rdata: d\n\r", &["a", "b", "c", "d"]);
    }

    #[test]
    fn exactly_one_space_belongs_to_the_colon() {
        check(b"data:a\n\ndata:  [DONE]\n\ndata\n\ndata:\n\n", &["a", " [DONE]", "", ""]);
    }

    #[test]
    fn data_lines_join_and_everything_else_is_ignored() {
        let body =
            b": ping\n\nevent: e\nid: 7\nretry: 1\nx\ndata: a\ndata: b\n:\ndatum: no\n\nid: 8\n\n";
        check(body, &["a\nb"]);
    }

    #[test]
    fn an_unterminated_event_is_discarded() {
        for body in ["data: a\n\ndata: [DONE]", "data: a\n\ndata: [DONE]\n"] {
            check(body.as_bytes(), &["a"]);
        }
    }

    #[test]
    fn a_byte_order_mark_is_dropped_and_invalid_bytes_are_replaced() {
        check(b"\xEF\xBB\xBFdata: \xF0\x9F\x98\x80\xFF\n\n", &["😀\u{FFFD}"]);
        check(b"\xEF\xBB\xBF\n\ndata: a\xF0\x9F\n\n", &["a\u{FFFD}"]);
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut decoder = SseDecoder::default();
        let line = [b"data: ".to_vec(), vec![b'x'; EVENT_BYTES_MAX / 2], b"\n".to_vec()].concat();
        decoder.push(&line);
        assert_eq!(decoder.next_event(), Ok(None));
        decoder.push(&line);
        decoder.push(b"data: more");
        assert_eq!(decoder.next_event(), Err(too_long()));
    }
}
