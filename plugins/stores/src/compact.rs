//! Giving space back, whatever the store's kind.

use std::path::Path;

use playhouse_plugin_api::store::StoreError;

use crate::kind::StoreKind;
use crate::{CompactReport, compact};

/// Compacts the store in `dir`, which must be closed; `None` if its kind has nothing to compact.
/// Durable when it returns. Blocks.
///
/// # Errors
///
/// [`StoreError::InUse`] if it is open, [`StoreError::Argument`] if there is none or if it is damaged,
/// and the kind's own.
pub fn compact_store(dir: impl AsRef<Path>) -> Result<Option<CompactReport>, StoreError> {
    let dir = dir.as_ref();
    match StoreKind::detect(dir)? {
        StoreKind::Journal => compact(dir).map(Some),
        #[cfg(feature = "sqlite")]
        StoreKind::Sqlite => crate::compact_sqlite(dir).map(Some),
        StoreKind::Jsonl | StoreKind::Memory => Ok(None),
    }
}
