//! The root of the provider routes' actors: each is started when its route is first used, and again
//! when it dies.

use std::{collections::HashMap, sync::Arc, time::Duration};

use playhouse_actors::provider::{ProviderActor, ProviderArgs};
use playhouse_messages::protocol::ProviderMessage;
use playhouse_plugin_api::{slot::Slot, world::World};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::time::Instant;

use crate::death::death;
use crate::plugin_host::{RestartLimits, Restarts};
use crate::restart_policy::RestartBook;

/// How often a provider's actor may die before its route is given up until the next restart of the
/// harness, unless the harness's policy says otherwise.
pub const PROVIDER_LIMITS: RestartLimits = RestartLimits {
    max_restarts: 20,
    within: Duration::from_secs(30),
    first_delay: Duration::from_millis(1),
    max_delay: Duration::from_secs(1),
};

/// The root.
#[derive(Debug)]
pub struct ProvidersRoot;

/// What the root is told.
#[derive(Debug)]
pub enum ProvidersRootMessage {
    /// Start the actor of a route.
    Start {
        /// The route.
        provider: String,
        /// Where it is reached.
        slot: Arc<Slot<ProviderMessage>>,
    },
}

/// Its state.
pub struct Routes {
    world: Arc<World>,
    book: RestartBook,
    live: HashMap<ActorId, Route>,
    restarts: HashMap<String, Restarts>,
}

#[derive(Clone)]
struct Route {
    provider: String,
    slot: Arc<Slot<ProviderMessage>>,
}

impl Routes {
    fn died(&mut self, id: ActorId, why: &str, myself: &ActorRef<ProvidersRootMessage>) {
        let Some(Route { provider, slot }) = self.live.remove(&id) else { return };
        slot.vacate(id);
        let restarts = self.restarts.entry(provider.clone()).or_default();
        match restarts.died(Instant::now(), &self.book.policy.providers) {
            Some(delay) => {
                tracing::warn!(provider, why, ?delay, "a provider's actor died; restarting it");
                myself.send_after(delay, move || ProvidersRootMessage::Start { provider, slot });
            }
            None => {
                tracing::error!(
                    provider,
                    why,
                    "a provider's actor keeps dying; its route is closed"
                );
                slot.close();
            }
        }
    }
}

impl Actor for ProvidersRoot {
    type Msg = ProvidersRootMessage;
    type State = Routes;
    type Arguments = (Arc<World>, RestartBook);

    async fn pre_start(
        &self,
        _myself: ActorRef<ProvidersRootMessage>,
        (world, book): (Arc<World>, RestartBook),
    ) -> Result<Routes, ActorProcessingErr> {
        Ok(Routes { world, book, live: HashMap::new(), restarts: HashMap::new() })
    }

    async fn handle(
        &self,
        myself: ActorRef<ProvidersRootMessage>,
        message: ProvidersRootMessage,
        state: &mut Routes,
    ) -> Result<(), ActorProcessingErr> {
        let ProvidersRootMessage::Start { provider, slot } = message;
        let args = ProviderArgs { provider: provider.clone(), world: state.world.clone() };
        let (actor, _) =
            ProviderActor::spawn_linked(None, ProviderActor, args, myself.get_cell()).await?;
        if state.restarts.contains_key(&provider) {
            state.book.restarted();
        }
        state.live.insert(actor.get_id(), Route { provider, slot: slot.clone() });
        slot.fill(actor);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<ProvidersRootMessage>,
        event: SupervisionEvent,
        state: &mut Routes,
    ) -> Result<(), ActorProcessingErr> {
        if let Some((child, why)) = death(event) {
            state.died(child.get_id(), &why, &myself);
        }
        Ok(())
    }
}
