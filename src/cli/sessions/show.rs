//! `sessions show`.

use playhouse_messages::id::SessionId;

use super::{Common, transcript};
use crate::cli::{
    exit::{CliError, Exit},
    output::{Format, Out},
};

pub(super) async fn run(id: &SessionId, common: &Common) -> Result<Exit, CliError> {
    let stored = common.open().await?.read(id).await?;
    let mut out = Out::new();
    match common.format {
        Format::Jsonl => {
            for event in &stored.events {
                out.bytes(event)?;
                out.bytes(b"\n")?;
            }
        }
        Format::Text => {
            let log = stored.log()?;
            transcript::write(&stored.header, &log, &mut out)?;
        }
    }
    out.flush()?;
    Ok(Exit::Completed)
}
