//! Agents made, resumed, forked and switched with presets.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use playhouse_messages::{chunk::Failure, id::SessionId};
use playhouse_plugin_api::{
    agent::Agent,
    creation::{AgentHandle, NewAgent},
    fork::ForkPoint,
    scope::{Scope, ScopeId},
    world::World,
};

use crate::{
    Composed, PresetError, Root, RowFactories, author,
    discovery::{Preset, State, discover, find},
    generation::{Generation, Use},
    selected::{is_blank, selected_preset, selection},
};

/// The presets of a harness. Clones are the same service.
///
/// Each composition is read anew, and mounted once for all agents that are made while it stays the
/// same. An agent stays with its generation until it is gone, whatever becomes of the files, and so
/// do its children, which see what their parent sees.
#[derive(Clone)]
pub struct Presets(Arc<Inner>);

struct Inner {
    world: Arc<World>,
    roots: Vec<Root>,
    rows: RowFactories,
    /// One look at the disk and one mount at a time: the later look gives the later generation.
    mounting: tokio::sync::Mutex<()>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// What agents to come get.
    current: HashMap<String, Arc<Generation>>,
    /// All that somebody uses or will.
    all: HashMap<ScopeId, Weak<Generation>>,
}

impl Presets {
    /// The presets below these roots; of two with one id the one in the earlier root counts.
    pub fn new(world: Arc<World>, roots: Vec<Root>, rows: RowFactories) -> Self {
        let (mounting, table) = (tokio::sync::Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { world, roots, rows, mounting, table }))
    }

    /// All presets by id, broken ones with what is wrong.
    ///
    /// # Errors
    ///
    /// `PRESET_IO` for a root that cannot be read.
    pub async fn list(&self) -> Result<Vec<Preset>, PresetError> {
        let roots = self.0.roots.clone();
        let presets = blocking(move || discover(&roots)).await?;
        Ok(presets.into_iter().map(|preset| self.checked(preset)).collect())
    }

    /// Composes an agent to come from a preset: it will see what the preset registers, its header
    /// will name it, and its options take the preset's model where they say nothing. The agent's
    /// [`NewAgent::within`] is the preset's.
    ///
    /// # Errors
    ///
    /// `UNKNOWN_PRESET` with the ids that there are, `PRESET_BROKEN`, `PRESET_MOUNT` with what a row
    /// was refused for, `PRESET_IO`.
    pub async fn compose(&self, id: &str, mut new: NewAgent) -> Result<NewAgent, PresetError> {
        let used = self.current(id).await?;
        let generation = used.generation();
        generation.composed.composition.fill(&mut new.options);
        new.agent_preset = Some(id.to_owned());
        Ok(holding(new.within(generation.scope.clone()), used))
    }

    /// As [`Presets::compose`] for a session that is to be resumed, with the preset that its log
    /// says it has; without one it stays as it is.
    ///
    /// # Errors
    ///
    /// As [`Presets::compose`], and the store's if the session cannot be read.
    pub async fn compose_resumed(
        &self,
        session: &SessionId,
        new: NewAgent,
    ) -> Result<NewAgent, PresetError> {
        self.compose_as(&ForkPoint::from(session.clone()), new).await
    }

    /// As [`Presets::compose`] for a fork, with the preset that its source had there.
    ///
    /// # Errors
    ///
    /// As [`Presets::compose_resumed`].
    pub async fn compose_fork(
        &self,
        from: &ForkPoint,
        new: NewAgent,
    ) -> Result<NewAgent, PresetError> {
        self.compose_as(from, new).await
    }

    async fn compose_as(&self, at: &ForkPoint, new: NewAgent) -> Result<NewAgent, PresetError> {
        match self.preset_at(at).await? {
            Some(id) => self.compose(&id, new).await,
            None => Ok(new),
        }
    }

    /// The preset that a session, live or stored, has at a point of its log: that of the last
    /// selection, else that of its header.
    ///
    /// # Errors
    ///
    /// The store's if the session cannot be read.
    pub async fn preset_at(&self, at: &ForkPoint) -> Result<Option<String>, PresetError> {
        let world = &self.0.world;
        let (header, log) = match (world.agents.get(&at.session), &world.store) {
            (Some(agent), _) => (agent.session().header().clone(), agent.session().log()),
            (None, None) => {
                let text = format!("no session `{}`: there is no store", at.session);
                return Err(PresetError::Agent(Failure::new("SESSION_NOT_FOUND", text)));
            }
            (None, Some(store)) => {
                let failed = |fault: playhouse_plugin_api::store::StoreError| {
                    PresetError::Agent(Failure::new(fault.code(), fault.to_string()))
                };
                let stored = store.read(&at.session).await.map_err(failed)?;
                let log = stored.log().map_err(failed)?;
                (stored.header, log)
            }
        };
        let end = at.boundary.map_or(log.len(), |boundary| boundary.saturating_add(1));
        let log = log.range(0..end.min(log.len())).cloned().collect();
        Ok(selected_preset(&header, &log))
    }

    /// Binds a child to come to its parent's exact generation, which is not read again. Its options
    /// stay as they are.
    ///
    /// Children of the spawn provider are bound so without this: they see what is registered above
    /// their parent.
    pub fn compose_from(&self, parent: &Agent, mut new: NewAgent) -> NewAgent {
        let beside = parent.scope().parent().unwrap_or_else(|| parent.scope()).clone();
        match self.generation_of(parent.scope()) {
            None => new.within(beside),
            Some(generation) => {
                new.agent_preset = Some(generation.composed.preset.clone());
                match generation.join() {
                    Ok(used) => holding(new.within(beside), used),
                    // The creation finds the scope closed, and fails.
                    Err(_) => new.within(beside),
                }
            }
        }
    }

    /// What a live agent is composed from: of its own generation, not of the files as they are now.
    pub fn composed_preset(&self, agent: &Agent) -> Option<Composed> {
        self.generation_of(agent.scope()).map(|generation| generation.composed.clone())
    }

    /// Gives an agent another preset while its session is blank: no turn has begun. The preset is
    /// mounted first; then the agent ends, with its pending input kept, its session is resumed
    /// within the new preset, and the log says so by `agent-preset/selected`. The handle that was
    /// given is of an agent that is gone then. `new` is what the agent is made with again; nobody
    /// else may send to it meanwhile.
    ///
    /// # Errors
    ///
    /// `PRESET_NOT_BLANK`, `NO_STORE`, and as [`Presets::compose`]: then the agent is as it was. If
    /// the session cannot be resumed, the agent is gone and its session stays.
    pub async fn recompose(
        &self,
        agent: &AgentHandle,
        id: &str,
        new: NewAgent,
    ) -> Result<AgentHandle, PresetError> {
        let (world, session) = (&self.0.world, agent.session());
        if !is_blank(&session.log()) {
            return Err(PresetError::NotBlank { session: session.id().to_string() });
        }
        let failed = |code, text: &str| Err(PresetError::Agent(Failure::new(code, text)));
        // A session without any event is nowhere but in its agent: it is made again.
        if world.store.is_none() && !session.log().is_empty() {
            return failed("NO_STORE", "the session is not stored, and would lose what it holds");
        }
        let Some(maker) = world.maker.get() else {
            return failed("NO_HARNESS", "no harness makes agents in this world");
        };
        let mut new = self.compose(id, new).await?.id(session.id().clone());
        new.runtime_parent = new.runtime_parent.or_else(|| agent.runtime_parent().cloned());
        new.origin = new.origin.or(session.header().origin);
        new.delegation_depth = new.delegation_depth.or(session.header().delegation_depth);
        new.cwd = new.cwd.or_else(|| session.header().cwd.clone());
        let (set_up, id) = (new.set_up.take(), id.to_owned());
        let new = new.set_up(move |agent| {
            let (set_up, id) = (set_up.clone(), id.clone());
            async move {
                if let Some(set_up) = set_up {
                    set_up(agent.clone()).await?;
                }
                agent.session().append(selection(&id)).await?;
                Ok(())
            }
        });
        agent.dispose_keeping_inbox().await.map_err(PresetError::Agent)?;
        if !session.log().is_empty() {
            Ok(maker.resume(new).await?)
        } else {
            Ok(maker.create(new).await?)
        }
    }

    /// Copies a preset: see [`author::copy`].
    ///
    /// # Errors
    ///
    /// As [`author::copy`].
    pub async fn copy(
        &self,
        from: impl Into<String>,
        id: impl Into<String>,
        name: Option<String>,
    ) -> Result<Preset, PresetError> {
        let (roots, from, id) = (self.0.roots.clone(), from.into(), id.into());
        let copy = move || author::copy(&roots, &from, &id, name.as_deref());
        Ok(self.checked(blocking(copy).await?))
    }

    /// Removes a preset: see [`author::remove`].
    ///
    /// # Errors
    ///
    /// As [`author::remove`].
    pub async fn remove(&self, id: impl Into<String>) -> Result<(), PresetError> {
        let (roots, id) = (self.0.roots.clone(), id.into());
        blocking(move || author::remove(&roots, &id)).await
    }

    /// The generation that agents to come get.
    async fn current(&self, id: &str) -> Result<Use, PresetError> {
        let inner = &self.0;
        let _one = inner.mounting.lock().await;
        let (roots, wanted) = (inner.roots.clone(), id.to_owned());
        let found = self.checked(blocking(move || find(&roots, &wanted)).await?);
        let composition = match found.state {
            State::Ready(composition) => composition,
            State::Broken { reason } => {
                return Err(PresetError::Broken { id: id.to_owned(), reason });
            }
        };
        let same = self.table().current.get(id).cloned();
        let same = same.filter(|current| current.composed.composition == composition);
        if let Some(Ok(used)) = same.map(|current| current.join()) {
            return Ok(used);
        }
        let refused =
            |failure: Failure| PresetError::Mount { id: id.to_owned(), failure: Box::new(failure) };
        let mounted = Generation::mount(&inner.world, &inner.rows, id, composition).await;
        let mounted = mounted.map_err(refused)?;
        let used = mounted.join().map_err(|closed| refused(closed.into()))?;
        let old = {
            let mut table = self.table();
            table.all.retain(|_, generation| generation.strong_count() > 0);
            table.all.insert(mounted.scope.id(), Arc::downgrade(&mounted));
            table.current.insert(id.to_owned(), mounted)
        };
        if let Some(old) = old {
            old.retire();
        }
        Ok(used)
    }

    /// An agent is live: it uses its generation until it is gone, whoever composed it.
    pub(crate) fn created(&self, agent: &Agent) -> Result<(), Failure> {
        if let Some(generation) = self.generation_of(agent.scope()) {
            let used = generation.join()?;
            agent.scope().on_close(move || drop(used))?;
        }
        Ok(())
    }

    /// No agent to come gets anything from here.
    pub(crate) fn close(&self) {
        let current = std::mem::take(&mut self.table().current);
        for generation in current.into_values() {
            generation.retire();
        }
    }

    fn generation_of(&self, scope: &Scope) -> Option<Arc<Generation>> {
        let table = self.table();
        scope.chain().find_map(|scope| table.all.get(&scope.id())?.upgrade())
    }

    fn checked(&self, preset: Preset) -> Preset {
        preset.checked(&self.0.rows)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Presets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presets").field("roots", &self.0.roots).finish_non_exhaustive()
    }
}

/// Uses a generation as long as the creation is under way; the agent itself uses it from then on.
fn holding(mut new: NewAgent, used: Use) -> NewAgent {
    let (used, set_up) = (Arc::new(used), new.set_up.take());
    new.set_up(move |agent| {
        let (used, set_up) = (used.clone(), set_up.clone());
        async move {
            let _used = used;
            match set_up {
                Some(set_up) => set_up(agent).await,
                None => Ok(()),
            }
        }
    })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PresetError> + Send + 'static,
) -> Result<T, PresetError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|fault| Err(PresetError::Agent(Failure::new("PANIC", fault.to_string()))))
}
