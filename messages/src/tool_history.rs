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
            blocks.filter_map(|(block, keep)| keep.then(|| block.clone())).collect();
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
mod tests {
    use super::*;
    use crate::{
        event::{DeveloperMessage, NewEvent, RequestHeader},
        message::Source,
        testing::{Script, header, schema, user},
    };

    /// A session's tool set changes, as the loop logs them.
    #[derive(Default)]
    struct Session {
        script: Script,
        history: ToolHistory,
    }

    impl Session {
        fn header(&mut self, tools: &[&str], reason: HeaderReason, starts_series: bool) -> Seq {
            self.header_of(tools.iter().map(|name| schema(name)).collect(), reason, starts_series)
        }

        fn header_of(&mut self, tools: ToolList, reason: HeaderReason, starts_series: bool) -> Seq {
            let header = Arc::new(crate::config::Header { tools, ..header(&[]) });
            let data = RequestHeader { header, reason, starts_series };
            self.push(NewEvent::log_only(EventBody::RequestHeader(data)))
        }

        fn developer(&mut self, header_seq: Option<Seq>, changes: &[&str]) -> Seq {
            let event = developer(&format!("d{}", self.script.log.len()), header_seq, changes);
            self.push(event)
        }

        fn push(&mut self, event: NewEvent) -> Seq {
            let seq = self.script.push(event);
            let body = &self.script.log.get(seq).unwrap().body;
            self.history.apply(&self.script.log, body).unwrap();
            seq
        }

        /// What a route of this mode gets: declared names (deferred ones with `~`), and the blocks
        /// of each developer message (`+x`, `-x`).
        fn told(&self, mode: Option<ToolUpdate>) -> (Vec<String>, Vec<Vec<String>>) {
            self.told_of(mode, self.script.history.clone())
        }

        fn told_of(
            &self,
            mode: Option<ToolUpdate>,
            history: crate::history::History,
        ) -> (Vec<String>, Vec<Vec<String>>) {
            let snapshot = self.history.snapshot();
            let active = self.history.active().unwrap();
            let mut projection =
                ToolProjection::new(mode, active, snapshot.as_ref(), history.messages());
            let names = projection
                .declarations()
                .iter()
                .map(|tool| format!("{}{}", if tool.defer_loading { "~" } else { "" }, tool.name));
            let names = names.collect();
            let kept = history.messages().filter_map(|message| projection.message(message));
            let developers = kept.filter(|message| message.role == Role::Developer);
            (names, developers.map(|message| blocks(&message)).collect())
        }
    }

    fn developer(id: &str, header_seq: Option<Seq>, changes: &[&str]) -> NewEvent {
        let content = changes.iter().map(|change| match change.split_at(1) {
            ("+", name) => ContentBlock::ToolAddition { tool_name: name.into() },
            ("-", name) => ContentBlock::ToolRemoval { tool_name: name.into() },
            _ => ContentBlock::text(*change),
        });
        let message = Message {
            role: Role::Developer,
            ..Message::user_from(id, content.collect(), Source::tool_registry())
        };
        NewEvent::append(EventBody::DeveloperMessage(DeveloperMessage {
            turn: 1,
            step: 1,
            message: Arc::new(message),
            header_seq,
        }))
    }

    fn blocks(message: &Message) -> Vec<String> {
        let block = |block: &ContentBlock| match block {
            ContentBlock::ToolAddition { tool_name } => format!("+{tool_name}"),
            ContentBlock::ToolRemoval { tool_name } => format!("-{tool_name}"),
            other => other.kind().to_owned(),
        };
        message.content.iter().map(block).collect()
    }

    const IN_HISTORY: Option<ToolUpdate> = Some(ToolUpdate::InHistory);
    const ADDITION_ONLY: Option<ToolUpdate> = Some(ToolUpdate::AdditionOnly);
    use HeaderReason::{Change, Initial, Resume};

    /// `search`, then `fetch` comes, then goes.
    fn add_then_remove() -> Session {
        let mut session = Session::default();
        session.header(&["search"], Initial, false);
        let added = session.header(&["search", "fetch"], Change, false);
        session.developer(Some(added), &["+fetch"]);
        session.header(&["search"], Change, false);
        session.developer(None, &["-fetch"]);
        session
    }

    #[test]
    fn a_log_that_did_not_tell_gives_its_active_tools() {
        let mut session = Session::default();
        session.header(&["a"], Initial, false);
        session.header(&["a", "b"], Resume, false);
        let snapshot = session.history.snapshot().unwrap();
        assert_eq!(snapshot.tools.len(), 2);
        assert!(snapshot.updates.is_empty());
        assert_eq!(ToolHistory::new().snapshot(), None);
    }

    #[test]
    fn a_missing_definition_is_an_error() {
        let mut session = Session::default();
        let header = session.header(&["a"], Initial, false);
        let before = session.history.clone();
        for header_seq in [Some(header), None, Some(99)] {
            let event = developer("d", header_seq, &["+b"]);
            let fault = session.history.apply(&session.script.log, &event.body).unwrap_err();
            assert_eq!((fault.tool.as_str(), fault.code()), ("b", "MISSING_TOOL_DEFINITION"));
        }
        assert_eq!(session.history, before);
    }

    #[test]
    fn a_hidden_update_degrades_to_plain_declarations() {
        let session = add_then_remove();
        let (names, developers) = session.told_of(IN_HISTORY, Default::default());
        assert_eq!((names, developers), (vec!["search".to_owned()], vec![]));
        // No history at all: as the tools are.
        let mut projection =
            ToolProjection::new(IN_HISTORY, session.history.active().unwrap(), None, []);
        assert_eq!(projection.declarations().len(), 1);
        let told = session.script.history.messages().next().unwrap();
        assert_eq!(projection.message(told), None);
    }

    #[test]
    fn a_tool_that_returns_is_offered_once_more() {
        let mut session = add_then_remove();
        let back = session.header(&["search", "fetch"], Change, false);
        session.developer(Some(back), &["+fetch"]);
        let (names, developers) = session.told(IN_HISTORY);
        assert_eq!(names, ["search", "~fetch"]);
        assert_eq!(developers, [["+fetch"], ["-fetch"], ["+fetch"]]);
        // Without removals the first offer still stands.
        let (names, developers) = session.told(ADDITION_ONLY);
        assert_eq!(
            (names.as_slice(), developers),
            (&["search".into(), "~fetch".into()][..], vec![vec!["+fetch".to_owned()]])
        );
    }

    #[test]
    fn deferred_loading_is_stripped_only_for_plain_routes() {
        let mut session = Session::default();
        let deferred = with_defer_loading(&schema("a"), true);
        session.header_of(Arc::new([deferred]), Initial, false);
        assert_eq!(session.told(None).0, ["a"]);
        assert_eq!(session.told(IN_HISTORY).0, ["~a"]);
    }

    #[test]
    fn an_unchanged_message_keeps_its_encoding() {
        let mut session = add_then_remove();
        session.push(user("u", "u"));
        let snapshot = session.history.snapshot();
        let history = &session.script.history;
        let mut projection = ToolProjection::new(
            ADDITION_ONLY,
            session.history.active().unwrap(),
            snapshot.as_ref(),
            history.messages(),
        );
        let bytes = || Ok::<_, ()>(bytes::Bytes::from_static(b"x"));
        let last = history.iter().last().unwrap();
        last.wire.wire(1, bytes).unwrap();
        let kept: Vec<_> = history.iter().filter_map(|entry| projection.entry(entry)).collect();
        assert_eq!(kept.len(), 1, "both developer messages are about a tool that is gone");
        assert_eq!(kept[0].wire.wire(1, || Err("encoded twice")).unwrap(), "x");
    }

    mod scenario {
        use super::*;

        #[test]
        fn newest_24_a_plain_route_sees_the_full_list_and_no_developer_message() {
            let mut session = Session::default();
            session.header(&["search"], Initial, false);
            let header = session.header(&["search", "fetch"], Change, false);
            session.developer(Some(header), &["+fetch"]);
            let plain = (vec!["search".to_owned(), "fetch".to_owned()], vec![]);
            assert_eq!(session.told(None), plain);
        }

        #[test]
        fn newest_26_in_history_keeps_the_declaration_of_a_removed_tool() {
            let session = add_then_remove();
            let (names, developers) = session.told(IN_HISTORY);
            assert_eq!(names, ["search", "~fetch"]);
            assert_eq!(developers, [["+fetch"], ["-fetch"]]);
            assert_eq!(session.history.active().unwrap().len(), 1);
        }

        #[test]
        fn newest_27_addition_only_drops_the_declaration_and_the_removal() {
            let (names, developers) = add_then_remove().told(ADDITION_ONLY);
            assert_eq!(names, ["search"]);
            assert!(developers.is_empty());
        }

        #[test]
        fn newest_28_a_redefinition_starts_over() {
            let mut session = add_then_remove();
            // `fetch` is gone but still declared: its new definition breaks the series.
            let other = ToolSchema { description: "other".into(), ..(*schema("fetch")).clone() };
            session.header_of(Arc::new([schema("search"), Arc::new(other)]), Change, false);
            let snapshot = session.history.snapshot().unwrap();
            assert!(snapshot.updates.is_empty());
            let (names, developers) = session.told(IN_HISTORY);
            assert_eq!(names, ["search", "fetch"]);
            assert!(developers.is_empty());
        }

        #[test]
        fn newest_30_a_series_start_makes_its_own_developer_message_empty() {
            for (reason, starts_series) in [(Change, true), (HeaderReason::Series, false)] {
                let mut session = add_then_remove();
                let header = session.header(&["search", "fetch"], reason, starts_series);
                session.developer(Some(header), &["+fetch"]);
                let (names, developers) = session.told(IN_HISTORY);
                assert_eq!(names, ["search", "fetch"]);
                assert!(developers.is_empty());
            }
        }
    }
}
