//! The `playhouse` command.

mod acp;
mod agent_row;
mod allocator;
mod choice;
pub mod config;
mod crash_test;
pub mod exit;
mod follow;
mod hosting;
mod house;
mod images;
pub mod lookup;
mod mock_model;
mod output;
mod presets;
mod providers;
mod rpc;
mod run;
mod sessions;
mod show;
mod signals;
#[cfg(feature = "sim")]
mod sim;
mod stress;
#[cfg(unix)]
mod top;
mod workflow;

use std::process::ExitCode;

use clap::Parser;

use self::{
    exit::{CliError, EXIT_CODES},
    output::note,
};

/// Runs LLM agents as supervised actors over durable, event-sourced sessions.
#[derive(Debug, Parser)]
#[command(
    name = "playhouse",
    version,
    after_help = "Logs go to standard error; PLAYHOUSE_LOG sets their level (default: warn).",
    after_long_help = format!("Logs go to standard error; PLAYHOUSE_LOG sets their level, as \
        `info` or `playhouse_models=debug` (default: warn; of `stress`: error).\n\n{EXIT_CODES}"),
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Run(Box<run::Run>),
    Rpc(rpc::Rpc),
    Acp(acp::Acp),
    Sessions(sessions::Sessions),
    Presets(presets::Presets),
    MockModel(mock_model::MockModel),
    CrashTest(crash_test::CrashTest),
    Stress(stress::Stress),
    #[cfg(unix)]
    Top(top::Top),
    Workflow(workflow::Workflow),
    #[cfg(feature = "sim")]
    Sim(sim::Sim),
}

/// Runs the command that the process's arguments name.
pub fn main() -> ExitCode {
    allocator::set_up();
    let command = Cli::parse().command;
    // What a stress run breaks is not worth a line each.
    log_to_stderr(if matches!(command, Command::Stress(_)) { "error" } else { "warn" });
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(cause) => return report(&CliError::io("starting the runtime", cause)),
    };
    let ended = runtime.block_on(async {
        match command {
            Command::Run(run) => run.run().await,
            Command::Rpc(rpc) => rpc.run().await,
            Command::Acp(acp) => acp.run().await,
            Command::Sessions(sessions) => sessions.run().await,
            Command::Presets(presets) => presets.run().await,
            Command::MockModel(mock) => mock.run().await,
            Command::CrashTest(test) => test.run().await,
            Command::Stress(stress) => stress.run().await,
            #[cfg(unix)]
            Command::Top(top) => top.run().await,
            Command::Workflow(workflow) => workflow.run().await,
            // Its worlds have threads and runtimes of their own, and nothing else runs here.
            #[cfg(feature = "sim")]
            Command::Sim(sim) => sim.run(),
        }
    });
    // A read of standard input cannot be interrupted, and must not keep the process.
    runtime.shutdown_background();
    match ended {
        Ok(exit) => exit.into(),
        Err(error) => report(&error),
    }
}

fn report(error: &CliError) -> ExitCode {
    if !matches!(error, CliError::OutputClosed) {
        note(&format!("error: {}", error.line()));
    }
    error.exit().into()
}

fn log_to_stderr(level: &str) {
    use std::io::IsTerminal;
    let filter = tracing_subscriber::EnvFilter::try_from_env("PLAYHOUSE_LOG");
    let (filter, refused) = match filter {
        Ok(filter) => (filter, None),
        Err(error) => {
            let set = std::env::var_os("PLAYHOUSE_LOG").is_some_and(|value| !value.is_empty());
            (tracing_subscriber::EnvFilter::new(level), set.then_some(error))
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .init();
    if let Some(error) = refused {
        tracing::warn!("PLAYHOUSE_LOG is not a filter: {error}; using `{level}`");
    }
}
