//! The order in which agents are shown: children below their parents.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use playhouse_messages::{id::SessionId, machine::Status};

use crate::cli::agent_row::AgentRow;

/// How siblings are ordered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// As they were made.
    #[default]
    Age,
    /// Those that run first.
    Status,
    /// Those that used most tokens first.
    Tokens,
    /// Those with the fullest mailbox first.
    Mail,
}

impl Sort {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Age => Self::Status,
            Self::Status => Self::Tokens,
            Self::Tokens => Self::Mail,
            Self::Mail => Self::Age,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Status => "status",
            Self::Tokens => "tokens",
            Self::Mail => "mailbox",
        }
    }

    fn key(self, row: &AgentRow) -> Reverse<u64> {
        Reverse(match self {
            // Ids begin with their time.
            Self::Age => 0,
            Self::Status => u64::from(row.status == Status::Running),
            Self::Tokens => row.input_tokens + row.output_tokens,
            Self::Mail => (row.next_turn + row.next_step) as u64,
        })
    }
}

/// One line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line<'a> {
    pub(super) row: &'a AgentRow,
    /// How far it is indented.
    pub(super) level: usize,
    /// How many agents are below it and not shown.
    pub(super) folded: usize,
    pub(super) has_children: bool,
}

/// The lines of a tree: what matches the filter, and what that stands below.
pub(super) fn lines<'a>(
    rows: &'a BTreeMap<SessionId, AgentRow>,
    collapsed: &BTreeSet<SessionId>,
    filter: &str,
    sort: Sort,
) -> Vec<Line<'a>> {
    let wanted = wanted(rows, filter);
    let mut below = Below::new();
    for row in rows.values().filter(|row| wanted.contains(&row.agent)) {
        // One whose parent is gone stands at the top.
        let parent = row.parent.as_ref().filter(|parent| wanted.contains(parent));
        below.entry(parent).or_default().push(row);
    }
    for children in below.values_mut() {
        children.sort_by_key(|row| (sort.key(row), &row.agent));
    }
    let mut lines = Vec::with_capacity(wanted.len());
    let mut stack: Vec<_> = top(&mut below, 0);
    while let Some((row, level)) = stack.pop() {
        let children = below.remove(&Some(&row.agent)).unwrap_or_default();
        let has_children = !children.is_empty();
        let is_folded = has_children && collapsed.contains(&row.agent);
        let folded = if is_folded { count(&mut below, &children) } else { 0 };
        lines.push(Line { row, level, folded, has_children });
        if !is_folded {
            stack.extend(children.into_iter().rev().map(|child| (child, level + 1)));
        }
    }
    lines
}

type Below<'a> = BTreeMap<Option<&'a SessionId>, Vec<&'a AgentRow>>;

fn top<'a>(below: &mut Below<'a>, level: usize) -> Vec<(&'a AgentRow, usize)> {
    let top = below.remove(&None).unwrap_or_default();
    top.into_iter().rev().map(|row| (row, level)).collect()
}

/// Takes what is below these out, and counts it with them.
fn count<'a>(below: &mut Below<'a>, rows: &[&'a AgentRow]) -> usize {
    let mut stack = rows.to_vec();
    let mut count = 0;
    while let Some(row) = stack.pop() {
        count += 1;
        stack.extend(below.remove(&Some(&row.agent)).unwrap_or_default());
    }
    count
}

fn wanted<'a>(rows: &'a BTreeMap<SessionId, AgentRow>, filter: &str) -> BTreeSet<&'a SessionId> {
    let filter = filter.to_lowercase();
    let mut wanted = BTreeSet::new();
    for row in rows.values().filter(|row| matches(row, &filter)) {
        let mut at = Some(row);
        // Those above it, up to one that was met before.
        while let Some(row) = at
            && wanted.insert(&row.agent)
        {
            at = row.parent.as_ref().and_then(|parent| rows.get(parent));
        }
    }
    wanted
}

fn matches(row: &AgentRow, filter: &str) -> bool {
    let status = if row.status == Status::Running { "running" } else { "idle" };
    let texts = [
        Some(row.agent.as_str()),
        row.label.as_deref(),
        row.model.as_deref(),
        row.last_error.as_deref(),
        Some(status),
    ];
    filter.is_empty()
        || texts.into_iter().flatten().any(|text| text.to_lowercase().contains(filter))
}
