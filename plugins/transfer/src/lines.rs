//! Files as sessions, and sessions as lines, with bounds on what a line may be.

use std::io::{self, BufRead, Read};

use serde::{Deserialize, de::IgnoredAny};

use crate::error::{ImportError, ImportFault};

/// The most bytes of a line: far above any event or image that a store takes.
pub const LINE_BYTES_MAX: usize = 100 * 1024 * 1024;

/// A line, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// From 1.
    pub number: u64,
    /// Without its end.
    pub text: String,
}

/// Why bytes are no line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineFault {
    /// Too many of them.
    #[error("the line has more than {max} bytes")]
    TooLong {
        /// How many it may have.
        max: usize,
    },
    /// Not text.
    #[error("the line is not UTF-8, from its byte {at} on")]
    NotUtf8 {
        /// Where, from 0.
        at: usize,
    },
    /// A byte order mark.
    #[error("the file begins with a byte order mark; save it without one")]
    ByteOrderMark,
    /// A line end of another system.
    #[error("the line ends in CR LF; save the file with LF alone")]
    CarriageReturn,
    /// Nothing.
    #[error("the line is empty")]
    Empty,
    /// The file cannot be read on.
    #[error("reading failed: {0}")]
    Read(String),
}

/// Reads a file by the session: one session's lines are in memory at a time.
///
/// A session with a line that cannot be taken is one error; reading goes on at the next header.
#[derive(Debug)]
pub struct Sessions<R> {
    reader: R,
    number: u64,
    bytes_max: usize,
    /// The header of the next session, which ended the one before.
    header: Option<Line>,
    ended: bool,
}

impl<R: BufRead> Sessions<R> {
    /// The sessions of a file.
    pub fn new(reader: R) -> Self {
        Self { reader, number: 0, bytes_max: LINE_BYTES_MAX, header: None, ended: false }
    }

    /// With another bound on a line's bytes.
    #[must_use]
    pub fn line_bytes_max(mut self, bytes: usize) -> Self {
        self.bytes_max = bytes;
        self
    }

    /// The next line; its fault with its number if it is none.
    fn line(&mut self) -> Option<Result<Line, ImportError>> {
        if self.ended {
            return None;
        }
        self.number += 1;
        let number = self.number;
        let mut bytes = Vec::new();
        let limit = self.bytes_max as u64 + 1;
        let read = self.reader.by_ref().take(limit).read_until(b'\n', &mut bytes);
        let fault = match read {
            Ok(0) => {
                self.ended = true;
                return None;
            }
            Ok(_) if bytes.last() == Some(&b'\n') => {
                bytes.pop();
                return Some(text(number, bytes));
            }
            Ok(read) if read as u64 == limit => match self.skip_line() {
                Ok(()) => LineFault::TooLong { max: self.bytes_max },
                Err(cause) => self.broken(&cause),
            },
            // The last line; whether something is missing of it shows in what it says.
            Ok(_) => return Some(text(number, bytes)),
            Err(cause) => self.broken(&cause),
        };
        Some(Err(ImportError::new(number, fault)))
    }

    fn broken(&mut self, cause: &io::Error) -> LineFault {
        self.ended = true;
        LineFault::Read(cause.to_string())
    }

    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let buffer = self.reader.fill_buf()?;
            let (end, used) = match buffer.iter().position(|byte| *byte == b'\n') {
                Some(at) => (true, at + 1),
                None => (buffer.is_empty(), buffer.len()),
            };
            self.reader.consume(used);
            if end {
                return Ok(());
            }
        }
    }

    /// Whether another session's header was seen already.
    pub fn has_more(&self) -> bool {
        self.header.is_some()
    }
}

impl<R: BufRead> Iterator for Sessions<R> {
    type Item = Result<Vec<Line>, ImportError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut lines: Vec<Line> = self.header.take().into_iter().collect();
        let mut failed = None;
        while let Some(line) = self.line() {
            let begun = !lines.is_empty() || failed.is_some();
            match line {
                Ok(line) if is_header(&line.text) && begun => {
                    self.header = Some(line);
                    break;
                }
                Ok(_) if failed.is_some() => {}
                Ok(line) if lines.is_empty() && !is_header(&line.text) => {
                    failed = Some(first_fault(&line));
                }
                Ok(line) => lines.push(line),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        match failed {
            Some(error) => Some(Err(error)),
            None => (!lines.is_empty()).then_some(Ok(lines)),
        }
    }
}

fn first_fault(line: &Line) -> ImportError {
    match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&line.text) {
        Ok(_) => ImportError::new(line.number, ImportFault::NoHeader),
        Err(fault) => ImportError::new(line.number, ImportFault::Json(fault.to_string())),
    }
}

fn text(number: u64, bytes: Vec<u8>) -> Result<Line, ImportError> {
    let fault = match String::from_utf8(bytes) {
        Err(fault) => LineFault::NotUtf8 { at: fault.utf8_error().valid_up_to() },
        Ok(text) if number == 1 && text.starts_with('\u{FEFF}') => LineFault::ByteOrderMark,
        Ok(text) if text.ends_with('\r') => LineFault::CarriageReturn,
        Ok(text) if text.trim().is_empty() => LineFault::Empty,
        Ok(text) => return Ok(Line { number, text }),
    };
    Err(ImportError::new(number, fault))
}

/// Whether a line begins a session: a record of type `session` that is no event.
fn is_header(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Probe {
        #[serde(rename = "type")]
        kind: String,
        #[serde(default)]
        seq: Option<IgnoredAny>,
    }
    // Few other lines hold the word as a whole string.
    text.contains("\"session\"")
        && serde_json::from_str::<Probe>(text)
            .is_ok_and(|probe| probe.kind == "session" && probe.seq.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Result<Vec<String>, String>> {
        let sessions = Sessions::new(bytes).line_bytes_max(40);
        sessions
            .map(|session| match session {
                Ok(lines) => Ok(lines.into_iter().map(|line| line.text).collect()),
                Err(error) => Err(format!("{} {error}", error.code())),
            })
            .collect()
    }

    const A: &str = r#"{"type":"session","id":"a"}"#;

    #[test]
    fn a_header_begins_a_session() {
        assert_eq!(read(b""), []);
        let event = r#"{"type":"session","seq":0}"#;
        let file = format!("{A}\n{event}\n{A}\n{A}");
        let (a, event) = (A.to_owned(), event.to_owned());
        assert_eq!(
            read(file.as_bytes()),
            [Ok(vec![a.clone(), event]), Ok(vec![a.clone()]), Ok(vec![a])]
        );
    }

    #[test]
    fn a_line_that_is_none_is_named_and_the_next_session_is_read() {
        let long = "x".repeat(60);
        for (line, what) in [
            (&b"{\"a\":1}\r"[..], "line 2: the line ends in CR LF"),
            (b"", "line 2: the line is empty"),
            (b"{\"\xff\":1}", "line 2: the line is not UTF-8, from its byte 2 on"),
            (long.as_bytes(), "line 2: the line has more than 40 bytes"),
        ] {
            let file = [A.as_bytes(), b"\n", line, b"\n{}\n", A.as_bytes(), b"\n"].concat();
            let sessions = read(&file);
            let error = sessions[0].as_ref().unwrap_err();
            assert!(error.starts_with("IMPORT_LINE") && error.contains(what), "{error}");
            assert_eq!(sessions[1..], [Ok(vec![A.to_owned()])]);
        }
        let error = |file: &[u8]| read(file).remove(0).unwrap_err();
        assert!(error(format!("\u{FEFF}{A}").as_bytes()).contains("line 1: the file begins with"));
        assert!(error(b"{\"seq\":0}").starts_with("IMPORT_NO_HEADER line 1"));
        assert!(error(b"\x00\x01junk").starts_with("IMPORT_JSON line 1"));
        assert!(error(&long.as_bytes()[..41]).contains("more than 40 bytes"));
    }
}
