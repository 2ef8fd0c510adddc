//! The table `[store]`.

use std::{path::PathBuf, time::Duration};

use playhouse_stores::StoreConfig;
use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, reader::Reader};

/// `[store]`
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoreEntry {
    /// The directory; relative to the file's. `.playhouse` if absent.
    pub(super) dir: Option<Spanned<PathBuf>>,
    /// `journal` or `memory`. `journal` if absent.
    pub(super) kind: Option<Spanned<String>>,
    /// How many bytes all sessions together may have accepted and not made durable before senders
    /// and streams wait; positive. 67,108,864 if absent.
    pub(super) undurable_bytes: Option<Spanned<i64>>,
    /// How long what is written may stay undurable when nobody waits for it, in milliseconds;
    /// positive. 200 if absent. Only `journal`.
    pub(super) window_ms: Option<Spanned<i64>>,
    /// The length of a segment; positive. 67,108,864 if absent. Only `journal`.
    pub(super) segment_bytes: Option<Spanned<i64>>,
    /// The index's cache; positive. 67,108,864 if absent. Only `journal`.
    pub(super) cache_bytes: Option<Spanned<i64>>,
    /// How many bytes may wait for their write; positive. 67,108,864 if absent. Only `journal`.
    pub(super) waiting_bytes: Option<Spanned<i64>>,
    /// Whether to keep an index. `true` if absent. Only `journal`.
    pub(super) index: Option<Spanned<bool>>,
}

impl Reader<'_> {
    /// How sessions are kept.
    pub(super) fn store(&self, entry: &StoreEntry) -> Result<StoreConfig, ConfigError> {
        let store = match &entry.kind {
            Some(kind) => match kind.get_ref().parse() {
                Ok(found) => StoreConfig::new(found),
                Err(fault) => return Err(self.fault(kind, "store.kind", fault.to_string())),
            },
            None => StoreConfig::default(),
        };
        let numbers = [
            ("store.window_ms", &entry.window_ms),
            ("store.segment_bytes", &entry.segment_bytes),
            ("store.cache_bytes", &entry.cache_bytes),
            ("store.waiting_bytes", &entry.waiting_bytes),
        ];
        let StoreConfig::Journal(mut journal) = store else {
            let only = "is only for the kind journal; remove it";
            for (key, at) in numbers {
                if let Some(at) = at {
                    return Err(self.fault(at, key, only));
                }
            }
            return match &entry.index {
                Some(at) => Err(self.fault(at, "store.index", only)),
                None => Ok(store),
            };
        };
        for (key, at) in numbers {
            let Some(at) = at else { continue };
            let number = self.positive(at, key)?;
            journal = match key {
                "store.window_ms" => journal.window(Duration::from_millis(number)),
                "store.segment_bytes" => journal.segment_bytes(number),
                "store.cache_bytes" => journal.cache_bytes(number),
                _ => journal.waiting_bytes(usize::try_from(number).unwrap_or(usize::MAX)),
            };
        }
        let index = entry.index.as_ref().is_none_or(|index| *index.get_ref());
        Ok(StoreConfig::Journal(journal.index(index)))
    }
}
