//! Which presets there are. Nothing is remembered: each look reads the disk.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use serde::Deserialize;

use crate::{Composition, PresetError, RowFactories, generation::unknown_factory};

/// The file with a preset's rows.
pub const COMPOSITION_FILE: &str = "composition.toml";

/// The file with a preset's name and description for people; it may be absent.
pub const METADATA_FILE: &str = "preset.toml";

/// A file of a preset that is longer than this many bytes breaks it.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// A directory of presets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// Where; it need not be there.
    pub path: PathBuf,
    /// Whose.
    pub trust: Trust,
}

/// Whose presets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// They came with the program, and nobody changes them.
    System,
    /// The user's own.
    User,
}

impl Trust {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
        }
    }
}

impl Root {
    /// A directory that came with the program.
    pub fn system(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), trust: Trust::System }
    }

    /// A directory of the user's.
    pub fn user(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), trust: Trust::User }
    }
}

/// A preset as it was found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Preset {
    /// Its id: the directory's name.
    pub id: String,
    /// Its name for people; the id if it has none.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// Whose it is.
    pub trust: Trust,
    /// Where it is.
    pub dir: PathBuf,
    /// Whether it can be used.
    pub state: State,
}

/// Whether a preset can be used.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// It can.
    Ready(Arc<Composition>),
    /// It cannot.
    Broken {
        /// What is wrong.
        reason: String,
    },
}

impl Preset {
    /// The same preset, broken if it names a row that nobody makes.
    #[must_use]
    pub fn checked(mut self, rows: &RowFactories) -> Self {
        let unknown = match &self.state {
            State::Ready(composition) => {
                composition.factories().find(|name| rows.get(name).is_none())
            }
            State::Broken { .. } => None,
        };
        if let Some(reason) = unknown.map(|name| unknown_factory(rows, name)) {
            self.state = State::Broken { reason };
        }
        self
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Metadata {
    name: Option<String>,
    description: Option<String>,
}

/// Whether the id could name a preset: `[a-z0-9][a-z0-9-]*`.
pub fn is_preset_id(id: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    id.starts_with(plain) && id.chars().all(|c| plain(c) || c == '-')
}

/// All presets of these roots, by id. Of two with one id the one in the earlier root counts. Blocks.
///
/// # Errors
///
/// A root that is there and cannot be read.
pub fn discover(roots: &[Root]) -> Result<Vec<Preset>, PresetError> {
    let mut found = BTreeMap::new();
    for root in roots {
        let entries = match fs::read_dir(&root.path) {
            Ok(entries) => entries,
            Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => continue,
            Err(fault) => return Err(PresetError::io(&root.path, &fault)),
        };
        for entry in entries {
            let entry = entry.map_err(|fault| PresetError::io(&root.path, &fault))?;
            let name = entry.file_name();
            let id = name.to_str().filter(|id| is_preset_id(id));
            if let Some(id) = id.filter(|_| entry.path().is_dir()) {
                found.entry(id.to_owned()).or_insert_with(|| load(id, root));
            }
        }
    }
    Ok(found.into_values().collect())
}

/// The preset of this id. Blocks.
///
/// # Errors
///
/// `UNKNOWN_PRESET` with the ids that there are.
pub fn find(roots: &[Root], id: &str) -> Result<Preset, PresetError> {
    let root = roots.iter().find(|root| is_preset_id(id) && root.path.join(id).is_dir());
    match root {
        Some(root) => Ok(load(id, root)),
        None => {
            let known: Vec<_> = discover(roots)?.into_iter().map(|preset| preset.id).collect();
            let known = if known.is_empty() { "(none)".to_owned() } else { known.join(", ") };
            Err(PresetError::Unknown { id: id.to_owned(), known })
        }
    }
}

fn load(id: &str, root: &Root) -> Preset {
    let dir = root.path.join(id);
    let metadata = metadata(&dir);
    let (metadata, fault) = match metadata {
        Ok(metadata) => (metadata, None),
        Err(reason) => (Metadata::default(), Some(reason)),
    };
    let state = match fault.map_or_else(|| composition(&dir), Err) {
        Ok(composition) => State::Ready(Arc::new(composition)),
        Err(reason) => State::Broken { reason },
    };
    Preset {
        id: id.to_owned(),
        name: metadata.name.unwrap_or_else(|| id.to_owned()),
        description: metadata.description,
        trust: root.trust,
        dir,
        state,
    }
}

fn metadata(dir: &Path) -> Result<Metadata, String> {
    if !dir.join(METADATA_FILE).exists() {
        return Ok(Metadata::default());
    }
    let text = read(dir, METADATA_FILE)?;
    toml::from_str(&text).map_err(|fault| format!("{METADATA_FILE}: {fault}"))
}

fn composition(dir: &Path) -> Result<Composition, String> {
    let text = read(dir, COMPOSITION_FILE)?;
    Composition::parse(&text, |file| read(dir, file))
        .map_err(|fault| format!("{COMPOSITION_FILE}: {fault}"))
}

/// A file of the preset, and of nothing else.
fn read(dir: &Path, file: &str) -> Result<String, String> {
    let path = Path::new(file);
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(format!("`{file}` is not a file below the preset's directory"));
    }
    let mut text = String::new();
    let mut read = || {
        let file = fs::File::open(dir.join(path))?;
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)
    };
    match read() {
        Err(fault) => Err(format!("`{file}` cannot be read: {fault}")),
        Ok(len) if len as u64 > FILE_BYTES_MAX => {
            Err(format!("`{file}` is longer than {FILE_BYTES_MAX} bytes"))
        }
        Ok(_) => Ok(text),
    }
}
