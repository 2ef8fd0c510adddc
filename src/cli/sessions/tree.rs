//! `sessions tree`.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use playhouse_messages::{header::Origin, id::SessionId, machine::Status};
use playhouse_plugin_api::store::{SessionStat, StoreReader, all_sessions};
use playhouse_subagents::{Identity, descriptor::Mode, identify};
use serde_json::json;

use super::{Common, stat_json, stat_line};
use crate::cli::{
    exit::{CliError, Exit},
    output::{Format, Out, tame},
};

/// How long a process that has the store may take to say what its agents do.
#[cfg(unix)]
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// Sessions that are read at once.
const AT_ONCE: usize = 4;

pub(super) async fn run(common: &Common) -> Result<Exit, CliError> {
    let store = common.open().await?;
    let stats = all_sessions(&*store).try_collect::<Vec<_>>().await?;
    let about = About { who: identities(&*store, &stats).await, live: live(common).await? };
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
            out.line(&match common.format {
                Format::Text => format!("{}{}", "  ".repeat(depth), about.text(stat)),
                Format::Jsonl => about.json(stat, depth).to_string(),
            })?;
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

/// What sub-agents say of themselves. One that cannot be read is told of, and no other with it.
async fn identities(
    store: &dyn StoreReader,
    stats: &[SessionStat],
) -> BTreeMap<SessionId, Identity> {
    let children = stats.iter().filter(|stat| stat.header.origin == Some(Origin::Subagent));
    let read = |stat: &SessionStat| {
        let header = stat.header.clone();
        async move { (header.id.clone(), identify(store, &header).await) }
    };
    let reads: Vec<_> = children.map(read).collect();
    stream::iter(reads).buffer_unordered(AT_ONCE).collect().await
}

/// The agents of the process that has the store, if one does and answers.
#[cfg(unix)]
async fn live(common: &Common) -> Result<BTreeMap<SessionId, Status>, CliError> {
    use crate::cli::{rpc::SOCKET, top};

    let socket = common.existing_dir()?.join(SOCKET);
    let asked = tokio::time::timeout(PATIENCE, top::agents(&socket)).await;
    let agents = asked.unwrap_or(Ok(Vec::new())).unwrap_or_default();
    Ok(agents.into_iter().map(|row| (row.agent, row.status)).collect())
}

#[cfg(not(unix))]
async fn live(_common: &Common) -> Result<BTreeMap<SessionId, Status>, CliError> {
    Ok(BTreeMap::new())
}

/// What is known of sessions beside their headers.
struct About {
    who: BTreeMap<SessionId, Identity>,
    live: BTreeMap<SessionId, Status>,
}

impl About {
    fn text(&self, stat: &SessionStat) -> String {
        let mut text = stat_line(stat);
        match self.who.get(&stat.header.id) {
            Some(Ok(who)) => {
                let label = who.label.as_deref().unwrap_or("-");
                let kind = match who.mode {
                    Mode::OneShot => "",
                    Mode::Continuable(_) => ", can be continued",
                };
                text.push_str(&format!("  \"{label}\" by {}{kind}", who.provider));
            }
            Some(Err((reason, cause))) => {
                text.push_str(&format!("  {}: {cause}", reason.as_str()));
            }
            None => {}
        }
        if let Some(status) = self.live.get(&stat.header.id) {
            text.push_str(if *status == Status::Running { "  running" } else { "  idle" });
        }
        tame(&text)
    }

    fn json(&self, stat: &SessionStat, depth: usize) -> serde_json::Value {
        let mut value = stat_json(stat);
        value["depth"] = depth.into();
        value["activity"] = json!(self.live.get(&stat.header.id));
        match self.who.get(&stat.header.id) {
            Some(Ok(who)) => {
                value["label"] = json!(who.label);
                value["provider"] = json!(who.provider);
                value["continuable"] = who.recipe().is_some().into();
            }
            Some(Err((reason, cause))) => {
                value["diagnostic"] = json!({"reason": reason.as_str(), "cause": cause});
            }
            None => {}
        }
        value
    }
}
