//! Reading a store without its lock, also beside the process that writes it; and verifying one.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use playhouse_messages::{event::Seq, id::SessionId};
use playhouse_plugin_api::store::{
    ListPage, ListQuery, SessionStat, StoreError, StoreReader, StoredSession, ValuePage, ValueQuery,
};

use super::format_file::{self, Format};
use super::layout::{Named, encode, is_draft, named};
use super::shelf::{Shelf, short};
use super::values;
use crate::journal::{Disk, RealDisk};
use crate::journal_store::blocking;
use crate::kind::StoreKind;
use crate::verify::{Progress, VerifyReport, check_events};

/// Reads the files of a JSONL store as they are at each call. Changes nothing, takes no lock, and may
/// run beside a live writer, of which it sees what is written.
pub struct JsonlReader {
    shelf: Arc<Shelf>,
}

impl JsonlReader {
    /// Opens the store in `dir` for reading. Sessions that cannot be read are left out of lists.
    ///
    /// # Errors
    ///
    /// [`StoreError::Argument`] if there is no JSONL store, [`StoreError::FormatUnsupported`] if a newer
    /// version wrote it, [`StoreError::Io`].
    pub async fn open(dir: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let dir = dir.into();
        let shelf =
            blocking(move || view(Arc::new(RealDisk), &dir).map(|(shelf, _)| shelf)).await?;
        Ok(Self { shelf: Arc::new(shelf) })
    }

    /// Runs a read on a blocking thread.
    fn ask<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Shelf) -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let shelf = Arc::clone(&self.shelf);
        blocking(move || read(&shelf)).boxed()
    }
}

impl StoreReader for JsonlReader {
    fn describe(&self) -> String {
        self.shelf.describe()
    }

    fn read<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<StoredSession, StoreError>> {
        let id = id.clone();
        self.ask(move |shelf| shelf.read(&id))
    }

    fn read_events<'a>(
        &'a self,
        id: &'a SessionId,
        range: Range<Seq>,
    ) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        let id = id.clone();
        self.ask(move |shelf| shelf.events(&id, range))
    }

    fn stat<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<SessionStat>, StoreError>> {
        let id = id.clone();
        self.ask(move |shelf| shelf.stat(&id))
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<ListPage, StoreError>> {
        self.ask(move |shelf| page(shelf.ids()?, &query, |id| shelf.stat(id)))
    }

    fn list_values(&self, query: ValueQuery) -> BoxFuture<'_, Result<ValuePage, StoreError>> {
        self.ask(move |shelf| shelf.values(&query))
    }

    fn get_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        let key = key.to_owned();
        self.ask(move |shelf| shelf.value(&key))
    }
}

/// A page of the sessions whose ids are given, in order. One whose header cannot be read is left out,
/// and the log says so: whoever reads a list must know that it is not all.
pub(super) fn page(
    ids: Vec<SessionId>,
    query: &ListQuery,
    stat: impl Fn(&SessionId) -> Result<Option<SessionStat>, StoreError>,
) -> Result<ListPage, StoreError> {
    let limit = query.limit.max(1);
    let is_behind = |id: &SessionId| query.after.as_ref().is_none_or(|after| id > after);
    let mut behind = ids.into_iter().filter(is_behind).peekable();
    let mut page = ListPage::default();
    let mut last = None;
    for id in behind.by_ref().take(limit) {
        match stat(&id) {
            Ok(stat) => page.sessions.extend(stat),
            Err(error) => tracing::error!(session = %id, %error, "a list leaves out a session"),
        }
        last = Some(id);
    }
    if behind.peek().is_some() {
        page.next = last;
    }
    Ok(page)
}

pub(super) fn view(disk: Arc<dyn Disk>, dir: &Path) -> Result<(Shelf, Format), StoreError> {
    let shelf = Shelf::new(disk, dir);
    match format_file::read(&shelf)? {
        Format::Missing => {
            Err(StoreError::Argument(format!("there is no JSONL store at {}", dir.display())))
        }
        format => Ok((shelf, format)),
    }
}

/// Reads every byte of the store in `dir`: checksums, and every event of every session with its
/// sequence number.
pub(crate) fn verify_jsonl(
    dir: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<VerifyReport, StoreError> {
    verify_on(Arc::new(RealDisk), dir, progress)
}

pub(super) fn verify_on(
    disk: Arc<dyn Disk>,
    dir: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<VerifyReport, StoreError> {
    let (shelf, format) = view(disk, dir)?;
    let mut report = VerifyReport::new(StoreKind::Jsonl, dir);
    if format == Format::Damaged {
        report
            .damages
            .push("format: it is damaged or gone; the next writer puts it right".to_owned());
    }
    let sessions = shelf.layout().sessions();
    let mut names = shelf.names(&sessions)?;
    names.retain(|name| named(name) != Named::Other);
    names.sort();
    report.sessions = names.len() as u64;
    let mut torn = Vec::new();
    for (done, name) in (1..).zip(&names) {
        let path = sessions.join(name);
        let id = match named(name) {
            Named::Session(id) => Some(id),
            _ => shelf.long_id(&path)?,
        };
        match id {
            None => {
                let (id, place) =
                    (SessionId::from(name.as_str()), format!("{} line 1", short(&path)));
                let cause = "its id is lost with its header".to_owned();
                report.unreadable.push((id.clone(), StoreError::Corrupt { id, place, cause }));
            }
            Some(id) => match shelf.load(&id) {
                // Deleted meanwhile.
                Ok(None) => report.sessions -= 1,
                Ok(Some(loaded)) => {
                    torn.extend(loaded.scan.torn.clone());
                    torn.extend(loaded.tail.torn.clone());
                    match check_events(&id, &loaded.into_session()) {
                        Ok(events) => report.events += events,
                        Err(error) => report.unreadable.push((id, error)),
                    }
                }
                Err(error) => report.unreadable.push((id, error)),
            },
        }
        progress(Progress { done, all: names.len() as u64 });
    }
    report.torn = (!torn.is_empty()).then(|| torn.join("; "));
    let values = verify_values(&shelf, &mut report)?;
    report.parts = vec![("values", values)];
    Ok(report)
}

fn verify_values(shelf: &Shelf, report: &mut VerifyReport) -> Result<u64, StoreError> {
    let dir = shelf.layout().values();
    let mut count = 0;
    for name in shelf.names(&dir)?.into_iter().filter(|name| !is_draft(name)) {
        let path = dir.join(&name);
        let Some(bytes) = shelf.bytes(&path)? else { continue };
        count += 1;
        let checked = match values::key_of(&bytes) {
            Some(key) if format!("{}.value", encode(&key)) == name => values::decode(&key, &bytes),
            Some(key) => Err(format!("line 1 byte 0: it is the value of `{key}`")),
            None => Err("line 1 byte 0: the checksum does not hold".to_owned()),
        };
        if let Err(cause) = checked {
            report.damages.push(format!("{} {cause}", short(&path)));
        }
    }
    Ok(count)
}
