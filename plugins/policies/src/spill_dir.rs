//! Spilled texts as files.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::id::{CallId, SessionId};
use tempfile::NamedTempFile;

use crate::SpillStore;

/// A [`SpillStore`] of a directory: in it one directory a session, in that one file a text.
///
/// Directories have mode 0700, files 0600. A file appears whole or not at all; it is **written**, not
/// synced: power loss may cost a text whose notice the log holds. Nothing is made before the first
/// text.
#[derive(Debug, Clone)]
pub struct SpillDir {
    root: PathBuf,
}

/// Why a text was not kept, or not removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpillError {
    /// The session's id makes no file name.
    #[error("session \"{session}\" has no directory of spilled texts: its id is empty or too long")]
    Name {
        /// The session.
        session: SessionId,
    },
    /// The operating system failed.
    #[error("spilled text {path}: {cause}")]
    Io {
        /// What was read or written.
        path: String,
        /// The system's words.
        cause: String,
    },
    /// A store of another kind failed.
    #[error("{0}")]
    Other(String),
}

impl SpillError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Name { .. } => "SPILL_NAME",
            Self::Io { .. } => "SPILL_IO",
            Self::Other(_) => "SPILL_FAILED",
        }
    }

    fn io(path: &Path, cause: &io::Error) -> Self {
        Self::Io { path: path.display().to_string(), cause: cause.to_string() }
    }
}

/// The longest file name that file systems take.
const NAME_BYTES_MAX: usize = 255;

/// How much of a call's id is in its file's name.
const CALL_BYTES_MAX: usize = 80;

/// How many texts calls of one id may have: some providers begin counting anew in each answer.
const TEXTS_MAX: u32 = 10_000;

impl SpillDir {
    /// Keeps texts below `root`. A relative path is one of the working directory.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn session_dir(&self, session: &SessionId) -> Result<PathBuf, SpillError> {
        let name = file_name(session.as_str());
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(SpillError::Name { session: session.clone() });
        }
        Ok(self.root.join(name))
    }
}

impl SpillDir {
    /// Removes the texts of all sessions but these, and returns of how many. Blocks.
    ///
    /// # Errors
    ///
    /// Those of the operating system; what was removed before stays so.
    pub fn retain(&self, sessions: &[SessionId]) -> io::Result<u64> {
        let entries = match fs::read_dir(&self.root) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(0),
            entries => entries?,
        };
        let kept: BTreeSet<String> =
            sessions.iter().map(|session| file_name(session.as_str())).collect();
        let mut removed = 0;
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_str().is_none_or(|name| !kept.contains(name)) {
                fs::remove_dir_all(entry.path())?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

impl SpillStore for SpillDir {
    fn save(
        &self,
        session: SessionId,
        call: CallId,
        text: Arc<str>,
    ) -> BoxFuture<'static, Result<String, SpillError>> {
        let dir = self.session_dir(&session);
        blocking(move || {
            let dir = dir?;
            write(&dir, &call, &text).map_err(|cause| SpillError::io(&dir, &cause))
        })
    }

    fn remove(&self, session: SessionId) -> BoxFuture<'static, Result<(), SpillError>> {
        let dir = self.session_dir(&session);
        blocking(move || {
            let dir = dir?;
            match fs::remove_dir_all(&dir) {
                Err(cause) if cause.kind() != ErrorKind::NotFound => {
                    Err(SpillError::io(&dir, &cause))
                }
                _ => Ok(()),
            }
        })
    }
}

/// Disks block.
fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SpillError> + Send + 'static,
) -> BoxFuture<'static, Result<T, SpillError>> {
    let working = tokio::task::spawn_blocking(work);
    working
        .map(|done| done.unwrap_or_else(|fault| Err(SpillError::Other(fault.to_string()))))
        .boxed()
}

/// Writes a file under the first free name, and returns its path.
fn write(dir: &Path, call: &CallId, text: &str) -> io::Result<String> {
    private_dirs().create(dir)?;
    // Mode 0600 is `tempfile`'s own.
    let mut file = NamedTempFile::new_in(dir)?;
    file.write_all(text.as_bytes())?;
    let name = file_name(call.as_str());
    let name = &name[..name.len().min(CALL_BYTES_MAX)];
    for count in 1..=TEXTS_MAX {
        let path = match count {
            1 => dir.join(format!("{name}.txt")),
            _ => dir.join(format!("{name}.{count}.txt")),
        };
        match file.persist_noclobber(&path) {
            Ok(_) => return Ok(path.canonicalize()?.display().to_string()),
            Err(taken) if taken.error.kind() == ErrorKind::AlreadyExists => file = taken.file,
            Err(other) => return Err(other.error),
        }
    }
    Err(io::Error::other(format!("there are {TEXTS_MAX} texts of call \"{call}\" already")))
}

fn private_dirs() -> DirBuilder {
    let mut dirs = DirBuilder::new();
    dirs.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut dirs, 0o700);
    dirs
}

/// An id as a file name: distinct for distinct ids, also where case does not count, and never a
/// path. What is not in `a-z0-9_-` is `%` and its byte in hex.
fn file_name(id: &str) -> String {
    let mut name = String::with_capacity(id.len());
    for byte in id.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(byte.into()),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_id_is_a_name_of_its_own_and_no_path() {
        for (id, name) in [
            ("019a-b_c", "019a-b_c"),
            ("../etc", "%2e%2e%2fetc"),
            ("A", "%41"),
            ("a%41", "a%2541"),
            ("ä\0", "%c3%a4%00"),
        ] {
            assert_eq!(file_name(id), name);
        }
    }

    #[tokio::test]
    async fn texts_are_private_whole_and_go_with_their_session() {
        let temp = tempfile::tempdir().unwrap();
        let spills = SpillDir::new(temp.path().join("spills"));
        let save = |session: &str, call: &str, text: &str| {
            spills.save(session.into(), call.into(), text.into())
        };
        let first = save("s", "call_0", "one").await.unwrap();
        let second = save("s", "call_0", "two").await.unwrap();
        let other = save("../s", &"C".repeat(300), "three").await.unwrap();
        assert!(second.ends_with("/spills/s/call_0.2.txt"), "{second}");
        assert!(Path::new(&first).is_absolute());
        for (path, text) in [(&first, "one"), (&second, "two"), (&other, "three")] {
            assert_eq!(fs::read_to_string(path).unwrap(), text);
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(Path::new(&first)), 0o600);
            assert_eq!(mode(Path::new(&first).parent().unwrap()), 0o700);
            assert_eq!(mode(&temp.path().join("spills")), 0o700);
        }
        assert_eq!(fs::read_dir(temp.path().join("spills/s")).unwrap().count(), 2, "no leftovers");
        spills.remove("s".into()).await.unwrap();
        spills.remove("s".into()).await.unwrap();
        assert!(!Path::new(&first).exists() && Path::new(&other).exists());
    }

    #[tokio::test]
    async fn an_id_without_a_name_and_a_root_that_is_no_directory_are_told() {
        let temp = tempfile::tempdir().unwrap();
        let spills = SpillDir::new(temp.path());
        for session in ["".to_owned(), "é".repeat(100)] {
            let error = spills.remove(session.as_str().into()).await.unwrap_err();
            assert_eq!(error.code(), "SPILL_NAME");
        }
        let file = temp.path().join("file");
        fs::write(&file, "").unwrap();
        let error = SpillDir::new(&file).save("s".into(), "c".into(), "x".into()).await;
        assert_eq!(error.unwrap_err().code(), "SPILL_IO");
    }
}
