//! SIGINT and SIGTERM: the first asks for an orderly end, the second does not wait for it.

use playhouse_messages::event::CancelCause;
use playhouse_plugin_api::cancel::CancelToken;

use super::exit::{CliError, Exit};

/// Listens from now on. The token fires at the first signal; the second ends the process at once,
/// with [`Exit::SecondSignal`].
///
/// # Errors
///
/// If the system refuses to tell of signals.
pub fn listen() -> Result<CancelToken, CliError> {
    let first = CancelToken::new();
    let mut signals = Signals::new()?;
    let token = first.clone();
    tokio::spawn(async move {
        signals.next().await;
        tracing::info!("a signal: cancelling all work, and waiting until its end is durable");
        token.cancel(CancelCause::User);
        signals.next().await;
        std::process::exit(i32::from(Exit::SecondSignal.code()));
    });
    Ok(first)
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> Result<Self, CliError> {
        use tokio::signal::unix::{SignalKind, signal};
        let on = |kind| signal(kind).map_err(|cause| CliError::io("listening for signals", cause));
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> Result<Self, CliError> {
        Ok(Self)
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
