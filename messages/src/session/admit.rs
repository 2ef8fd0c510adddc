//! The admission block (core 4.5, P4 to P6): what a request needs is committed, then the request
//! is frozen. One command, so that neither a splice nor a compaction comes between.

use std::{collections::HashSet, sync::Arc};

use super::{Admission, Admitted, Mint, SessionCore};
use crate::{
    admission::{NodeText, PromptChange, admit_prompt},
    chunk::Failure,
    config::ToolList,
    content::ContentBlock,
    event::{DeveloperMessage, EventBody, NewEvent, RequestHeader, StepAt, SystemMessage},
    message::{Message, Role, Source},
    request::{FrozenRequest, context_of, decide_header, header_of, tool_changes},
    session_state::AppendError,
    validate::InvalidEvent,
};

impl SessionCore {
    /// Commits all that the request needs, or nothing: what a strict provider would refuse must not
    /// stay in the log, where it would fail every later request too.
    pub(super) fn admit(
        &mut self,
        admission: Admission,
        mint: &mut dyn Mint,
    ) -> Result<Admitted, AppendError> {
        self.all_or_none(|core| core.admit_all(admission, mint))
    }

    fn admit_all(
        &mut self,
        admission: Admission,
        mint: &mut dyn Mint,
    ) -> Result<Admitted, AppendError> {
        let from = self.log.len();
        let Admission { at, prompt, tools, prepared, starts_series, generation_mark, .. } =
            &admission;
        check_tools(tools)?;
        let moved = |core: &Self| core.state.surface().content_generation() != *generation_mark;

        let baseline = self.state.requests().header().cloned();
        let tools_broken =
            prepared.tool_update.is_none() && self.state.requests().tools_changed(tools);
        let prompt_series = *starts_series || moved(self) || tools_broken;
        let in_history = prepared.system_prompt_update.is_some();
        let nodes = self.state.surface().system_nodes(&self.log);
        let nodes: Vec<_> = nodes.map(|(seq, message)| (seq, node_text(message))).collect();
        for change in admit_prompt(&nodes, prompt, in_history, prompt_series) {
            self.change_prompt(change, *at, prompt, mint)?;
        }

        self.admit_users(&admission, mint)?;

        let header = header_of(prepared, tools);
        let series = *starts_series || moved(self);
        let decided = decide_header(admission.header_logged, baseline.as_deref(), &header, series);
        let header = Arc::new(header);
        if let Some((reason, starts_series)) = decided {
            let data = RequestHeader { header: header.clone(), reason, starts_series };
            let event = NewEvent::log_only(EventBody::RequestHeader(data));
            let header_seq = self.append(event, mint)?.seq;
            let changes = baseline.and_then(|old| tool_changes(&old.tools, tools));
            if let Some(content) = changes {
                let adds = content.iter().any(|block| block.kind() == "tool-addition");
                let message = Message {
                    id: mint.message_id(),
                    role: Role::Developer,
                    tool_call_id: None,
                    is_error: None,
                    content,
                    source: Source::tool_registry(),
                };
                let data = DeveloperMessage {
                    turn: at.turn,
                    step: at.step,
                    message: message.into(),
                    header_seq: adds.then_some(header_seq),
                };
                self.append(NewEvent::append(EventBody::DeveloperMessage(data)), mint)?;
            }
        }
        let context = context_of(prepared);
        if self.state.requests().context_changed(&context) {
            self.append(NewEvent::log_only(EventBody::RequestContext(context)), mint)?;
        }

        let request = FrozenRequest {
            header,
            messages: self.state.history().clone(),
            tool_history: self.state.tools().snapshot(),
        };
        let generation = self.state.surface().content_generation();
        let fault = self.gate.check(&request.messages, generation).err();
        if let Some(fault) = fault.as_ref().filter(|fault| fault.seq() >= from) {
            return Err(fault.clone().into());
        }
        let fault = fault.map(|fault| Failure::new(fault.code(), fault.to_string()));
        Ok(Admitted { request, generation, fault })
    }

    fn change_prompt(
        &mut self,
        change: PromptChange,
        at: StepAt,
        prompt: &str,
        mint: &mut dyn Mint,
    ) -> Result<(), AppendError> {
        let mut body = |text: &str| {
            EventBody::SystemMessage(SystemMessage {
                turn: at.turn,
                step: at.step,
                message: Message::system(mint.message_id(), text).into(),
            })
        };
        let event = match change {
            PromptChange::Append => NewEvent::append(body(prompt)),
            PromptChange::Empty(seq) => NewEvent::replace(body(""), seq, seq, vec![seq]),
            PromptChange::Rewrite(seq) => NewEvent::replace(body(prompt), seq, seq, vec![seq]),
        };
        self.append(event, mint)?;
        Ok(())
    }

    /// The batch in order, with the loop's own runtime-context candidate brought up to date in its
    /// place; a snapshot that the surface lacks is appended after it.
    fn admit_users(
        &mut self,
        admission: &Admission,
        mint: &mut dyn Mint,
    ) -> Result<(), AppendError> {
        let told = self.state.runtime_context();
        let mut fresh = told.candidate(&admission.context, || mint.message_id()).map(Arc::new);
        for message in admission.users.iter().flatten() {
            let own = admission.candidate.as_ref() == Some(&message.id);
            let message = if own { fresh.take() } else { Some(message.clone()) };
            if let Some(message) = message {
                self.append(NewEvent::append(EventBody::UserMessage(message)), mint)?;
            }
        }
        if let Some(message) = fresh {
            self.append(NewEvent::append(EventBody::UserMessage(message)), mint)?;
        }
        Ok(())
    }
}

/// Tools that no developer message could tell of are refused before anything is committed: behind
/// the header it would be too late.
fn check_tools(tools: &ToolList) -> Result<(), InvalidEvent> {
    let mut names = HashSet::new();
    for tool in tools.iter() {
        let refuse = |reason| InvalidEvent::AddedTool { tool: tool.name.clone(), reason };
        if !names.insert(&tool.name) {
            return Err(refuse("it is declared more than once"));
        }
        if !tool.parameters.is_object() {
            return Err(refuse("its `parameters` must be an object"));
        }
    }
    Ok(())
}

fn node_text(message: &Message) -> NodeText {
    match message.content.as_slice() {
        [] => NodeText::Empty,
        [ContentBlock::Text(text)] if text.is_empty() => NodeText::Empty,
        [ContentBlock::Text(text)] => NodeText::Text(text.clone()),
        _ => NodeText::Opaque,
    }
}
