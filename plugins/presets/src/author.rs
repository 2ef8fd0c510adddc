//! Presets copied and removed. There is no other way to make one but by its files.

use std::{fs, io, path::Path};

use crate::{
    PresetError, Root, Trust,
    discovery::{COMPOSITION_FILE, METADATA_FILE, Preset, find, is_preset_id},
};

/// Copies a preset, also a broken one, into the first root of the user's, under another id and
/// perhaps another name. Overwrites nothing; a copy that fails is taken back. Blocks.
///
/// # Errors
///
/// `UNKNOWN_PRESET`, `INVALID_ARGUMENT`, `NO_USER_ROOT`, `PRESET_EXISTS` if any root has the id,
/// `PRESET_IO`.
pub fn copy(
    roots: &[Root],
    from: &str,
    id: &str,
    name: Option<&str>,
) -> Result<Preset, PresetError> {
    if !is_preset_id(id) {
        return Err(PresetError::Id { id: id.to_owned() });
    }
    let source = find(roots, from)?;
    let root = roots.iter().find(|root| root.trust == Trust::User);
    let root = root.ok_or(PresetError::NoUserRoot)?;
    if roots.iter().any(|root| root.path.join(id).exists()) {
        return Err(PresetError::Exists { id: id.to_owned() });
    }
    private_dirs(true).create(&root.path).map_err(|fault| PresetError::io(&root.path, &fault))?;
    let dir = root.path.join(id);
    private_dirs(false).create(&dir).map_err(|fault| match fault.kind() {
        io::ErrorKind::AlreadyExists => PresetError::Exists { id: id.to_owned() },
        _ => PresetError::io(&dir, &fault),
    })?;
    let copied = copy_files(&source.dir, &dir, true).and_then(|()| match name {
        Some(name) => rename(&dir, name, source.description.as_deref()),
        None => Ok(()),
    });
    if let Err(error) = copied {
        if let Err(fault) = fs::remove_dir_all(&dir) {
            tracing::warn!(dir = %dir.display(), %fault, "half a copy of a preset is left");
        }
        return Err(error);
    }
    find(std::slice::from_ref(root), id)
}

/// Removes a preset of the user's own. Agents that are composed from it go on. Blocks.
///
/// # Errors
///
/// `UNKNOWN_PRESET`, `PRESET_NOT_YOURS`, `PRESET_IO`.
pub fn remove(roots: &[Root], id: &str) -> Result<(), PresetError> {
    let preset = find(roots, id)?;
    if preset.trust != Trust::User {
        return Err(PresetError::NotYours { id: id.to_owned() });
    }
    let io = |fault| PresetError::io(&preset.dir, &fault);
    // A link is removed, and what it points to left alone.
    if fs::symlink_metadata(&preset.dir).map_err(io)?.is_symlink() {
        return fs::remove_file(&preset.dir).map_err(io);
    }
    fs::remove_dir_all(&preset.dir).map_err(io)
}

/// Copies files and directories; links and the rest are left out. The composition comes last: until
/// then the copy is a broken preset, and never half of one.
fn copy_files(from: &Path, to: &Path, is_top: bool) -> Result<(), PresetError> {
    let io = |fault| PresetError::io(from, &fault);
    let mut entries = fs::read_dir(from).map_err(io)?.collect::<Result<Vec<_>, _>>().map_err(io)?;
    entries
        .sort_by_key(|entry| (is_top && entry.file_name() == COMPOSITION_FILE, entry.file_name()));
    for entry in entries {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().map_err(io)?;
        if kind.is_dir() {
            private_dirs(false)
                .create(&target)
                .map_err(|fault| PresetError::io(&target, &fault))?;
            copy_files(&source, &target, false)?;
        } else if kind.is_file() {
            let copied = fs::copy(&source, &target).and_then(|_| make_private(&target));
            copied.map_err(|fault| PresetError::io(&target, &fault))?;
        }
    }
    Ok(())
}

fn rename(dir: &Path, name: &str, description: Option<&str>) -> Result<(), PresetError> {
    let mut metadata = toml::Table::from_iter([("name".to_owned(), name.into())]);
    if let Some(description) = description {
        metadata.insert("description".to_owned(), description.into());
    }
    let path = dir.join(METADATA_FILE);
    let written = fs::write(&path, metadata.to_string()).and_then(|()| make_private(&path));
    written.map_err(|fault| PresetError::io(&path, &fault))
}

fn private_dirs(recursive: bool) -> fs::DirBuilder {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(recursive);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

/// What is copied may be anybody's to read; a copy is its owner's.
fn make_private(file: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(file, fs::Permissions::from_mode(0o600))?;
    }
    let _ = file;
    Ok(())
}
