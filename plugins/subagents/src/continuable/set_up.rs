//! What other plugins contribute to every continuable child.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    agent::Agent,
    scope::{Registration, Scope, ScopeClosed},
};

use super::{ContinuationError, request::Contribution};

/// The contributions, in the order of their registration.
#[derive(Clone, Default)]
pub(super) struct SetUps(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    numbers: u64,
    entries: BTreeMap<u64, Entry>,
}

struct Entry {
    contribution: Contribution,
    /// What it has registered in children, by a number of each installation.
    installed: BTreeMap<u64, Vec<Registration>>,
}

impl SetUps {
    pub(super) fn register(
        &self,
        scope: &Scope,
        contribution: Contribution,
    ) -> Result<Registration, ScopeClosed> {
        let mut table = self.lock();
        table.numbers += 1;
        let (set_ups, number) = (self.clone(), table.numbers);
        // Under the lock: a scope that closes meanwhile waits, and then finds what to remove.
        let registration = scope.on_close(move || {
            let removed = set_ups.lock().entries.remove(&number);
            let installed = removed.into_iter().flat_map(|entry| entry.installed.into_values());
            installed.flatten().for_each(|one| one.remove());
        })?;
        table.entries.insert(number, Entry { contribution, installed: BTreeMap::new() });
        Ok(registration)
    }

    /// Runs all contributions for a child that is not live yet. All or nothing: whatever was
    /// registered by one that fails goes with the child's scope.
    ///
    /// # Errors
    ///
    /// What a contribution fails with, and `ACTIVATION_SETUP_REVOKED` if one was removed meanwhile.
    pub(super) async fn install(&self, child: &Agent) -> Result<(), Failure> {
        let all: Vec<_> = {
            let table = self.lock();
            let entries = table.entries.iter();
            entries.map(|(number, entry)| (*number, entry.contribution.clone())).collect()
        };
        for (number, contribution) in &all {
            let installed = contribution(child.clone()).await?;
            self.keep(*number, child, installed)?;
        }
        let table = self.lock();
        match all.iter().all(|(number, _)| table.entries.contains_key(number)) {
            true => Ok(()),
            false => Err(revoked(child)),
        }
    }

    fn keep(
        &self,
        number: u64,
        child: &Agent,
        installed: Vec<Registration>,
    ) -> Result<(), Failure> {
        let mut table = self.lock();
        table.numbers += 1;
        let installation = table.numbers;
        let Some(entry) = table.entries.get_mut(&number) else {
            drop(table);
            installed.iter().for_each(Registration::remove);
            return Err(revoked(child));
        };
        entry.installed.insert(installation, installed);
        drop(table);
        // The child's end undoes it by itself; nothing of it is kept then.
        let set_ups = self.clone();
        child.scope().on_close(move || {
            if let Some(entry) = set_ups.lock().entries.get_mut(&number) {
                entry.installed.remove(&installation);
            }
        })?;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn revoked(child: &Agent) -> Failure {
    ContinuationError::SetUpRevoked { id: child.id().clone() }.into()
}
