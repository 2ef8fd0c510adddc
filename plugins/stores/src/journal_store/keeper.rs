//! `Keeper`: the actor that supervises a store's committer and starts a new one when it dies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use playhouse_plugin_api::store::StoreError;
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::time::Instant;

use super::committer::{Committer, CommitterArgs};
use super::core::Core;
use super::tray::Tray;

pub(crate) struct Keeper;

pub(crate) struct KeeperArgs {
    pub(crate) core: Arc<Core>,
    pub(crate) window: Duration,
    pub(crate) tray: Arc<Tray>,
    /// More deaths than this within `deaths_within` and the store gives up.
    pub(crate) deaths_max: usize,
    pub(crate) deaths_within: Duration,
}

pub(crate) struct KeeperState {
    args: KeeperArgs,
    committer: Option<ActorId>,
    deaths: VecDeque<Instant>,
}

/// What is said to a keeper.
pub(crate) enum KeeperMessage {
    /// Start a committer, after a death and its pause.
    Fill,
}

impl Actor for Keeper {
    type Msg = KeeperMessage;
    type State = KeeperState;
    type Arguments = KeeperArgs;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        args: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(KeeperState { args, committer: None, deaths: VecDeque::new() })
    }

    async fn post_start(
        &self,
        myself: ActorRef<Self::Msg>,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        state.fill(&myself).await
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            KeeperMessage::Fill => state.fill(&myself).await,
        }
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let (who, why) = match event {
            SupervisionEvent::ActorTerminated(who, _, why) => (who, why.unwrap_or_default()),
            SupervisionEvent::ActorFailed(who, error) => (who, error.to_string()),
            _ => return Ok(()),
        };
        let is_open = state.args.tray.abolished().is_none();
        if state.committer != Some(who.get_id()) || !is_open {
            return Ok(());
        }
        state.committer = None;
        let now = Instant::now();
        state.deaths.push_back(now);
        let within = state.args.deaths_within;
        while state.deaths.front().is_some_and(|at| now.duration_since(*at) > within) {
            state.deaths.pop_front();
        }
        let deaths = state.deaths.len();
        if deaths > state.args.deaths_max {
            let what = format!("writing {}", state.args.core.describe());
            let cause = format!(
                "its committer died {deaths} times within {within:?}, lastly: {why}; nothing more is \
                 written until the store is closed and opened anew, what was written can be read"
            );
            tracing::error!(%what, %cause);
            state.args.tray.abolish(StoreError::Io { what, cause });
            return Ok(());
        }
        tracing::warn!(%why, deaths, "the committer died; another takes over");
        state.args.tray.vacate();
        if deaths == 1 {
            return state.fill(&myself).await;
        }
        let pause = Duration::from_millis(5 << deaths.min(10));
        myself.send_after(pause, || KeeperMessage::Fill);
        Ok(())
    }
}

impl KeeperState {
    async fn fill(&mut self, myself: &ActorRef<KeeperMessage>) -> Result<(), ActorProcessingErr> {
        if self.committer.is_some() || self.args.tray.abolished().is_some() {
            return Ok(());
        }
        let args = CommitterArgs {
            core: Arc::clone(&self.args.core),
            window: self.args.window,
            succeeds: !self.deaths.is_empty(),
        };
        let (committer, _) = Actor::spawn_linked(None, Committer, args, myself.get_cell()).await?;
        self.committer = Some(committer.get_id());
        self.args.tray.fill(committer);
        Ok(())
    }
}
