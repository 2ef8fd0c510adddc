//! A damaged journal, laid open for a salvage.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{StoreError, StoredSession};

use super::blocking;
use super::core::Core;
use super::reading::{nameless, torn_place, view};
use crate::journal::{Damage, Depth, Disk, RealDisk};
use crate::salvage::{Found, Source, Wreck};

struct JournalWreck(Arc<Core>);

/// Reads every byte of the journal in `dir`.
pub(crate) async fn open_wreck(dir: &Path) -> Result<Wreck, StoreError> {
    let (disk, dir): (Arc<dyn Disk>, _) = (Arc::new(RealDisk), dir.to_path_buf());
    let (core, found) = blocking(move || view(&disk, &dir, Depth::Full)).await?;
    let mut wreck = Wreck {
        ids: Vec::new(),
        nameless: Vec::new(),
        keys: Vec::new(),
        damages: found.damages.iter().map(Damage::to_string).collect(),
        is_more_lost: found.damages.iter().any(|damage| !damage.known),
        torn: torn_place(&found),
        source: Box::new(JournalWreck(Arc::new(core))),
    };
    for (&number, session) in &found.map.sessions {
        match session.id.as_str() {
            "" => wreck.nameless.push(nameless(number)),
            id => wreck.ids.push(SessionId::from(id)),
        }
    }
    let keys = found.map.kv.keys().chain(found.map.damaged_keys.keys());
    // The empty key is what a compaction ends with, and nobody's.
    let keys = keys.filter(|key| !key.is_empty());
    wreck.keys = keys.map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    wreck.keys.sort_unstable();
    wreck.keys.dedup();
    Ok(wreck)
}

impl Source for JournalWreck {
    fn session<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Found> {
        let (core, id) = (Arc::clone(&self.0), id.clone());
        async move {
            let found = blocking(move || Ok(found(&core, &id))).await;
            found.unwrap_or_else(Found::Nothing)
        }
        .boxed()
    }

    fn value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        let (core, key) = (Arc::clone(&self.0), key.as_bytes().to_vec());
        blocking(move || core.value(&key)).boxed()
    }
}

fn found(core: &Core, id: &SessionId) -> Found {
    let cause = match core.read(id) {
        Ok((session, _)) => return Found::Whole(session),
        Err(cause) => cause,
    };
    match core.prefix(id) {
        Ok(Some((header, inherited_event_count, events))) => {
            let session = StoredSession { header, inherited_event_count, events, tail: None };
            Found::Prefix(session, cause)
        }
        // Why the header cannot be read says more than why the whole cannot.
        Err(cause) => Found::Nothing(cause),
        Ok(None) => Found::Nothing(cause),
    }
}
