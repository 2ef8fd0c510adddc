//! Checkpoints in a store's values: one record a session.

use bytes::Bytes;
use futures::TryStreamExt as _;
use playhouse_messages::{header::SessionHeader, id::SessionId};
use playhouse_plugin_api::store::{Store, StoreError, StoreReader, all_values};
use serde::{Deserialize, Serialize};

use super::checkpoint::Checkpoint;

/// What the keys of all records begin with.
const PREFIX: &str = "projcache/";

/// A record as it is stored.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    identity: Identity,
    rows: Checkpoint,
}

/// Tells a session from a later one of the same id.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Identity {
    created_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
}

impl Identity {
    fn of(header: &SessionHeader) -> Self {
        Self { created_at: header.created_at, cwd: header.cwd.clone() }
    }
}

fn key(id: &SessionId) -> String {
    format!("{PREFIX}{id}")
}

/// What is kept of the session of this header. What cannot be read is as good as nothing.
pub(super) async fn load(reader: &dyn StoreReader, header: &SessionHeader) -> Checkpoint {
    let id = &header.id;
    let bytes = match reader.get_value(&key(id)).await {
        Ok(Some(bytes)) if !bytes.is_empty() => bytes,
        Ok(_) => return Checkpoint::default(),
        Err(error) => {
            tracing::warn!(session = %id, %error, "no cached projections can be read");
            return Checkpoint::default();
        }
    };
    match serde_json::from_slice::<Record>(&bytes) {
        Ok(record) if record.identity == Identity::of(header) => record.rows,
        Ok(_) => Checkpoint::default(),
        Err(fault) => {
            tracing::debug!(session = %id, %fault, "cached projections of another form");
            Checkpoint::default()
        }
    }
}

/// Keeps a checkpoint in the place of the one before. The log must be durable as far as it says.
pub(super) async fn save(
    store: &dyn Store,
    header: &SessionHeader,
    checkpoint: Checkpoint,
) -> Result<(), StoreError> {
    let record = Record { identity: Identity::of(header), rows: checkpoint };
    let bytes = serde_json::to_vec(&record)
        .map_err(|fault| StoreError::Argument(format!("projections as JSON: {fault}")))?;
    store.put_value(&key(&header.id), Bytes::from(bytes)).await
}

/// Drops what is cached of a session that is being deleted.
///
/// Without it nothing goes wrong: a later session of the same id has another time of creation.
///
/// # Errors
///
/// What the store says.
pub async fn forget(store: &dyn Store, id: &SessionId) -> Result<(), StoreError> {
    store.remove_value(&key(id)).await
}

/// Drops what is cached of sessions that are gone. Returns of how many.
///
/// # Errors
///
/// What the store says.
pub async fn forget_gone(
    store: &dyn Store,
    is_there: impl Fn(&SessionId) -> bool,
) -> Result<u64, StoreError> {
    let keys: Vec<String> = all_values(store).try_collect().await?;
    let mut gone = 0;
    for key in keys {
        if let Some(id) = key.strip_prefix(PREFIX)
            && !is_there(&SessionId::from(id))
        {
            store.remove_value(&key).await?;
            gone += 1;
        }
    }
    Ok(gone)
}
