//! `sessions salvage`.

use std::path::PathBuf;

use playhouse_stores::{SalvageReport, StoreConfig, StoreKind, salvage};
use serde_json::{Value, json};

use super::{Common, progress};
use crate::cli::{
    exit::{CliError, Exit},
    output::{Format, Out, tame},
};

pub(super) async fn run(
    into: PathBuf,
    kind: Option<StoreKind>,
    common: &Common,
) -> Result<Exit, CliError> {
    let dir = common.existing_dir()?;
    let kind = match kind {
        Some(kind) => kind,
        None => StoreKind::detect(&dir)?,
    };
    let bar = progress(0);
    let step = |at: playhouse_stores::Progress| {
        bar.set_length(at.all);
        bar.set_position(at.done);
    };
    let done = salvage(&dir, &into, StoreConfig::new(kind), step).await;
    bar.finish_and_clear();
    let report = done?;
    let mut out = Out::new();
    match common.format {
        Format::Text => {
            for line in report.to_string().lines() {
                out.line(&tame(line))?;
            }
            out.line(if report.is_whole() { "all came over" } else { "not all came over" })?;
        }
        Format::Jsonl => {
            for line in lines(&report) {
                out.line(&line.to_string())?;
            }
        }
    }
    out.flush()?;
    Ok(if report.is_whole() { Exit::Completed } else { Exit::Failed })
}

fn lines(report: &SalvageReport) -> Vec<Value> {
    let mut lines: Vec<Value> =
        report.damages.iter().map(|text| json!({"kind": "damage", "text": text})).collect();
    lines.extend(report.partial.iter().map(|it| {
        json!({
            "kind": "partial",
            "session": it.id,
            "events": it.events,
            "code": it.cause.code(),
            "text": it.cause.to_string(),
        })
    }));
    let lost = |of: &str, name: &str, error: &playhouse_plugin_api::store::StoreError| json!({"kind": "lost", of: name, "code": error.code(), "text": error.to_string()});
    lines.extend(report.lost.iter().map(|(id, error)| lost("session", id.as_str(), error)));
    lines.extend(report.lost_values.iter().map(|(key, error)| lost("value", key, error)));
    lines.push(json!({
        "kind": "report",
        "from": report.from,
        "into": report.into,
        "whole": report.whole,
        "partial": report.partial.len(),
        "lost": report.lost.len(),
        "events": report.events,
        "values": report.values,
        "lostValues": report.lost_values.len(),
        "moreLost": report.is_more_lost,
        "torn": report.torn,
    }));
    lines
}
