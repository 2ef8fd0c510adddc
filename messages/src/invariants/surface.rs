//! The nodes of the conversation: invariants 15, 16 and 20, and the count of prompts for 18.

use std::collections::HashSet;

use super::{Fault, hold};
use crate::{
    candidate::Candidate,
    chunked::Chunked,
    content::ContentBlock,
    event::{EventBody, Seq, SurfaceOp},
    message::{Message, SharedMessage},
};

/// The current nodes, by ascending place.
#[derive(Debug, Clone, Default)]
pub(super) struct Nodes {
    nodes: Chunked<Node>,
    /// The place of each event: a replacement inherits that of the first node it shadows, all others
    /// have their own seq for one. So places ascend along the surface.
    places: Chunked<Seq>,
    /// How many nodes show a prompt.
    prompts: usize,
}

#[derive(Debug, Clone)]
struct Node {
    seq: Seq,
    place: Seq,
    face: Face,
}

/// What the invariants ask of a node.
#[derive(Debug, Clone)]
enum Face {
    Prompt { shown: bool },
    Result(SharedMessage),
    Other,
}

impl Face {
    fn of(body: &EventBody) -> Self {
        let is_empty =
            |block: &ContentBlock| matches!(block, ContentBlock::Text(t) if t.is_empty());
        match body {
            EventBody::SystemMessage(data) => {
                Self::Prompt { shown: !data.message.content.iter().all(is_empty) }
            }
            EventBody::ToolResult(data) => Self::Result(data.message.clone()),
            _ => Self::Other,
        }
    }

    fn is_shown_prompt(&self) -> bool {
        matches!(self, Self::Prompt { shown: true })
    }
}

impl Nodes {
    /// How many prompts the model sees.
    pub(super) fn prompts(&self) -> usize {
        self.prompts
    }

    fn position(&self, seq: Seq) -> Option<usize> {
        let place = *self.places.get(usize::try_from(seq).ok()?)?;
        let at = self.nodes.partition_point(|node| node.place < place);
        self.nodes.get(at).filter(|node| node.seq == seq).map(|_| at)
    }

    /// The positions that a replacement names.
    fn shadowed(&self, start: Seq, end: Seq) -> Option<(usize, usize)> {
        Some((self.position(start)?, self.position(end)?))
    }

    pub(super) fn judge(&self, event: Candidate<'_>) -> Result<(), Fault> {
        hold(event.surface.is_some() == event.body.is_surface(), 15, || {
            format!("`{}` with surface operation {:?}", event.body.kind(), event.surface)
        })?;
        let Some(SurfaceOp::Replace { start_seq, end_seq }) = event.surface else { return Ok(()) };
        let Some((start, end)) = self.shadowed(start_seq, end_seq) else {
            return Err((15, "replaces what is no node".to_owned()));
        };
        hold(start <= end, 15, || "replaces backwards".to_owned())?;
        let cited: HashSet<Seq> = event.sources.iter().copied().collect();
        let mut nodes = self.nodes.range(start..end + 1);
        hold(nodes.all(|node| cited.contains(&node.seq)), 15, || {
            "does not cite all that it shadows".to_owned()
        })?;
        let first = self.nodes.get(start).map(|node| &node.face);
        let prompt_goes = start == 0 && matches!(first, Some(Face::Prompt { .. }));
        let prompt_comes = matches!(event.body, EventBody::SystemMessage(_));
        hold(prompt_comes || !prompt_goes, 16, || {
            "the prompt at the head gave way to something else".to_owned()
        })?;
        if let EventBody::ToolResult(new) = event.body {
            let same = match first {
                Some(Face::Result(old)) => start == end && same_but_content(old, &new.message),
                _ => false,
            };
            hold(same, 20, || "a rewritten result changes more than its content".to_owned())?;
        }
        Ok(())
    }

    pub(super) fn take(&mut self, event: Candidate<'_>) {
        let (seq, face) = (event.seq, Face::of(event.body));
        let shown = usize::from(face.is_shown_prompt());
        let replaced = match event.surface {
            Some(SurfaceOp::Replace { start_seq, end_seq }) => self.shadowed(start_seq, end_seq),
            _ => None,
        };
        let first = replaced.and_then(|(start, _)| self.nodes.get(start));
        let place = first.map_or(seq, |node| node.place);
        self.places.push(place);
        match replaced {
            Some((start, end)) => {
                let gone = self.nodes.range(start..end + 1);
                self.prompts -= gone.filter(|node| node.face.is_shown_prompt()).count();
                self.nodes.splice(start..end + 1, [Node { seq, place, face }]);
            }
            None if event.surface == Some(SurfaceOp::Append) => {
                self.nodes.push(Node { seq, place, face });
            }
            None => return,
        }
        self.prompts += shown;
    }
}

fn same_but_content(old: &Message, new: &Message) -> bool {
    let Message { id, role, tool_call_id, is_error, content: _, source } = new;
    (id, role, tool_call_id, is_error, source)
        == (&old.id, &old.role, &old.tool_call_id, &old.is_error, &old.source)
}
