//! What was promised, done and seen, apart from the logs that it is held against.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use playhouse_messages::id::{CallId, MessageId, SessionId};
use playhouse_plugin_api::agent::Agent;

use super::report::Fault;

/// Faults that are kept; more of them say nothing new.
const FAULTS_MAX: usize = 200;

/// What the judge holds a session's log against.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Account {
    /// Inputs whose acceptance was told.
    pub(super) acknowledged: Vec<MessageId>,
    /// How often the body of each call was run.
    pub(super) runs: BTreeMap<CallId, u32>,
    /// Its last prompt came before a cancel that keeps input: it waits for somebody to wake the agent.
    pub(super) parked: bool,
}

#[derive(Default)]
pub(super) struct Entries {
    pub(super) accounts: BTreeMap<SessionId, Account>,
    /// Every agent that was made, children included.
    pub(super) agents: BTreeMap<SessionId, Agent>,
    pub(super) kills: BTreeMap<&'static str, u64>,
    pub(super) turn_times: Vec<Duration>,
    pub(super) streams_dropped: u64,
    pub(super) audits: u64,
    pub(super) faults: Vec<Fault>,
}

impl Entries {
    pub(super) fn acknowledged(&self) -> u64 {
        self.accounts.values().map(|account| account.acknowledged.len() as u64).sum()
    }
}

#[derive(Default)]
pub(super) struct Ledger(Mutex<Entries>);

impl Ledger {
    pub(super) fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, agent: &Agent) {
        self.entries().agents.insert(agent.id().clone(), agent.clone());
    }

    pub(super) fn acknowledge(&self, session: &SessionId, message: MessageId) {
        let mut entries = self.entries();
        entries.accounts.entry(session.clone()).or_default().acknowledged.push(message);
    }

    pub(super) fn park(&self, session: &SessionId, parked: bool) {
        self.entries().accounts.entry(session.clone()).or_default().parked = parked;
    }

    pub(super) fn parked(&self, session: &SessionId) -> bool {
        self.entries().accounts.get(session).is_some_and(|account| account.parked)
    }

    pub(super) fn ran(&self, session: &SessionId, call: &CallId) {
        let mut entries = self.entries();
        let account = entries.accounts.entry(session.clone()).or_default();
        *account.runs.entry(call.clone()).or_default() += 1;
    }

    pub(super) fn killed(&self, kind: &'static str) {
        *self.entries().kills.entry(kind).or_default() += 1;
    }

    pub(super) fn fault(&self, fault: Fault) {
        tracing::error!(%fault, "a fault");
        let mut entries = self.entries();
        if entries.faults.len() < FAULTS_MAX {
            entries.faults.push(fault);
        }
    }
}
