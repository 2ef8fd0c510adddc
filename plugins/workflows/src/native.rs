//! Workflows in Rust, through the same host as scripts.

use std::{
    collections::HashMap,
    fmt,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{FutureExt, future::join_all};
use playhouse_messages::{chunk::Failure, event::CancelCause};
use playhouse_plugin_api::{cancel::CancelToken, hook::panic_text};
use serde_json::Value;
use tokio::{
    sync::{mpsc, oneshot},
    task::AbortHandle,
};

use crate::{
    AgentRequest,
    engine::Alive,
    error::code,
    protocol::{CallNo, FromGuest, GUEST_MESSAGES_MAX, Guest, GuestMessage, HostMessage},
};

/// What a native workflow works with. Clones belong to the same run.
///
/// ```
/// use playhouse_workflows::{Cx, Halt};
/// use serde_json::{Value, json};
///
/// /// Asks for an answer, and for three opinions on it.
/// async fn reviewed(cx: Cx) -> Result<Value, Halt> {
///     cx.phase("Answer").await?;
///     let answer = cx.agent("What is six times seven?").await?;
///     cx.phase("Review").await?;
///     let reviews = (1..=3).map(|n| cx.agent(format!("Reviewer {n}: is {answer} right?")));
///     let reviews = cx.parallel(reviews).await?;
///     Ok(json!({"answer": answer, "reviews": reviews}))
/// }
/// ```
#[derive(Clone)]
pub struct Cx(Arc<Inner>);

struct Inner {
    to_host: mpsc::Sender<GuestMessage>,
    desk: Arc<Desk>,
    items_max: usize,
}

/// What the host reaches. It keeps no channel to the host open: that tells the host that nobody
/// works on the run any more.
#[derive(Default)]
struct Desk {
    calls: Mutex<Calls>,
    cancel: CancelToken,
}

impl Desk {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct Calls {
    last: CallNo,
    waiting: HashMap<CallNo, oneshot::Sender<Result<Value, Failure>>>,
}

/// Why a native workflow, or an item of one, goes no further.
///
/// Every error becomes one by `?`, and fails the item that it occurs in. A fatal one only the host
/// makes: it goes through the combinators and ends the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Halt {
    failure: Failure,
    fatal: bool,
}

impl Halt {
    /// An ordinary failure.
    pub fn new(message: impl Into<String>) -> Self {
        Self { failure: Failure::new(code::WORKFLOW_ERROR, message), fatal: false }
    }

    fn fatal(failure: Failure) -> Self {
        Self { failure, fatal: true }
    }

    /// Whether the run is over.
    pub fn is_fatal(&self) -> bool {
        self.fatal
    }

    /// What happened.
    pub fn failure(&self) -> &Failure {
        &self.failure
    }
}

// As it is no error itself, every error can become one.
impl<E: std::error::Error> From<E> for Halt {
    fn from(error: E) -> Self {
        Self::new(error.to_string())
    }
}

impl Cx {
    /// Runs a child, and returns its text, or the object that its schema asks for; null if it failed.
    /// It waits for a slot. Dropping the future does not cancel the child; the run's end does.
    ///
    /// # Errors
    ///
    /// A fatal [`Halt`] if the run was cancelled. The run ends, and with it this future, if the child
    /// may or can not be started.
    pub async fn agent(&self, request: impl Into<AgentRequest>) -> Result<Value, Halt> {
        let request = request.into();
        let (answered, answer) = oneshot::channel();
        let call = {
            let mut calls = self.0.desk.calls();
            calls.last += 1;
            let call = calls.last;
            calls.waiting.insert(call, answered);
            call
        };
        self.say(GuestMessage::Agent { call, request }).await?;
        let answer = answer.await.unwrap_or_else(|_| Err(over()));
        answer.map_err(Halt::fatal)
    }

    /// Runs all at once, and waits for all. An item that fails becomes its type's default: null, `None`.
    ///
    /// # Errors
    ///
    /// A fatal [`Halt`]: of an item, or `ITEM_CAP` for too many of them.
    pub async fn parallel<T, F>(&self, items: impl IntoIterator<Item = F>) -> Result<Vec<T>, Halt>
    where
        T: Default,
        F: Future<Output = Result<T, Halt>>,
    {
        let items: Vec<_> = items.into_iter().take(self.0.items_max.saturating_add(1)).collect();
        if items.len() > self.0.items_max {
            let failure = too_many_items(self.0.items_max);
            // Told to the host at once: whatever becomes of the error, the run is over.
            self.say(GuestMessage::Result(Err(failure.clone()))).await?;
            return Err(Halt::fatal(failure));
        }
        let settled = join_all(items).await.into_iter().map(|item| match item {
            Err(halt) if !halt.fatal => Ok(T::default()),
            settled => settled,
        });
        settled.collect()
    }

    /// Leads each item through `stages` by itself, with its index; none waits for another. An item
    /// that fails in a stage skips the rest, and becomes its type's default.
    ///
    /// # Errors
    ///
    /// As [`Cx::parallel`].
    pub async fn pipeline<I, T, F>(
        &self,
        items: impl IntoIterator<Item = I>,
        mut stages: impl FnMut(I, usize) -> F,
    ) -> Result<Vec<T>, Halt>
    where
        T: Default,
        F: Future<Output = Result<T, Halt>>,
    {
        self.parallel(items.into_iter().enumerate().map(|(index, item)| stages(item, index))).await
    }

    /// Says that a phase begins.
    ///
    /// # Errors
    ///
    /// A fatal [`Halt`] if the run is over.
    pub async fn phase(&self, title: impl Into<String>) -> Result<(), Halt> {
        self.say(GuestMessage::Phase(title.into())).await
    }

    /// Says something to people.
    ///
    /// # Errors
    ///
    /// A fatal [`Halt`] if the run is over.
    pub async fn log(&self, text: impl Into<String>) -> Result<(), Halt> {
        self.say(GuestMessage::Log(text.into())).await
    }

    /// Fires when the run is cancelled: there is the engine's grace left then, after which the
    /// workflow's future is dropped.
    pub fn cancel(&self) -> &CancelToken {
        &self.0.desk.cancel
    }

    async fn say(&self, message: GuestMessage) -> Result<(), Halt> {
        self.0.to_host.send(message).await.map_err(|_| Halt::fatal(over()))
    }
}

impl fmt::Debug for Cx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cx")
            .field("cancelled", &self.cancel().is_cancelled())
            .finish_non_exhaustive()
    }
}

fn over() -> Failure {
    Failure::new(code::CANCELLED, "the run is over")
}

pub(crate) fn too_many_items(max: usize) -> Failure {
    let text = format!("a call takes {max} items at most; split them, or process them in batches");
    Failure::new(code::ITEM_CAP, text)
}

/// The host's end of a native workflow.
struct Task {
    desk: Arc<Desk>,
    start: Option<oneshot::Sender<()>>,
    abort: AbortHandle,
}

impl Guest for Task {
    fn tell(&mut self, message: HostMessage) {
        match message {
            HostMessage::Go => {
                if let Some(start) = self.start.take() {
                    // It may have been killed.
                    let _ = start.send(());
                }
            }
            HostMessage::Cancel(_) => {
                self.desk.cancel.cancel(CancelCause::Parent);
            }
            HostMessage::Settled { call, answer } => {
                let waiting = self.desk.calls().waiting.remove(&call);
                if let Some(waiting) = waiting {
                    // Who asked may not want it any more.
                    let _ = waiting.send(answer);
                }
            }
        }
    }

    fn kill(&mut self) {
        self.abort.abort();
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

/// Starts a task that runs the workflow once it is told to.
pub(crate) fn launch<W, Fut>(
    workflow: W,
    items_max: usize,
    alive: Alive,
) -> (Box<dyn Guest>, FromGuest)
where
    W: FnOnce(Cx) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Value, Halt>> + Send + 'static,
{
    let (to_host, from_guest) = mpsc::channel(GUEST_MESSAGES_MAX);
    let (start, started) = oneshot::channel();
    let desk = Arc::new(Desk::default());
    let cx = Cx(Arc::new(Inner { to_host: to_host.clone(), desk: desk.clone(), items_max }));
    let task = tokio::spawn(async move {
        let _alive = alive;
        if started.await.is_err() {
            return;
        }
        let run = AssertUnwindSafe(async move { workflow(cx).await }).catch_unwind();
        let last = match run.await {
            Ok(result) => GuestMessage::Result(result.map_err(|halt| halt.failure)),
            Err(panic) => {
                GuestMessage::Died(format!("the workflow panicked: {}", panic_text(&*panic)))
            }
        };
        let _ = to_host.send(last).await;
    });
    let guest = Task { desk, start: Some(start), abort: task.abort_handle() };
    (Box::new(guest), from_guest)
}
