//! `playhouse presets`, and agents that are composed from one.

use std::path::PathBuf;

use playhouse_messages::{chunk::Failure, config::ModelChoice, id::SessionId};
use playhouse_plugin_api::{
    creation::{CreateError, NewAgent},
    fork::ForkPoint,
};
use playhouse_presets::{
    PRESETS_SERVICE, Preset, PresetError, Presets as Service, Root, RowFactories, State, author,
    discovery,
};
use playhouse_supervisor::harness::Harness;
use serde_json::json;

use super::{
    config::Config,
    exit::{CliError, EXIT_CODES, Exit},
    output::{Format, Out, note},
    providers::DEFAULT_MODEL,
};

/// Lists, copies and removes agent presets.
///
/// A preset is a directory with a file `composition.toml`, below one of the roots that the config's
/// [presets] names. `playhouse run --preset ID` runs an agent that is composed from one.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXIT_CODES)]
pub struct Presets {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Lists all presets, broken ones with what is wrong.
    List {
        /// How results are shown.
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
        #[command(flatten)]
        common: Common,
    },
    /// Copies a preset into the first root of the user's; overwrites nothing.
    Copy {
        /// The preset to copy.
        from: String,
        /// The id of the copy: a-z, 0-9 and -.
        id: String,
        /// The name of the copy, for people.
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// Removes a preset of the user's own. Agents that are composed from it go on.
    Remove {
        /// The preset.
        id: String,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, clap::Args)]
struct Common {
    /// The config, as docs/config.md describes it [default: playhouse.toml if it is there].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Common {
    fn roots(&self) -> Result<Vec<Root>, CliError> {
        let config = Config::load(self.config.as_deref())?;
        let missing = "no roots of presets: add [presets] with `roots` to the config";
        config.presets.ok_or_else(|| CliError::Usage(missing.to_owned()))
    }
}

impl From<PresetError> for CliError {
    fn from(error: PresetError) -> Self {
        Failure::from(error).into()
    }
}

impl Presets {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// Why nothing was done.
    pub async fn run(self) -> Result<Exit, CliError> {
        match self.command {
            Command::List { format, common } => {
                let presets = discovery::discover(&common.roots()?)?;
                if presets.is_empty() {
                    note("no presets");
                }
                // The command makes no rows of its own.
                let rows = RowFactories::new();
                let mut out = Out::new();
                for preset in presets {
                    out.line(&line(&preset.checked(&rows), format))?;
                }
                out.flush()?;
            }
            Command::Copy { from, id, name, common } => {
                let copied = author::copy(&common.roots()?, &from, &id, name.as_deref())?;
                let mut out = Out::new();
                out.line(&copied.dir.display().to_string())?;
                out.flush()?;
            }
            Command::Remove { id, common } => author::remove(&common.roots()?, &id)?,
        }
        Ok(Exit::Completed)
    }
}

fn line(preset: &Preset, format: Format) -> String {
    let Preset { id, name, description, trust, dir, state, .. } = preset;
    let broken = match state {
        State::Ready(_) => None,
        State::Broken { reason } => Some(reason.lines().collect::<Vec<_>>().join(" ")),
    };
    match format {
        Format::Jsonl => json!({
            "id": id,
            "name": name,
            "description": description,
            "trust": trust.as_str(),
            "dir": dir.to_string_lossy(),
            "broken": broken,
        })
        .to_string(),
        Format::Text => {
            let about = description.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
            let broken = broken.map(|reason| format!(" (broken: {reason})")).unwrap_or_default();
            format!("{id}  {}  {name}{about}{broken}", trust.as_str())
        }
    }
}

/// An agent to come, composed from the preset that it names.
///
/// # Errors
///
/// The preset's; `PRESETS_NOT_CONFIGURED` if there are no roots.
pub(super) async fn composed(harness: &Harness, new: NewAgent) -> Result<NewAgent, CreateError> {
    let Some(id) = new.agent_preset.clone() else { return Ok(defaulted(new)) };
    let Some(presets) = service(harness) else { return Err(not_configured(&id)) };
    Ok(defaulted(presets.compose(&id, new).await.map_err(Failure::from)?))
}

/// An agent to come over a stored session, composed from the preset that its log says it has. One
/// that `new` names must be the same.
///
/// # Errors
///
/// As [`composed`]; `SESSION_NOT_FOUND`, `PRESET_DIFFERS`.
pub(super) async fn resumed(
    harness: &Harness,
    id: &SessionId,
    new: NewAgent,
) -> Result<NewAgent, CreateError> {
    derived(harness, &ForkPoint::from(id.clone()), new).await
}

/// As [`resumed`], for a fork.
///
/// # Errors
///
/// As [`resumed`].
pub(super) async fn derived(
    harness: &Harness,
    from: &ForkPoint,
    mut new: NewAgent,
) -> Result<NewAgent, CreateError> {
    let has = match service(harness) {
        Some(presets) => presets.preset_at(from).await.map_err(Failure::from)?,
        // The whole log is not read for what nobody configured.
        None => match &harness.world().store {
            Some(store) => {
                let stat = store.stat(&from.session).await.ok().flatten();
                stat.and_then(|stat| stat.header.agent_preset.clone())
            }
            None => None,
        },
    };
    if let Some(named) = &new.agent_preset
        && has.as_ref() != Some(named)
    {
        let has = has.map_or_else(|| "no preset".to_owned(), |id| format!("preset \"{id}\""));
        let text = format!(
            "session \"{}\" has {has}, not \"{named}\"; leave the preset out, or make another session",
            from.session
        );
        return Err(Failure::new("PRESET_DIFFERS", text).into());
    }
    new.agent_preset = has;
    composed(harness, new).await
}

fn service(harness: &Harness) -> Option<std::sync::Arc<Service>> {
    harness.world().services.get::<Service>(PRESETS_SERVICE)
}

fn not_configured(id: &str) -> CreateError {
    let text = format!("preset \"{id}\": add [presets] with `roots` to the config");
    Failure::new("PRESETS_NOT_CONFIGURED", text).into()
}

/// What neither arguments, config nor preset name. A blueprint names its own.
fn defaulted(mut new: NewAgent) -> NewAgent {
    if new.blueprint.is_some() {
        return new;
    }
    new.options.model.get_or_insert_with(|| ModelChoice {
        provider: DEFAULT_MODEL.0.to_owned(),
        model: DEFAULT_MODEL.1.to_owned(),
        reasoning_effort: None,
    });
    new
}
