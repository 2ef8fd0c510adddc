//! Opening a store: the lock, the journal, and whether the index can be believed.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use playhouse_plugin_api::store::StoreError;

use super::config::{JournalStoreConfig, OpenStep};
use super::core::{Core, Ledger};
use super::failure::store_error;
use crate::index::{Covered, Index, IndexError};
use crate::journal::{Depth, Disk, Map, Recovered, StoreId, Writer, sealed_end};

/// Opens the store in `dir`. Blocks.
pub(crate) fn open(
    disk: Arc<dyn Disk>,
    dir: &Path,
    config: &JournalStoreConfig,
) -> Result<Core, StoreError> {
    let fail = |error| store_error(dir, error);
    let journal = config.journal.clone();
    let writer = Writer::open(Arc::clone(&disk), dir, fresh_id(), journal.clone());
    let mut writer = writer.map_err(fail)?;
    let index = if config.index { open_index(dir, &writer.store(), config) } else { None };
    if let Some((index, covered)) = &index
        && let Some(covered) = covered
        && covered.clean
        && sealed_end(disk.as_ref(), dir, &writer.store()).map_err(fail)?
            == Some((covered.next_segment, covered.next_batch))
    {
        let dirty = Covered { clean: false, ..covered.clone() };
        if index.mark(&dirty).is_ok() {
            writer.resume_at(covered.next_segment, covered.next_batch);
            let ledger = Ledger {
                recent: Map { last_session: covered.last_session, ..Map::default() }.into(),
                last_session: covered.last_session,
                index: Some(Arc::clone(index)),
                ..Ledger::default()
            };
            return Ok(Core::new(disk, dir, journal, writer, ledger));
        }
    }
    let mut segments = |done, all| config.tell(OpenStep::Segments, done, all);
    let mut found = writer.resume_with(Depth::Footers, &mut segments).map_err(fail)?;
    if found.segments > 0 {
        let (segments, sessions) = (found.segments, found.map.sessions.len());
        tracing::info!(dir = %dir.display(), segments, sessions, "read a store that was not closed");
    }
    if !found.damages.is_empty() {
        for damage in &found.damages {
            tracing::error!(dir = %dir.display(), %damage, "the store is damaged");
        }
        if let Some((index, _)) = &index {
            name_by_index(index, &mut found);
        }
        // An index cannot say what is damaged; the ledger can.
        return Ok(Core::new(disk, dir, journal, writer, ledger_of(found, None)));
    }
    let covered = Covered {
        store: writer.store(),
        next_batch: writer.next_batch(),
        next_segment: writer.next_segment(),
        last_session: found.map.last_session,
        clean: false,
    };
    let index = index.and_then(|(index, told)| {
        // Marked clean, and not at the journal's end: a life went by without it, or sled has lost what
        // it was told last and may lose it again.
        let index = match told {
            Some(told) if told.clean => renew(dir, index, config)?,
            _ => index,
        };
        reconcile(dir, index, &found.map, &covered, config)
    });
    let mut ledger = ledger_of(found, index.clone());
    if index.is_some() {
        ledger.recent = Map { last_session: ledger.last_session, ..Map::default() }.into();
    }
    Ok(Core::new(disk, dir, journal, writer, ledger))
}

fn ledger_of(found: Recovered, index: Option<Arc<Index>>) -> Ledger {
    Ledger {
        last_session: found.map.last_session,
        recent: found.map.into(),
        damages: found.damages,
        index,
        ..Ledger::default()
    }
}

type Opened = (Arc<Index>, Option<Covered>);

/// The index, as far as it can be opened; a damaged one is moved aside.
fn open_index(dir: &Path, store: &StoreId, config: &JournalStoreConfig) -> Option<Opened> {
    let opened = Index::open(dir, config.cache_bytes).and_then(|index| {
        let covered = index.covered()?;
        Ok((Arc::new(index), covered.filter(|covered| covered.store == *store)))
    });
    match opened {
        Ok(opened) => Some(opened),
        Err(IndexError::Locked) => {
            // A read of the store's last life has not ended; the index is not damaged.
            tracing::warn!(dir = %dir.display(), "the store goes on without its index, which is held");
            None
        }
        Err(error) => start_over(dir, &error, config).map(|index| (Arc::new(index), None)),
    }
}

fn start_over(dir: &Path, error: &IndexError, config: &JournalStoreConfig) -> Option<Index> {
    match Index::start_over(dir, config.cache_bytes) {
        Ok((index, aside)) => {
            let aside = aside.display();
            tracing::warn!(%error, %aside, "a damaged index was moved aside and is made anew");
            Some(index)
        }
        Err(again) => {
            tracing::error!(%error, %again, "the store goes on without an index");
            None
        }
    }
}

fn renew(dir: &Path, index: Arc<Index>, config: &JournalStoreConfig) -> Option<Arc<Index>> {
    drop(index);
    match Index::renew(dir, config.cache_bytes) {
        Ok(index) => Some(Arc::new(index)),
        Err(error) => {
            tracing::error!(%error, "the store goes on without an index");
            None
        }
    }
}

/// Makes the index say what the journal says.
fn reconcile(
    dir: &Path,
    index: Arc<Index>,
    map: &Map,
    covered: &Covered,
    config: &JournalStoreConfig,
) -> Option<Arc<Index>> {
    let rows = || {
        let config = config.clone();
        move |done, all| config.tell(OpenStep::IndexRows, done, all)
    };
    match index.reconcile(map, covered, rows()) {
        Ok(corrected) => {
            if corrected > 0 {
                tracing::info!(corrected, "the index was brought up to the journal");
            }
            Some(index)
        }
        Err(error) => {
            drop(index);
            let index = start_over(dir, &error, config)?;
            match index.reconcile(map, covered, rows()) {
                Ok(_) => Some(Arc::new(index)),
                Err(error) => {
                    tracing::error!(%error, "the store goes on without an index");
                    None
                }
            }
        }
    }
}

/// Damage that does not say which sessions it touches: the index may know what stood there.
fn name_by_index(index: &Index, found: &mut Recovered) {
    let unnamed = |damage: &&crate::journal::Damage| !damage.known;
    let segments: BTreeSet<u64> = found.damages.iter().filter(unnamed).map(|d| d.segment).collect();
    if segments.is_empty() {
        return;
    }
    let Ok(blocks) = index.blocks_in(segments) else { return };
    for (number, block) in blocks {
        let Some(session) = found.map.sessions.get_mut(&number) else { continue };
        if session.damage.is_none() && block.end_seq() > session.next_seq {
            let place = |damage: &&crate::journal::Damage| damage.segment == block.place.segment;
            session.damage = found.damages.iter().find(place).cloned();
        }
    }
}

/// Sixteen bytes that no other store has.
pub(crate) fn fresh_id() -> StoreId {
    use std::hash::{BuildHasher, RandomState};
    // The standard library's only source of randomness: each state has keys of its own.
    let words = [RandomState::new().hash_one(1), RandomState::new().hash_one(2)];
    let mut id = StoreId::default();
    id[..8].copy_from_slice(&words[0].to_le_bytes());
    id[8..].copy_from_slice(&words[1].to_le_bytes());
    id
}
