//! `sessions list`.

use super::{Common, all, stat_json, stat_line};
use crate::cli::{
    exit::{CliError, Exit},
    output::{Format, Out},
};

pub(super) async fn run(common: &Common) -> Result<Exit, CliError> {
    let stats = all(&*common.open().await?).await?;
    let mut out = Out::new();
    for stat in &stats {
        match common.format {
            Format::Jsonl => out.line(&stat_json(stat).to_string())?,
            Format::Text => out.line(&stat_line(stat))?,
        }
    }
    out.flush()?;
    Ok(Exit::Completed)
}
