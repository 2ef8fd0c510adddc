//! `sessions import`.

use std::{
    fs::File,
    io::{BufRead, BufReader, stdin},
    path::{Path, PathBuf},
    sync::Arc,
};

use playhouse_context::DirectoryAttachments;
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::Store;
use playhouse_stores::{StoreConfig, StoreKind};
use playhouse_transfer::{Sessions, Stored, import, store};
use serde_json::{Value, json};

use super::export::refused;
use crate::cli::{
    config::Config,
    exit::{CliError, Exit},
    house::{ATTACHMENTS, opening, store_dir},
    output::{Format, Out, note, tame},
};

/// Reads exported sessions into a store, each whole or not at all, and says of each what was met, kept,
/// rewritten and dropped. Also reads logs of the reference harness (format versions 0, 4 and 5).
///
/// Exits with 2 if nothing was stored, with 6 if some sessions were not.
#[derive(Debug, clap::Args)]
pub(super) struct Import {
    /// What `sessions export` wrote; - is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Another id for the session, of which there must be one.
    #[arg(long, value_name = "NEW")]
    id: Option<String>,
    /// The store's directory [default: the config's, or .playhouse].
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// The config, as docs/config.md describes it [default: playhouse.toml if it is there].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How results are shown.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

pub(super) async fn run(args: Import) -> Result<Exit, CliError> {
    let config = Config::load(args.config.as_deref())?;
    let dir = store_dir(args.store.clone(), &config);
    if args.id.is_some() && args.files.len() > 1 {
        return Err(CliError::Usage("--id renames one session of one file".to_owned()));
    }
    // Before the store is made.
    let files: Vec<_> = args.files.iter().map(|path| open(path)).collect::<Result<_, _>>()?;
    let wanted = match StoreKind::detect(&dir) {
        Ok(found) if found != config.store.kind() => StoreConfig::new(found),
        _ => config.store,
    };
    if wanted.kind() == StoreKind::Memory {
        let text = "the config's `store.kind` is memory, which keeps nothing; set another kind";
        return Err(CliError::Usage(text.to_owned()));
    }
    let store = opening(wanted).open(&dir).await?;
    let into = Target { images: DirectoryAttachments::new(dir.join(ATTACHMENTS)), store, args };
    let outcome = into.files(files).await;
    let closed = into.store.close().await;
    let exit = outcome?;
    closed?;
    Ok(exit)
}

type Source = Box<dyn BufRead + Send>;

fn open(path: &Path) -> Result<(String, Source), CliError> {
    if path.as_os_str() == "-" {
        return Ok(("standard input".to_owned(), Box::new(BufReader::new(stdin()))));
    }
    let name = path.display().to_string();
    let file = File::open(path).map_err(|cause| {
        CliError::Usage(format!("{name} cannot be read: {cause}; name a file that can"))
    })?;
    Ok((name, Box::new(BufReader::new(file))))
}

/// Where sessions go.
struct Target {
    store: Arc<dyn Store>,
    images: DirectoryAttachments,
    args: Import,
}

impl Target {
    async fn files(&self, files: Vec<(String, Source)>) -> Result<Exit, CliError> {
        let mut out = Out::new();
        let (mut stored, mut failed) = (0_u64, 0_u64);
        for (name, source) in files {
            let mut sessions = Sessions::new(source);
            let mut any = false;
            while let Some(lines) = sessions.next() {
                any = true;
                if self.args.id.is_some() && sessions.has_more() {
                    let text = format!(
                        "{name} holds several sessions, and --id renames one; export that one alone"
                    );
                    return Err(CliError::Usage(text));
                }
                match lines.and_then(|lines| import(&lines)) {
                    Ok(imported) => {
                        let imported = match &self.args.id {
                            Some(id) => imported.renamed(SessionId::from(id.as_str())),
                            None => imported,
                        };
                        let id = imported.header.id.clone();
                        match store(&*self.store, Some(&self.images), imported).await {
                            Ok(done) => {
                                stored += 1;
                                self.tell(&name, &done, &mut out)?;
                            }
                            Err(error) => {
                                failed += 1;
                                let error = refused(error);
                                self.refuse(
                                    &name,
                                    Some(&id),
                                    error.code(),
                                    &error.line(),
                                    &mut out,
                                )?;
                            }
                        }
                    }
                    Err(error) => {
                        failed += 1;
                        self.refuse(&name, None, error.code(), &error.to_string(), &mut out)?;
                    }
                }
                out.flush()?;
            }
            if !any {
                return Err(CliError::Usage(format!(
                    "{name} is empty; nothing was imported from it"
                )));
            }
        }
        Ok(match (stored, failed) {
            (_, 0) => Exit::Completed,
            (0, _) => Exit::Refused,
            _ => Exit::Failed,
        })
    }

    fn tell(&self, file: &str, done: &Stored, out: &mut Out) -> Result<(), CliError> {
        let Stored { id, events, attachments, report, .. } = done;
        if self.args.format == Format::Jsonl {
            let notes: Vec<Value> = report
                .notes
                .iter()
                .map(|(note, count)| {
                    let mut line = json!(note);
                    line["count"] = (*count).into();
                    line
                })
                .collect();
            let line = json!({
                "kind": "session", "file": file, "id": id, "events": events,
                "attachments": attachments, "source": report.source, "notes": notes,
                "renumbered": report.renumbered.len(),
                "violation": report.violation.as_ref().map(ToString::to_string),
            });
            return out.line(&line.to_string());
        }
        let text =
            format!("session {id}: {events} events, {attachments} images, {}", report.source);
        out.line(&tame(&text))?;
        for (note, count) in &report.notes {
            out.line(&tame(&format!("  {note}: {count}")))?;
        }
        if !report.renumbered.is_empty() {
            out.line(&format!("  {} events have another number now", report.renumbered.len()))?;
        }
        if let Some(violation) = &report.violation {
            out.line(&tame(&format!("  unlike Playhouse's own logs: {violation}")))?;
        }
        Ok(())
    }

    fn refuse(
        &self,
        file: &str,
        id: Option<&SessionId>,
        code: &str,
        text: &str,
        out: &mut Out,
    ) -> Result<(), CliError> {
        note(&format!("error: {}", tame(&format!("{file}: {text}"))));
        if self.args.format == Format::Jsonl {
            let line = json!({"kind": "error", "file": file, "id": id, "code": code, "text": text});
            out.line(&line.to_string())?;
        }
        Ok(())
    }
}
