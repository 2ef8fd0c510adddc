//! How the tool set of a session changed, and what a route is told of it.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use crate::{
    config::{HeaderReason, ToolList, ToolSchema, ToolUpdate},
    content::ContentBlock,
    event::{EventBody, Seq},
    history::HistoryEntry,
    id::MessageId,
    log::Log,
    message::{Message, Role, SharedMessage},
};

/// A developer message adds a tool that its header does not define.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tool \"{tool}\" is not defined by the header that developer message \"{message}\" names")]
pub struct MissingDefinition {
    /// The developer message.
    pub message: MessageId,
    /// The tool.
    pub tool: String,
}

impl MissingDefinition {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        "MISSING_TOOL_DEFINITION"
    }
}

/// One change of the tool set since the baseline.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSetUpdate {
    /// The developer message that tells of it.
    pub message_id: MessageId,
    /// The definitions that came with it.
    pub additions: Arc<[Arc<ToolSchema>]>,
}

/// A baseline and the changes since, independent of what a route can take.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolHistorySnapshot {
    /// The tools declared when the series began.
    pub tools: ToolList,
    /// What changed since, in order.
    pub updates: Arc<Vec<ToolSetUpdate>>,
}

/// The fold of headers and developer messages. Clones share it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolHistory(Option<Arc<Series>>);

#[derive(Debug, Clone, PartialEq)]
struct Series {
    baseline: ToolList,
    updates: Arc<Vec<ToolSetUpdate>>,
    /// Every tool declared since the baseline, removed ones included.
    declared: BTreeMap<String, Arc<ToolSchema>>,
    available: BTreeSet<String>,
    active: ToolList,
}

impl Series {
    fn new(tools: &ToolList) -> Self {
        Self {
            baseline: tools.clone(),
            updates: Arc::default(),
            declared: tools.iter().map(|tool| (tool.name.clone(), tool.clone())).collect(),
            available: tools.iter().map(|tool| tool.name.clone()).collect(),
            active: tools.clone(),
        }
    }
}

impl ToolHistory {
    /// Before the first header.
    pub fn new() -> Self {
        Self::default()
    }

    /// Folds an event; `log` holds at least the events before it.
    pub fn apply(&mut self, log: &Log, body: &EventBody) -> Result<(), MissingDefinition> {
        match (body, &mut self.0) {
            (EventBody::RequestHeader(data), series) => {
                let tools = &data.header.tools;
                let redefines = |series: &Series| {
                    tools.iter().any(|tool| {
                        series.declared.get(&tool.name).is_some_and(|known| known != tool)
                    })
                };
                match series {
                    Some(series)
                        if data.reason != HeaderReason::Series
                            && !data.starts_series
                            && !redefines(series) =>
                    {
                        Arc::make_mut(series).active = tools.clone();
                    }
                    series => *series = Some(Arc::new(Series::new(tools))),
                }
            }
            (EventBody::DeveloperMessage(data), Some(series)) => {
                let additions = definitions(log, data.header_seq, &data.message)?;
                let series = Arc::make_mut(series);
                for tool in additions.iter() {
                    series.declared.insert(tool.name.clone(), tool.clone());
                    series.available.insert(tool.name.clone());
                }
                for block in &data.message.content {
                    if let ContentBlock::ToolRemoval { tool_name } = block {
                        series.available.remove(tool_name);
                    }
                }
                let message_id = data.message.id.clone();
                Arc::make_mut(&mut series.updates).push(ToolSetUpdate { message_id, additions });
            }
            _ => {}
        }
        Ok(())
    }

    /// The tools of the last header.
    pub fn active(&self) -> Option<&ToolList> {
        self.0.as_deref().map(|series| &series.active)
    }

    /// The history as a request carries it; `None` before the first header.
    ///
    /// A log whose changes were not all told gives its active tools as the baseline.
    pub fn snapshot(&self) -> Option<ToolHistorySnapshot> {
        let series = self.0.as_deref()?;
        let active: BTreeSet<&str> = series.active.iter().map(|tool| &*tool.name).collect();
        Some(if active.iter().copied().eq(series.available.iter().map(String::as_str)) {
            ToolHistorySnapshot { tools: series.baseline.clone(), updates: series.updates.clone() }
        } else {
            ToolHistorySnapshot { tools: series.active.clone(), updates: Arc::default() }
        })
    }
}

fn definitions(
    log: &Log,
    header_seq: Option<Seq>,
    message: &Message,
) -> Result<Arc<[Arc<ToolSchema>]>, MissingDefinition> {
    let header = match header_seq.and_then(|seq| log.get(seq)).map(|event| &event.body) {
        Some(EventBody::RequestHeader(data)) => Some(&data.header),
        _ => None,
    };
    let added = message.content.iter().filter_map(|block| match block {
        ContentBlock::ToolAddition { tool_name } => Some(tool_name),
        _ => None,
    });
    added
        .map(|name| {
            let tool = header.and_then(|h| h.tools.iter().find(|tool| tool.name == *name));
            tool.cloned().ok_or_else(|| MissingDefinition {
                message: message.id.clone(),
                tool: name.clone(),
            })
        })
        .collect()
}

/// What a route of one mode is told: which tools are declared, and which developer messages stand
/// in its history. It walks the messages of one request, in order.
#[derive(Debug, Clone)]
pub struct ToolProjection<'a> {
    declarations: ToolList,
    told: Option<Told<'a>>,
}

#[derive(Debug, Clone)]
struct Told<'a> {
    removals: bool,
    updates: HashSet<&'a MessageId>,
    offered: BTreeSet<String>,
}

impl<'a> ToolProjection<'a> {
    /// The projection of a history for a route. `messages` are those of the request: if one that
    /// tells of a change is not among them, the route is simply told the active tools.
    pub fn new<'m>(
        mode: Option<ToolUpdate>,
        active: &ToolList,
        history: Option<&'a ToolHistorySnapshot>,
        messages: impl IntoIterator<Item = &'m SharedMessage>,
    ) -> Self {
        let plain = |declarations| Self { declarations, told: None };
        let Some(mode) = mode else {
            return plain(active.iter().map(|tool| with_defer_loading(tool, false)).collect());
        };
        let Some(history) = history else { return plain(active.clone()) };
        let mut untold: HashSet<&MessageId> =
            history.updates.iter().map(|update| &update.message_id).collect();
        let updates = untold.clone();
        if !untold.is_empty() {
            for message in messages {
                if message.role == Role::Developer {
                    untold.remove(&message.id);
                }
            }
        }
        if !untold.is_empty() {
            return plain(active.clone());
        }
        let mut names: BTreeSet<&str> = BTreeSet::new();
        let mut declarations: Vec<Arc<ToolSchema>> = Vec::new();
        for tool in history.tools.iter() {
            names.insert(&tool.name);
            declarations.push(tool.clone());
        }
        for tool in history.updates.iter().flat_map(|update| update.additions.iter()) {
            if names.insert(&tool.name) {
                declarations.push(with_defer_loading(tool, true));
            }
        }
        let removals = mode == ToolUpdate::InHistory;
        if !removals {
            let active: BTreeSet<&str> = active.iter().map(|tool| &*tool.name).collect();
            declarations.retain(|tool| active.contains(&*tool.name));
        }
        let offered = history.tools.iter().filter(|tool| !tool.defer_loading);
        let offered = offered.map(|tool| tool.name.clone()).collect();
        Self { declarations: declarations.into(), told: Some(Told { removals, updates, offered }) }
    }

    /// The tools to declare.
    pub fn declarations(&self) -> &ToolList {
        &self.declarations
    }

    /// The next message as the provider gets it: the same one, a developer message without the
    /// blocks that mean nothing there, or nothing.
    pub fn message(&mut self, message: &SharedMessage) -> Option<SharedMessage> {
        if message.role != Role::Developer {
            return Some(message.clone());
        }
        let Told { removals, updates, offered } = self.told.as_mut()?;
        if !updates.contains(&message.id) {
            return None;
        }
        let declarations = &self.declarations;
        let keep: Vec<bool> = message
            .content
            .iter()
            .map(|block| match block {
                ContentBlock::ToolAddition { tool_name } => {
                    declarations.iter().any(|tool| tool.name == *tool_name)
                        && offered.insert(tool_name.clone())
                }
                ContentBlock::ToolRemoval { tool_name } => *removals && offered.remove(tool_name),
                _ => true,
            })
            .collect();
        if keep.iter().all(|keep| *keep) {
            return (!keep.is_empty()).then(|| message.clone());
        }
        let blocks = message.content.iter().zip(keep);
        let content: Vec<_> =
            blocks.filter(|(_, keep)| *keep).map(|(block, _)| block.clone()).collect();
        (!content.is_empty()).then(|| Arc::new(Message { content, ..(**message).clone() }))
    }

    /// The next history entry as the provider gets it. A message that passes unchanged keeps its
    /// encoding.
    pub fn entry(&mut self, entry: &HistoryEntry) -> Option<HistoryEntry> {
        let message = self.message(&entry.message)?;
        Some(if Arc::ptr_eq(&message, &entry.message) {
            entry.clone()
        } else {
            HistoryEntry::new(entry.seq, message)
        })
    }
}

fn with_defer_loading(tool: &Arc<ToolSchema>, defer_loading: bool) -> Arc<ToolSchema> {
    if tool.defer_loading == defer_loading {
        return tool.clone();
    }
    Arc::new(ToolSchema { defer_loading, ..(**tool).clone() })
}

#[cfg(test)]
mod tests;
