//! Recorded streams and what becomes of them, whole and cut at every byte.

use playhouse_messages::{
    chunk::{Failure, FinishReason, StreamChunk},
    content::ContentBlock,
};
use playhouse_plugin_api::llm::protocol_check::ProtocolCheck;

use super::Wire;

/// What a body becomes, read in these pieces: chunks, then perhaps a failure.
fn play<'a, W: Wire>(reads: impl IntoIterator<Item = &'a [u8]>) -> Vec<StreamChunk> {
    let mut decoder = W::default();
    let mut chunks = Vec::new();
    let mut drain = |decoder: &mut W| -> Result<(), Failure> {
        while let Some(chunk) = decoder.next()? {
            chunks.push(chunk);
        }
        Ok(())
    };
    let mut outcome = Ok(());
    for read in reads {
        decoder.push(read);
        outcome = outcome.and_then(|()| drain(&mut decoder));
    }
    if outcome.is_ok() && !decoder.is_done() {
        outcome = Err(W::closed());
    }
    if let Err(failure) = outcome {
        let reason = FinishReason::Error { failure };
        chunks.push(StreamChunk::Finish { reason, replay_state: None });
    }
    chunks
}

/// A chunk in shorthand.
fn short(chunk: &StreamChunk) -> String {
    match chunk {
        StreamChunk::BlockStart { index, block_type } => format!("bs({index},{block_type})"),
        StreamChunk::TextDelta { index, text } => format!("td({index},{text})"),
        StreamChunk::ReasoningDelta { index, text } => format!("rd({index},{text})"),
        StreamChunk::ToolCallDelta { index, id, name, arguments_delta } => {
            let name = name.as_deref().unwrap_or("-");
            format!("tc({index},{id},{name},{arguments_delta})")
        }
        StreamChunk::BlockEnd { index, block } => match block {
            ContentBlock::Text(text) | ContentBlock::Reasoning(text) => {
                format!("be({index},{text})")
            }
            ContentBlock::ToolCall(call) => {
                format!("be({index},{}/{}/{})", call.id, call.name, call.arguments)
            }
            other => panic!("{other:?}"),
        },
        StreamChunk::Usage { usage } => {
            let extra = |label: &str, count: Option<u64>| {
                count.map(|count| format!(",{label} {count}")).unwrap_or_default()
            };
            format!(
                "U({},{}{}{}{})",
                usage.input_tokens,
                usage.output_tokens,
                extra("cached", usage.cache_read_tokens),
                extra("written", usage.cache_write_tokens),
                extra("reasoning", usage.reasoning_tokens)
            )
        }
        StreamChunk::Finish { reason, replay_state } => {
            let state = replay_state.as_ref().map(|state| serde_json::to_string(state).unwrap());
            let state = state.map(|state| format!(" {state}")).unwrap_or_default();
            match reason {
                FinishReason::Stop => format!("F(stop){state}"),
                FinishReason::ToolCalls => format!("F(tool-calls){state}"),
                FinishReason::MaxTokens => format!("F(max-tokens){state}"),
                FinishReason::Error { failure } => {
                    format!("F({}: {})", failure.code, failure.message)
                }
                FinishReason::Aborted { failure } => format!("aborted({})", failure.code),
            }
        }
    }
}

/// Checks what a body becomes: whole, cut in two at every byte, and byte by byte.
#[track_caller]
pub(crate) fn check<W: Wire>(body: &str, expected: &[&str]) {
    let body = body.as_bytes();
    let run = |reads: Vec<&[u8]>| {
        let chunks = play::<W>(reads);
        ProtocolCheck::check_all(&chunks).unwrap();
        chunks.iter().map(short).collect::<Vec<_>>()
    };
    assert_eq!(run(vec![body]), expected);
    for at in 0..=body.len() {
        assert_eq!(run(vec![&body[..at], &body[at..]]), expected, "cut at byte {at}");
    }
    assert_eq!(run(body.chunks(1).collect()), expected, "byte by byte");
}
