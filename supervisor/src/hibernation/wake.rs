//! Waking: an agent is made anew from its session and its blueprint, once for all who want it.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use playhouse_messages::{chunk::Failure, id::SessionId};
use playhouse_plugin_api::{
    agent::{Agent, Disposal},
    creation::{CreateError, NewAgent},
};

use crate::agents::{
    creation::Basis,
    disposal::store_failure,
    maker::{Maker, shutting_down},
};

/// One waking, which any number of callers await.
type Flight = Shared<BoxFuture<'static, Result<Agent, Failure>>>;

/// The wakings under way. An id is in here only while its agent is being made.
#[derive(Clone, Default)]
pub(crate) struct Flights(Arc<Mutex<BTreeMap<SessionId, Flight>>>);

impl Flights {
    fn table(&self) -> MutexGuard<'_, BTreeMap<SessionId, Flight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Flights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.table().keys()).finish()
    }
}

/// The end of a flight, however it comes.
struct Landing {
    flights: Flights,
    id: SessionId,
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.flights.table().remove(&self.id);
    }
}

impl Maker {
    /// See [`AgentMaker::wake`](playhouse_plugin_api::creation::AgentMaker::wake).
    pub(crate) fn woken(&self, id: SessionId) -> BoxFuture<'static, Result<Agent, CreateError>> {
        let maker = self.clone();
        async move {
            if let Some(agent) = maker.up(&id) {
                return Ok(agent);
            }
            Ok(maker.flight(id).await?)
        }
        .boxed()
    }

    /// The agent, if it is live and stays so.
    fn up(&self, id: &SessionId) -> Option<Agent> {
        let agent = self.world.agents.get(id)?;
        let stays =
            *agent.cell().disposal().borrow() == Disposal::Live && !agent.cell().is_asleep();
        stays.then_some(agent)
    }

    fn flight(&self, id: SessionId) -> Flight {
        let mut flights = self.means.flights.table();
        if let Some(flight) = flights.get(&id) {
            return flight.clone();
        }
        if self.means.tasks.is_closed() {
            return futures::future::ready(Err(shutting_down())).boxed().shared();
        }
        let landing = Landing { flights: self.means.flights.clone(), id: id.clone() };
        let (maker, waking) = (self.clone(), id.clone());
        let made = self.means.tasks.spawn(async move {
            let made = maker.make_again(&waking).await;
            drop(landing);
            made
        });
        let flight = async move {
            made.await.unwrap_or_else(|fault| Err(Failure::new("PANIC", fault.to_string())))
        };
        let flight = flight.boxed().shared();
        flights.insert(id, flight.clone());
        flight
    }

    async fn make_again(&self, id: &SessionId) -> Result<Agent, Failure> {
        loop {
            let mut changes = self.world.agents.watch();
            if let Some(agent) = self.up(id) {
                return Ok(agent);
            }
            if !self.world.agents.is_taken(id) {
                match self.resumed(id).await {
                    // Somebody else was faster.
                    Err(failure)
                        if failure.code == "SESSION_ALREADY_OWNED"
                            && self.world.agents.is_taken(id) => {}
                    made => return made,
                }
                continue;
            }
            // A life that ends, or one that somebody else begins.
            tokio::select! {
                biased;
                () = self.means.ended.cancelled() => return Err(shutting_down()),
                _ = changes.changed() => {}
            }
        }
    }

    async fn resumed(&self, id: &SessionId) -> Result<Agent, Failure> {
        let Some(store) = &self.world.store else {
            let text = format!(
                "no agent \"{id}\" is live, and there is no store that could hold its session"
            );
            return Err(Failure::new("NO_STORE", text));
        };
        let Some(stat) = store.stat(id).await.map_err(store_failure)? else {
            let text =
                format!("no session `{id}`: no agent drives it, and {} has none", store.describe());
            return Err(Failure::new("SESSION_NOT_FOUND", text));
        };
        let Some(blueprint) = &stat.header.blueprint else {
            let text = format!(
                "session `{id}` was not made from a blueprint, so nobody knows how to wake its agent: \
                 resume it with `Harness::resume`"
            );
            return Err(Failure::new("NO_BLUEPRINT", text));
        };
        let new = NewAgent::blueprint(blueprint).id(id.clone());
        Ok(self.make(new, Basis::Stored).await?.agent().clone())
    }
}
