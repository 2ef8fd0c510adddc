//! `sessions tree`.

use std::collections::{BTreeMap, BTreeSet};

use futures::TryStreamExt as _;
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{SessionStat, all_sessions};

use super::{Common, stat_json, stat_line};
use crate::cli::{
    exit::{CliError, Exit},
    output::{Format, Out},
};

pub(super) async fn run(common: &Common) -> Result<Exit, CliError> {
    let stats = all_sessions(&*common.open().await?).try_collect::<Vec<_>>().await?;
    let ids: BTreeSet<_> = stats.iter().map(|stat| stat.header.id.clone()).collect();
    let mut below: BTreeMap<Option<SessionId>, Vec<&SessionStat>> = BTreeMap::new();
    for stat in &stats {
        // A session whose parent is not here stands at the top.
        let parent = stat.header.parent_session.clone().filter(|parent| ids.contains(parent));
        below.entry(parent).or_default().push(stat);
    }
    for children in below.values_mut() {
        children.sort_by_key(|stat| (stat.header.created_at, stat.header.id.clone()));
    }
    let mut out = Out::new();
    // Taken out as they are shown, so that records which form a cycle end; none is lost, since
    // what is left is shown from the top after.
    while let Some(mut stack) = next_tree(&mut below) {
        while let Some((stat, depth)) = stack.pop() {
            match common.format {
                Format::Text => {
                    out.line(&format!("{}{}", "  ".repeat(depth), stat_line(stat)))?;
                }
                Format::Jsonl => {
                    let mut value = stat_json(stat);
                    value["depth"] = depth.into();
                    out.line(&value.to_string())?;
                }
            }
            let children = below.remove(&Some(stat.header.id.clone())).unwrap_or_default();
            stack.extend(children.into_iter().rev().map(|child| (child, depth + 1)));
        }
    }
    out.flush()?;
    Ok(Exit::Completed)
}

type Below<'a> = BTreeMap<Option<SessionId>, Vec<&'a SessionStat>>;

fn next_tree<'a>(below: &mut Below<'a>) -> Option<Vec<(&'a SessionStat, usize)>> {
    let (_, top) = below.pop_first()?;
    Some(top.into_iter().rev().map(|stat| (stat, 0)).collect())
}
