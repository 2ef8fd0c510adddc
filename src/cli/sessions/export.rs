//! `sessions export`.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use futures::TryStreamExt as _;
use playhouse_context::DirectoryAttachments;
use playhouse_messages::{chunk::Failure, id::SessionId};
use playhouse_plugin_api::store::{StoreError, StoreReader, all_sessions};
use playhouse_stores::verify;
use playhouse_transfer::{Exported, TransferError, export, with_descendants};
use serde_json::json;

use super::{Common, progress};
use crate::cli::{
    exit::{CliError, Exit},
    house::{ATTACHMENTS, SPILLS},
    output::{Format, Out, note, tame},
};

/// Writes sessions as JSON lines, each with its header, its events as they are stored, the stream that a
/// crash left unsettled, and its images. Works beside a running harness. `--all` and `--tree` leave
/// out what is damaged, say so, and then exit with 6.
#[derive(Debug, clap::Args)]
pub(super) struct Export {
    /// Which sessions, one after another.
    #[arg(required_unless_present = "all", value_name = "ID")]
    ids: Vec<String>,
    /// All sessions of the store.
    #[arg(long, conflicts_with_all = ["ids", "tree"])]
    all: bool,
    /// Also all that was forked or delegated from them.
    #[arg(long)]
    tree: bool,
    /// A file that is not there yet, or a directory (which ends in / if it is not there) for a file a
    /// session [default: standard output].
    #[arg(long, value_name = "FILE|DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn run(args: Export) -> Result<Exit, CliError> {
    let reader = args.common.open().await?;
    let store = args.common.dir()?;
    let ids = chosen(&args, &*reader).await?;
    let images = DirectoryAttachments::new(store.join(ATTACHMENTS));
    let sessions = Sessions {
        reader: &*reader,
        images: &images,
        format: args.common.format,
        leave_out: args.all || args.tree,
    };
    let spills = store.join(SPILLS);
    if spills.read_dir().is_ok_and(|mut spills| spills.next().is_some()) {
        note(&format!("left out: the spilled outputs of tools in {}", spills.display()));
    }
    let Some(out) = &args.out else {
        let mut out = BufWriter::new(io::stdout());
        for id in &ids {
            sessions.write(id, &mut out).await?.iter().for_each(missing);
        }
        out.flush().map_err(|cause| CliError::io("writing the output", cause))?;
        return all_there(&args, &store);
    };
    if out.is_dir() || out.as_os_str().as_encoded_bytes().ends_with(b"/") {
        private_dir(out)
            .map_err(|cause| CliError::io(format!("making {}", out.display()), cause))?;
        for id in &ids {
            sessions.to_file(std::slice::from_ref(id), &out.join(file_name(id))).await?;
        }
    } else {
        sessions.to_file(&ids, out).await?;
    }
    all_there(&args, &store)
}

/// Whether what was asked for by no id is all there: a session of which not even the header can be
/// read is in no list.
fn all_there(args: &Export, store: &Path) -> Result<Exit, CliError> {
    if !(args.all || args.tree) {
        return Ok(Exit::Completed);
    }
    let report = tokio::task::block_in_place(|| verify(store, |_| ()))?;
    if report.is_whole() {
        return Ok(Exit::Completed);
    }
    let text = format!(
        "the store at {} is damaged, so sessions may be missing from the export; see `playhouse \
         sessions verify`, and `playhouse sessions salvage`",
        store.display()
    );
    Err(CliError::Failed(Failure::new("STORE_CORRUPT", text)))
}

async fn chosen(args: &Export, reader: &dyn StoreReader) -> Result<Vec<SessionId>, CliError> {
    let ids: Vec<SessionId> = args.ids.iter().map(|id| SessionId::from(id.as_str())).collect();
    if args.all || args.tree {
        let stats: Vec<_> = all_sessions(reader).try_collect().await?;
        if args.all {
            return Ok(stats.iter().map(|stat| stat.header.id.clone()).collect());
        }
        return Ok(with_descendants(&stats, &ids));
    }
    Ok(ids)
}

struct Sessions<'a> {
    reader: &'a dyn StoreReader,
    images: &'a DirectoryAttachments,
    format: Format,
    /// Whether one that is damaged keeps the others from nobody: none of them was asked for by its id.
    leave_out: bool,
}

impl Sessions<'_> {
    /// Writes a session, unless it is damaged and may be left out. It is read before any of it is
    /// written.
    async fn write(
        &self,
        id: &SessionId,
        out: &mut (dyn Write + Send),
    ) -> Result<Option<Exported>, CliError> {
        match export(self.reader, Some(self.images), id, out).await {
            Ok(exported) => Ok(Some(exported)),
            Err(TransferError::Store(error @ StoreError::Corrupt { .. })) if self.leave_out => {
                note(&tame(&format!("left out: {error}")));
                Ok(None)
            }
            Err(error) => Err(refused(error)),
        }
    }

    /// Writes a file whole, or removes it; one that would hold no session too.
    async fn to_file(&self, ids: &[SessionId], path: &Path) -> Result<(), CliError> {
        let failed = |cause| CliError::io(format!("writing {}", path.display()), cause);
        let file = new_file(path).map_err(|cause| match cause.kind() {
            io::ErrorKind::AlreadyExists => {
                let text =
                    format!("{} is already there; name another file with --out", path.display());
                CliError::Usage(text)
            }
            _ => failed(cause),
        })?;
        let written = self.fill(ids, file, path).await;
        if !matches!(written, Ok(sessions) if sessions > 0 || ids.is_empty()) {
            // The first error is the one to tell.
            let _ = std::fs::remove_file(path);
        }
        written.map(drop)
    }

    /// Returns how many sessions were written.
    async fn fill(&self, ids: &[SessionId], file: File, path: &Path) -> Result<usize, CliError> {
        let failed = |cause| CliError::io(format!("writing {}", path.display()), cause);
        let mut file = BufWriter::new(file);
        let mut told = Vec::new();
        let bar = progress(ids.len() as u64);
        for id in ids {
            told.extend(self.write(id, &mut file).await?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        file.into_inner()
            .map_err(|fault| failed(fault.into_error()))?
            .sync_all()
            .map_err(failed)?;
        let mut out = Out::new();
        for exported in &told {
            missing(exported);
            let Exported { id, events, attachments, .. } = exported;
            let place = path.display();
            out.line(&match self.format {
                Format::Text => {
                    tame(&format!("{place}: session {id}, {events} events, {attachments} images"))
                }
                Format::Jsonl => json!({
                    "kind": "session", "file": place.to_string(), "id": id, "events": events,
                    "attachments": attachments, "missing": exported.missing,
                })
                .to_string(),
            })?;
        }
        out.flush()?;
        Ok(told.len())
    }
}

fn missing(exported: &Exported) {
    for image in &exported.missing {
        note(&format!("session {}: the image {image} is gone or damaged", exported.id));
    }
}

pub(super) fn refused(error: TransferError) -> CliError {
    match error {
        TransferError::Store(error) => error.into(),
        TransferError::Attachment(error) => CliError::Failed(error.into()),
        TransferError::Write(cause) => CliError::io("writing the export", cause),
        other => CliError::Failed(Failure::new(other.code(), other.to_string())),
    }
}

/// An id as a file's name: injective, and no way out of the directory.
fn file_name(id: &SessionId) -> String {
    let mut name = String::new();
    for (at, byte) in id.as_str().bytes().enumerate() {
        match byte {
            b'.' if at == 0 => name.push_str("%2E"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => name.push(byte.into()),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    name + ".jsonl"
}

fn new_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn private_dir(dir: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_id_leaves_the_directory() {
        for (id, name) in [
            ("s-1.a_B", "s-1.a_B.jsonl"),
            ("..", "%2E..jsonl"),
            ("../x", "%2E.%2Fx.jsonl"),
            ("a/b%2F", "a%2Fb%252F.jsonl"),
            ("ü", "%C3%BC.jsonl"),
        ] {
            assert_eq!(file_name(&id.into()), name);
        }
    }
}
