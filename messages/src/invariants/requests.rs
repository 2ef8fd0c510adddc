//! What a request is made of: invariants 8, 23 to 26 and 28.

use std::sync::Arc;

use super::{Fault, hold, steps::Steps};
use crate::{
    candidate::Candidate,
    config::{
        Header,
        HeaderReason::{Change, Initial, Resume, Series},
        RequestContext,
    },
    content::ContentBlock,
    event::{DeveloperMessage, EventBody, RequestHeader, Seq},
    id::MessageId,
    shared_set::SharedSet,
    surface::IMAGE_OFFLOAD,
};

#[derive(Debug, Clone, Default)]
pub(super) struct Requests {
    header: Option<Arc<Header>>,
    header_before: Option<Arc<Header>>,
    /// The header that the last event was.
    fresh_header: Option<Seq>,
    context: Option<Arc<RequestContext>>,
    /// What the model was shown has changed since the last settlement.
    rewritten: bool,
    /// That was before this step's request: it needs a header that starts a series.
    owes_series: bool,
    /// The user messages of the open step.
    users: SharedSet<MessageId>,
}

impl Requests {
    /// Whether the route takes prompts amid the conversation.
    pub(super) fn prompts_in_history(&self) -> bool {
        self.context.as_ref().is_none_or(|context| context.system_prompt_update.is_some())
    }

    pub(super) fn judge(&self, event: Candidate<'_>, steps: &Steps) -> Result<(), Fault> {
        match event.body {
            EventBody::RequestHeader(data) => {
                hold(steps.turn().is_some(), 8, || "a header outside any turn".to_owned())?;
                self.header(data)
            }
            EventBody::RequestContext(data) => {
                hold(steps.turn().is_some(), 8, || "a context outside any turn".to_owned())?;
                let same = self.context.as_deref() == Some(data);
                hold(!same, 25, || "the same context".to_owned())
            }
            EventBody::DeveloperMessage(data) => {
                hold(self.fresh_header.is_some(), 26, || "does not follow its header".to_owned())?;
                hold(data.header_seq.is_none_or(|seq| Some(seq) == self.fresh_header), 26, || {
                    "names another header than the one before it".to_owned()
                })?;
                self.tool_changes(data)
            }
            _ if event.settles() => hold(!self.owes_series, 24, || {
                "answers a request that differs from the one before, and no series started"
                    .to_owned()
            }),
            EventBody::UserMessage(message) if !event.is_replacement() => {
                let again = steps.in_step() && self.users.contains(&message.id);
                hold(!again, 28, || format!("\"{}\" a second time in its step", message.id))
            }
            _ => Ok(()),
        }
    }

    fn header(&self, data: &RequestHeader) -> Result<(), Fault> {
        let first = self.header.is_none();
        let reason = data.reason;
        hold((reason == Initial) == first, 23, || {
            format!("{reason:?}, though {}", if first { "first" } else { "not first" })
        })?;
        let same = self.header.as_ref() == Some(&data.header);
        match reason {
            Change => hold(!same, 23, || "a change to the same header".to_owned())?,
            Series => hold(same && !data.starts_series, 23, || {
                "a bare series with another header, or marked twice".to_owned()
            })?,
            Initial | Resume => {}
        }
        hold(reason != Change || data.starts_series || !self.rewritten, 24, || {
            "starts no series, though what the model was shown has changed".to_owned()
        })
    }

    fn tool_changes(&self, data: &DeveloperMessage) -> Result<(), Fault> {
        let names = |header: &Option<Arc<Header>>| -> Vec<String> {
            let tools = header.iter().flat_map(|header| header.tools.iter());
            tools.map(|tool| tool.name.clone()).collect()
        };
        let mut told = names(&self.header_before);
        for block in &data.message.content {
            match block {
                ContentBlock::ToolAddition { tool_name } => told.push(tool_name.clone()),
                ContentBlock::ToolRemoval { tool_name } => told.retain(|name| name != tool_name),
                _ => return Err((26, format!("a `{}` block", block.kind()))),
            }
        }
        let mut after = names(&self.header);
        told.sort();
        after.sort();
        hold(told == after, 26, || format!("tells of {told:?}, but {after:?} are declared"))
    }

    pub(super) fn take(&mut self, event: Candidate<'_>) {
        self.fresh_header = None;
        match event.body {
            EventBody::StepStart(_) => {
                self.owes_series = self.rewritten;
                self.users = SharedSet::default();
            }
            EventBody::RequestHeader(data) => {
                self.header_before = self.header.replace(data.header.clone());
                self.fresh_header = Some(event.seq);
                if data.starts_series || data.reason != Change {
                    (self.rewritten, self.owes_series) = (false, false);
                }
            }
            EventBody::RequestContext(data) => self.context = Some(Arc::new(data.clone())),
            _ if event.settles() => {
                // What changed while the model answered counts for the next request, whose header
                // the log alone cannot judge: it does not show when this one was sent.
                (self.rewritten, self.owes_series) = (false, false);
            }
            EventBody::UserMessage(message) if !event.is_replacement() => {
                self.users.insert(message.id.clone());
            }
            _ => {}
        }
        let projects =
            matches!(event.body, EventBody::Custom { kind, .. } if **kind == *IMAGE_OFFLOAD);
        self.rewritten |= event.is_replacement() || projects;
        // The loop rewrites prompts only as part of an admission.
        let prompt = matches!(event.body, EventBody::SystemMessage(_));
        self.owes_series |= prompt && event.is_replacement();
    }
}
