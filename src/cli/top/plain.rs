//! The tree as lines, for pipes and programs.

use std::collections::BTreeSet;

use serde_json::json;

use super::{
    draw::{age, doing, mail, name, short, turn},
    link::Link,
    now,
    tree::{self, Line, Sort},
};
use crate::cli::{
    exit::{CliError, Exit},
    output::{Format, Out, tame},
};

pub(super) async fn run(mut link: Link, format: Format) -> Result<Exit, CliError> {
    let tree = super::tree(&mut link).await?;
    let rows = tree.agents.into_iter().map(|row| (row.agent.clone(), row)).collect();
    let mut out = Out::new();
    let now = now();
    for line in tree::lines(&rows, &BTreeSet::new(), "", Sort::Age) {
        out.line(&match format {
            Format::Jsonl => json!(line.row).to_string(),
            Format::Text => text(&line, now),
        })?;
    }
    out.flush()?;
    Ok(Exit::Completed)
}

/// One agent on one line; the id comes last, whole, since programs cut at it.
pub(super) fn text(line: &Line<'_>, now: i64) -> String {
    let row = line.row;
    let status = json!(row.status);
    let mut text = format!(
        "{}{}  {}  turn {}  {}  tokens {} / {}  mail {}  for {}",
        "  ".repeat(line.level),
        name(row),
        status.as_str().unwrap_or_default(),
        turn(row),
        doing(row),
        short(row.input_tokens),
        short(row.output_tokens),
        mail(row),
        age(row, now),
    );
    if let Some(error) = &row.last_error {
        text.push_str(&format!("  {error}"));
    }
    if row.label.is_some() {
        text.push_str(&format!("  {}", row.agent));
    }
    tame(&text)
}
