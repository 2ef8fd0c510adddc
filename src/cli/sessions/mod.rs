//! `playhouse sessions`: what a store holds. What only looks takes no lock and changes nothing, so it
//! works beside a running harness.

mod delete;
mod export;
mod fork;
mod gc;
mod import;
mod list;
mod salvage;
mod show;
mod transcript;
mod tree;
mod verify;

pub(super) use self::list::hit_json;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use playhouse_messages::{
    header::{Origin, SessionHeader},
    id::SessionId,
};
use playhouse_plugin_api::{
    fork::ForkPoint,
    store::{SessionStat, Store, StoreReader},
};
use playhouse_stores::{StoreConfig, StoreKind, open_reader};
use serde_json::{Value, json};

use super::{
    config::Config,
    exit::{CliError, EXIT_CODES, Exit},
    house::{opening, store_dir},
    output::{Format, tame},
};

/// Lists, shows, verifies, forks, exports and imports stored sessions. Whatever only reads works beside
/// a running harness.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXIT_CODES)]
pub struct Sessions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Lists the sessions of a store, newest first, or those with a phrase in them.
    List(list::List),
    /// Shows one session: a transcript, or with `--format jsonl` its events exactly as they are stored.
    Show {
        /// Which session.
        id: String,
        #[command(flatten)]
        common: Common,
    },
    /// Makes a session that begins as a copy of another one, and prints its id. Needs the store for
    /// itself; a running `playhouse rpc` forks by `session/fork`.
    Fork {
        /// Which session to fork; it is not changed.
        id: String,
        /// The last event that the fork inherits, by its seq [default: the last one].
        #[arg(long, value_name = "SEQ")]
        at: Option<u64>,
        /// The fork's id [default: a fresh one].
        #[arg(long = "id", value_name = "NEW")]
        new: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// Shows which session came from which: forks and sub-agents below what they came from.
    Tree(Common),
    /// Reads every byte, folds every log and holds it against the invariants; exits with 6 if anything
    /// is damaged.
    Verify(Common),
    /// Deletes sessions for good, and their spilled outputs. Needs a store that no harness has open;
    /// `gc` then gives their space back, and their images.
    Delete {
        /// Which sessions. If one is not there, none is deleted.
        #[arg(required = true)]
        ids: Vec<String>,
        #[command(flatten)]
        common: Common,
    },
    /// Compacts the store, and removes spilled outputs and images that no session has. Needs a store
    /// that no harness has open and that is not damaged.
    Gc(Common),
    /// Writes everything that can be read of a damaged store into a fresh one: whole sessions byte for
    /// byte, of damaged ones the events before the damage. Changes nothing of the damaged store; exits
    /// with 6 if something was lost.
    Salvage {
        /// The fresh store's directory: empty, or not there.
        #[arg(long, value_name = "DIR")]
        into: PathBuf,
        /// The fresh store's kind [default: the damaged one's].
        #[arg(long, value_name = "KIND")]
        kind: Option<StoreKind>,
        #[command(flatten)]
        common: Common,
    },
    Export(export::Export),
    Import(import::Import),
}

/// What all of these commands take.
#[derive(Debug, clap::Args)]
struct Common {
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

impl Common {
    fn dir(&self) -> Result<PathBuf, CliError> {
        Ok(store_dir(self.store.clone(), &Config::load(self.config.as_deref())?))
    }

    /// The store's directory, which must be there.
    fn existing_dir(&self) -> Result<PathBuf, CliError> {
        let config = Config::load(self.config.as_deref())?;
        let dir = store_dir(self.store.clone(), &config);
        if dir.is_dir() {
            return Ok(dir);
        }
        let way_out = match config.store.kind() {
            StoreKind::Memory => {
                "the config's `store.kind` is memory, which keeps nothing; name one with --store"
            }
            _ => "name one with --store, or make one with `playhouse run`",
        };
        Err(CliError::Usage(format!("there is no store at {}; {way_out}", dir.display())))
    }

    async fn open(&self) -> Result<Arc<dyn StoreReader>, CliError> {
        Ok(open_reader(&self.existing_dir()?).await?)
    }

    /// The store for writing, as the config has it if it is of the kind that lies there.
    async fn open_write(&self) -> Result<(PathBuf, Arc<dyn Store>), CliError> {
        let dir = self.existing_dir()?;
        let store = open_store(Config::load(self.config.as_deref())?.store, &dir).await?;
        Ok((dir, store))
    }
}

impl Sessions {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If the store or the session cannot be read.
    pub async fn run(self) -> Result<Exit, CliError> {
        match self.command {
            Command::List(list) => list::run(&list).await,
            Command::Show { id, common } => show::run(&SessionId::from(id), &common).await,
            Command::Fork { id, at, new, common } => {
                let from = ForkPoint { session: id.into(), boundary: at };
                fork::run(from, new.map(SessionId::from), &common).await
            }
            Command::Tree(common) => tree::run(&common).await,
            Command::Verify(common) => verify::run(&common).await,
            Command::Delete { ids, common } => {
                delete::run(ids.into_iter().map(SessionId::from).collect(), &common).await
            }
            Command::Gc(common) => gc::run(&common).await,
            Command::Salvage { into, kind, common } => salvage::run(into, kind, &common).await,
            Command::Export(export) => export::run(export).await,
            Command::Import(import) => import::run(import).await,
        }
    }
}

/// Opens the store that lies in `dir`, whatever its kind.
async fn open_store(config: StoreConfig, dir: &Path) -> Result<Arc<dyn Store>, CliError> {
    let kind = StoreKind::detect(dir)?;
    let config = if config.kind() == kind { config } else { StoreConfig::new(kind) };
    Ok(opening(config).open(dir).await?)
}

fn stat_json(stat: &SessionStat) -> Value {
    let mut value = json!(*stat.header);
    value["events"] = stat.event_count.into();
    value["bytes"] = stat.size_bytes.into();
    value["state"] = if stat.header.blueprint.is_some() { "hibernated" } else { "stored" }.into();
    value
}

fn stat_line(stat: &SessionStat) -> String {
    let header = &stat.header;
    let kind = match (header.origin, &header.parent_session) {
        (Some(Origin::Subagent), Some(parent)) => format!("  sub-agent of {parent}"),
        (None, Some(parent)) => format!("  fork of {parent}"),
        (_, None) => String::new(),
    };
    // A message wakes it where its blueprint is known; a process that has it awake is not seen here.
    let wakes = header.blueprint.as_ref().map(|name| format!("  hibernated ({name})"));
    let facts = format!(
        "{}  {}  {:>6} events  {:>9} bytes{kind}{}",
        header.id,
        utc(header.created_at),
        stat.event_count,
        stat.size_bytes,
        wakes.unwrap_or_default()
    );
    tame(&facts)
}

/// Epoch milliseconds as a date and a time.
fn utc(millis: u64) -> String {
    let (days, secs) = (millis / 86_400_000, millis / 1000 % 86_400);
    // Howard Hinnant's `civil_from_days`, for days from 1970 on.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (secs / 3600, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// A bar on standard error, if that is a terminal.
fn progress(sessions: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(sessions), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} sessions, {eta} left");
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn title(header: &SessionHeader) -> String {
    let mut parts = vec![format!("session {}", header.id), utc(header.created_at)];
    if let Some(parent) = &header.parent_session {
        parts.push(format!("parent {parent}"));
    }
    if let Some(cwd) = &header.cwd {
        parts.push(format!("in {cwd}"));
    }
    tame(&parts.join("  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_767_225_599_999), "2025-12-31T23:59:59Z");
    }
}
