use std::sync::Arc;

use playhouse_messages::{
    content::ContentBlock,
    event::{AssistantMessage, CancelCause, EventBody, TurnEndReason},
    header::SessionHeader,
    log::Log,
    message::{Message, Source},
    testing::{Script, user},
};
use playhouse_plugin_api::{
    cancel::CancelToken,
    store::{EventBatch, Store},
};
use playhouse_stores::MemoryStore;

use super::*;
use crate::{
    rig::store,
    title::{TitleSource, Titled},
};

fn header(id: &str, created_at: u64, cwd: Option<&str>) -> SessionHeader {
    SessionHeader { cwd: cwd.map(str::to_owned), ..SessionHeader::new(id.into(), created_at) }
}

/// Sessions of which each has a prompt.
async fn stored(sessions: &[(SessionHeader, &str)]) -> (Arc<MemoryStore>, SessionQuery) {
    let memory = Arc::new(MemoryStore::new());
    for (header, text) in sessions {
        let mut script = Script::new();
        script.push(user("u", text));
        store(&memory, header.clone(), &script.log).await;
    }
    let query = SessionQuery::new(None, Some(memory.clone()));
    (memory, query)
}

fn ids(records: &[SessionRecord]) -> Vec<&str> {
    records.iter().map(|record| record.header.id.as_str()).collect()
}

fn phrase(text: &str) -> Phrase {
    Phrase::new(text).unwrap()
}

async fn append(memory: &MemoryStore, id: &str, text: &str) {
    let (writer, before) = memory.open_write(&id.into()).await.unwrap();
    let seq = before.events.len() as u64;
    let event = Arc::new(user(&format!("u{seq}"), text).at(seq, 0));
    writer.append(EventBatch::encode(&[event])).await.unwrap();
    writer.close().await.unwrap();
}

/// A turn whose answer thinks, calls a tool, and has its result replaced twice.
fn turn() -> Script {
    let mut script = Script::new();
    script.turn(1).step(1, 1);
    script.push(user("u", "Find Foo\n\tBAR"));
    let answer = Message {
        content: vec![
            ContentBlock::Reasoning("foo bar is secret".to_owned()),
            ContentBlock::text("Looking."),
        ],
        ..playhouse_messages::testing::assistant("a", "", &["c"])
    };
    script.push(playhouse_messages::event::NewEvent::append(EventBody::AssistantMessage(
        AssistantMessage {
            turn: 1,
            step: 1,
            message: Arc::new(answer),
            stream: vec![],
            usage: None,
            interrupted: false,
        },
    )));
    script.call("c");
    let result = script.result("c", "here: foo bar");
    let shorter = rewritten(&script, result, "here: [cut]");
    let shorter = script.replace(shorter, result, result);
    let shortest = rewritten(&script, shorter, "[cut]");
    script.replace(shortest, shorter, shorter);
    script.end_step(1, 1).end_turn(1, TurnEndReason::Aborted(CancelCause::User));
    script
}

/// A tool result with other content.
fn rewritten(script: &Script, seq: u64, text: &str) -> playhouse_messages::event::NewEvent {
    let EventBody::ToolResult(mut data) = script.log.get(seq).unwrap().body.clone() else {
        panic!("no result")
    };
    let message = Message { content: vec![ContentBlock::text(text)], ..(*data.message).clone() };
    data.message = Arc::new(message);
    playhouse_messages::event::NewEvent::append(EventBody::ToolResult(data))
}

async fn with_turn() -> SessionQuery {
    let memory = MemoryStore::new();
    store(&memory, header("s", 1, None), &turn().log).await;
    SessionQuery::new(None, Some(Arc::new(memory)))
}

#[tokio::test]
async fn sessions_are_listed_newest_first_and_filters_must_all_hold() {
    let (_, query) = stored(&[
        (header("b", 2, Some("/w")), "x"),
        (header("a", 2, Some("/w")), "x"),
        (header("old", 1, Some("/w")), "x"),
        (header("new", 3, None), "x"),
    ])
    .await;
    let cancel = CancelToken::new();
    assert_eq!(ids(&query.list(&[], &cancel).await.unwrap()), ["new", "a", "b", "old"]);
    for (filters, expected) in [
        (vec![SessionFilter::CreatedAt { from: Some(2), to: Some(2) }], vec!["a", "b"]),
        (vec![SessionFilter::CreatedAt { from: None, to: Some(1) }], vec!["old"]),
        (vec![SessionFilter::Parent(vec![None])], vec!["new", "a", "b", "old"]),
        (vec![SessionFilter::Availability(vec![Availability::Live])], vec![]),
        (
            vec![
                SessionFilter::Cwd(vec![Some("/w".into())]),
                SessionFilter::Id(vec!["new".into(), "b".into()]),
            ],
            vec!["b"],
        ),
    ] {
        assert_eq!(ids(&query.list(&filters, &cancel).await.unwrap()), expected, "{filters:?}");
    }
    let backwards = [SessionFilter::CreatedAt { from: Some(3), to: Some(2) }];
    let error = query.list(&backwards, &cancel).await.unwrap_err();
    assert_eq!(error.code(), "SESSION_QUERY_INVALID_FILTER");
}

#[tokio::test]
async fn a_cancelled_query_keeps_its_cause() {
    let (_, query) = stored(&[(header("a", 1, None), "x")]).await;
    let cancel = CancelToken::new();
    cancel.cancel(CancelCause::Hook { reason: "enough".into() });
    let request = SearchRequest::new(phrase("x"));
    for error in [
        query.list(&[], &cancel).await.unwrap_err(),
        query.read(&"a".into(), &cancel).await.unwrap_err(),
        query.search(&request, |_, _| (), &cancel).await.unwrap_err(),
    ] {
        let cause = CancelCause::Hook { reason: "enough".into() };
        assert_eq!(error, QueryError::Aborted(Some(cause)));
    }
}

#[tokio::test]
async fn a_window_has_its_bounds_and_its_event() {
    let (query, cancel) = (with_turn().await, CancelToken::new());
    let window = query.event(&"s".into(), 2, 50, 1, &cancel).await.unwrap();
    let seqs = |events: &[SessionEvent]| -> Vec<_> {
        events.iter().map(|found| found.event.seq).collect()
    };
    assert_eq!((seqs(&window.before), window.target.event.seq), (vec![0, 1], 2));
    assert_eq!((seqs(&window.after), window.target.class), (vec![3], SurfaceClass::Current));
    let error = query.event(&"s".into(), 2, 51, 0, &cancel).await.unwrap_err();
    assert_eq!(error.code(), "SESSION_QUERY_INVALID_WINDOW");
    let error = query.event(&"s".into(), 99, 0, 0, &cancel).await.unwrap_err();
    assert_eq!(error.code(), "SESSION_QUERY_EVENT_NOT_FOUND");
    let error = query.trace_event(&"s".into(), 99, &cancel).await.unwrap_err();
    assert_eq!(error.code(), "SESSION_QUERY_EVENT_NOT_FOUND");
    let error = query.event(&"gone".into(), 0, 0, 0, &cancel).await.unwrap_err();
    assert_eq!(error.code(), "SESSION_QUERY_SESSION_NOT_FOUND");
}

#[tokio::test]
async fn the_surface_is_what_the_model_sees() {
    let (query, cancel) = (with_turn().await, CancelToken::new());
    let view = query.surface(&"s".into(), &cancel).await.unwrap();
    let seqs: Vec<_> = view.messages.iter().map(|(seq, _)| *seq).collect();
    assert_eq!((seqs, view.captured_through_seq), (vec![2, 3, 7], Some(9)));
    assert_eq!(view.messages[2].1.text(), "[cut]");
    let memory = MemoryStore::new();
    let mut broken = Script::new();
    broken.push(user("u", "x"));
    let cut: Log = turn()
        .log
        .range(6..7)
        .cloned()
        .collect::<Vec<_>>()
        .into_iter()
        .enumerate()
        .map(|(seq, event)| {
            let mut event = (*event).clone();
            event.seq = seq as u64;
            Arc::new(event)
        })
        .collect();
    store(&memory, header("broken", 1, None), &cut).await;
    let query = SessionQuery::new(None, Some(Arc::new(memory)));
    let error = query.surface(&"broken".into(), &cancel).await.unwrap_err();
    assert_eq!(error.code(), "SESSION_QUERY_INVALID_SURFACE");
}

#[tokio::test]
async fn the_best_hits_come_first_page_by_page() {
    let sessions: Vec<_> = (0..25_u64)
        .map(|at| (header(&format!("s{at:02}"), at, None), "one needle in a haystack"))
        .chain([
            (header("twice", 0, None), "needle needle, and a long text around them"),
            (header("short", 0, None), "needle"),
            (header("none", 99, None), "hay"),
        ])
        .collect();
    let (_, query) = stored(&sessions).await;
    let cancel = CancelToken::new();
    let mut request = SearchRequest { limit: 10, ..SearchRequest::new(phrase("NEEDLE")) };
    let (mut found, mut pages, mut told) = (Vec::new(), 0, Vec::new());
    loop {
        let page = query.search(&request, |at, of| told.push((at, of)), &cancel).await.unwrap();
        found.extend(page.hits.iter().map(|hit| hit.record.header.id.to_string()));
        pages += 1;
        assert!(page.unreadable.is_empty());
        match page.next {
            Some(next) => request.cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(
        (pages, found.len(), &found[..3]),
        (3, 27, &["twice", "short", "s00"].map(String::from)[..])
    );
    assert_eq!((told.len(), told.last()), (3 * 29, Some(&(28, 28))));
    let mut sorted = found.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(sorted.len(), 27, "none twice");
    request.phrase = phrase("hay");
    let error = query.search(&request, |_, _| (), &cancel).await.unwrap_err();
    assert_eq!(error.code(), "SESSION_QUERY_INVALID_CURSOR");
    for limit in [0, 101] {
        let request = SearchRequest { limit, ..SearchRequest::new(phrase("x")) };
        let error = query.search(&request, |_, _| (), &cancel).await.unwrap_err();
        assert_eq!(error.code(), "SESSION_QUERY_INVALID_LIMIT");
    }
}

#[tokio::test]
async fn a_damaged_session_is_told_and_the_others_are_found() {
    let sessions = ["good", "bad"].map(|id| (header(id, 1, None), "needle"));
    let (memory, query) = stored(&sessions).await;
    memory.damage(&"bad".into(), 0, r#"{"type":"user/message""#.into());
    let request = SearchRequest::new(phrase("needle"));
    let page = query.search(&request, |_, _| (), &CancelToken::new()).await.unwrap();
    assert_eq!(page.hits[0].record.header.id, "good");
    assert_eq!(page.unreadable[0].0, "bad");
    assert_eq!(page.unreadable[0].1.code(), "SESSION_QUERY_CORRUPT_SESSION");
}

#[tokio::test]
async fn titles_settle_each_by_itself() {
    let (memory, query) = stored(&[(header("plain", 1, None), "x")]).await;
    let title = Titled { title: "T".into(), message_seqs: vec![], source: TitleSource::User };
    let log = crate::rig::log([title.event()]);
    store(&memory, header("named", 1, None), &log).await;
    let ids = ["plain", "named", "gone", "named"].map(Into::into);
    let titles = query.titles(ids, &CancelToken::new()).await.unwrap();
    assert_eq!(titles.len(), 3);
    assert_eq!(titles["named"], Ok(Some(title)));
    assert_eq!(titles["plain"], Ok(None));
    let error = titles["gone"].clone().unwrap_err();
    assert_eq!(error.code(), "SESSION_QUERY_SESSION_NOT_FOUND");
}

#[test]
fn what_can_be_searched_is_what_was_said_and_done() {
    let texts: Vec<_> = turn().log.iter().map(|event| searchable(event)).collect();
    assert_eq!(
        texts,
        [
            "",
            "",
            "Find Foo\n\tBAR",
            "Looking.",
            "tool\n{}",
            "here: foo bar",
            "here: [cut]",
            "[cut]",
            "",
            "aborted"
        ]
    );
    let notice =
        Message::user_from("n", vec![ContentBlock::text("  told  ")], Source::of_kind("x"));
    let event = EventBody::UserMessage(Arc::new(notice));
    let event = playhouse_messages::event::NewEvent::append(event).at(0, 0);
    assert_eq!(searchable(&event), "told");
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn persistence_84_null_is_a_session_without_a_directory_and_no_value_fits_none() {
        let (_, query) =
            stored(&[(header("in", 1, Some("/w")), "x"), (header("nowhere", 2, None), "x")]).await;
        let cancel = CancelToken::new();
        let found = query.list(&[SessionFilter::Cwd(vec![None])], &cancel).await.unwrap();
        assert_eq!(ids(&found), ["nowhere"]);
        let found = query.list(&[SessionFilter::Id(vec![])], &cancel).await.unwrap();
        assert!(found.is_empty());
    }

    #[tokio::test]
    async fn persistence_85_any_case_and_whitespace_match_reasoning_never_shadowed_results_do() {
        let (query, cancel) = (with_turn().await, CancelToken::new());
        let text = [EventFilter::Text(phrase("foo  bar"))];
        let found = query.events(&"s".into(), &text, &cancel).await.unwrap();
        let found: Vec<_> = found.iter().map(|found| (found.event.seq, found.class)).collect();
        assert_eq!(found, [(2, SurfaceClass::Current), (5, SurfaceClass::Shadowed)]);
        let request = SearchRequest::new(phrase("foo  bar"));
        let page = query.search_events(&"s".into(), &request, &cancel).await.unwrap();
        let hits: Vec<_> = page.hits.iter().map(|hit| (hit.seq, hit.class.unwrap())).collect();
        assert_eq!(hits, [(5, SurfaceClass::Shadowed), (2, SurfaceClass::Current)]);
        let narrow = [
            EventFilter::Seq { from: Some(4), to: Some(7) },
            EventFilter::Time { from: Some(5), to: None },
            EventFilter::Kind(vec!["tool/result".into()]),
            EventFilter::Surface(vec![SurfaceClass::Current]),
        ];
        let found = query.events(&"s".into(), &narrow, &cancel).await.unwrap();
        assert_eq!(found.iter().map(|found| found.event.seq).collect::<Vec<_>>(), [7]);
        let secret = SearchRequest::new(phrase("secret"));
        let page = query.search(&secret, |_, _| (), &cancel).await.unwrap();
        assert!(page.hits.is_empty());
    }

    #[tokio::test]
    async fn persistence_86_the_replacements_of_an_event_are_told_in_order() {
        let (query, cancel) = (with_turn().await, CancelToken::new());
        let first = query.trace_event(&"s".into(), 5, &cancel).await.unwrap();
        assert_eq!(first.replaced_by, Some(6));
        assert_eq!(first.replacement_chain, [6, 7]);
        assert_eq!((first.source_event_seqs, first.derived_event_seqs), (vec![4], vec![6]));
        let last = query.trace_event(&"s".into(), 7, &cancel).await.unwrap();
        assert_eq!((last.class, last.replaced_by), (SurfaceClass::Current, None));
        assert_eq!((last.replaced_event_seqs, last.replacement_chain), (vec![6], vec![]));
        let off = query.trace_event(&"s".into(), 0, &cancel).await.unwrap();
        assert_eq!(off.class, SurfaceClass::LogOnly);
    }

    #[tokio::test]
    async fn persistence_88_a_cursor_within_a_session_outlives_changes_elsewhere() {
        let (memory, query) =
            stored(&[(header("a", 1, None), "needle"), (header("b", 2, None), "needle")]).await;
        append(&memory, "a", "needle again").await;
        let cancel = CancelToken::new();
        let mut across = SearchRequest { limit: 1, ..SearchRequest::new(phrase("needle")) };
        across.cursor = query.search(&across, |_, _| (), &cancel).await.unwrap().next;
        let mut within = SearchRequest { limit: 1, ..SearchRequest::new(phrase("needle")) };
        within.cursor = query.search_events(&"a".into(), &within, &cancel).await.unwrap().next;
        assert!(across.cursor.is_some() && within.cursor.is_some());
        assert!(query.search(&across, |_, _| (), &cancel).await.is_ok());
        append(&memory, "b", "more").await;
        let error = query.search(&across, |_, _| (), &cancel).await.unwrap_err();
        assert_eq!(error.code(), "SESSION_QUERY_STALE_CURSOR");
        let page = query.search_events(&"a".into(), &within, &cancel).await.unwrap();
        assert_eq!((page.hits.len(), page.next), (1, None));
        append(&memory, "a", "more").await;
        let error = query.search_events(&"a".into(), &within, &cancel).await.unwrap_err();
        assert_eq!(error.code(), "SESSION_QUERY_STALE_CURSOR");
        // Another instance may see other things under the same numbers.
        let other = SessionQuery::new(None, Some(memory));
        let error = other.search(&across, |_, _| (), &cancel).await.unwrap_err();
        assert_eq!(error.code(), "SESSION_QUERY_INVALID_CURSOR");
    }
}
