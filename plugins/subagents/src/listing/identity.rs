//! Who a session is, by its descriptor.

use playhouse_messages::{event::Event, header::SessionHeader, log::Log};
use playhouse_plugin_api::store::StoreReader;

use super::Diagnostic;
use crate::descriptor::{CorruptDescriptor, Descriptor};

/// The first events of a session that inherits nothing, among which its descriptor is: a longer
/// look is taken only if it is not.
const HEAD_LEN: u64 = 4;

/// Who a session is, or why that cannot be said, in one word and in its own.
pub type Identity = Result<Descriptor, (Diagnostic, String)>;

/// The identity of a session that says who it is, or cannot be read as saying so.
pub(super) fn of_live(found: Result<Option<Descriptor>, CorruptDescriptor>) -> Identity {
    match found {
        Ok(Some(descriptor)) => Ok(descriptor),
        Ok(None) => corrupt("it does not say who it is"),
        Err(fault) => corrupt(fault.to_string()),
    }
}

/// The identity of a stored session: by as little of it as says so. No agent is loaded.
pub async fn identify(store: &dyn StoreReader, header: &SessionHeader) -> Identity {
    if !header.is_seeded
        && let Some(descriptor) = head(store, header).await?
    {
        return Ok(descriptor);
    }
    let stored = store.read(&header.id).await.map_err(unavailable)?;
    same(&stored.header, header)?;
    let log = stored.log().map_err(unavailable)?;
    of_live(Descriptor::of(&log, stored.inherited_event_count))
}

/// The descriptor, if it is where a child of this build has it.
async fn head(
    store: &dyn StoreReader,
    header: &SessionHeader,
) -> Result<Option<Descriptor>, (Diagnostic, String)> {
    let Some(stat) = store.stat(&header.id).await.map_err(unavailable)? else {
        return Err(unavailable("it was deleted"));
    };
    same(&stat.header, header)?;
    let head = store.read_events(&header.id, 0..HEAD_LEN).await.map_err(unavailable)?;
    let mut log = Log::new();
    for bytes in head {
        // What cannot be read here is told of by whoever reads all of it.
        match std::str::from_utf8(&bytes).map(Event::from_json) {
            Ok(Ok(event)) if event.seq == log.len() => log.push(event.into()),
            _ => return Ok(None),
        }
    }
    Descriptor::of(&log, 0).map_err(|fault| (Diagnostic::Corrupt, fault.to_string()))
}

fn same(inspected: &SessionHeader, listed: &SessionHeader) -> Result<(), (Diagnostic, String)> {
    if inspected == listed {
        return Ok(());
    }
    corrupt("its header is not the one in the catalog").map(drop)
}

fn corrupt(cause: impl Into<String>) -> Identity {
    Err((Diagnostic::Corrupt, cause.into()))
}

fn unavailable(cause: impl ToString) -> (Diagnostic, String) {
    (Diagnostic::Unavailable, cause.to_string())
}
