//! How a supervisor hears of the end of a child.

use ractor::{ActorCell, SupervisionEvent};

/// Who ended and why, if the event tells of an end. A child that was killed looks like one that was
/// stopped: which of both it was is for the supervisor's own records to say.
pub(crate) fn death(event: SupervisionEvent) -> Option<(ActorCell, String)> {
    match event {
        SupervisionEvent::ActorTerminated(child, _, why) => {
            Some((child, why.unwrap_or_else(|| "stopped".to_owned())))
        }
        SupervisionEvent::ActorFailed(child, fault) => Some((child, fault.to_string())),
        _ => None,
    }
}
