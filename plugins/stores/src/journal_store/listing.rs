//! Pages of the catalog: what the index has, what the ledger has beside it, and what is only claimed.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{
    ListPage, ListQuery, SessionStat, StoreError, ValuePage, ValueQuery,
};

use super::claim::Claim;
use super::core::Core;
use crate::journal::{Place, SessionMap};

/// How many keys are looked at in one step.
const KEYS_A_STEP: usize = 256;

impl Core {
    /// A page of the catalog.
    pub(crate) fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        let limit = query.limit.max(1);
        let after = query.after.as_ref().map(SessionId::as_str);
        let is_behind = |id: &str| after.is_none_or(|after| id > after);
        // The claims first: what is stored in between is then found.
        let mut entries: BTreeMap<String, Option<SessionStat>> = BTreeMap::new();
        {
            let ledger = self.ledger();
            let claims = ledger.claims.values().filter(|claim| is_behind(claim.id.as_str()));
            let unstored =
                |claim: &&Arc<Claim>| !claim.placeholder && claim.stored().number.is_none();
            for claim in claims.filter(unstored) {
                entries.insert(claim.id.as_str().to_owned(), Some(stat_of_claim(claim)));
            }
        }
        // Deleted sessions may fill a page of the index; ask for as many more.
        let deleted = self.ledger().recent.deleted.len();
        let found: BTreeMap<String, (u64, SessionMap)> = self.consult(
            |index| {
                let page = index.page(after, limit + 1 + deleted)?;
                Ok(page
                    .into_iter()
                    .map(|l| (l.session.id.clone(), (l.number, l.session)))
                    .collect())
            },
            |ledger, indexed: Option<BTreeMap<_, (u64, SessionMap)>>| {
                let mut merged = indexed.unwrap_or_default();
                merged.retain(|_, (number, _)| !ledger.recent.deleted.contains(number));
                let behind = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
                for (id, number) in ledger.recent.ids.range::<str, _>(behind).take(limit + 1) {
                    if let Some(session) = ledger.recent.sessions.get(number) {
                        merged.insert(id.clone(), (*number, session.without_blocks()));
                    }
                }
                // What is only counted on in the ledger has its id in the index.
                for (id, (number, session)) in &mut merged {
                    if let Some(recent) = ledger.recent.sessions.get(number)
                        && recent.id == *id
                    {
                        session.next_seq = recent.next_seq;
                        session.size_bytes = recent.size_bytes;
                    }
                }
                merged
            },
        )?;
        for id in found.keys() {
            entries.insert(id.clone(), None);
        }
        let mut page = ListPage::default();
        let more = entries.len() > limit;
        for (id, ready) in entries.into_iter().take(limit) {
            let id = SessionId::from(id);
            if more {
                page.next = Some(id.clone());
            }
            let stat = match (ready, found.get(id.as_str())) {
                (Some(stat), _) => stat,
                (None, Some((number, session))) => match self.stat_of(&id, *number, session) {
                    Ok(stat) => stat,
                    // A list goes on; whoever reads it must know that it is not all.
                    Err(error) => {
                        let store = self.describe();
                        tracing::error!(store, session = %id, %error, "a list leaves out a session");
                        continue;
                    }
                },
                (None, None) => continue,
            };
            page.sessions.push(stat);
        }
        Ok(page)
    }
}

impl Core {
    /// A page of the keys that have a value. Those whose value may be lost are listed too.
    pub(crate) fn values(&self, query: &ValueQuery) -> Result<ValuePage, StoreError> {
        let wanted = query.limit.max(1).saturating_add(1);
        let mut after = query.after.clone().unwrap_or_default().into_bytes();
        let mut keys = Vec::new();
        loop {
            // In steps, since any number of keys may have been removed.
            let step = wanted.max(KEYS_A_STEP);
            let found: BTreeMap<Vec<u8>, Option<Place>> = self.consult(
                |index| index.keys(&after, step),
                |ledger, indexed| {
                    let mut merged = indexed.unwrap_or_default();
                    let behind = (Bound::Excluded(after.as_slice()), Bound::Unbounded);
                    let recent = ledger.recent.kv.range::<[u8], _>(behind).take(step);
                    merged.extend(recent.map(|(key, place)| (key.clone(), Some(*place))));
                    let lost = ledger.recent.damaged_keys.keys().filter(|key| **key > after);
                    merged.extend(lost.map(|key| (key.clone(), None)));
                    merged
                },
            )?;
            let is_last = found.len() < step;
            for (key, place) in found.into_iter().take(step) {
                if place.map_or(Ok(true), |place| self.has_value(&key, place))? {
                    keys.push(String::from_utf8_lossy(&key).into_owned());
                }
                after = key;
            }
            if is_last || keys.len() >= wanted {
                return Ok(ValuePage::of(query, keys));
            }
        }
    }
}

pub(super) fn stat_of_claim(claim: &Claim) -> SessionStat {
    let (header, revision) = (Arc::clone(&claim.header), claim.unstored.clone());
    SessionStat { header, event_count: 0, size_bytes: 0, revision }
}
