//! Titles, projections and questions over live sessions.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use playhouse::{
    AgentOptions, Failure, NewAgent, Session, SessionId,
    messages::{config::Route, header::SessionHeader},
    models::scripted::{Reply, Script, ScriptedAdapter},
    plugin_api::{
        cancel::CancelToken,
        llm::Purpose,
        store::{Store, StoreError, StoreReader},
    },
    sessions::{
        Projections, QueryError, SESSION_STATS, SessionProjections, SessionQuery, TITLE_KIND,
        Titles,
        projection::{PROJECTIONS_SERVICE, Told},
        query::{Phrase, SearchRequest},
        title::{
            LlmTitles, ProvidedTitle, TITLES_SERVICE, TitleConfig, TitleMode, TitleProvider,
            TitleRequest, TitleRequested, TitleSource, Titled,
        },
    },
    testing::{FaultyStore, Stage, StoreOp},
};
use playhouse_stores::MemoryStore;
use tokio::sync::Semaphore;

/// No wait of these tests takes long; one that does has failed.
async fn soon<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("it ends soon")
}

fn says(texts: &[&str]) -> Script {
    Script::sequence(texts.iter().map(|text| Reply::text(*text)))
}

fn titles_of(session: &Session) -> Vec<Titled> {
    session.log().iter().filter_map(|event| Titled::read(&event.body)).collect()
}

/// The session's titles, once there are so many.
async fn titles(session: &Session, count: usize) -> Vec<Titled> {
    let mut events = session.events(0);
    soon(async {
        let mut found = Vec::new();
        while found.len() < count {
            found.extend(Titled::read(&events.next().await.body));
        }
        found
    })
    .await
}

fn service(stage: &Stage) -> Arc<Titles> {
    stage.world().services.require(TITLES_SERVICE).unwrap()
}

/// Gives the newest prompt as the title, when it is let.
struct Gated {
    mode: TitleMode,
    asked: Arc<Semaphore>,
    let_go: Arc<Semaphore>,
    /// How many answers nobody waited for.
    dropped: Arc<AtomicUsize>,
}

impl Gated {
    fn new(mode: TitleMode) -> Arc<Self> {
        let (asked, let_go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        Arc::new(Self { mode, asked, let_go, dropped: Arc::default() })
    }

    async fn asked(&self) {
        soon(self.asked.acquire()).await.unwrap().forget();
    }
}

struct Abandoned(Arc<AtomicUsize>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl TitleProvider for Gated {
    fn name(&self) -> &str {
        "gated"
    }

    fn mode(&self) -> TitleMode {
        self.mode
    }

    fn title(&self, request: TitleRequest) -> BoxFuture<'static, Result<ProvidedTitle, Failure>> {
        let (asked, let_go) = (self.asked.clone(), self.let_go.clone());
        let abandoned = Abandoned(self.dropped.clone());
        async move {
            asked.add_permits(1);
            let_go.acquire().await.unwrap().forget();
            std::mem::forget(abandoned);
            let title = request.prompts.last().unwrap().1.text();
            Ok(ProvidedTitle { title, model: request.route })
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_session_is_called_by_its_first_prompt_once() {
    let stage = Stage::base(says(&["Yes.", "No."])).start().await.unwrap();
    let session = stage.agent().session().clone();
    stage.agent().prompt("Which  cache\nshould we use?").await.unwrap();
    let found = titles(&session, 1).await;
    assert_eq!(found[0].title, "Which cache should we use?");
    assert_eq!(found[0].source, TitleSource::Fallback);
    let prompt = session.log().get(found[0].message_seqs[0]).unwrap().clone();
    assert_eq!(prompt.body.message().unwrap().text(), "Which  cache\nshould we use?");
    let event = session.log().iter().find(|event| event.body.kind() == TITLE_KIND).unwrap().clone();
    assert!(event.ignorable && event.surface.is_none());
    stage.agent().prompt("And why?").await.unwrap();
    assert_eq!(titles_of(&session).len(), 1);

    let titles = service(&stage);
    let renamed = titles.rename(&session, " Caches\x07 ").await.unwrap();
    assert_eq!((&*renamed.title, renamed.is_pinned()), ("Caches", true));
    assert!(renamed.message_seqs.is_empty());
    assert_eq!(titles.rename(&session, "\n").await.unwrap_err().code(), "TITLE_EMPTY");
    let refreshed = titles.refresh(&session).await.unwrap();
    assert_eq!(
        (refreshed.title, refreshed.source),
        (found[0].title.clone(), TitleSource::Fallback)
    );
    let other = stage.another().await.unwrap();
    let error = titles.refresh(other.session()).await.unwrap_err();
    assert_eq!(error.code(), "TITLE_NO_PROMPT");
    stage.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_first_prompt_provider_is_asked_once_after_the_request_was_logged() {
    let provider = Gated::new(TitleMode::FirstPrompt);
    let stage = Stage::base(says(&["a", "b"])).start().await.unwrap();
    let titles_service = service(&stage);
    titles_service.provide(&stage.world().scope, provider.clone()).unwrap();
    let agent = stage.another().await.unwrap();
    agent.prompt("First").await.unwrap();
    provider.asked().await;
    provider.let_go.add_permits(2);
    let found = titles(agent.session(), 2).await;
    let log = agent.session().log();
    let header = log.iter().position(|event| event.body.kind() == "request/header").unwrap();
    let titled = log.iter().rposition(|event| event.body.kind() == TITLE_KIND).unwrap();
    assert!(header < titled);
    let TitleSource::Provider { provider: name, model } = &found[1].source else { panic!() };
    assert_eq!((&**name, model.as_ref().unwrap().model.as_str()), ("gated", "any"));
    agent.prompt("Second").await.unwrap();
    // A refresh asks again, and what it is asked for is the first prompt still.
    assert_eq!(titles_service.refresh(agent.session()).await.unwrap().title, "First");
    assert_eq!(titles_of(agent.session()).len(), 3);
    stage.shutdown().await.unwrap();
}

fn titler(stage: &Stage, replies: Vec<Reply>) -> (Arc<ScriptedAdapter>, LlmTitles) {
    let model = Arc::new(ScriptedAdapter::new(Script::sequence(replies)));
    model.stage().record(true);
    let _ = stage.world().models.register(["titler"], model.clone()).unwrap();
    let titles = LlmTitles::new(stage.world().models.clone()).route(Route::new("titler", "small"));
    (model, titles)
}

#[tokio::test]
async fn a_model_is_asked_for_a_title_and_the_request_is_logged_first() {
    let stage = Stage::base(says(&["a"])).start().await.unwrap();
    let replies = vec![
        Reply::text("\"Caches\" compared\n"),
        Reply::call("lookup", "{}"),
        Reply::text(" "),
        Reply::error("SERVER", "busy"),
    ];
    let (model, provider) = titler(&stage, replies);
    let titles_service = service(&stage);
    titles_service.provide(&stage.world().scope, Arc::new(provider)).unwrap();
    let agent = stage.another().await.unwrap();
    agent.prompt("Compare caches").await.unwrap();
    let found = titles(agent.session(), 2).await;
    assert_eq!(found[1].title, "\"Caches\" compared");
    let log = agent.session().log();
    let (at, asked) = (0..)
        .zip(log.iter())
        .find_map(|(at, event)| Some((at, TitleRequested::read(&event.body)?)))
        .unwrap();
    assert!(at < log.iter().rposition(|event| event.body.kind() == TITLE_KIND).unwrap());
    assert_eq!(
        (asked.messages, asked.message_seqs),
        (vec!["Compare caches".to_owned()], found[1].message_seqs.clone())
    );
    assert_eq!(asked.route, Route::new("titler", "small"));
    let sent = model.captured();
    assert_eq!(sent[0].purpose, Some(Purpose::SessionTitle));
    assert_eq!(sent[0].config.max_tokens, Some(asked.max_tokens));
    assert_eq!(sent[0].session_id.as_ref(), Some(agent.id()));
    let texts: Vec<_> = sent[0].messages.iter().map(|message| message.text()).collect();
    assert_eq!(texts, [asked.system, "Compare caches".to_owned()]);
    for code in ["TITLE_INVALID_ANSWER", "TITLE_INVALID_ANSWER", "SERVER"] {
        let error = titles_service.refresh(agent.session()).await.unwrap_err();
        assert_eq!(error.code(), code);
    }
    assert_eq!(titles_of(agent.session()).len(), 2, "a title that fails changes none");
    stage.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_title_has_a_deadline_and_a_ceiling() {
    let stage = Stage::base(says(&["a"])).start().await.unwrap();
    stage.agent().prompt("Compare caches").await.unwrap();
    let (model, provider) = titler(&stage, vec![Reply::text("late").at_gate("never")]);
    let titles = service(&stage);
    let late = provider.clone().deadline(Duration::from_secs(5));
    let registration = titles.provide(&stage.world().scope, Arc::new(late)).unwrap();
    let error = titles.refresh(stage.agent().session()).await.unwrap_err();
    assert_eq!(error.code(), "TITLE_TIMEOUT");
    registration.remove();
    let before = model.captured().len();
    titles.provide(&stage.world().scope, Arc::new(provider.max_input_bytes(20))).unwrap();
    let error = titles.refresh(stage.agent().session()).await.unwrap_err();
    assert_eq!(error.code(), "TITLE_INPUT_TOO_LONG");
    assert_eq!(model.captured().len(), before, "nothing was sent");
    stage.shutdown().await.unwrap();
}

/// A harness with projections over a store, and what it offers.
async fn projecting(store: Arc<dyn Store>) -> (Stage, Arc<Projections>) {
    let stage = Stage::base(says(&["a", "b"]))
        .harness(|harness| harness.shared_store(store).plugin(SessionProjections::new()))
        .start()
        .await
        .unwrap();
    let projections = stage.world().services.require(PROJECTIONS_SERVICE).unwrap();
    (stage, projections)
}

fn cache_key(id: &SessionId) -> String {
    format!("projcache/{id}")
}

/// Waits until the store has cached projections of a session.
async fn cached(store: &dyn StoreReader, id: &SessionId) {
    soon(async {
        while store.get_value(&cache_key(id)).await.unwrap().is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn projections_follow_a_live_session_and_serve_a_stored_one_from_the_cache() {
    let store = Arc::new(MemoryStore::new());
    let (stage, projections) = projecting(store.clone()).await;
    let agent = stage.agent();
    let mut changes = projections.changes();
    agent.prompt("Count my turns").await.unwrap();
    titles(agent.session(), 1).await;
    let named = soon(async {
        loop {
            match changes.next().await {
                Some(Told::Change(change)) if change.key == "title" => return change,
                Some(_) => {}
                None => panic!("the projections are gone"),
            }
        }
    });
    assert_eq!(named.await.view, "Count my turns");
    let live = projections.snapshot(agent.session());
    assert_eq!(
        (&live.values["title"], &live.values[SESSION_STATS]["turns"]),
        (&"Count my turns".into(), &1.into())
    );
    let id = agent.id().clone();
    agent.dispose().await.unwrap();
    cached(&*store, &id).await;
    let stored = projections.stored_snapshot(&*store, Some(&*store), &id).await.unwrap();
    assert_eq!(stored.values, live.values);
    let from_cache = projections.cached_snapshot(&*store, &id).await.unwrap().unwrap();
    assert_eq!(from_cache, stored);
    stage.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_search_finds_what_a_live_agent_has_said_and_what_is_stored() {
    let store = Arc::new(MemoryStore::new());
    let (stage, _) = projecting(store.clone()).await;
    stage.agent().prompt("Where is the needle?").await.unwrap();
    let other = stage.another().await.unwrap();
    other.prompt("No NEEDLE here, needle there").await.unwrap();
    let stored = other.id().clone();
    other.dispose().await.unwrap();
    let query = SessionQuery::new(Some(stage.world().agents.clone()), Some(store));
    let (request, cancel) =
        (SearchRequest::new(Phrase::new("needle").unwrap()), CancelToken::new());
    let page = query.search(&request, |_, _| (), &cancel).await.unwrap();
    let hits: Vec<_> = page
        .hits
        .iter()
        .map(|hit| (&hit.record.header.id, hit.record.live, hit.best.matches))
        .collect();
    assert_eq!(hits, [(&stored, false, 2), (stage.agent().id(), true, 1)]);
    let titles = query.titles(hits.iter().map(|(id, ..)| (*id).clone()), &cancel).await.unwrap();
    assert_eq!(titles.len(), 2);
    stage.shutdown().await.unwrap();
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn persistence_83_a_conflict_of_sources_is_told_and_a_live_session_needs_no_store() {
        let stage = Stage::base(says(&["a"])).start().await.unwrap();
        let agent = stage
            .harness()
            .create(NewAgent::new(AgentOptions::new()).id("s").cwd("/here"))
            .await
            .unwrap();
        let elsewhere = MemoryStore::new();
        let header = SessionHeader {
            cwd: Some("/there".into()),
            created_at: agent.session().header().created_at,
            ..SessionHeader::new("s".into(), 0)
        };
        let writer = elsewhere.create(&Arc::new(header), 0).await.unwrap();
        writer.flush().await.unwrap();
        let store = FaultyStore::new(elsewhere);
        let query =
            SessionQuery::new(Some(stage.world().agents.clone()), Some(Arc::new(store.clone())));
        let cancel = CancelToken::new();
        let error = query.list(&[], &cancel).await.unwrap_err();
        assert_eq!(error, QueryError::SourceConflict { id: "s".into(), field: "cwd" });
        for op in [StoreOp::List, StoreOp::Read] {
            store.fail(op, 9, StoreError::Closed);
        }
        let read = query.read(&"s".into(), &cancel).await.unwrap();
        assert!(read.live && read.header.cwd.as_deref() == Some("/here"));
        let error = query.list(&[], &cancel).await.unwrap_err();
        assert_eq!(error.code(), "SESSION_QUERY_PERSISTENCE_FAILED");
        stage.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn persistence_90_a_rename_pins_the_title_until_a_refresh() {
        let provider = Gated::new(TitleMode::AllPrompts);
        provider.let_go.add_permits(9);
        let stage = Stage::base(says(&["a", "b"])).start().await.unwrap();
        let titles_service = service(&stage);
        titles_service.provide(&stage.world().scope, provider.clone()).unwrap();
        let agent = stage.another().await.unwrap();
        agent.prompt("First").await.unwrap();
        titles(agent.session(), 2).await;
        titles_service.rename(agent.session(), "Mine").await.unwrap();
        agent.prompt("Second").await.unwrap();
        assert_eq!(titles_service.get(agent.session()).await.unwrap().title, "Mine");
        let refreshed = titles_service.refresh(agent.session()).await.unwrap();
        assert_eq!((&*refreshed.title, refreshed.message_seqs.len()), ("Second", 2));
        agent.dispose().await.unwrap();
        let all: Vec<_> = titles_of(agent.session()).into_iter().map(|found| found.title).collect();
        assert_eq!(all, ["First", "First", "Mine", "Second"]);
        stage.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn persistence_91_a_provider_that_is_too_late_writes_nothing() {
        let provider = Gated::new(TitleMode::FirstPrompt);
        let stage = Stage::base(says(&["a", "b"])).start().await.unwrap();
        let titles_service = service(&stage);
        titles_service.provide(&stage.world().scope, provider.clone()).unwrap();
        let renamed = stage.another().await.unwrap();
        renamed.prompt("First").await.unwrap();
        provider.asked().await;
        titles_service.rename(renamed.session(), "Mine").await.unwrap();
        let disposed = stage.another().await.unwrap();
        disposed.prompt("Second").await.unwrap();
        provider.asked().await;
        disposed.dispose().await.unwrap();
        soon(async {
            while provider.dropped.load(Ordering::Relaxed) < 2 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        provider.let_go.add_permits(2);
        stage.shutdown().await.unwrap();
        let titles = |session| -> Vec<_> {
            titles_of(session).into_iter().map(|found| found.title).collect()
        };
        assert_eq!(titles(renamed.session()), ["First", "Mine"]);
        assert_eq!(titles(disposed.session()), ["Second"]);
    }

    // The log is flushed by its own window here, and the cache waits for that.
    #[tokio::test]
    async fn persistence_103_no_row_is_written_while_the_log_is_not_durable() {
        let memory = Arc::new(MemoryStore::new());
        let store = FaultyStore::over(memory.clone());
        store.fail(StoreOp::Flush, 1_000_000, StoreError::Full { path: "/disk".into() });
        let (stage, projections) = projecting(Arc::new(store.clone())).await;
        let agent = stage.agent();
        agent.prompt("Hello").await.unwrap();
        let end = agent.session().log().len();
        assert!(agent.session().flush().await.is_err());
        // Whoever asks sees the turn; the store does not.
        assert!(projections.snapshot(agent.session()).as_of_seq >= Some(end - 1));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let key = cache_key(agent.id());
        assert!(agent.session().marks().borrow().durable < end);
        assert_eq!(memory.get_value(&key).await.unwrap(), None);
        store.heal();
        agent.session().flush().await.unwrap();
        cached(&*memory, agent.id()).await;
        stage.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn the_limits_of_titles_are_the_plugins() {
    let limits = TitleConfig::new(20, 2, 20).unwrap();
    let stage = Stage::minimal(says(&["a"]))
        .harness(|harness| harness.plugin(Titles::with(limits)))
        .start()
        .await
        .unwrap();
    stage.agent().prompt("one two three").await.unwrap();
    assert_eq!(titles(stage.agent().session(), 1).await[0].title, "one two");
    let titles = service(&stage);
    let renamed = titles.rename(stage.agent().session(), &"x".repeat(99)).await.unwrap();
    assert_eq!(renamed.title.len(), 20);
    stage.shutdown().await.unwrap();
}
