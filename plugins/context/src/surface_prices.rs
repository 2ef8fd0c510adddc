//! What each node of a conversation's surface weighs.

use playhouse_messages::{
    candidate::Candidate,
    chunked::Chunked,
    event::{Event, EventBody, Seq},
    log::Log,
    surface::{Surface, SurfaceChange, SurfaceError},
};
use serde::Serialize;

use crate::prices;

/// A node of the surface and its price.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct NodePrice {
    /// The node's event.
    pub seq: Seq,
    /// What its message weighs.
    pub tokens: u64,
}

/// The fold of a log's surface with the price of every node.
///
/// Prices are kept, so a replacement is charged the difference without a look at what it covers.
#[derive(Debug, Clone, Default)]
pub(crate) struct SurfacePrices {
    surface: Surface,
    nodes: Chunked<NodePrice>,
    total: u64,
    system: u64,
}

impl SurfacePrices {
    pub(crate) fn plan(&self, log: &Log, event: &Event) -> Result<SurfaceChange, SurfaceError> {
        self.surface.plan(log, Candidate::from(event))
    }

    pub(crate) fn apply(&mut self, log: &Log, event: &Event, change: &SurfaceChange) {
        match change {
            SurfaceChange::None => {}
            SurfaceChange::Append => {
                let at = self.nodes.len();
                self.splice(log, at..at, node(event));
            }
            SurfaceChange::Replace { start, end } => {
                self.splice(log, *start..end + 1, node(event));
            }
            SurfaceChange::Project(messages) => {
                for (seq, message) in messages {
                    let node = NodePrice { seq: *seq, tokens: prices::message(message) };
                    let at = self.nodes.iter().rposition(|node| node.seq == *seq);
                    if let Some(at) = at {
                        self.splice(log, at..at + 1, Some(node));
                    }
                }
            }
        }
        self.surface.apply(event.seq, &event.body, change);
    }

    fn splice(&mut self, log: &Log, range: std::ops::Range<usize>, new: Option<NodePrice>) {
        let is_system = |node: &NodePrice| {
            let event = log.get(node.seq);
            event.is_some_and(|event| matches!(event.body, EventBody::SystemMessage(_)))
        };
        for gone in self.nodes.range(range.clone()) {
            self.total -= gone.tokens;
            self.system -= if is_system(gone) { gone.tokens } else { 0 };
        }
        if let Some(node) = &new {
            self.total += node.tokens;
            self.system += if is_system(node) { node.tokens } else { 0 };
        }
        match new {
            Some(node) if range.is_empty() => self.nodes.push(node),
            new => self.nodes.splice(range, new),
        }
    }

    pub(crate) fn nodes(&self) -> &Chunked<NodePrice> {
        &self.nodes
    }

    /// All nodes together.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The system messages among them.
    pub(crate) fn system(&self) -> u64 {
        self.system
    }
}

fn node(event: &Event) -> Option<NodePrice> {
    let tokens = prices::message(event.body.message()?);
    Some(NodePrice { seq: event.seq, tokens })
}
