//! What the command writes: lines, colours, and the JSON of live things.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use playhouse_messages::frame::Frame;
use serde_json::{Value, json};

use super::exit::CliError;

/// How long the last messages may take to be written to somebody who reads slowly, once the command
/// was told to end.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(10);

/// How results are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for programs.
    Jsonl,
}

/// Colours, if somebody sees them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paint(bool);

impl Paint {
    /// Colours exactly if standard error is a terminal and `NO_COLOR` is not set.
    pub(super) fn stderr() -> Self {
        Self(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
    }

    pub(super) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    pub(super) fn red(self, text: &str) -> String {
        self.paint("31", text)
    }

    pub(super) fn cyan(self, text: &str) -> String {
        self.paint("36", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Standard output. A reader that went away is an error of its own kind.
#[derive(Debug)]
pub(super) struct Out(io::BufWriter<io::Stdout>);

impl Out {
    pub(super) fn new() -> Self {
        Self(io::BufWriter::new(io::stdout()))
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.0.write_all(bytes).map_err(|cause| CliError::io("writing the output", cause))
    }

    pub(super) fn line(&mut self, text: &str) -> Result<(), CliError> {
        self.bytes(text.as_bytes())?;
        self.bytes(b"\n")
    }

    pub(super) fn flush(&mut self) -> Result<(), CliError> {
        self.0.flush().map_err(|cause| CliError::io("writing the output", cause))
    }
}

/// A line for people on standard error. Nobody has to read it.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Text that others wrote, without what would steer a terminal.
pub(super) fn tame(text: &str) -> String {
    let tame = |c: char| if c.is_control() && c != '\n' && c != '\t' { '\u{FFFD}' } else { c };
    text.chars().map(tame).collect()
}

/// The beginning of a text, on one line.
pub(super) fn brief(text: &str, chars: usize) -> String {
    let words = tame(text).split_whitespace().collect::<Vec<_>>().join(" ");
    if words.chars().count() <= chars {
        return words;
    }
    let cut: String = words.chars().take(chars.saturating_sub(1)).collect();
    format!("{cut}…")
}

/// A live frame as JSON.
pub(super) fn frame_json(frame: &Frame) -> Value {
    match frame {
        Frame::Start { attempt_id, at } => {
            json!({"kind": "start", "attemptId": attempt_id, "turn": at.turn, "step": at.step})
        }
        Frame::Chunks { attempt_id, index, chunks } => {
            let chunks: Vec<_> = chunks
                .iter()
                .map(|timed| json!({"time": timed.time, "chunk": timed.chunk}))
                .collect();
            json!({"kind": "chunks", "attemptId": attempt_id, "index": index, "chunks": chunks})
        }
        Frame::End { attempt_id, index, outcome } => {
            json!({"kind": "end", "attemptId": attempt_id, "index": index, "outcome": outcome})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_wrote_cannot_steer_the_terminal() {
        assert_eq!(tame("a\x1b[31mb\n\tc\r"), "a\u{FFFD}[31mb\n\tc\u{FFFD}");
        assert_eq!(brief("one\n two  three", 8), "one two…");
        assert_eq!(brief("one", 8), "one");
    }
}
