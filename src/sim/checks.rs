//! What must be true of every world.

use std::collections::BTreeSet;

use playhouse_messages::{
    event::EventBody, id::MessageId, invariants, log::Log, session_state::SessionState,
    tool_history::ToolProjection,
};
use playhouse_plugin_api::{
    llm::LlmRequest,
    store::{StoreError, StoredSession},
};

pub(super) use crate::testing::checks::{balanced, kept};

/// Whether the log gives this request: some prefix of it that ends in the open step folds to it.
pub(super) fn request(log: &Log, request: &LlmRequest) -> Result<(), String> {
    let is_start = |body: &EventBody| matches!(body, EventBody::StepStart(_));
    let start = log.iter().rev().find(|event| is_start(&event.body));
    let start = start.ok_or("no step is open")?.seq;
    let mut state = SessionState::new();
    let mut closest = "no header".to_owned();
    for event in log.iter() {
        state.advance(log, event).map_err(|fault| format!("event {}: {fault}", event.seq))?;
        if event.seq >= start {
            match same(&state, request) {
                Ok(()) => return Ok(()),
                Err(difference) => closest = difference,
            }
        }
    }
    Err(format!("no prefix of its log gives it; at the log's end: {closest}"))
}

fn same(state: &SessionState, request: &LlmRequest) -> Result<(), String> {
    let Some(header) = state.requests().header() else { return Err("no header".to_owned()) };
    if header.config != request.config {
        return Err(format!("the header says {:?}, not {:?}", header.config, request.config));
    }
    let history = state.tools().snapshot();
    let messages = state.history().messages();
    let mut projection = ToolProjection::new(None, &header.tools, history.as_ref(), messages);
    let messages = state.history().messages();
    let messages: Vec<_> = messages.filter_map(|message| projection.message(message)).collect();
    if messages != request.messages {
        return Err(format!(
            "the log has {} messages, the request {}",
            messages.len(),
            request.messages.len()
        ));
    }
    if *projection.declarations() != request.tools {
        return Err("other tools".to_owned());
    }
    Ok(())
}

/// The log that is stored; a violation of what holds of every log is an error.
pub(super) fn stored(session: &StoredSession) -> Result<Log, String> {
    let log = session.log().map_err(|error: StoreError| error.to_string())?;
    invariants::check(&log).map_err(|violation| violation.to_string())?;
    Ok(log)
}

/// The ids of all messages that ever entered the inbox.
pub(super) fn entered(log: &Log) -> BTreeSet<MessageId> {
    let splices = log.iter().filter_map(|event| match &event.body {
        EventBody::InboxSpliced(splice) => Some(splice),
        _ => None,
    });
    splices.flat_map(|splice| splice.inserted.iter().map(|message| message.id.clone())).collect()
}
