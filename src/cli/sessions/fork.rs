//! `sessions fork`.

use std::sync::Arc;

use playhouse_messages::{chunk::Failure, id::SessionId, repair::fork_seed};
use playhouse_plugin_api::{
    clock::{Clock, Ids, SystemClock, UuidIds},
    fork::{ForkPoint, store_fork},
    store::{Store, StoreError},
};
use serde_json::{Value, json};

use super::Common;
use crate::cli::{
    exit::{CliError, Exit},
    output::{Format, Out, tame},
};

pub(super) async fn run(
    from: ForkPoint,
    id: Option<SessionId>,
    common: &Common,
) -> Result<Exit, CliError> {
    let id = id.unwrap_or_else(|| UuidIds.session());
    if id.as_str().is_empty() {
        let text = "a session id must not be empty; leave --id out for a fresh one";
        return Err(CliError::Usage(text.to_owned()));
    }
    let (_, store) = common.open_write().await?;
    let forked = fork(&*store, &from, id).await;
    let closed = store.close().await;
    let forked = forked?;
    closed?;
    let mut out = Out::new();
    match common.format {
        Format::Text => out.line(&tame(forked["session"].as_str().unwrap_or_default()))?,
        Format::Jsonl => out.line(&forked.to_string())?,
    }
    out.flush()?;
    Ok(Exit::Completed)
}

/// What a harness does with [`ForkPoint`]s, without an agent.
async fn fork(store: &dyn Store, from: &ForkPoint, id: SessionId) -> Result<Value, CliError> {
    let source = store.read(&from.session).await?;
    let log = source.log()?;
    if store.stat(&id).await?.is_some() {
        return Err(StoreError::AlreadyExists { id }.into());
    }
    let now = SystemClock.now_ms();
    let seed = fork_seed(&log, from.boundary, now).map_err(|fault| {
        Failure::new(fault.code(), format!("session `{}`: {fault}", from.session))
    })?;
    let header = source.header.fork(id, u64::try_from(now).unwrap_or(0));
    header.check().map_err(|fault| CliError::Usage(fault.to_string()))?;
    let header = Arc::new(header);
    store_fork(store, &header, &seed).await?.close().await?;
    Ok(json!({
        "session": header.id,
        "parentSession": from.session,
        "inherited": seed.inherited,
        "events": seed.log.len(),
    }))
}
