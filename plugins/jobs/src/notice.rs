//! How an agent is told of an end, and how often that may wake it.

use std::{
    collections::HashMap,
    str::FromStr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use playhouse_messages::{
    content::ContentBlock,
    event::{EventBody, InboxTarget, Seq},
    id::MessageId,
    message::{Message, SharedMessage, Source},
    session::InboxEdit,
};
use playhouse_plugin_api::{
    agent::{Agent, AgentError, Disposal},
    clock::Ids,
    scope::ScopeId,
};
use serde::Deserialize;

use crate::{JobDone, JobSnapshot, bound::keeping_start};

/// The source kind of a notice.
pub const NOTICE_SOURCE: &str = "tool-jobs";

/// How an agent is told of the end of a job that nobody asked about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Delivery {
    /// An idle agent is woken, as long as its wakes last; else as [`Delivery::Quiet`].
    #[default]
    Wakeup,
    /// The notice waits for the agent's next step, whenever that comes.
    Quiet,
}

/// No delivery has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no completion delivery \"{0}\"; there are wakeup and quiet")]
pub struct UnknownDelivery(pub String);

impl FromStr for Delivery {
    type Err = UnknownDelivery;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "wakeup" => Ok(Self::Wakeup),
            "quiet" => Ok(Self::Quiet),
            other => Err(UnknownDelivery(other.to_owned())),
        }
    }
}

/// Tells owners of ends, and counts how often that woke each since a person last spoke to it: a
/// woken turn that starts the next job would else wake its agent for ever.
pub(crate) struct Notices {
    ids: Arc<dyn Ids>,
    delivery: Delivery,
    max_wakes: u32,
    wakes: Mutex<HashMap<ScopeId, Arc<Wakes>>>,
}

#[derive(Debug, Default)]
struct Wakes {
    spent: AtomicU32,
    /// One notice after the other, so that each sees what the one before did.
    order: tokio::sync::Mutex<()>,
}

impl Notices {
    pub(crate) fn new(ids: Arc<dyn Ids>, delivery: Delivery, max_wakes: u32) -> Self {
        Self { ids, delivery, max_wakes, wakes: Mutex::default() }
    }

    /// A person's message was claimed: the wakes are whole again.
    pub(crate) fn refill(&self, agent: &Agent) {
        if let Some(wakes) = self.wakes().get(&agent.scope().id()) {
            wakes.spent.store(0, Ordering::Release);
        }
    }

    /// The agent is gone.
    pub(crate) fn forget(&self, agent: &Agent) {
        self.wakes().remove(&agent.scope().id());
    }

    /// Tells the owner of an end that nobody has reported, in a task of the owner's.
    pub(crate) fn tell(self: &Arc<Self>, done: &JobDone) {
        let JobDone { job, owner: Some(owner) } = done else { return };
        // An owner that ends has no use for news, and must not be woken by what its end ends.
        if job.reported || *owner.cell().disposal().borrow() != Disposal::Live {
            return;
        }
        let wakes = {
            let mut wakes = self.wakes();
            if !owner.scope().is_open() {
                return;
            }
            wakes.entry(owner.scope().id()).or_default().clone()
        };
        let (notices, agent, job) = (self.clone(), owner.clone(), job.clone());
        owner.scope().spawn(async move {
            let id = job.id.clone();
            if let Err(error) = notices.deliver(&agent, &wakes, &job).await {
                tracing::warn!(agent = %agent.id(), job = %id, %error, "a job's end was not told");
            }
        });
    }

    async fn deliver(
        &self,
        agent: &Agent,
        wakes: &Wakes,
        job: &JobSnapshot,
    ) -> Result<(), AgentError> {
        let may_wake = || {
            self.delivery == Delivery::Wakeup
                && wakes.spent.load(Ordering::Acquire) < self.max_wakes
        };
        let (from, id) = {
            let _order = wakes.order.lock().await;
            if may_wake() && wake(agent, wakes, self.message(job), None).await? {
                return Ok(());
            }
            (agent.session().log().len(), agent.inject(self.message(job)).await?)
        };
        // What was busy may have ended before the message came, and nobody would take it.
        agent.when_idle().await?;
        let _order = wakes.order.lock().await;
        if may_wake() && is_left_over(agent, from, &id) {
            wake(agent, wakes, self.message(job), Some(&id)).await?;
        }
        Ok(())
    }

    fn message(&self, job: &JobSnapshot) -> Message {
        let summary = format!("{} {}: {}", job.id, job.status, job.label);
        let content = vec![ContentBlock::text(keeping_start(&text(job), job.output_limit_bytes))];
        Message::user_from(self.ids.message(), content, Source::notice(NOTICE_SOURCE, &summary))
    }

    fn wakes(&self) -> MutexGuard<'_, HashMap<ScopeId, Arc<Wakes>>> {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the agent by the message if nothing runs; `false` if something does. With `instead_of`
/// only if that message still waits, whose place it takes.
///
/// The claim on idleness is exclusive: no turn begins between the look and the message.
async fn wake(
    agent: &Agent,
    wakes: &Wakes,
    message: Message,
    instead_of: Option<&MessageId>,
) -> Result<bool, AgentError> {
    let waking = agent.run_maintenance(|_| async {
        if let Some(id) = instead_of {
            let waits = |message: &SharedMessage| message.id == *id;
            if !agent.inbox().list(InboxTarget::NextStep).iter().any(waits) {
                return Ok(());
            }
            agent.edit_inbox(InboxEdit::Remove { id: id.clone() }).await?;
        }
        wakes.spent.fetch_add(1, Ordering::AcqRel);
        agent.followup(message).await.map(drop)
    });
    match waking.await {
        Ok(woken) => woken.map(|()| true),
        Err(AgentError::Busy { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether an injected message waits without any turn that could have taken it: one that was cut
/// short leaves its input for the next wake, as it leaves all other.
fn is_left_over(agent: &Agent, from: Seq, id: &MessageId) -> bool {
    let view = agent.session().view();
    let has = |messages: &[SharedMessage]| messages.iter().any(|message| message.id == *id);
    let mut after = view.log.range(from..view.log.len()).skip_while(
        |event| !matches!(&event.body, EventBody::InboxSpliced(splice) if has(&splice.inserted)),
    );
    view.inbox.list(InboxTarget::NextStep).iter().any(|message| message.id == *id)
        && !after.any(|event| matches!(event.body, EventBody::TurnEnd(_)))
}

fn text(job: &JobSnapshot) -> String {
    let detail = job.detail.as_ref().map(|detail| format!(", {detail}")).unwrap_or_default();
    format!(
        "Background job {} has ended [status: {}{detail}]: {}\nCall job_output with this job_id to \
         collect what it has to say.",
        job.id, job.status, job.label
    )
}
