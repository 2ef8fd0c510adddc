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
use serde_json::{Value, json};

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

/// The data of an [`IMAGE_OFFLOAD`] event.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageOffload {
    /// The messages, each at most once; not empty.
    pub targets: Vec<OffloadTarget>,
}

/// Which images of a message are dropped.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OffloadTarget {
    /// A node of the surface.
    pub seq: Seq,
    /// Positions among the message's images, dropped ones included; strictly increasing.
    pub image_indexes: Vec<usize>,
}

impl From<ImageOffload> for NewEvent {
    fn from(offload: ImageOffload) -> Self {
        let targets = offload.targets.into_iter().map(|OffloadTarget { seq, image_indexes }| {
            json!({"seq": seq, "imageIndexes": image_indexes})
        });
        Self::custom(IMAGE_OFFLOAD, json!({"targets": targets.collect::<Vec<_>>()}))
    }
}

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
    /// The nodes that are system messages, in order: an admission asks for them.
    systems: Arc<Vec<Seq>>,
    replace_generation: u64,
    content_generation: u64,
    overrides: Arc<BTreeMap<Seq, SharedMessage>>,
}

impl PartialEq for Surface {
    fn eq(&self, other: &Self) -> bool {
        self.replace_generation == other.replace_generation
            && self.content_generation == other.content_generation
            && self.overrides == other.overrides
            && self.systems == other.systems
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
        self.systems.iter().copied().filter_map(|seq| match &log.get(seq)?.body {
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
        let refuse = |reason: String| SurfaceError::Projection { reason };
        let ImageOffload { targets } =
            ImageOffload::deserialize(data).map_err(|fault| refuse(fault.to_string()))?;
        let mut changes: Vec<(Seq, SharedMessage)> = Vec::with_capacity(targets.len());
        for OffloadTarget { seq, image_indexes } in targets {
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
    pub fn apply(&mut self, seq: Seq, body: &EventBody, change: &SurfaceChange) {
        let is_system = matches!(body, EventBody::SystemMessage(_));
        match change {
            SurfaceChange::None => {}
            SurfaceChange::Append => {
                self.nodes.push(seq);
                if is_system {
                    Arc::make_mut(&mut self.systems).push(seq);
                }
            }
            SurfaceChange::Replace { start, end } => {
                self.replace_systems(*start..end + 1, is_system.then_some(seq));
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

impl Surface {
    /// Follows a replacement of the nodes at these positions, which stand there still.
    fn replace_systems(&mut self, positions: Range<usize>, new: Option<Seq>) {
        if self.systems.is_empty() && new.is_none() {
            return;
        }
        let shadowed: HashSet<Seq> = self.nodes_at(positions.clone()).collect();
        let first = self.systems.iter().position(|seq| shadowed.contains(seq));
        let count = self.systems.iter().filter(|seq| shadowed.contains(seq)).count();
        let at = match (first, new) {
            (None, None) => return,
            (Some(first), _) => first,
            // A prompt in the place of something else: rare enough to look for its place.
            (None, Some(_)) => {
                let before: HashSet<Seq> = self.nodes_at(0..positions.start).collect();
                self.systems.iter().filter(|seq| before.contains(seq)).count()
            }
        };
        Arc::make_mut(&mut self.systems).splice(at..at + count, new);
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
mod tests;
