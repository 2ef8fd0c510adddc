//! Agents of other programs as children.

mod answers;
mod config;
mod drive;
mod environment;
mod group;
mod process;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{chunk::Failure, event::CancelCause};
use playhouse_plugin_api::{cancel::CancelToken, clock::Ids};
use playhouse_subagents::{
    Capabilities, ChildError, ChildOptions, ChildProvider, ChildRequest, ChildResult, Run, Slots,
    StopReason,
};
use tokio::sync::oneshot;

pub use self::config::{
    ACP, AcpConfig, EOF_GRACE_DEFAULT, MAX_CHILDREN_DEFAULT, Permission, TERM_GRACE_DEFAULT,
};
use self::drive::{Heard, Job, Told};

/// Starts an agent of another program, in a process of its own, for one prompt.
///
/// The child sees neither its parent's history nor its tools, and nobody approves what it asks for:
/// it is given leave or refused, as its config says. It cannot be told which model to use, so a request
/// with options of its own is refused. Of the prompt it gets the texts; of its answer the text is kept,
/// as much of it as there is when it fails or is cancelled. A cancel settles the run at once;
/// [`Run::dispose`] returns when no process of the child is left. If the scope that owns it closes
/// first, all of them are killed.
///
/// ```
/// use std::sync::Arc;
/// use playhouse_acp::{AcpConfig, AcpProvider};
/// use playhouse_plugin_api::clock::UuidIds;
/// use playhouse_subagents::ChildProvider;
///
/// let config = AcpConfig::new("other-agent").name("other");
/// let provider = AcpProvider::new(&config, Arc::new(UuidIds))?;
/// assert_eq!(provider.name(), "other");
/// # Ok::<(), playhouse_subagents::ChildError>(())
/// ```
#[derive(Clone)]
pub struct AcpProvider {
    config: Arc<AcpConfig>,
    ids: Arc<dyn Ids>,
    slots: Slots,
}

impl AcpProvider {
    /// A provider of this program. Its runs get their ids from `ids`: those of other programs' sessions
    /// are not unique.
    ///
    /// # Errors
    ///
    /// As [`AcpConfig::check`].
    pub fn new(config: &AcpConfig, ids: Arc<dyn Ids>) -> Result<Self, ChildError> {
        let config = Arc::new(config.check()?);
        let slots = Slots::new(config.max_children);
        Ok(Self { config, ids, slots })
    }

    /// The slots, one for each process that has not been ended, to see how many are taken.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    async fn run(self, request: ChildRequest) -> Result<Run, ChildError> {
        let Self { config, ids, slots } = self;
        let ChildRequest { prompt, parent, cancel, options, owner, .. } = request;
        if options != ChildOptions::default() {
            let provider = config.name.clone();
            return Err(ChildError::UnsupportedCapability { provider, capability: "options" });
        }
        let (depth, max_depth) = (parent.depth().saturating_add(1), parent.options().max_depth);
        if depth > max_depth {
            return Err(ChildError::Depth { depth, max_depth });
        }
        let prompt = answers::prompt(&prompt);
        if prompt.is_empty() {
            let text = "an ACP agent is asked in text, and the prompt has none; add some";
            return Err(ChildError::Config(text.to_owned()));
        }
        let cwd = config.working_dir(parent.session().header().cwd.as_deref());
        let cwd = cwd.map_err(|cause| {
            let text = format!("ACP agent \"{}\": {cause}; set its `cwd`", config.name);
            ChildError::Start(Failure::new("ACP_CWD", text))
        })?;
        let aborted = || ChildError::Start(Failure::new("ABORTED", "the start was cancelled"));
        if cancel.is_cancelled() {
            return Err(aborted());
        }
        let job = Job { config, cwd, prompt, cancel, slot: slots.take()? };

        let heard = Arc::<Heard>::default();
        let released = CancelToken::new();
        let (started, starting) = oneshot::channel();
        let (settled, settling) = oneshot::channel();
        let (ended, ending) = oneshot::channel();
        let told = Told { started, settled, released: released.clone() };
        let driven = drive::drive(job, heard.clone(), told);
        owner.as_ref().unwrap_or_else(|| parent.scope()).spawn(async move {
            let _ = ended.send(driven.await);
        });
        // A driver that is gone was dropped by its owner, and with it the child.
        starting.await.map_err(|_| aborted())?.map_err(ChildError::Start)?;
        let result = async move {
            let lost = |_| heard.of(ChildResult::new(StopReason::Aborted));
            Ok(settling.await.unwrap_or_else(lost))
        };
        let disposal = async move {
            released.cancel(CancelCause::Parent);
            ending.await.unwrap_or(Ok(()))
        };
        Ok(Run::new(ids.session(), None, result.boxed(), disposal.boxed()))
    }
}

impl ChildProvider for AcpProvider {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn start(&self, request: ChildRequest) -> BoxFuture<'static, Result<Run, ChildError>> {
        self.clone().run(request).boxed()
    }
}

impl std::fmt::Debug for AcpProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AcpProvider").field("config", &self.config).finish_non_exhaustive()
    }
}
