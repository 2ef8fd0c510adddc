//! What a harness holds at one moment.

use crate::Harness;

/// How often [`Census::settled`] lets the runtime run before it takes the last count for the truth.
const YIELDS: usize = 20_000;

/// Everything that a harness, and the process around it, may hold on to. Two of them are equal if
/// nothing was left behind in between.
///
/// ```
/// use playhouse::testing::{Census, Stage};
/// use playhouse::models::scripted::{Reply, Script};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let stage = Stage::new(Script::sequence([Reply::text("Hello.")])).await?;
/// let before = Census::of(stage.harness());
/// let another = stage.another().await?;
/// assert_eq!(Census::of(stage.harness()).agents, before.agents + 1);
/// another.dispose().await?;
/// assert_eq!(before.settled(stage.harness()).await, before);
/// stage.shutdown().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Census {
    /// Live agents.
    pub agents: usize,
    /// Ids that are reserved by creations under way.
    pub reserved: usize,
    /// Open scopes.
    pub scopes: usize,
    /// Registrations in the harness's own scope, where what agents leave behind would stay.
    pub registrations: usize,
    /// Actors, below all of the harness's roots.
    pub actors: usize,
    /// Tasks of the tokio runtime, also those that are not the harness's.
    pub tasks: usize,
    /// Open file handles of the process; 0 where the system does not tell.
    pub files: usize,
}

impl Census {
    /// Counts now.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn of(harness: &Harness) -> Self {
        let world = harness.world();
        let (agents, reserved) = world.agents.count();
        let files = std::fs::read_dir("/proc/self/fd").map_or(0, |open| open.count());
        Self {
            agents,
            reserved,
            scopes: world.scope.open_scopes(),
            registrations: world.scope.registrations(),
            actors: harness.actors(),
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks(),
            files,
        }
    }

    /// Counts until it is again as it was when this was counted, and gives the last count: what was
    /// told to end takes a few polls to do so. Waits for nothing else, no clock either.
    pub async fn settled(&self, harness: &Harness) -> Self {
        for _ in 0..YIELDS {
            let now = Self::of(harness);
            if now == *self {
                return now;
            }
            tokio::task::yield_now().await;
        }
        Self::of(harness)
    }
}
