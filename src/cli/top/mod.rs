//! `playhouse top`: the agents of a running process, as they work.
//!
//! A client of the control socket, like any other: it asks again and again what has changed. What a
//! key does ([`state`]) and what is drawn ([`draw`]) know no terminal and no socket.

mod draw;
mod link;
mod plain;
mod state;
mod terminal;
#[cfg(test)]
mod tests;
mod tree;

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use playhouse_plugin_api::cancel::CancelToken;
use tokio::time::MissedTickBehavior;

use self::{
    draw::Look,
    link::Link,
    state::{Ask, Command, Heard, State},
    terminal::{Happened, Terminal},
};
use super::{
    agent_row::AgentRow,
    config::Config,
    exit::{CliError, EXIT_CODES, Exit},
    house,
    output::Format,
    rpc::{SOCKET, connect},
    signals,
};

/// Shows the agents of a running `playhouse rpc`, `run` or `acp` as they work: who delegated to whom,
/// what each does, what it has used and what waits for it. Keys steer, interrupt and cancel them and
/// open their logs; ? lists them. Without a terminal, or with --once, prints one line an agent and ends.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXIT_CODES)]
pub struct Top {
    /// The store's directory [default: the config's, or .playhouse].
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// The config, as docs/config.md describes it [default: playhouse.toml if it is there].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The control socket, wherever it is [default: that in the store's directory].
    #[arg(long, value_name = "PATH", conflicts_with = "store")]
    socket: Option<PathBuf>,
    /// How often to look.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Prints the agents once and ends, also on a terminal.
    #[arg(long)]
    once: bool,
    /// How they are printed; implies --once.
    #[arg(long, value_enum)]
    format: Option<Format>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|fault| fault.to_string())?;
    let range = Duration::from_millis(50)..=Duration::from_secs(3600);
    if range.contains(&interval) {
        return Ok(interval);
    }
    Err("an interval is 50ms to 1h".to_owned())
}

impl Top {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If no process answers, or the terminal fails.
    pub async fn run(self) -> Result<Exit, CliError> {
        let socket = match self.socket {
            Some(socket) => socket,
            None => {
                let config = Config::load(self.config.as_deref())?;
                house::store_dir(self.store, &config).join(SOCKET)
            }
        };
        let stream = connect(&socket).await?;
        let link = Link::new(stream);
        let (stdin, stdout) = (std::io::stdin().is_terminal(), std::io::stdout().is_terminal());
        if self.once || self.format.is_some() || !(stdin && stdout) {
            return plain::run(link, self.format.unwrap_or_default()).await;
        }
        let place = socket.parent().unwrap_or(&socket).display().to_string();
        let signal = signals::listen()?;
        watch(link, &place, self.interval, &signal).await
    }
}

async fn watch(
    mut link: Link,
    place: &str,
    interval: Duration,
    signal: &CancelToken,
) -> Result<Exit, CliError> {
    let failed = |cause| CliError::io("drawing on the terminal", cause);
    let mut terminal = Terminal::open().map_err(failed)?;
    let colours = std::env::var_os("NO_COLOR").is_none();
    let mut state = State::new();
    let mut look = tokio::time::interval(interval);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let (now, state_now) = (now(), &state);
        let draw = |frame: &mut ratatui::Frame<'_>| {
            draw::draw(frame, state_now, place, Look { colours, now });
        };
        terminal.screen.draw(draw).map_err(failed)?;
        let commands = tokio::select! {
            biased;
            () = signal.cancelled() => return Ok(Exit::Completed),
            happened = terminal.next() => match happened {
                Happened::Key(key) => state.press(key),
                Happened::Resized => Vec::new(),
                Happened::Closed(error) => return Err(failed(error)),
            },
            heard = link.next() => state.hear(heard),
            _ = look.tick() => state.tick(),
        };
        for command in commands {
            match command {
                Command::Quit => return Ok(Exit::Completed),
                Command::Ask(ask) => link.ask(ask).await,
            }
        }
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The live agents of the process that listens there.
///
/// # Errors
///
/// If none answers.
pub(super) async fn agents(socket: &Path) -> Result<Vec<AgentRow>, CliError> {
    let mut link = Link::new(connect(socket).await?);
    Ok(tree(&mut link).await?.agents)
}

/// The tree as it stands, once.
async fn tree(link: &mut Link) -> Result<link::Tree, CliError> {
    link.ask(Ask::Tree { after: None }).await;
    match link.next().await {
        Heard::Tree(tree) => Ok(tree),
        Heard::Lost(why) | Heard::Refused { text: why, .. } => Err(CliError::Usage(why)),
        heard => unreachable!("only the tree was asked for, not {heard:?}"),
    }
}
