//! Where agent presets are.

use std::path::PathBuf;

use playhouse_presets::Root;
use serde::Deserialize;

use super::reader::Reader;

/// `[presets]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PresetsEntry {
    /// Directories of the user's own presets, of which the earlier count more; copies go to the first.
    roots: Vec<PathBuf>,
    /// Directories of presets that came with something and are not changed; they count after the
    /// others.
    system_roots: Vec<PathBuf>,
}

impl Reader<'_> {
    pub(super) fn presets(&self, entry: PresetsEntry) -> Vec<Root> {
        let user = entry.roots.into_iter().map(|root| Root::user(self.near(root)));
        let system = entry.system_roots.into_iter().map(|root| Root::system(self.near(root)));
        user.chain(system).collect()
    }
}
