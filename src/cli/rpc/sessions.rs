//! Sessions as a whole: which there are, what they are called, what is in them.

use std::sync::Arc;

use playhouse_messages::id::SessionId;
use playhouse_plugin_api::{cancel::CancelToken, session::Session};
use playhouse_sessions::{
    ProjectionError, Projections, QueryError, SESSION_STATS, Titles,
    projection::PROJECTIONS_SERVICE,
    query::{
        Availability, EventHit, Phrase, SearchRequest, SessionFilter, SessionHit, SessionRecord,
    },
    title::{TITLES_SERVICE, TitleError, Titled},
};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::{
    methods::{Answer, Server, ok},
    wire::RpcError,
};
use crate::cli::sessions::hit_json;

/// Sessions that one `session/list` gives unless told otherwise, and at most.
const LIST_PAGE: usize = 1000;

impl From<QueryError> for RpcError {
    fn from(error: QueryError) -> Self {
        Self::application(error.code(), error.to_string())
    }
}

impl From<ProjectionError> for RpcError {
    fn from(error: ProjectionError) -> Self {
        Self::application(error.code(), error.to_string())
    }
}

impl From<TitleError> for RpcError {
    fn from(error: TitleError) -> Self {
        Self::application(error.code(), error.to_string())
    }
}

/// Which sessions are meant.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Filters {
    ids: Option<Vec<String>>,
    #[serde(deserialize_with = "present")]
    cwd: Option<Option<String>>,
    #[serde(deserialize_with = "present")]
    parent: Option<Option<String>>,
    since: Option<u64>,
    until: Option<u64>,
    live: Option<bool>,
}

/// `null` says something else than nothing.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(from).map(Some)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListParams {
    #[serde(default, rename = "where")]
    filters: Filters,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchParams {
    query: String,
    session: Option<String>,
    #[serde(default, rename = "where")]
    filters: Filters,
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RenameParams {
    session: String,
    title: String,
}

impl Filters {
    fn into_filters(self) -> Vec<SessionFilter> {
        let Self { ids, cwd, parent, since, until, live } = self;
        let ids = ids.map(|ids| SessionFilter::Id(ids.into_iter().map(Into::into).collect()));
        let cwd = cwd.map(|cwd| SessionFilter::Cwd(vec![cwd]));
        let parent = parent.map(|id| SessionFilter::Parent(vec![id.map(Into::into)]));
        let created = (since.is_some() || until.is_some())
            .then_some(SessionFilter::CreatedAt { from: since, to: until });
        let live = live.map(|live| match live {
            true => SessionFilter::Availability(vec![Availability::Live]),
            false => SessionFilter::Availability(vec![Availability::Persisted]),
        });
        [ids, cwd, parent, created, live].into_iter().flatten().collect()
    }
}

/// Whether an agent drives a session, or would wake for a message, or nobody would.
fn state(record: &SessionRecord) -> &'static str {
    match (record.live, &record.header.blueprint) {
        (true, _) => "live",
        (false, Some(_)) => "hibernated",
        (false, None) => "stored",
    }
}

fn record_json(record: &SessionRecord) -> Value {
    let mut value = json!(*record.header);
    value["live"] = record.live.into();
    value["stored"] = record.persisted.into();
    value["state"] = state(record).into();
    value["events"] = record.event_count.into();
    value
}

fn titled_json(id: &SessionId, titled: Option<&Titled>) -> Answer {
    ok(json!({
        "session": id,
        "title": titled.map(|titled| &titled.title),
        "source": titled.map(|titled| &titled.source),
        "messageSeqs": titled.map(|titled| &titled.message_seqs),
    }))
}

impl Server {
    /// Fires when the harness goes down.
    fn until_down(&self) -> CancelToken {
        self.desk.harness.world().scope.cancel_token().clone()
    }

    fn titles(&self) -> Result<Arc<Titles>, RpcError> {
        let titles = self.desk.harness.world().services.require::<Titles>(TITLES_SERVICE);
        titles.map_err(|error| RpcError::application(error.code(), error.to_string()))
    }

    fn session(&self, id: &str) -> Result<Session, RpcError> {
        Ok(self.agent(id)?.session().clone())
    }

    pub(super) async fn list_sessions(&self, params: ListParams) -> Answer {
        let limit = params.limit.unwrap_or(LIST_PAGE);
        if !(1..=LIST_PAGE).contains(&limit) {
            let text = format!("`limit` is 1 to {LIST_PAGE}");
            return Err(RpcError::invalid_params(text));
        }
        let cancel = self.until_down();
        let mut records = self.query.list(&params.filters.into_filters(), &cancel).await?;
        let total = records.len();
        records.truncate(limit);
        let ids = records.iter().map(|record| record.header.id.clone());
        let titles = self.query.titles(ids, &cancel).await?;
        let sessions: Vec<_> = records
            .iter()
            .map(|record| {
                let mut value = record_json(record);
                let title = titles.get(&record.header.id).and_then(|title| title.as_ref().ok());
                value["title"] = json!(title.and_then(|t| t.as_ref()).map(|t| &t.title));
                value
            })
            .collect();
        ok(json!({"sessions": sessions, "total": total}))
    }

    pub(super) async fn search(&self, params: SearchParams) -> Answer {
        let SearchParams { query, session, filters, limit, cursor } = params;
        let (phrase, cancel) = (Phrase::new(&query)?, self.until_down());
        let filters = filters.into_filters();
        let Some(session) = session else {
            let mut request = SearchRequest::new(phrase);
            (request.filters, request.cursor) = (filters, cursor);
            request.limit = limit.unwrap_or(request.limit);
            let page = self.query.search(&request, |_, _| (), &cancel).await?;
            let hit = |SessionHit { record, best }: &SessionHit| {
                let mut value = record_json(record);
                value["hit"] = hit_json(best);
                value
            };
            let hits: Vec<_> = page.hits.iter().map(hit).collect();
            let unreadable: Vec<_> = page
                .unreadable
                .iter()
                .map(|(id, error)| json!({"session": id, "code": error.code()}))
                .collect();
            return ok(json!({"hits": hits, "next": page.next, "unreadable": unreadable}));
        };
        if !filters.is_empty() {
            let text = "`session` looks into one session: leave `where` out";
            return Err(RpcError::invalid_params(text));
        }
        let mut request = SearchRequest::new(phrase);
        request.cursor = cursor;
        request.limit = limit.unwrap_or(request.limit);
        let page = self.query.search_events(&session.into(), &request, &cancel).await?;
        let hits: Vec<_> = page.hits.iter().map(|hit: &EventHit| hit_json(hit)).collect();
        ok(json!({"hits": hits, "next": page.next}))
    }

    pub(super) async fn stats(&self, id: SessionId) -> Answer {
        let world = self.desk.harness.world();
        let projections = world.services.require::<Projections>(PROJECTIONS_SERVICE);
        let projections =
            projections.map_err(|error| RpcError::application(error.code(), error.to_string()))?;
        let snapshot = match (self.desk.harness.agent(&id), &world.store) {
            (Some(agent), _) => projections.snapshot(agent.session()),
            (None, Some(store)) => {
                projections.stored_snapshot(&**store, Some(&**store), &id).await?
            }
            (None, None) => return Err(RpcError::application("NO_STORE", "there is no store")),
        };
        let stats = snapshot.values.get(SESSION_STATS);
        ok(json!({"session": id, "asOfSeq": snapshot.as_of_seq, "stats": stats}))
    }

    /// What a live session, or a stored one, is called.
    pub(super) async fn title(&self, id: SessionId) -> Answer {
        let mut titles = self.query.titles([id.clone()], &self.until_down()).await?;
        let titled = titles.remove(&id).transpose()?.flatten();
        titled_json(&id, titled.as_ref())
    }

    pub(super) async fn rename(&self, params: RenameParams) -> Answer {
        let session = self.session(&params.session)?;
        let titled = self.titles()?.rename(&session, &params.title).await?;
        titled_json(session.id(), Some(&titled))
    }

    pub(super) async fn refresh_title(&self, id: &str) -> Answer {
        let session = self.session(id)?;
        let titled = self.titles()?.refresh(&session).await?;
        titled_json(session.id(), Some(&titled))
    }
}
