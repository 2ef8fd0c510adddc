//! A conversation on its way to the wire: the old bytes of old messages, and new bytes.

use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use playhouse_messages::{
    history::{HistoryEntry, WireCell},
    id::MessageId,
    message::{Message, Role, SharedMessage},
};
use serde_json::Value;

use super::{LlmError, LoadedImages, PreparedCall, ResultImagesInput, prepare::contained};

/// The messages of a request, projected for its route. See [`PreparedCall::outgoing`].
#[derive(Debug)]
pub struct Outgoing<'a> {
    call: &'a PreparedCall,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    message: SharedMessage,
    /// The tool messages with images of the run that ends here, unless there are none.
    results: Vec<SharedMessage>,
    wire: WireCell,
    /// Under what the cell keeps the bytes: the route, and what `results` adds to them.
    key: u64,
}

impl PreparedCall {
    /// The conversation as this route sees it. Encodings are kept in the entries' cells.
    pub fn outgoing(&self, entries: impl IntoIterator<Item = HistoryEntry>) -> Outgoing<'_> {
        let route = key_of(self.encoding_key());
        let mut parts: Vec<Part> = Vec::new();
        let mut run = Vec::new();
        for entry in entries {
            let message = self.project(&entry.message);
            if message.role != Role::Tool {
                end_run(&mut parts, &mut run);
            } else if images(&message).next().is_some() {
                run.push(message.clone());
            }
            parts.push(Part { message, results: Vec::new(), wire: entry.wire, key: route });
        }
        end_run(&mut parts, &mut run);
        Outgoing { call: self, parts }
    }
}

/// Some wires hold a tool message's images only in an element that follows all tool messages of an
/// answer. So the last of a run carries the images of the run, and its encoding is that of both.
fn end_run(parts: &mut [Part], run: &mut Vec<SharedMessage>) {
    if let Some(last) = parts.last_mut().filter(|_| !run.is_empty()) {
        last.results = std::mem::take(run);
        let records = last.results.iter().flat_map(|message| images(message));
        last.key = key_of(&(last.key, records.map(id_of).collect::<Vec<_>>()));
    }
}

impl Outgoing<'_> {
    /// The projected messages in order.
    pub fn messages(&self) -> Vec<SharedMessage> {
        self.parts.iter().map(|part| part.message.clone()).collect()
    }

    /// The images whose bytes encoding will need, with the messages that show them: those of
    /// messages whose encoding is not kept.
    pub fn unread_images(&self) -> impl Iterator<Item = (&MessageId, &Value)> {
        let new = self.parts.iter().filter(|part| part.wire.kept(part.key).is_none());
        new.flat_map(|part| std::iter::once(&part.message).chain(&part.results))
            .flat_map(|message| images(message).map(|record| (&message.id, record)))
    }

    /// The bytes of the messages in order, empty for those that have none; kept for the next request.
    ///
    /// # Errors
    ///
    /// What the adapter refuses, such as `UNSUPPORTED_CONTENT`. Nothing is kept of such a message.
    pub fn encode(&self, images: &LoadedImages) -> Result<Vec<Bytes>, LlmError> {
        self.parts
            .iter()
            .map(|part| part.wire.wire(part.key, || self.bytes(part, images)))
            .collect()
    }

    fn bytes(&self, part: &Part, images: &LoadedImages) -> Result<Bytes, LlmError> {
        let own = self.call.encode(&part.message, images)?;
        if part.results.is_empty() {
            return Ok(own);
        }
        let route = &self.call.encoding_key().route;
        let input = ResultImagesInput { route, results: &part.results, images };
        let adapter = self.call.adapter();
        let more = contained(|| adapter.encode_result_images(&input))?;
        let both = [own, more].into_iter().filter(|bytes| !bytes.is_empty());
        Ok(both.collect::<Vec<_>>().join(&b","[..]).into())
    }
}

fn images(message: &Message) -> impl Iterator<Item = &Value> {
    message.content.iter().filter_map(|block| block.shown_image())
}

fn id_of(record: &Value) -> Option<&str> {
    record.get("attachmentId").and_then(Value::as_str)
}

fn key_of(parts: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}
