//! What the wire must get back of an answer beside its text: signatures, and thinking that it hides.

use playhouse_messages::{chunk::ReplayState, message::Message};
use serde_json::{Value, json};

const KIND: &str = "anthropic";

/// What belongs to one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seal<S> {
    /// The signature of thinking that the block shows.
    Signature(S),
    /// The whole of a block that shows nothing.
    Redacted(S),
}

impl Seal<String> {
    fn to_json(&self) -> Value {
        match self {
            Self::Signature(signature) => json!({ "signature": signature }),
            Self::Redacted(data) => json!({ "redacted_thinking": data }),
        }
    }
}

/// The state of an answer, given the seals of its blocks; `None` if none has any.
pub(super) fn state(id: Option<&str>, seals: &[Option<Seal<String>>]) -> Option<ReplayState> {
    if seals.iter().all(Option::is_none) {
        return None;
    }
    let entry = |seal: &Option<Seal<String>>| seal.as_ref().map_or(Value::Null, Seal::to_json);
    let mut response = json!({ "kind": KIND, "version": 1 });
    if let Some(id) = id {
        response["id"] = id.into();
    }
    Some(ReplayState { response, blocks: Some(seals.iter().map(entry).collect()) })
}

/// The seal of a message's block, if this adapter left one.
pub(super) fn seal(message: &Message, block: usize) -> Option<Seal<&str>> {
    let state = message.source.field("replayState")?;
    let blocks = state.get("blocks")?.as_array()?;
    let ours = state.get("response")?.get("kind")?.as_str()? == KIND;
    // Entries that do not pair with the blocks might seal another block's text.
    if !ours || blocks.len() != message.content.len() {
        return None;
    }
    let text = |key: &str| blocks.get(block)?.get(key)?.as_str();
    text("signature").map(Seal::Signature).or_else(|| text("redacted_thinking").map(Seal::Redacted))
}
