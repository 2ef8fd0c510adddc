//! What a scripted model answers.

use serde::Deserialize;
use serde_json::Value;

/// One answer. The default is an empty one.
///
/// Text, reasoning and argument strings may hold `{{...}}` placeholders: `prompt` (the last user
/// text), `1`, `2`, ... (what the stars of the rule's `user_matches` took), `result.1`, `result.2`,
/// ... and `results` (the tool results after the last assistant message), `images` (how many images
/// the request shows). They are filled in once; an unknown one stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reply {
    /// Streamed first.
    pub reasoning: Option<String>,
    /// Streamed next.
    pub text: Option<String>,
    /// Tool calls, all in this one answer.
    pub calls: Vec<Call>,
    /// How text is cut into chunks.
    pub chunking: Chunking,
    /// The counts to report; estimated from the texts if absent.
    pub usage: Option<UsageSpec>,
    /// A provider's finish reason: `stop`, `tool_calls`, `length`, or any other for an error.
    /// `tool_calls` if there are calls, else `stop`.
    pub finish: Option<String>,
    /// Milliseconds before the first chunk.
    pub ttft_ms: u64,
    /// Milliseconds before each later chunk.
    pub chunk_delay_ms: u64,
    /// The answer waits at the gate of this name before its first chunk.
    pub gate: Option<String>,
    /// What goes wrong.
    pub fault: Option<Fault>,
    /// Only for the mock server.
    pub wire: Wire,
}

/// A tool call of a scripted answer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The tool.
    pub name: String,
    /// Its arguments.
    #[serde(default)]
    pub arguments: Arguments,
    /// The call's id; counted from the conversation if absent.
    #[serde(default)]
    pub id: Option<String>,
}

/// Arguments of a scripted tool call.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Arguments {
    /// Raw text, sent as it is; need not be JSON. Placeholders are filled in unescaped.
    Raw(String),
    /// A JSON value; placeholders are filled in within its strings.
    Json(Value),
}

impl Default for Arguments {
    fn default() -> Self {
        Self::Json(Value::Object(Default::default()))
    }
}

impl From<&str> for Arguments {
    /// JSON if it parses, else raw.
    fn from(text: &str) -> Self {
        match serde_json::from_str(text) {
            Ok(value) => Self::Json(value),
            Err(_) => Self::Raw(text.to_owned()),
        }
    }
}

impl From<Value> for Arguments {
    fn from(value: Value) -> Self {
        Self::Json(value)
    }
}

/// How text is cut into chunks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Chunking {
    /// A chunk a word, the space after it included.
    #[default]
    Words,
    /// Chunks of this many characters; 0 counts as 1.
    Chars(usize),
    /// One chunk.
    Whole,
}

/// The counts that an answer reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UsageSpec {
    /// Input that no cache served.
    pub input_tokens: u64,
    /// Output, reasoning included.
    pub output_tokens: u64,
    /// Input served by a cache.
    pub cache_read_tokens: Option<u64>,
    /// The part of the output that was reasoning.
    pub reasoning_tokens: Option<u64>,
}

/// What goes wrong with an answer, and when.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What happens.
    pub kind: FaultKind,
    /// After how many deltas. If absent: an error, a stall and a reset come before the first, the
    /// others after the last.
    #[serde(default)]
    pub after_chunks: Option<usize>,
    /// An error's code as the loop sees it; derived from the status by an HTTP client.
    #[serde(default)]
    pub code: Option<String>,
    /// An error's HTTP status.
    #[serde(default)]
    pub status: Option<u16>,
    /// An error's words.
    #[serde(default)]
    pub message: Option<String>,
    /// How long an error asks to wait.
    #[serde(default)]
    pub retry_after_ms: Option<u64>,
    /// How many images an error asks to leave out; only in process.
    #[serde(default)]
    pub offload_images: Option<u32>,
}

/// What can go wrong with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FaultKind {
    /// The call fails. Over HTTP: an error response, or an error object within a stream that began.
    Error,
    /// Nothing more comes until the caller gives up.
    Stall,
    /// The stream ends in order, but without a finish.
    Cut,
    /// The connection breaks.
    Disconnect,
    /// The connection breaks before any response.
    Reset,
    /// A payload that is not JSON.
    Malformed,
}

/// How the mock server puts an answer on the wire.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wire {
    /// Cuts the body into frames of this many bytes, through lines and characters alike.
    pub split_bytes: Option<usize>,
    /// Another content type than `text/event-stream`.
    pub content_type: Option<String>,
    /// Status 200 and no bytes.
    pub empty_body: bool,
    /// A comment line before each event.
    pub comments: bool,
}

impl Reply {
    /// An answer of text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }

    /// An answer of one tool call.
    pub fn call(name: impl Into<String>, arguments: impl Into<Arguments>) -> Self {
        Self::default().and_call(name, arguments)
    }

    /// An answer that goes wrong before its first chunk, or as [`Fault::after_chunks`] says.
    pub fn fault(kind: FaultKind) -> Self {
        Self::default().with_fault(Fault::new(kind))
    }

    /// A call that fails with this code.
    pub fn error(code: impl Into<String>, message: impl Into<String>) -> Self {
        let (code, message) = (Some(code.into()), Some(message.into()));
        Self::default().with_fault(Fault { code, message, ..Fault::new(FaultKind::Error) })
    }

    /// With reasoning before the text.
    #[must_use]
    pub fn with_reasoning(mut self, reasoning: impl Into<String>) -> Self {
        self.reasoning = Some(reasoning.into());
        self
    }

    /// With one more tool call.
    #[must_use]
    pub fn and_call(mut self, name: impl Into<String>, arguments: impl Into<Arguments>) -> Self {
        self.calls.push(Call { name: name.into(), arguments: arguments.into(), id: None });
        self
    }

    /// With this finish reason, as a provider spells it.
    #[must_use]
    pub fn with_finish(mut self, finish: impl Into<String>) -> Self {
        self.finish = Some(finish.into());
        self
    }

    /// With these counts.
    #[must_use]
    pub fn with_usage(mut self, usage: UsageSpec) -> Self {
        self.usage = Some(usage);
        self
    }

    /// With text cut like this.
    #[must_use]
    pub fn chunked(mut self, chunking: Chunking) -> Self {
        self.chunking = chunking;
        self
    }

    /// With these delays in milliseconds.
    #[must_use]
    pub fn paced(mut self, ttft_ms: u64, chunk_delay_ms: u64) -> Self {
        self.ttft_ms = ttft_ms;
        self.chunk_delay_ms = chunk_delay_ms;
        self
    }

    /// Waiting at a gate before the first chunk.
    #[must_use]
    pub fn at_gate(mut self, gate: impl Into<String>) -> Self {
        self.gate = Some(gate.into());
        self
    }

    /// Going wrong.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.fault = Some(fault);
        self
    }

    /// Put on the wire like this.
    #[must_use]
    pub fn with_wire(mut self, wire: Wire) -> Self {
        self.wire = wire;
        self
    }
}

impl Fault {
    /// A fault of this kind without further facts.
    pub fn new(kind: FaultKind) -> Self {
        Self {
            kind,
            after_chunks: None,
            code: None,
            status: None,
            message: None,
            retry_after_ms: None,
            offload_images: None,
        }
    }

    /// After this many deltas.
    #[must_use]
    pub fn after(mut self, chunks: usize) -> Self {
        self.after_chunks = Some(chunks);
        self
    }

    /// With an HTTP status.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// Asking to leave this many images out.
    #[must_use]
    pub fn offloading(mut self, images: u32) -> Self {
        self.offload_images = Some(images);
        self
    }

    /// With words.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }
}
