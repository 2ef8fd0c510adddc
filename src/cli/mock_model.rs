//! `playhouse mock-model`: a provider for tests and demos.

use std::path::PathBuf;

use playhouse_models::{mock_server::MockServer, scripted::Script};

use super::{
    exit::{CliError, Exit},
    output::Out,
    providers::read_script,
    signals,
};

/// Serves chat completions, and Anthropic's messages, from a script on the loopback interface, until
/// a signal.
///
/// The first line of standard output is the base URL, for --base-url of `playhouse run` with
/// --model openai_compatible/any or anthropic/any.
#[derive(Debug, clap::Args)]
pub struct MockModel {
    /// The port; 0 lets the system choose.
    #[arg(long, value_name = "N", default_value_t = 0)]
    port: u16,
    /// The script, in TOML [default: the built-in one, a small team].
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
}

impl MockModel {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If the script cannot be read or the port cannot be had.
    pub async fn run(self) -> Result<Exit, CliError> {
        let script = self.script.as_deref().map_or_else(|| Ok(Script::team()), read_script)?;
        let signal = signals::listen()?;
        let server = MockServer::start(script, self.port).await.map_err(|cause| {
            CliError::Usage(format!("port {}: {cause}; choose another with --port", self.port))
        })?;
        let mut out = Out::new();
        out.line(&server.base_url())?;
        out.flush()?;
        signal.cancelled().await;
        server.shutdown().await;
        Ok(Exit::Completed)
    }
}
