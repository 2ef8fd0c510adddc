//! The host of a run: carries what happens to the machine, and performs what it decides.
//!
//! One task a run. It never waits for one thing alone, so that a cancel is always heard.

use std::{panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    agent::{Agent, Disposal},
    cancel::CancelToken,
    hook::{Notify, panic_text},
    watch,
};
use tokio::time::Instant;

use crate::{
    Meta, NoticeKind, WorkflowNotice,
    children::Children,
    error::code,
    protocol::{FromGuest, Guest, GuestMessage, HostMessage},
    run::{Control, Progress},
    settlement::{Effect, Input, Settlement},
};

/// What watches one run, in order. Must return quickly.
pub(crate) type Observer = Arc<dyn Fn(&NoticeKind) + Send + Sync>;

/// Everything that a run is made of.
pub(crate) struct Host {
    pub(crate) machine: Settlement,
    pub(crate) children: Children,
    pub(crate) guest: Box<dyn Guest>,
    pub(crate) from_guest: FromGuest,
    pub(crate) teller: Teller,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) grace: Duration,
    pub(crate) guest_there: bool,
    pub(crate) deadline: Option<Instant>,
}

/// Tells those who watch.
pub(crate) struct Teller {
    pub(crate) run: String,
    pub(crate) parent: Agent,
    pub(crate) notices: Arc<Notify<WorkflowNotice>>,
    pub(crate) observer: Option<Observer>,
}

impl Teller {
    pub(crate) fn tell(&self, kind: NoticeKind) {
        if let Some(observer) = &self.observer
            && let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(|| observer(&kind)))
        {
            tracing::error!(panic = panic_text(&*panic), "who watches a workflow panicked");
        }
        let (run, parent) = (self.run.clone(), self.parent.clone());
        let scope = parent.scope().clone();
        self.notices.tell(&scope, &WorkflowNotice { run, parent, kind });
    }
}

/// Resolves with the reason once the run is unwanted: its starter says so, whoever the starter works
/// for is cancelled, or the parent goes.
async fn unwanted(control: Arc<Control>, signal: CancelToken, parent: Agent) -> String {
    let mut disposal = parent.cell().disposal();
    tokio::select! {
        biased;
        () = control.cancel.cancelled() => control.reason(),
        () = signal.cancelled() => "the call that started it was cancelled".to_owned(),
        // Also when the cell itself is gone.
        _ = disposal.wait_for(|disposal| *disposal != Disposal::Live) => {
            "its parent is being disposed".to_owned()
        }
    }
}

impl Host {
    /// Runs until nothing is left of the run but, at worst, a guest that cannot be ended.
    pub(crate) async fn run(mut self, meta: Meta, control: Arc<Control>, signal: CancelToken) {
        self.teller.tell(NoticeKind::Start { meta });
        self.guest.tell(HostMessage::Go);
        let mut unwanted = pin!(unwanted(control.clone(), signal, self.teller.parent.clone()));
        let mut stuck = self.guest.stuck();
        let (mut heard, mut disposing) = (false, false);
        while !self.is_over() {
            let deadline = self.deadline;
            let expired = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                biased;
                () = control.dispose.cancelled(), if !disposing => {
                    disposing = true;
                    self.arm();
                    Input::Dispose
                }
                reason = &mut unwanted, if !heard => {
                    heard = true;
                    Input::Cancel(reason)
                }
                () = expired => {
                    self.deadline = None;
                    self.leave_behind();
                    Input::GraceExpired
                }
                // Whatever it decides, the run is settled by it.
                failure = &mut stuck, if !self.machine.is_settled() => {
                    Input::Guest(GuestMessage::Result(Err(failure)))
                }
                Some(input) = self.children.next() => input,
                message = self.from_guest.recv(), if self.guest_there => match message {
                    Some(message) => Input::Guest(message),
                    None => {
                        self.guest_there = false;
                        Input::GuestGone
                    }
                },
            };
            for effect in self.machine.step(input) {
                self.perform(effect);
            }
        }
        self.disposed(Ok(()));
    }

    fn is_over(&self) -> bool {
        self.machine.is_settled() && self.machine.live() == 0 && !self.guest_there
    }

    fn arm(&mut self) {
        self.deadline = Some(Instant::now() + self.grace);
    }

    /// Who waits for the end of a settled run waits no longer. A guest that has not ended is not
    /// listened to any more; children are, until they are gone.
    fn leave_behind(&mut self) {
        if !self.machine.is_settled() {
            return;
        }
        let (run, children) = (&self.teller.run, self.machine.live());
        let guest = if self.guest_there { "; what ran the workflow is still busy" } else { "" };
        let text = format!(
            "workflow run {run} was ended, and {children} of its children are still being disposed \
             after the grace{guest}"
        );
        tracing::error!(%run, children, guest = self.guest_there, "a workflow leaves something behind");
        self.guest_there = false;
        self.disposed(Err(Failure::new(code::WORKFLOW_LEFTOVERS, text)));
    }

    /// The first word counts.
    fn disposed(&self, how: Result<(), Failure>) {
        self.progress.send_if_modified(|progress| {
            let first = progress.disposed.is_none();
            progress.disposed.get_or_insert(how);
            first
        });
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::TellGuest(message) => self.guest.tell(message),
            Effect::KillGuest => {
                self.guest.kill();
                self.arm();
            }
            Effect::ArmGrace => self.arm(),
            Effect::Start { call, request } => self.children.start(call, request),
            Effect::Await { call } => self.children.settle(call),
            Effect::Dispose { call } => self.children.dispose(call),
            Effect::AbortChildren => self.children.abort(),
            Effect::Notify(kind) => self.teller.tell(kind),
            Effect::Settle(result) => {
                self.progress.send_modify(|progress| progress.result = Some(result));
            }
        }
    }
}
