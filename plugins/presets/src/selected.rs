//! Which preset a log says it has.

use playhouse_messages::{
    event::{EventBody, NewEvent},
    header::SessionHeader,
    log::Log,
};
use serde_json::json;

/// The event by which a session changes its preset. It is required: a reader that does not know it
/// would compose the agent from another.
pub const SELECTED_KIND: &str = "agent-preset/selected";

/// The preset of a session: that of the last selection, else that of the header.
pub fn selected_preset(header: &SessionHeader, log: &Log) -> Option<String> {
    let mut selected = log.iter().rev().filter_map(|event| match &event.body {
        EventBody::Custom { kind, data } if &**kind == SELECTED_KIND => {
            data.get("agentPreset")?.as_str().map(str::to_owned)
        }
        _ => None,
    });
    selected.next().or_else(|| header.agent_preset.clone())
}

/// Whether no turn has begun, so that nothing was produced under the preset.
pub fn is_blank(log: &Log) -> bool {
    !log.iter().any(|event| matches!(event.body, EventBody::TurnStart(_)))
}

pub(crate) fn selection(id: &str) -> NewEvent {
    NewEvent::custom(SELECTED_KIND, json!({"agentPreset": id}))
}
