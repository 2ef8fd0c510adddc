//! What others than the loop write: executors, plugins, compaction.

use std::sync::Arc;

use proptest::sample::Index;

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

    /// What an executor does that then fails.
    pub fn run_some_tools(&mut self) {
        let (calls, results) = self.world.fails_after;
        for _ in 0..calls {
            self.start_call();
        }
        for _ in 0..results {
            self.finish_call();
        }
    }

    /// The next call starts.
    pub fn start_call(&mut self) {
        let mut pending = self.core.state().recovery().pending();
        let next = pending.find(|call| call.started.is_none());
        drop(pending);
        if let Some(call) = next {
            self.tool_call(call.id.as_str());
        }
    }

    /// The first call that has no result gets one, if it has started.
    pub fn finish_call(&mut self) {
        let first = self.core.state().recovery().pending().next();
        if let Some(call) = first.filter(|call| call.started.is_some()) {
            self.tool_result(call.id.as_str(), false);
        }
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
        self.append(NewEvent::log_only(EventBody::ModelSelection(choice)))
    }

    /// A compaction: a summary in the place of the nodes between these positions, inclusive.
    pub fn compact(&mut self, start: usize, end: usize) -> &mut Self {
        let nodes: Vec<_> = self.core.state().surface().nodes().collect();
        let id = self.mint.message_id();
        let body = EventBody::UserMessage(Arc::new(Message::user(id, "summary")));
        self.append(NewEvent::replace(body, nodes[start], nodes[end], nodes[start..=end].to_vec()))
    }

    /// Replaces some neighbours that can go without parting a call from its result.
    pub fn compact_some(&mut self, a: Index, b: Index) {
        let log = self.core.log().clone();
        let nodes: Vec<_> = self.state().surface().nodes().collect();
        let body = |at: usize| nodes.get(at).map(|seq| &log.get(*seq).unwrap().body);
        let is_result = |at| matches!(body(at), Some(EventBody::ToolResult(_)));
        let head = usize::from(matches!(body(0), Some(EventBody::SystemMessage(_))));
        if nodes.len() <= head {
            return;
        }
        let pick = |index: Index| head + index.index(nodes.len() - head);
        let (start, end) = (pick(a).min(pick(b)), pick(a).max(pick(b)));
        if !is_result(start) && !is_result(end + 1) {
            self.compact(start, end);
        }
    }

    /// A tool result loses its content, if a turn is open to say so.
    pub fn prune(&mut self, at: Index) {
        let log = self.core.log().clone();
        let nodes = self.state().surface().nodes();
        let results = nodes.filter_map(|seq| match &log.get(seq)?.body {
            EventBody::ToolResult(data) => Some((seq, data.clone())),
            _ => None,
        });
        let results: Vec<_> = results.collect();
        if self.state().boundary().open_turn().is_none() || results.is_empty() {
            return;
        }
        let (seq, mut data) = at.get(&results).clone();
        let content = vec![ContentBlock::text("pruned")];
        data.message = Arc::new(Message { content, ..(*data.message).clone() });
        self.append(NewEvent::replace(EventBody::ToolResult(data), seq, seq, vec![seq]));
    }
}
