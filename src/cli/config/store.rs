//! The table `[store]`.

use std::{path::PathBuf, time::Duration};

use playhouse_stores::StoreConfig;
use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, reader::Reader};

const ONLY_JOURNAL: &str = "is only for the kind journal; remove it";
const ONLY_WITH_WINDOW: &str = "is only for the kinds journal and jsonl; remove it";

/// `[store]`
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoreEntry {
    /// The directory; relative to the file's. `.playhouse` if absent.
    pub(super) dir: Option<Spanned<PathBuf>>,
    /// `journal`, `jsonl`, `sqlite` or `memory`. `journal` if absent.
    pub(super) kind: Option<Spanned<String>>,
    /// `strict`, `relaxed` or `none`. `strict` if absent.
    pub(super) durability: Option<Spanned<String>>,
    /// How many bytes all sessions together may have accepted and not made durable before senders
    /// and streams wait; positive. 67,108,864 if absent.
    pub(super) undurable_bytes: Option<Spanned<i64>>,
    /// How long what is written may stay undurable when nobody waits for it, in milliseconds;
    /// positive. 200 if absent. Only `journal` and `jsonl`.
    pub(super) window_ms: Option<Spanned<i64>>,
    /// The length of a segment; positive. 67,108,864 if absent. Only `journal`.
    pub(super) segment_bytes: Option<Spanned<i64>>,
    /// The index's cache; positive. 4,194,304 if absent. Only `journal`.
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
        let mut journal = match store {
            StoreConfig::Journal(journal) => journal,
            mut other => {
                let takes_window = matches!(other, StoreConfig::Jsonl(_));
                for (key, at) in &numbers[usize::from(takes_window)..] {
                    let Some(at) = at else { continue };
                    let window = *key == "store.window_ms";
                    let why = if window { ONLY_WITH_WINDOW } else { ONLY_JOURNAL };
                    return Err(self.fault(at, key, why));
                }
                if let Some(at) = &entry.index {
                    return Err(self.fault(at, "store.index", ONLY_JOURNAL));
                }
                if let (StoreConfig::Jsonl(jsonl), Some(at)) = (&mut other, &entry.window_ms) {
                    jsonl.window = Duration::from_millis(self.positive(at, "store.window_ms")?);
                }
                return Ok(other);
            }
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
