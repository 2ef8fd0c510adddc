//! What others than the loop write: executors, plugins, compaction.

use std::sync::Arc;

use super::rig::Rig;
use crate::{
    config::ModelChoice,
    content::ContentBlock,
    event::{EventBody, NewEvent, ToolCall, ToolErrorInfo, ToolResult},
    message::Message,
    repair::{ABORTED_BEFORE_DISPATCH, ABORTED_BEFORE_DISPATCH_TEXT},
    session::{Command, Mint, Reply},
};

impl Rig {
    /// What the executor does with what is left of the batch.
    pub fn run_tools(&mut self) -> bool {
        let pending: Vec<_> = self.core.state().recovery().pending().collect();
        for call in pending {
            match (&self.token, call.started) {
                (Some(_), None) => {
                    self.tool_call(call.id.as_str());
                    self.tool_result(call.id.as_str(), true);
                }
                (_, started) => {
                    if started.is_none() {
                        self.tool_call(call.id.as_str());
                    }
                    self.tool_result(call.id.as_str(), false);
                }
            }
        }
        self.world.concludes
    }

    pub fn append(&mut self, event: NewEvent) -> &mut Self {
        match self.core.execute(Command::Append(vec![event]), &mut self.mint) {
            Reply::Appended(_) => self,
            reply => panic!("{reply:?}"),
        }
    }

    pub fn tool_call(&mut self, id: &str) -> &mut Self {
        let at = self.core.state().boundary().at().unwrap();
        self.append(NewEvent::log_only(EventBody::ToolCall(ToolCall {
            turn: at.turn,
            step: at.step,
            call_id: id.into(),
            name: "tool".into(),
            arguments: "{}".into(),
        })))
    }

    pub fn tool_result(&mut self, id: &str, aborted: bool) -> &mut Self {
        let at = self.core.state().boundary().at().unwrap();
        let text = if aborted { ABORTED_BEFORE_DISPATCH_TEXT } else { "out" };
        let content = vec![ContentBlock::text(text)];
        let error = aborted.then(|| ToolErrorInfo {
            name: "AbortError".into(),
            code: ABORTED_BEFORE_DISPATCH.into(),
            reason: None,
        });
        let message_id = self.mint.message_id();
        let started = self.core.state().recovery().started(&id.into());
        let body = EventBody::ToolResult(ToolResult {
            turn: at.turn,
            step: at.step,
            message: Arc::new(Message::tool(message_id, &id.into(), aborted, content)),
            error,
            meta: None,
        });
        self.append(NewEvent::append(body).citing(started))
    }

    pub fn choose(&mut self, model: &str) -> &mut Self {
        let choice =
            ModelChoice { provider: "p".into(), model: model.into(), reasoning_effort: None };
        self.select(choice)
    }

    pub fn select(&mut self, choice: ModelChoice) -> &mut Self {
        self.append(NewEvent::log_only(EventBody::ModelSelection(choice)))
    }

    /// A compaction: a summary in the place of the nodes between these positions, inclusive.
    pub fn compact(&mut self, start: usize, end: usize) -> &mut Self {
        let nodes: Vec<_> = self.core.state().surface().nodes().collect();
        let id = self.mint.message_id();
        let body = EventBody::UserMessage(Arc::new(Message::user(id, "summary")));
        self.append(NewEvent::replace(body, nodes[start], nodes[end], nodes[start..=end].to_vec()))
    }
}
