//! The stream protocol between an adapter and the loop.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{content::ContentBlock, id::CallId};

/// One element of a model's streamed answer. A closed set: consumers match exhaustively.
///
/// Usage comes before finish, nothing comes after finish, and tool arguments are raw text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum StreamChunk {
    /// A block opens.
    BlockStart {
        /// Which block of the answer.
        index: u32,
        /// The block's `type`.
        block_type: String,
    },
    /// More text.
    TextDelta {
        /// Which block.
        index: u32,
        /// The new text.
        text: String,
    },
    /// More reasoning.
    ReasoningDelta {
        /// Which block.
        index: u32,
        /// The new text.
        text: String,
    },
    /// More of a tool call.
    ToolCallDelta {
        /// Which block.
        index: u32,
        /// The call's id as far as it is known.
        id: CallId,
        /// The tool's name, once known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// The new argument text.
        arguments_delta: String,
    },
    /// A block is complete; its content here is authoritative over the deltas.
    BlockEnd {
        /// Which block.
        index: u32,
        /// The whole block.
        block: ContentBlock,
    },
    /// What the call cost so far.
    Usage {
        /// The counts.
        usage: Usage,
    },
    /// The answer is over.
    Finish {
        /// Why.
        reason: FinishReason,
        /// Opaque to everyone but the adapter that produced it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replay_state: Option<ReplayState>,
    },
}

impl StreamChunk {
    /// Whether the chunk carries something a person would see arrive: text, reasoning, a tool name
    /// or argument text.
    pub fn is_token(&self) -> bool {
        match self {
            Self::TextDelta { text, .. } | Self::ReasoningDelta { text, .. } => !text.is_empty(),
            Self::ToolCallDelta { name, arguments_delta, .. } => {
                name.is_some() || !arguments_delta.is_empty()
            }
            _ => false,
        }
    }
}

/// Provider-private data that a later request to the same adapter gets back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplayState {
    /// About the response as a whole.
    pub response: Value,
    /// One entry an emitted block, in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Vec<Value>>,
}

/// Why a model's answer ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum FinishReason {
    /// The model was done.
    Stop,
    /// The model waits for tool results.
    ToolCalls,
    /// The output limit cut the answer.
    MaxTokens,
    /// The call was cancelled.
    Aborted {
        /// What the adapter reports.
        failure: Failure,
    },
    /// The call failed.
    Error {
        /// What the adapter reports.
        failure: Failure,
    },
}

/// Token counts in disjoint buckets: `input_tokens` excludes cached input; absent means that the
/// provider did not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Input that no cache served.
    pub input_tokens: u64,
    /// Output, reasoning included.
    pub output_tokens: u64,
    /// The provider's own total, if it reports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_tokens: Option<u64>,
    /// Input served by a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read_tokens: Option<u64>,
    /// Input written to a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<u64>,
    /// The part of the output that was reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
}

impl Usage {
    /// Adds the other's counts to these; a bucket stays absent only while both lack it.
    pub fn add(&mut self, other: &Self) {
        fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
            match (a, b) {
                (None, None) => None,
                (a, b) => Some(a.unwrap_or(0) + b.unwrap_or(0)),
            }
        }
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.total_tokens = sum(self.total_tokens, other.total_tokens);
        self.cache_read_tokens = sum(self.cache_read_tokens, other.cache_read_tokens);
        self.cache_write_tokens = sum(self.cache_write_tokens, other.cache_write_tokens);
        self.reasoning_tokens = sum(self.reasoning_tokens, other.reasoning_tokens);
    }
}

/// The facts of a failed model call or turn. There is no "retryable" flag: that is the policy's
/// judgement of the code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// For people. Never empty.
    pub message: String,
    /// Stable, for programs. Never empty.
    pub code: String,
    /// The HTTP status, 100 to 599.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How long the provider asks to wait, in milliseconds; positive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_retry_after_ms: Option<u64>,
    /// The provider's id for the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// How many of the oldest images to drop before another try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_images: Option<u32>,
}

impl Failure {
    /// A failure of this code with a message and no further facts.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: code.into(),
            status: None,
            provider_retry_after_ms: None,
            request_id: None,
            offload_images: None,
        }
    }

    /// The failure in a form that no log refuses: whatever a hook or a provider says, its turn ends.
    pub(crate) fn loggable(mut self) -> Self {
        if self.code.is_empty() {
            "UNKNOWN".clone_into(&mut self.code);
        }
        if self.message.is_empty() {
            "no reason was given".clone_into(&mut self.message);
        }
        let most = crate::json::INTEGER_MAX;
        self.provider_retry_after_ms = self.provider_retry_after_ms.map(|delay| delay.min(most));
        self
    }

    /// A failure that nothing classified.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new("UNKNOWN", message)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_have_the_wire_shapes_of_the_spec() {
        for text in [
            r#"{"type":"block-start","index":0,"blockType":"text"}"#,
            r#"{"type":"text-delta","index":0,"text":"x"}"#,
            r#"{"type":"reasoning-delta","index":0,"text":"x"}"#,
            r#"{"type":"tool-call-delta","index":1,"id":"c1","name":"read","argumentsDelta":"{\"p"}"#,
            r#"{"type":"tool-call-delta","index":1,"id":"c1","argumentsDelta":""}"#,
            r#"{"type":"block-end","index":0,"block":{"type":"text","text":"x"}}"#,
            r#"{"type":"usage","usage":{"inputTokens":27,"outputTokens":69,"cacheReadTokens":256}}"#,
            r#"{"type":"finish","reason":{"kind":"stop"}}"#,
            r#"{"type":"finish","reason":{"kind":"max-tokens"},"replayState":{"response":null,"blocks":[1]}}"#,
            r#"{"type":"finish","reason":{"kind":"error","failure":{"message":"m","code":"RATE_LIMIT","status":429,"providerRetryAfterMs":1500,"requestId":"r"}}}"#,
        ] {
            let chunk: StreamChunk = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&chunk).unwrap(), text);
        }
    }
}
