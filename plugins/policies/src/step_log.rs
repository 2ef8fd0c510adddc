//! What a log says of the open step.

use playhouse_messages::{
    event::{Event, EventBody, NewEvent, StepAt},
    log::Log,
};
use serde::{Serialize, de::DeserializeOwned};

/// The events of the open step, newest first.
pub(crate) fn newest_first(log: &Log, at: StepAt) -> impl Iterator<Item = &Event> {
    let starts = move |event: &&Event| event.body == EventBody::StepStart(at);
    log.iter().rev().map(|event| &**event).take_while(move |event| !starts(event))
}

/// The data of an event of this kind; `None` for another kind, or data of another shape.
pub(crate) fn read<T: DeserializeOwned>(kind: &str, body: &EventBody) -> Option<T> {
    match body {
        EventBody::Custom { kind: this, data } if **this == *kind => {
            serde_json::from_value(data.clone()).ok()
        }
        _ => None,
    }
}

/// An event of this kind. Whoever does not know it loses nothing but an explanation.
pub(crate) fn write(kind: &'static str, data: &impl Serialize) -> NewEvent {
    let data =
        serde_json::to_value(data).expect("these shapes have string keys and finite numbers");
    NewEvent::custom(kind, data).ignorable()
}
