//! `playhouse rpc`: the library over JSON-RPC 2.0 on standard input and output.
//!
//! The read loop never waits for work. A request's future is polled once as it arrives, so that
//! requests reach an agent's mailbox in the order in which they were sent; if that does not finish
//! it, it goes on in a task of its own. `docs/rpc.md` describes the protocol.

mod budget;
mod client_tools;
mod connection;
#[cfg(unix)]
mod control;
mod images;
mod make;
mod methods;
mod models;
mod notify;
mod sessions;
mod tree;
mod usage;
mod wire;

use std::{path::PathBuf, sync::Arc};

use playhouse_plugin_api::{cancel::CancelToken, store::StoreReader, world::World};
use playhouse_policies::REPEAT_TOOL_REMINDER;
use playhouse_sessions::SessionQuery;
use playhouse_supervisor::harness::{Harness, HarnessState};

pub(super) use self::connection::Desk;
#[cfg(unix)]
pub(super) use self::control::{Control, SOCKET, connect};
use self::{connection::Connection, wire::Outbox};
use super::{
    config::Config,
    exit::{CliError, EXIT_CODES, Exit},
    follow::Which,
    house,
    providers::Providers,
    signals,
};

/// Serves JSON-RPC 2.0 on standard input and output, one message a line.
///
/// Agents of the config are made first. The end of standard input, or a first SIGINT or SIGTERM,
/// disposes all agents; their logs are durable when the process exits with 0. Other processes of the
/// same user reach the same agents with `--attach`. docs/rpc.md describes the methods.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXIT_CODES)]
pub struct Rpc {
    /// The store's directory [default: the config's, or .playhouse].
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// The config, as docs/config.md describes it [default: playhouse.toml if it is there].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Talks to the process that has the store, an `rpc`, `run` or `acp`, instead of being one. The end of
    /// standard input ends the talk and nothing else.
    #[arg(long)]
    attach: bool,
}

impl Rpc {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// Why it did not start, or did not end well.
    pub async fn run(self) -> Result<Exit, CliError> {
        let config = Config::load(self.config.as_deref())?;
        let dir = house::store_dir(self.store, &config);
        if self.attach {
            #[cfg(unix)]
            return control::attach(&dir).await;
            #[cfg(not(unix))]
            return Err(CliError::Usage("--attach needs Unix sockets".to_owned()));
        }
        let providers = Providers::new(&config);
        let signal = signals::listen()?;
        let harness =
            house::open(&config, &providers, &dir, &["subagents", REPEAT_TOOL_REMINDER]).await?;
        let (providers, agents) = (Arc::new(providers), config.agents.into());
        let desk = Desk { harness: harness.clone(), providers, agents, budget: config.budget };
        let client = Connection::open(&desk, tokio::io::stdout(), Which::New)?;
        #[cfg(unix)]
        let control = Control::listen(config.store.kind(), &dir, desk);
        let read = async {
            client.start_agents().await?;
            client.serve(tokio::io::stdin()).await
        };
        let read = until_over(read, &signal, &client.outbox, &harness).await;
        client.stop_tools();
        #[cfg(unix)]
        control.iter().for_each(Control::end);
        let down = harness.shutdown().await;
        client.last_words().await;
        #[cfg(unix)]
        if let Some(control) = control {
            control.close().await;
        }
        read?;
        down.map_err(CliError::Failed)?;
        Ok(Exit::Completed)
    }
}

/// Questions over the harness's sessions, live and stored.
fn query(world: &World) -> SessionQuery {
    let store = world.store.clone().map(|store| store as Arc<dyn StoreReader>);
    SessionQuery::new(Some(world.agents.clone()), store)
}

/// Reads until the client ends its side, stops reading ours, a signal comes, or the harness fails.
async fn until_over(
    read: impl Future<Output = Result<(), CliError>>,
    signal: &CancelToken,
    outbox: &Outbox,
    harness: &Harness,
) -> Result<(), CliError> {
    let mut state = harness.watch();
    tokio::select! {
        read = read => read,
        () = signal.cancelled() => Ok(()),
        () = outbox.closed() => Ok(()),
        state = state.wait_for(|state| matches!(state, HarnessState::Failed(_))) => {
            match state.as_deref() {
                Ok(HarnessState::Failed(failure)) => Err(CliError::Failed(failure.clone())),
                _ => Ok(()),
            }
        }
    }
}
