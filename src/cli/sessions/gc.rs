//! `sessions gc`: gives back what nothing in the store needs any more.

use std::{collections::BTreeSet, fs, io, path::Path};

use futures::TryStreamExt as _;
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{Store, StoreError, StoredSession, all_sessions};
use playhouse_policies::SpillDir;
use playhouse_sessions::projection::forget_gone;
use playhouse_stores::{compact_store, counted, verify};
use serde_json::json;

use super::{Common, progress};
use crate::cli::{
    exit::{CliError, Exit},
    house::{ATTACHMENTS, SPILLS},
    output::{Format, Out},
};

/// Hex digits of an image's name, which is its digest.
const DIGEST_DIGITS: usize = 64;

pub(super) async fn run(common: &Common) -> Result<Exit, CliError> {
    // As long as the store is held, no harness adds an image or a text.
    let (dir, store) = common.open_write().await?;
    let before = bytes_below(&dir)?;
    let swept = match check(&dir) {
        Ok(()) => sweep(&*store, &dir).await,
        Err(refused) => Err(refused),
    };
    let closed = store.close().await;
    let Swept { texts, images, projections } = swept?;
    closed?;
    drop(store);
    let compacted = {
        let dir = dir.clone();
        tokio::task::block_in_place(move || compact_store(dir))?
    };
    let after = bytes_below(&dir)?;
    let mut out = Out::new();
    match common.format {
        Format::Text => {
            out.line(&format!(
                "{}: {} before, {} after; removed spilled outputs of {}, cached projections of {}, and {}",
                dir.display(),
                counted(before, "bytes"),
                counted(after, "bytes"),
                counted(texts, "sessions"),
                counted(projections, "sessions"),
                counted(images, "images"),
            ))?;
            if compacted.is_none() {
                out.line("a store of this kind has nothing to compact")?;
            }
        }
        Format::Jsonl => {
            let line = json!({
                "kind": "gc",
                "bytesBefore": before,
                "bytesAfter": after,
                "spills": texts,
                "images": images,
                "projections": projections,
                "compacted": compacted.is_some(),
            });
            out.line(&line.to_string())?;
        }
    }
    out.flush()?;
    Ok(Exit::Completed)
}

/// What was removed.
struct Swept {
    /// Sessions whose spilled texts were.
    texts: u64,
    images: u64,
    /// Sessions whose cached projections were.
    projections: u64,
}

/// Refuses a damaged store: what seems to belong to no session may belong to one that is lost.
fn check(dir: &Path) -> Result<(), CliError> {
    let report = tokio::task::block_in_place(|| verify(dir, |_| ()))?;
    if report.is_whole() {
        return Ok(());
    }
    let text = format!(
        "the store at {} is damaged, so nothing is removed; see `playhouse sessions verify`, and \
         `playhouse sessions salvage`",
        dir.display()
    );
    Err(StoreError::Argument(text).into())
}

/// Removes spilled texts, images and cached projections that no session has. A session that cannot be
/// read may have any, so then nothing is removed.
async fn sweep(store: &dyn Store, dir: &Path) -> Result<Swept, CliError> {
    let listed = all_sessions(store).map_ok(|stat| stat.header.id.clone());
    let ids: Vec<SessionId> = listed.try_collect().await?;
    let attachments = dir.join(ATTACHMENTS);
    let mut orphans = images(&attachments)?;
    let bar = progress(ids.len() as u64);
    for id in &ids {
        if !orphans.is_empty() {
            let session = store.read(id).await?;
            keep_named(&session, &mut orphans);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let texts = SpillDir::new(dir.join(SPILLS)).retain(&ids);
    let texts = texts.map_err(|cause| CliError::io("removing spilled outputs", cause))?;
    for name in &orphans {
        let path = attachments.join(name);
        fs::remove_file(&path)
            .map_err(|cause| CliError::io(format!("removing {}", path.display()), cause))?;
    }
    let projections = forget_gone(store, |id| ids.contains(id)).await?;
    Ok(Swept { texts, images: orphans.len() as u64, projections })
}

/// Names of all images; and of what a crash left half written.
fn images(dir: &Path) -> Result<BTreeSet<String>, CliError> {
    let fail = |cause| CliError::io(format!("reading {}", dir.display()), cause);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(cause) => return Err(fail(cause)),
    };
    let mut names = BTreeSet::new();
    for entry in entries {
        let name = entry.map_err(fail)?.file_name().to_string_lossy().into_owned();
        if name.starts_with(".put-") || is_digest(name.as_bytes()) {
            names.insert(name);
        }
    }
    Ok(names)
}

fn is_digest(name: &[u8]) -> bool {
    name.len() == DIGEST_DIGITS && name.iter().all(u8::is_ascii_hexdigit)
}

/// Takes those out that a session mentions, wherever: better one image too many than one too few.
fn keep_named(session: &StoredSession, orphans: &mut BTreeSet<String>) {
    let parts = session.tail.iter().flat_map(|tail| &tail.parts);
    for text in session.events.iter().chain(parts) {
        for word in text.split(|byte| !byte.is_ascii_hexdigit()) {
            if word.len() >= DIGEST_DIGITS {
                for window in word.windows(DIGEST_DIGITS) {
                    if let Ok(name) = std::str::from_utf8(window) {
                        orphans.remove(name);
                    }
                }
            }
        }
    }
}

/// Bytes of all files in a directory and below.
fn bytes_below(dir: &Path) -> Result<u64, CliError> {
    let fail = |cause| CliError::io(format!("reading {}", dir.display()), cause);
    let mut bytes = 0;
    for entry in fs::read_dir(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let about = entry.metadata().map_err(fail)?;
        bytes += if about.is_dir() { bytes_below(&entry.path())? } else { about.len() };
    }
    Ok(bytes)
}
