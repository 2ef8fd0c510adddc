//! The shell of one plugin's host.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use playhouse_messages::{chunk::Failure, protocol::PluginHostMessage};
use playhouse_plugin_api::{
    hook::panic_failure,
    plugin::{Plugin, PluginContext},
};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use super::{
    hosted::Hosted,
    machine::{Effect, Input, Machine},
};

pub(super) struct PluginHost;

pub(super) struct HostState {
    hosted: Arc<Hosted>,
    machine: Machine,
    reloads: Vec<RpcReplyPort<Result<(), Failure>>>,
    /// The tasks end with the state, and so with the actor, however it dies.
    setup: Option<AbortOnDropHandle<()>>,
    watcher: Option<AbortOnDropHandle<()>>,
}

impl Actor for PluginHost {
    type Msg = PluginHostMessage;
    type State = HostState;
    type Arguments = Arc<Hosted>;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        hosted: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let machine = Machine::new(&*hosted.name, hosted.requires.clone());
        Ok(HostState { hosted, machine, reloads: Vec::new(), setup: None, watcher: None })
    }

    async fn post_start(
        &self,
        myself: ActorRef<Self::Msg>,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        state.watch(&myself);
        state.look(&myself);
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PluginHostMessage::Reload { reply } => {
                state.reloads.push(reply);
                let now = state.hosted.instances();
                state.step(&myself, Input::Reload(now));
            }
            PluginHostMessage::Stop { reply } => {
                state.step(&myself, Input::Stop);
                let hosted = state.hosted.clone();
                tokio::spawn(async move {
                    hosted.drained().await;
                    let _ = reply.send(());
                    myself.stop(None);
                });
            }
            PluginHostMessage::ServicesChanged => state.look(&myself),
            PluginHostMessage::SetUp { attempt, outcome } => {
                state.step(&myself, Input::SetUp { attempt, outcome });
            }
        }
        Ok(())
    }
}

impl HostState {
    /// Sends a message for every change, from before the first look on.
    fn watch(&mut self, myself: &ActorRef<PluginHostMessage>) {
        let mut changes = self.hosted.services().watch();
        let closed = self.hosted.parent().cancel_token().clone();
        let host = myself.clone();
        self.watcher = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            while let Some(Ok(())) = closed.race(changes.changed()).await {
                if host.cast(PluginHostMessage::ServicesChanged).is_err() {
                    return;
                }
            }
            // An error means that the host has ended already.
            let _ = host.cast(PluginHostMessage::ServicesChanged);
        })));
    }

    fn look(&mut self, myself: &ActorRef<PluginHostMessage>) {
        if self.hosted.is_wanted() {
            let now = self.hosted.instances();
            self.step(myself, Input::Services(now));
        } else {
            self.step(myself, Input::Stop);
            myself.stop(None);
        }
    }

    fn step(&mut self, myself: &ActorRef<PluginHostMessage>, input: Input) {
        for effect in self.machine.step(input) {
            match effect {
                Effect::Unwind => {
                    self.setup = None;
                    self.hosted.close();
                }
                Effect::SetUp { attempt } => self.set_up(myself.clone(), attempt),
                Effect::Report(status) => self.hosted.report(status),
                Effect::AnswerReloads(outcome) => {
                    for reply in self.reloads.drain(..) {
                        let _ = reply.send(outcome.clone());
                    }
                }
            }
        }
    }

    fn set_up(&mut self, host: ActorRef<PluginHostMessage>, attempt: u64) {
        // Opened here and not in the task: from now on whoever closes finds it.
        let ctx = self.hosted.open();
        let hosted = self.hosted.clone();
        self.setup = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let outcome = match ctx {
                Ok(ctx) => {
                    hosted.drained().await;
                    contained(hosted.plugin.clone(), ctx).await
                }
                Err(closed) => Err(Failure::new(closed.code(), closed.to_string())),
            };
            // An error means that the host has ended: the root has closed the scope.
            let _ = host.cast(PluginHostMessage::SetUp { attempt, outcome });
        })));
    }
}

/// Runs a setup as a task of its scope: so the next one waits until it has really ended. A panic is
/// an error value.
async fn contained(plugin: Arc<dyn Plugin>, ctx: PluginContext) -> Result<(), Failure> {
    let (report, outcome) = oneshot::channel();
    let scope = ctx.scope.clone();
    scope.spawn(async move {
        let setup = AssertUnwindSafe(async { plugin.setup(ctx).await }).catch_unwind();
        let outcome = setup.await.unwrap_or_else(|panic| Err(panic_failure(&*panic)));
        // Nobody listens any more if the host gave this attempt up.
        let _ = report.send(outcome);
    });
    outcome.await.unwrap_or_else(|_| {
        Err(Failure::new("SCOPE_CLOSED", "the plugin's scope was closed during its setup"))
    })
}
