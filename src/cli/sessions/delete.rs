//! `sessions delete`.

use std::collections::BTreeSet;

use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::StoreError;
use playhouse_policies::{SpillDir, SpillStore as _};
use playhouse_sessions::projection::forget;
use serde_json::json;

use super::Common;
use crate::cli::{
    exit::{CliError, Exit},
    house::SPILLS,
    output::{Format, Out, tame},
};

pub(super) async fn run(ids: Vec<SessionId>, common: &Common) -> Result<Exit, CliError> {
    // One that is named twice is deleted once.
    let ids: BTreeSet<_> = ids.into_iter().collect();
    let (dir, store) = common.open_write().await?;
    let deleted = async {
        // All or none, as far as it can be known before.
        for id in &ids {
            if store.stat(id).await?.is_none() {
                return Err(StoreError::NotFound { id: id.clone(), store: store.describe() }.into());
            }
        }
        let spills = SpillDir::new(dir.join(SPILLS));
        let mut out = Out::new();
        for id in &ids {
            store.delete(id).await?;
            forget(&*store, id).await?;
            spills.remove(id.clone()).await.map_err(|error| {
                CliError::Failed(playhouse_messages::chunk::Failure::new(
                    error.code(),
                    error.to_string(),
                ))
            })?;
            match common.format {
                Format::Jsonl => {
                    out.line(&json!({"kind": "deleted", "session": id}).to_string())?
                }
                Format::Text => out.line(&format!("deleted {}", tame(id.as_str())))?,
            }
        }
        out.flush()
    }
    .await;
    let closed = store.close().await;
    deleted?;
    closed?;
    Ok(Exit::Completed)
}
