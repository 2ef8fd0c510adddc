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
