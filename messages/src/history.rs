//! The messages that the model sees, derived from the surface.
//!
//! A persistent list: a request holds a clone and shares every chunk with the session. Each entry
//! keeps its message's wire encoding, so that a request costs its new messages.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;

use crate::{
    chunked::Chunked,
    event::{EventBody, Seq},
    log::Log,
    message::SharedMessage,
    surface::{Surface, SurfaceChange},
};

/// The encoded bytes of one message for the last route that asked. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct WireCell(Arc<Mutex<Option<(u64, Bytes)>>>);

impl WireCell {
    /// The bytes that are kept for this route.
    pub fn kept(&self, route_key: u64) -> Option<Bytes> {
        // Whoever panicked under the lock left a whole value: only clones and moves happen there.
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|(key, _)| *key == route_key).map(|(_, bytes)| bytes.clone())
    }

    /// The bytes for this route: the kept ones, or those that `encode` gives.
    ///
    /// One route is kept. A session changes its route seldom, and then for good.
    pub fn wire<E>(
        &self,
        route_key: u64,
        encode: impl FnOnce() -> Result<Bytes, E>,
    ) -> Result<Bytes, E> {
        if let Some(bytes) = self.kept(route_key) {
            return Ok(bytes);
        }
        // Encoded outside the lock; should two tasks race, both get the same bytes.
        let bytes = encode()?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((route_key, bytes.clone()));
        Ok(bytes)
    }
}

/// One derived message.
#[derive(Debug, Clone)]
pub struct HistoryEntry {
    /// The event that it comes from.
    pub seq: Seq,
    /// What the model sees.
    pub message: SharedMessage,
    /// Its encoding.
    pub wire: WireCell,
}

impl HistoryEntry {
    /// An entry that nothing is encoded of yet.
    pub fn new(seq: Seq, message: SharedMessage) -> Self {
        Self { seq, message, wire: WireCell::default() }
    }
}

/// Equal when the model sees the same; encodings do not count.
impl PartialEq for HistoryEntry {
    fn eq(&self, other: &Self) -> bool {
        self.seq == other.seq && self.message == other.message
    }
}

/// The derived messages in order. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct History {
    entries: Chunked<HistoryEntry>,
}

impl PartialEq for History {
    fn eq(&self, other: &Self) -> bool {
        self.entries.iter().eq(other.entries.iter())
    }
}

impl History {
    /// An empty history.
    pub fn new() -> Self {
        Self::default()
    }

    /// The history of a surface, from scratch.
    pub fn derive(log: &Log, surface: &Surface) -> Self {
        let mut history = Self::new();
        for seq in surface.nodes() {
            if let (Some(event), Some(message)) = (log.get(seq), surface.message(log, seq)) {
                history.entries_extend(entry(seq, &event.body, message));
            }
        }
        history
    }

    fn entries_extend(&mut self, entry: Option<HistoryEntry>) {
        if let Some(entry) = entry {
            self.entries.push(entry);
        }
    }

    /// How many messages the model sees.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the model sees none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry at a position.
    pub fn get(&self, index: usize) -> Option<&HistoryEntry> {
        self.entries.get(index)
    }

    /// The entries in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &HistoryEntry> + ExactSizeIterator {
        self.entries.iter()
    }

    /// The entries from one position up to, not including, another, clipped.
    pub fn range(
        &self,
        range: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = &HistoryEntry> + ExactSizeIterator {
        self.entries.range(range)
    }

    /// The messages in order.
    pub fn messages(&self) -> impl DoubleEndedIterator<Item = &SharedMessage> + ExactSizeIterator {
        self.entries.iter().map(|entry| &entry.message)
    }

    /// Follows a surface change. `before` is the surface that the change was planned on; `body` is
    /// the event's, committed as `seq`.
    pub fn apply(&mut self, before: &Surface, seq: Seq, body: &EventBody, change: &SurfaceChange) {
        let new = || body.message().and_then(|message| entry(seq, body, message));
        match change {
            SurfaceChange::None => {}
            SurfaceChange::Append => self.entries_extend(new()),
            SurfaceChange::Replace { start, end } => {
                // Entries are nodes without those that derive nothing, in the same order.
                let count = |from: usize, nodes: Range<usize>| {
                    let mut at = from;
                    for node in before.nodes_at(nodes) {
                        at += usize::from(self.get(at).is_some_and(|entry| entry.seq == node));
                    }
                    at
                };
                let from = count(0, 0..*start);
                let to = count(from, *start..end + 1);
                self.entries.splice(from..to, new());
            }
            SurfaceChange::Project(changes) => {
                for (seq, message) in changes {
                    let at = self.entries.iter().rposition(|entry| entry.seq == *seq);
                    if let Some(at) = at {
                        let entry = HistoryEntry::new(*seq, message.clone());
                        self.entries.splice(at..at + 1, [entry]);
                    }
                }
            }
        }
    }
}

/// What a node derives: empty system, developer and assistant messages give nothing.
fn entry(seq: Seq, body: &EventBody, message: &SharedMessage) -> Option<HistoryEntry> {
    let always = matches!(body, EventBody::UserMessage(_) | EventBody::ToolResult(_));
    (always || !message.content.is_empty()).then(|| HistoryEntry::new(seq, message.clone()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::testing::{Script, user};

    fn texts(history: &History) -> Vec<String> {
        history.messages().map(|message| message.text()).collect()
    }

    #[test]
    fn the_table_of_nodes() {
        let mut script = Script::new();
        script.turn(1).step(1, 1);
        script.system(""); // empty: nothing
        script.push(user("u", "")); // one block: yields
        script.push_empty_user("e"); // empty user content still yields
        script.header(&[]);
        script.assistant("", &["c"]);
        script.call("c");
        script.result("c", ""); // an empty result yields
        let roles: Vec<_> = script.history.messages().map(|m| m.role).collect();
        use crate::message::Role::{Assistant, Tool, User};
        assert_eq!(roles, [User, User, Assistant, Tool]);
        script.end_step(1, 1).step(1, 2);
        script.assistant("", &[]); // empty anchor: nothing
        assert_eq!(script.history.len(), 4);
        assert_eq!(script.surface.len(), 6);
        assert_eq!(script.history, History::derive(&script.log, &script.surface));
    }

    #[test]
    fn a_replacement_keeps_the_cells_around_it() {
        let mut script = Script::new();
        for text in ["a", "b", "c", "d"] {
            script.push(user(text, text));
        }
        let encode = |history: &History, count: &mut usize| {
            for entry in history.iter() {
                let bytes = entry.wire.wire(1, || {
                    *count += 1;
                    Ok::<_, Infallible>(Bytes::from(entry.message.text()))
                });
                assert_eq!(bytes.unwrap(), entry.message.text());
            }
        };
        let mut count = 0;
        encode(&script.history, &mut count);
        assert_eq!(count, 4);
        script.replace(user("s", "summary"), 1, 2);
        assert_eq!(texts(&script.history), ["a", "summary", "d"]);
        encode(&script.history, &mut count);
        assert_eq!(count, 5, "only the summary is encoded");
        assert_eq!(script.history, History::derive(&script.log, &script.surface));
    }

    #[test]
    fn another_route_encodes_anew_and_a_failure_keeps_nothing() {
        let cell = WireCell::default();
        let put = |key, text: &'static str| {
            cell.wire(key, || Ok::<_, Infallible>(Bytes::from_static(text.as_bytes()))).unwrap()
        };
        assert_eq!(put(1, "one"), "one");
        assert_eq!(put(1, "ignored"), "one");
        assert_eq!(put(2, "two"), "two");
        assert_eq!(cell.clone().wire(3, || Err("no")), Err("no"));
        assert_eq!(cell.clone().wire(2, || Err("no")).unwrap(), "two");
        assert_eq!(put(1, "again"), "again");
    }

    #[test]
    fn a_clone_is_a_snapshot() {
        let mut script = Script::new();
        script.push(user("a", "a"));
        let before = script.history.clone();
        script.push(user("b", "b"));
        script.replace(user("c", "c"), 0, 0);
        assert_eq!(texts(&before), ["a"]);
        assert_eq!(texts(&script.history), ["c", "b"]);
    }
}
