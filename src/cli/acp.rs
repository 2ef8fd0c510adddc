//! `playhouse acp`: an agent for editors, over the Agent Client Protocol.

use std::{path::PathBuf, sync::Arc};

use playhouse_acp::AcpServer;
use playhouse_plugin_api::cancel::CancelToken;
use playhouse_supervisor::harness::{Harness, HarnessState};

use super::{
    choice::Choice,
    config::{Config, DEFAULT_PLUGINS},
    exit::{CliError, EXIT_CODES, Exit},
    house,
    rpc::{Control, Desk},
    signals,
};

/// Serves an agent to an editor, or to another agent, by the Agent Client Protocol on standard input
/// and output.
///
/// Each session of the client is an agent of its own, and stays in the store when the client leaves.
/// Without --model a built-in script answers: no network and no key are needed. The end of standard
/// input, or a first SIGINT or SIGTERM, cancels and disposes all agents; their logs are durable when
/// the process exits with 0. docs/acp.md shows how editors are set up.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXIT_CODES)]
pub struct Acp {
    #[command(flatten)]
    choice: Choice,
    /// The store's directory [default: the config's, or .playhouse].
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
}

impl Acp {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// Why it did not start, or did not end well.
    pub async fn run(self) -> Result<Exit, CliError> {
        let config = Config::load(self.choice.config.as_deref())?;
        let dir = house::store_dir(self.store, &config);
        let chosen = self.choice.of(&config)?;
        let (agent, providers) = (chosen.new_agent(), chosen.providers);
        let signal = signals::listen()?;
        let harness = house::open(&config, &providers, &dir, &DEFAULT_PLUGINS).await?;
        let server = AcpServer::new(harness.world().clone(), agent);
        #[cfg(unix)]
        let control = {
            let (harness, providers) = (harness.clone(), Arc::new(providers));
            let (kind, agents) = (config.store.kind(), config.agents.into());
            Control::listen(kind, &dir, Desk { harness, providers, agents, budget: config.budget })
        };
        let served = serve(&server, &signal, &harness).await;
        #[cfg(unix)]
        control.iter().for_each(Control::end);
        let down = harness.shutdown().await;
        #[cfg(unix)]
        if let Some(control) = control {
            control.close().await;
        }
        served?;
        down.map_err(CliError::Failed)?;
        Ok(Exit::Completed)
    }
}

/// Serves until the client leaves, a signal comes, or the harness fails.
async fn serve(
    server: &AcpServer,
    signal: &CancelToken,
    harness: &Harness,
) -> Result<(), CliError> {
    let mut state = harness.watch();
    let (input, output) = (tokio::io::stdin(), tokio::io::stdout());
    tokio::select! {
        served = server.serve(input, output, signal) => served.map_err(CliError::Failed),
        state = state.wait_for(|state| matches!(state, HarnessState::Failed(_))) => {
            match state.as_deref() {
                Ok(HarnessState::Failed(failure)) => Err(CliError::Failed(failure.clone())),
                _ => Ok(()),
            }
        }
    }
}
