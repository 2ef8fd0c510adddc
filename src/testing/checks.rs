//! What must be true of every session, wherever it was played.

use playhouse_messages::{invariants::Invariants, log::Log};
use playhouse_plugin_api::{session::Session, store::StoredSession};

/// Whether every turn of a log has ended.
pub(crate) fn balanced(log: &Log) -> bool {
    let mut invariants = Invariants::new();
    log.iter().all(|event| invariants.observe(event.as_ref().into()).is_ok())
        && invariants.is_balanced()
}

/// Whether what is stored is the session's log: all of it, or at least its first `events`.
pub(crate) fn kept(
    session: &Session,
    stored: Option<&StoredSession>,
    events: usize,
) -> Result<(), String> {
    let log = session.log();
    let stored = stored.map_or(&[][..], |stored| &stored.events);
    if stored.len() < events {
        return Err(format!("{} of {events} events are stored", stored.len()));
    }
    if stored.len() as u64 > log.len() {
        return Err(format!("{} events are stored of {}", stored.len(), log.len()));
    }
    for (event, bytes) in log.iter().zip(stored) {
        if event.to_json().as_bytes() != &bytes[..] {
            return Err(format!("event {} is stored otherwise", event.seq));
        }
    }
    Ok(())
}
