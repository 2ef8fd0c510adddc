//! A mounted composition, and who uses it.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    prompt::{Context, Section},
    scope::{Scope, ScopeClosed},
    tool::ToolFilter,
    world::World,
};

use crate::{
    Composition, Row, RowContext, RowFactories,
    composition::{Persona, TextRow, Tools},
};

/// The section that a persona is put in.
pub const PERSONA_SECTION: &str = "deployment:persona";

/// What an agent is composed from.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Composed {
    /// The preset.
    pub preset: String,
    /// Which of the generations of this process: later ones have higher numbers.
    pub generation: u64,
    /// What it says.
    pub composition: Arc<Composition>,
}

/// A composition that is mounted under a scope of its own, for all agents that are composed from
/// it. The scope closes when no later agent gets it and the last that has it is gone.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) composed: Composed,
    pub(crate) scope: Scope,
    users: Mutex<Users>,
}

#[derive(Debug, Default)]
struct Users {
    count: usize,
    retired: bool,
}

/// One use of a generation. Dropping it ends the use.
#[derive(Debug)]
pub(crate) struct Use(Arc<Generation>);

impl Generation {
    /// Mounts a composition. If a row is refused, or the future dropped, nothing is left.
    pub(crate) async fn mount(
        world: &Arc<World>,
        rows: &RowFactories,
        preset: &str,
        composition: Arc<Composition>,
    ) -> Result<Arc<Self>, Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let scope = world.scope.child(format!("preset {preset} #{number}"))?;
        let unfinished = ClosedOnDrop(Some(scope.clone()));
        world.services.refuse_from(&scope)?;
        for row in composition.rows() {
            match row {
                Row::Persona(row) => persona(world, &scope, row)?,
                Row::Section(TextRow { name, order, text, .. }) => {
                    world.prompts.section(&scope, Section::text(name, *order, text.as_str()))?;
                }
                Row::Context(TextRow { name, order, text, .. }) => {
                    world.prompts.context(&scope, Context::text(name, *order, text.as_str()))?;
                }
                Row::Tools(Tools { allow, deny }) => {
                    let filter = ToolFilter { allow: allow.clone(), deny: deny.clone() };
                    world.tools.registry().restrict(&scope, filter)?;
                }
                // Goes to each agent's options.
                Row::Model(_) => {}
                Row::Plugin(row) => {
                    let factory = rows.get(&row.name).ok_or_else(|| {
                        Failure::new("UNKNOWN_ROW", unknown_factory(rows, &row.name))
                    })?;
                    let config = row.config.clone();
                    factory(RowContext { scope: scope.clone(), world: world.clone(), config })
                        .await?;
                }
            }
        }
        unfinished.keep();
        let composed = Composed { preset: preset.to_owned(), generation: number, composition };
        Ok(Arc::new(Self { composed, scope, users: Mutex::default() }))
    }

    /// Begins a use.
    ///
    /// # Errors
    ///
    /// The scope is closed.
    pub(crate) fn join(self: &Arc<Self>) -> Result<Use, ScopeClosed> {
        let mut users = self.users();
        if !self.scope.is_open() {
            return Err(ScopeClosed { name: self.scope.name().to_owned() });
        }
        users.count += 1;
        Ok(Use(self.clone()))
    }

    /// No later agent gets it.
    pub(crate) fn retire(&self) {
        let unused = {
            let mut users = self.users();
            users.retired = true;
            users.count == 0
        };
        if unused {
            self.scope.close();
        }
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Use {
    pub(crate) fn generation(&self) -> &Arc<Generation> {
        &self.0
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let unused = {
            let mut users = self.0.users();
            users.count -= 1;
            users.count == 0 && users.retired
        };
        if unused {
            self.0.scope.close();
        }
    }
}

pub(crate) fn unknown_factory(rows: &RowFactories, name: &str) -> String {
    let known = rows.names().collect::<Vec<_>>().join(", ");
    let known = if known.is_empty() { "(none)".to_owned() } else { known };
    format!("no row factory \"{name}\"; there are: {known}")
}

fn persona(world: &World, scope: &Scope, row: &Persona) -> Result<(), Failure> {
    let section = Section::text(PERSONA_SECTION, 0.0, row.text.as_str());
    let section = if row.complete { section.complete() } else { section };
    world.prompts.section(scope, section)?;
    if !row.include_runtime_context {
        world.prompts.suppress_runtime_context(scope)?;
    }
    Ok(())
}

/// A scope that is closed unless it is kept.
struct ClosedOnDrop(Option<Scope>);

impl ClosedOnDrop {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        if let Some(scope) = &self.0 {
            scope.close();
        }
    }
}
