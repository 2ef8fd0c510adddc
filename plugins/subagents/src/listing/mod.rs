//! Who an agent's children are: those that live and those that are only stored. No agent is loaded.
//!
//! What lives comes before what is stored of it. A session counts by its header's origin; who it is
//! stands in its descriptor, and a session without a legible one is told of as a diagnostic.

mod identity;
mod timing;
mod tree;

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt, TryStreamExt, stream};
use playhouse_messages::{
    chunk::Failure, header::Origin, header::SessionHeader, id::SessionId, machine::Status,
};
use playhouse_plugin_api::{
    agent::Agent,
    cancel::CancelToken,
    store::{StoreError, StoreReader, all_sessions},
    world::World,
};

pub use self::identity::{Identity, identify};
pub use self::timing::{OpenTurn, Timing};
use self::tree::{Kin, Tree};
use crate::descriptor::Descriptor;

/// Stored sessions that are read at once.
const INSPECTIONS_MAX: usize = 4;

/// One child.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ChildRow {
    /// Its session.
    pub id: SessionId,
    /// The session right above it.
    pub parent: SessionId,
    /// How many levels below the session that was asked about; at least 1.
    pub depth: u32,
    /// Epoch milliseconds.
    pub created_at: u64,
    /// What is known of it.
    pub known: Known,
}

/// What is known of a child.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Known {
    /// Who it is.
    Child {
        /// Its descriptor.
        descriptor: Descriptor,
        /// What it does.
        activity: Activity,
        /// Whether any agent was ever delegated to by it.
        has_children: bool,
    },
    /// Why that cannot be said.
    Diagnostic {
        /// In one word.
        reason: Diagnostic,
        /// In its own words.
        cause: String,
    },
}

/// What a child does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It lives, and works.
    Running,
    /// It lives, and waits.
    Idle,
    /// It is stored.
    Stored,
}

/// Why it cannot be said who a child is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Diagnostic {
    /// What is stored does not say, or says something else than the catalog.
    Corrupt,
    /// It could not be read.
    Unavailable,
}

impl Activity {
    /// Its name in lists: a stored child is `ready` to be continued.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Idle => "idle",
            Self::Stored => "ready",
        }
    }
}

impl Diagnostic {
    /// Its name in lists.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Corrupt => "corrupt",
            Self::Unavailable => "unavailable",
        }
    }
}

/// Why nobody could be listed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// The catalog could not be read.
    #[error("the children could not be listed: {0}")]
    Store(#[from] StoreError),
    /// Nobody wants the list any more.
    #[error("the listing was cancelled")]
    Cancelled,
}

impl ListError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Store(error) => error.code(),
            Self::Cancelled => "CANCELLED",
        }
    }
}

impl From<ListError> for Failure {
    fn from(error: ListError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// The agents that this one delegated to, live and stored, oldest first.
///
/// # Errors
///
/// [`ListError`]. A child that cannot be read is a row, not an error.
pub async fn list_children(
    world: &World,
    parent: &SessionId,
    cancel: &CancelToken,
) -> Result<Vec<ChildRow>, ListError> {
    Census::of(world).list(parent, Some(1), cancel).await
}

/// The agents below this one, live and stored: each before those below it, siblings oldest first.
/// Forks that lie between are walked through and not listed.
///
/// # Errors
///
/// As [`list_children`].
pub async fn list_descendants(
    world: &World,
    root: &SessionId,
    cancel: &CancelToken,
) -> Result<Vec<ChildRow>, ListError> {
    Census::of(world).list(root, None, cancel).await
}

/// Who lives, and what is stored.
struct Census<'a> {
    live: BTreeMap<SessionId, Agent>,
    store: Option<&'a dyn StoreReader>,
}

impl<'a> Census<'a> {
    fn of(world: &'a World) -> Self {
        let live = world.agents.all().into_iter().map(|agent| (agent.id().clone(), agent));
        let store = world.store.as_deref().map(|store| store as &dyn StoreReader);
        Self { live: live.collect(), store }
    }

    async fn list(
        &self,
        root: &SessionId,
        depth_max: Option<u32>,
        cancel: &CancelToken,
    ) -> Result<Vec<ChildRow>, ListError> {
        let listing = async {
            let tree = Tree::new(self.headers().await?);
            let kin = tree.below(root, depth_max);
            let kin = kin.into_iter().filter(|kin| is_child(&kin.header));
            let rows = kin.map(|kin| self.row(&tree, kin));
            let rows: Vec<_> = stream::iter(rows).buffered(INSPECTIONS_MAX).collect().await;
            Ok(rows.into_iter().flatten().collect())
        };
        cancel.race(listing).await.unwrap_or(Err(ListError::Cancelled))
    }

    async fn headers(&self) -> Result<Vec<Arc<SessionHeader>>, StoreError> {
        let mut headers: Vec<_> =
            self.live.values().map(|agent| agent.session().header().clone()).collect();
        if let Some(store) = self.store {
            let mut stored = all_sessions(store);
            while let Some(stat) = stored.try_next().await? {
                if !self.live.contains_key(&stat.header.id) {
                    headers.push(stat.header);
                }
            }
        }
        Ok(headers)
    }

    /// `None` for a child that is being made, and has not said yet who it is.
    async fn row(&self, tree: &Tree, kin: Kin) -> Option<ChildRow> {
        let Kin { header, depth } = kin;
        let has_children = tree.children(&header.id).any(|child| is_child(child));
        let (identity, activity) = match self.live.get(&header.id) {
            Some(agent) => {
                let (log, from) = (agent.session().log(), agent.session().inherited_event_count());
                let found = Descriptor::of(&log, from);
                if matches!(found, Ok(None)) {
                    return None;
                }
                let activity = match agent.status() {
                    Status::Running => Activity::Running,
                    Status::Idle => Activity::Idle,
                };
                (identity::of_live(found), activity)
            }
            None => (identify(self.store?, &header).await, Activity::Stored),
        };
        let known = match identity {
            Ok(descriptor) => Known::Child { descriptor, activity, has_children },
            Err((reason, cause)) => Known::Diagnostic { reason, cause },
        };
        let parent = header.parent_session.clone()?;
        Some(ChildRow {
            id: header.id.clone(),
            parent,
            depth,
            created_at: header.created_at,
            known,
        })
    }
}

fn is_child(header: &SessionHeader) -> bool {
    header.origin == Some(Origin::Subagent)
}
