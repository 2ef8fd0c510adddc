//! The conversation's surface: which events the model sees, in which order.
//!
//! A node is the seq of a surface event. Replacements inherit the position of what they replace, so
//! positions, not seqs, order the surface.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
    sync::Arc,
};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    candidate::Candidate,
    chunked::Chunked,
    content::ContentBlock,
    event::{EventBody, NewEvent, Seq, SurfaceOp, ToolResult},
    log::Log,
    message::{Message, SharedMessage},
};

/// The log-only kind that drops images out of messages which stay where they are: `{targets:
/// [{seq, imageIndexes}]}`.
pub const IMAGE_OFFLOAD: &str = "image/offload";

/// Why an event does not fit the surface.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SurfaceError {
    /// A surface event says nothing about the surface.
    #[error("`{kind}` needs a surface operation")]
    OperationMissing {
        /// The event's type.
        kind: String,
    },
    /// A log-only event claims a place on the surface, or sources.
    #[error("`{kind}` is log-only: it takes no surface operation and no sources")]
    NotASurfaceEvent {
        /// The event's type.
        kind: String,
    },
    /// The range starts or ends at something that is not a node now.
    #[error("replacement names event {seq}, which is not a current surface node")]
    NotANode {
        /// The named seq.
        seq: Seq,
    },
    /// The range runs backwards.
    #[error("replacement range {start}..{end} runs backwards on the surface")]
    Reversed {
        /// Its first node.
        start: Seq,
        /// Its last node.
        end: Seq,
    },
    /// The sources leave out a node that the replacement shadows.
    #[error("replacement does not cite event {seq}, which it shadows")]
    NotCited {
        /// The node.
        seq: Seq,
    },
    /// A tool result may replace only one tool result, and only its content.
    #[error("a tool result may replace exactly one tool result, and change only its content")]
    ToolResultRewrite,
    /// The prompt at the head gives way only to another prompt.
    #[error("the system message at the head gives way only to another one over exactly that node")]
    HeadProtected,
    /// A projection that cannot be applied.
    #[error("`{IMAGE_OFFLOAD}`: {reason}")]
    Projection {
        /// What is wrong with it.
        reason: String,
    },
}

impl SurfaceError {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::OperationMissing { .. } => "SURFACE_OPERATION_MISSING",
            Self::NotASurfaceEvent { .. } => "NOT_A_SURFACE_EVENT",
            Self::NotANode { .. } => "NOT_A_SURFACE_NODE",
            Self::Reversed { .. } => "SURFACE_RANGE_REVERSED",
            Self::NotCited { .. } => "SHADOWED_NODE_NOT_CITED",
            Self::ToolResultRewrite => "INVALID_TOOL_RESULT_REWRITE",
            Self::HeadProtected => "SYSTEM_HEAD_PROTECTED",
            Self::Projection { .. } => "INVALID_PROJECTION",
        }
    }
}

/// What an event that passed [`Surface::check`] does to the surface.
#[derive(Debug, Clone, PartialEq)]
pub enum SurfaceChange {
    /// Nothing.
    None,
    /// A node at the tail.
    Append,
    /// One node in the place of the nodes at positions `start..=end`.
    Replace {
        /// The first position.
        start: usize,
        /// The last position.
        end: usize,
    },
    /// Nodes that stay and show another message: seq and message.
    Project(Vec<(Seq, SharedMessage)>),
}

/// The current nodes. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Surface {
    nodes: Chunked<Seq>,
    replace_generation: u64,
    content_generation: u64,
    overrides: Arc<BTreeMap<Seq, SharedMessage>>,
}

impl PartialEq for Surface {
    fn eq(&self, other: &Self) -> bool {
        self.replace_generation == other.replace_generation
            && self.content_generation == other.content_generation
            && self.overrides == other.overrides
            && self.nodes.iter().eq(other.nodes.iter())
    }
}

impl Surface {
    /// An empty surface.
    pub fn new() -> Self {
        Self::default()
    }

    /// The nodes in the order in which the model sees them.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = Seq> + ExactSizeIterator + '_ {
        self.nodes.iter().copied()
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many replacements there were.
    pub fn replace_generation(&self) -> u64 {
        self.replace_generation
    }

    /// How often a message that the model may have seen changed: replacements and projections.
    pub fn content_generation(&self) -> u64 {
        self.content_generation
    }

    /// Whether an event is a node now.
    pub fn contains(&self, seq: Seq) -> bool {
        self.position(seq).is_some()
    }

    /// The message that a node shows.
    pub fn message<'a>(&'a self, log: &'a Log, seq: Seq) -> Option<&'a SharedMessage> {
        self.overrides.get(&seq).or_else(|| log.get(seq)?.body.message())
    }

    /// The surviving system nodes in order, with their messages.
    pub fn system_nodes<'a>(
        &'a self,
        log: &'a Log,
    ) -> impl DoubleEndedIterator<Item = (Seq, &'a SharedMessage)> {
        self.nodes().filter_map(|seq| match &log.get(seq)?.body {
            EventBody::SystemMessage(data) => Some((seq, &data.message)),
            _ => None,
        })
    }

    /// The nodes at these positions.
    pub(crate) fn nodes_at(&self, positions: Range<usize>) -> impl Iterator<Item = Seq> + '_ {
        self.nodes.range(positions).copied()
    }

    fn position(&self, seq: Seq) -> Option<usize> {
        // What gets replaced is mostly new, or the head.
        if self.nodes.get(0) == Some(&seq) {
            return Some(0);
        }
        self.nodes.iter().rposition(|node| *node == seq)
    }

    /// What a new event at the end of `log` would do.
    pub fn check(&self, log: &Log, event: &NewEvent) -> Result<SurfaceChange, SurfaceError> {
        self.plan(log, Candidate::new(log.len(), event))
    }

    /// What an event does. `log` holds at least the events before it.
    pub fn plan(&self, log: &Log, event: Candidate<'_>) -> Result<SurfaceChange, SurfaceError> {
        let kind = || event.body.kind().to_owned();
        match (event.surface, event.body.is_surface()) {
            (None, true) => Err(SurfaceError::OperationMissing { kind: kind() }),
            (Some(_), false) => Err(SurfaceError::NotASurfaceEvent { kind: kind() }),
            (None, false) if !event.sources.is_empty() => {
                Err(SurfaceError::NotASurfaceEvent { kind: kind() })
            }
            (None, false) => match event.body {
                EventBody::Custom { kind, data } if **kind == *IMAGE_OFFLOAD => {
                    self.project(log, data).map(SurfaceChange::Project)
                }
                _ => Ok(SurfaceChange::None),
            },
            (Some(SurfaceOp::Append), true) => Ok(SurfaceChange::Append),
            (Some(SurfaceOp::Replace { start_seq, end_seq }), true) => {
                self.plan_replace(log, event, start_seq, end_seq)
            }
        }
    }

    fn plan_replace(
        &self,
        log: &Log,
        event: Candidate<'_>,
        start_seq: Seq,
        end_seq: Seq,
    ) -> Result<SurfaceChange, SurfaceError> {
        let position = |seq| self.position(seq).ok_or(SurfaceError::NotANode { seq });
        let start = position(start_seq)?;
        let end = if end_seq == start_seq { start } else { position(end_seq)? };
        if start > end {
            return Err(SurfaceError::Reversed { start: start_seq, end: end_seq });
        }
        let cited: HashSet<Seq> = event.sources.iter().copied().collect();
        if let Some(seq) = self.nodes_at(start..end + 1).find(|seq| !cited.contains(seq)) {
            return Err(SurfaceError::NotCited { seq });
        }
        let old = log.get(start_seq).map(|old| &old.body);
        if let EventBody::ToolResult(new) = event.body {
            match old {
                Some(EventBody::ToolResult(old))
                    if start == end && only_content_differs(old, new) => {}
                _ => return Err(SurfaceError::ToolResultRewrite),
            }
        }
        if start == 0
            && matches!(old, Some(EventBody::SystemMessage(_)))
            && !(end == 0 && matches!(event.body, EventBody::SystemMessage(_)))
        {
            return Err(SurfaceError::HeadProtected);
        }
        Ok(SurfaceChange::Replace { start, end })
    }

    fn project(&self, log: &Log, data: &Value) -> Result<Vec<(Seq, SharedMessage)>, SurfaceError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Offload {
            targets: Vec<Target>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Target {
            seq: Seq,
            image_indexes: Vec<usize>,
        }
        let refuse = |reason: String| SurfaceError::Projection { reason };
        let Offload { targets } =
            Offload::deserialize(data).map_err(|fault| refuse(fault.to_string()))?;
        let mut changes: Vec<(Seq, SharedMessage)> = Vec::with_capacity(targets.len());
        for Target { seq, image_indexes } in targets {
            if !self.contains(seq) || changes.iter().any(|(known, _)| *known == seq) {
                return Err(refuse(format!("event {seq} is not a current surface node, or twice")));
            }
            if image_indexes.is_empty() || !image_indexes.is_sorted_by(|a, b| a < b) {
                return Err(refuse(format!("image indexes of event {seq} must strictly increase")));
            }
            let Some(message) = self.message(log, seq) else {
                return Err(refuse(format!("event {seq} carries no message")));
            };
            let message = offload(message, &image_indexes)
                .ok_or_else(|| refuse(format!("event {seq} has fewer images than named")))?;
            changes.push((seq, Arc::new(message)));
        }
        if changes.is_empty() {
            return Err(refuse("names no target".to_owned()));
        }
        Ok(changes)
    }

    /// Carries out what [`Surface::check`] found for the event that was committed as `seq`.
    pub fn apply(&mut self, seq: Seq, change: &SurfaceChange) {
        match change {
            SurfaceChange::None => {}
            SurfaceChange::Append => self.nodes.push(seq),
            SurfaceChange::Replace { start, end } => {
                if !self.overrides.is_empty() {
                    let overrides = Arc::make_mut(&mut self.overrides);
                    for gone in self.nodes.range(*start..end + 1) {
                        overrides.remove(gone);
                    }
                }
                self.nodes.splice(*start..end + 1, [seq]);
                self.replace_generation += 1;
                self.content_generation += 1;
            }
            SurfaceChange::Project(changes) => {
                Arc::make_mut(&mut self.overrides).extend(changes.iter().cloned());
                self.content_generation += 1;
            }
        }
    }
}

fn only_content_differs(old: &ToolResult, new: &ToolResult) -> bool {
    let ToolResult { turn, step, message, error, meta } = new;
    let Message { id, role, tool_call_id, is_error, content: _, source } = &**message;
    let before = &old.message;
    (*turn, *step, error, meta) == (old.turn, old.step, &old.error, &old.meta)
        && (id, role, tool_call_id, is_error, source)
            == (&before.id, &before.role, &before.tool_call_id, &before.is_error, &before.source)
}

/// The message with the images at these indexes marked as dropped.
fn offload(message: &Message, indexes: &[usize]) -> Option<Message> {
    let mut message = message.clone();
    let mut wanted = indexes.iter().copied().peekable();
    let images = message.content.iter_mut().filter_map(|block| match block {
        ContentBlock::Image { offloaded, .. } => Some(offloaded),
        _ => None,
    });
    for (index, offloaded) in images.enumerate() {
        if wanted.next_if_eq(&index).is_some() {
            *offloaded = true;
        }
    }
    wanted.peek().is_none().then_some(message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Script, user};

    fn nodes(script: &Script) -> Vec<Seq> {
        script.surface.nodes().collect()
    }

    fn refused(script: &Script, event: &NewEvent, code: &str) {
        assert_eq!(script.surface.check(&script.log, event).unwrap_err().code(), code);
    }

    /// A log with nodes: 2 system, 3 user, 6 assistant, 8 result, 11 assistant.
    fn tool_turn() -> Script {
        let mut script = Script::new();
        script.turn(1).step(1, 1);
        script.system("P");
        script.push(user("u", "u"));
        script.header(&[]);
        script.context();
        script.assistant("", &["c"]);
        script.call("c");
        script.result("c", "out");
        script.end_step(1, 1).step(1, 2);
        script.assistant("done", &[]);
        script.end_step(1, 2);
        assert_eq!(nodes(&script), [2, 3, 6, 8, 11]);
        script
    }

    #[test]
    fn positions_order_the_surface_not_seqs() {
        let mut script = tool_turn();
        script.replace(user("s", "summary"), 3, 8);
        assert_eq!(nodes(&script), [2, 13, 11]);
        assert_eq!(script.surface.replace_generation(), 1);
        assert_eq!(script.surface.content_generation(), 1);
        // From the later seq to the earlier one: forward on the surface.
        script.replace(user("s2", "summary"), 13, 11);
        assert_eq!(nodes(&script), [2, 14]);
    }

    #[test]
    fn the_head_gives_way_only_to_one_system_message() {
        let mut script = tool_turn();
        refused(
            &script,
            &NewEvent::replace(user("x", "x").body, 2, 2, vec![2]),
            "SYSTEM_HEAD_PROTECTED",
        );
        let system = script.system_event("Q");
        refused(
            &script,
            &NewEvent::replace(system.clone(), 2, 3, vec![2, 3]),
            "SYSTEM_HEAD_PROTECTED",
        );
        script.push(NewEvent::replace(system, 2, 2, vec![2]));
        // A later system node has no protection.
        script.system("R");
        let tail = script.log.len() - 1;
        script.replace(user("x", "x"), tail, tail);
        assert_eq!(nodes(&script)[0], 13);
    }

    #[test]
    fn operations_belong_to_surface_events() {
        let script = tool_turn();
        let bare = NewEvent::log_only(user("x", "x").body);
        refused(&script, &bare, "SURFACE_OPERATION_MISSING");
        let turn = EventBody::TurnStart(crate::event::TurnStart { turn: 2 });
        refused(&script, &NewEvent::append(turn.clone()), "NOT_A_SURFACE_EVENT");
        refused(&script, &NewEvent::log_only(turn).citing([0]), "NOT_A_SURFACE_EVENT");
    }

    mod scenario {
        use super::*;
        use crate::message::Role;

        #[test]
        fn core_148_bad_replacements_are_refused() {
            let script = tool_turn();
            let replace = |start, end, sources: &[Seq]| {
                NewEvent::replace(user("x", "x").body, start, end, sources.to_vec())
            };
            refused(&script, &replace(3, 6, &[3]), "SHADOWED_NODE_NOT_CITED");
            refused(&script, &replace(6, 3, &[3, 6]), "SURFACE_RANGE_REVERSED");
            refused(&script, &replace(0, 3, &[0, 3]), "NOT_A_SURFACE_NODE");
            refused(&script, &replace(3, 99, &[3]), "NOT_A_SURFACE_NODE");
            let result = |edit: &dyn Fn(&mut ToolResult, &mut Message)| {
                let EventBody::ToolResult(mut data) = script.log.get(8).unwrap().body.clone()
                else {
                    unreachable!()
                };
                let mut message = (*data.message).clone();
                message.content = vec![ContentBlock::text("pruned")];
                edit(&mut data, &mut message);
                data.message = Arc::new(message);
                EventBody::ToolResult(data)
            };
            let same = |_: &mut ToolResult, _: &mut Message| {};
            let rewrite = |body| NewEvent::replace(body, 8, 8, vec![8]);
            let code = "INVALID_TOOL_RESULT_REWRITE";
            refused(&script, &rewrite(result(&|data, _| data.step = 2)), code);
            refused(&script, &rewrite(result(&|data, _| data.meta = Some(json!(1)))), code);
            refused(&script, &rewrite(result(&|_, message| message.id = "other".into())), code);
            refused(&script, &rewrite(result(&|_, message| message.is_error = Some(true))), code);
            refused(&script, &NewEvent::replace(result(&same), 6, 8, vec![6, 8]), code);
            refused(&script, &NewEvent::replace(result(&same), 3, 3, vec![3]), code);
            assert_eq!(
                script.surface.check(&script.log, &rewrite(result(&same))),
                Ok(SurfaceChange::Replace { start: 3, end: 3 })
            );
            for op in [
                json!({"op": "replace", "startSeq": 1, "endSeq": 1, "extra": 1}),
                json!({"op": "insert", "startSeq": 1, "endSeq": 1}),
            ] {
                assert!(serde_json::from_value::<SurfaceOp>(op).is_err());
            }
        }

        #[test]
        fn core_117_image_offload_keeps_ids_and_bumps_only_the_content_generation() {
            let mut script = Script::new();
            let image = || ContentBlock::Image {
                attachment: json!({"attachmentId": "a"}),
                offloaded: false,
            };
            let mut message = Message::user("u", "t");
            message.content.extend([image(), image()]);
            script.push(NewEvent::append(EventBody::UserMessage(Arc::new(message))));
            script.push(user("v", "v"));
            let offload =
                |targets: Value| NewEvent::custom(IMAGE_OFFLOAD, json!({"targets": targets}));
            for targets in [
                json!([]),
                json!([{"seq": 7, "imageIndexes": [0]}]),
                json!([{"seq": 0, "imageIndexes": []}]),
                json!([{"seq": 0, "imageIndexes": [1, 0]}]),
                json!([{"seq": 0, "imageIndexes": [2]}]),
                json!([{"seq": 0, "imageIndexes": [0]}, {"seq": 0, "imageIndexes": [1]}]),
                json!([{"seq": 0}]),
            ] {
                refused(&script, &offload(targets), "INVALID_PROJECTION");
            }
            script.push(offload(json!([{"seq": 0, "imageIndexes": [1]}])));
            script.push(offload(json!([{"seq": 0, "imageIndexes": [0]}])));
            assert_eq!(nodes(&script), [0, 1]);
            assert_eq!(script.surface.replace_generation(), 0);
            assert_eq!(script.surface.content_generation(), 2);
            let shown = script.history.get(0).unwrap();
            assert_eq!((shown.message.id.as_str(), shown.message.role), ("u", Role::User));
            let offloaded = shown
                .message
                .content
                .iter()
                .filter(|block| matches!(block, ContentBlock::Image { offloaded: true, .. }));
            assert_eq!(offloaded.count(), 2);
            assert_eq!(script.log.get(0).unwrap().body.message().unwrap().content[1], image());
            // A replacement shadows the override with its node.
            script.replace(user("w", "w"), 0, 0);
            assert!(script.surface.overrides.is_empty());
        }

        #[test]
        fn newest_13_a_late_prompt_stands_after_the_users() {
            let mut script = Script::new();
            script.push(user("u", "u"));
            script.turn(1).step(1, 1);
            script.system("P");
            assert_eq!(nodes(&script), [0, 3]);
            script.replace(user("s", "s"), 0, 3); // compaction shadows it
            assert_eq!(script.surface.system_nodes(&script.log).count(), 0);
        }
    }
}
