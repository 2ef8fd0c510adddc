//! A child process and whatever it starts: one group, of which nothing stays.

use std::{
    collections::VecDeque,
    io,
    path::Path,
    process::Stdio,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{Stream, StreamExt};
use playhouse_messages::chunk::Failure;
use serde::{Deserialize, de::IgnoredAny};
use tokio::{
    io::{AsyncReadExt, BufReader},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use super::{config::AcpConfig, environment::environment, group::Group};
use crate::wire;

/// How much of the end of standard error is kept for diagnostics, in bytes.
const ERRORS_BYTES_MAX: usize = 1024;

/// Lines of a child that may wait until they are read.
const LINES_MAX: usize = 64;

/// How many answers may wait for a child to read them.
const UNREAD_MAX: usize = 1024;

/// How long a child may take to be gone after SIGKILL, before it is reported as left.
const KILL_GRACE: Duration = Duration::from_secs(10);

/// How long the exit status of a child may take whose output has ended, and its last errors.
pub(super) const STATUS_GRACE: Duration = Duration::from_secs(1);

/// A running child. Dropping it kills the whole group at once.
pub(super) struct Process {
    child: Child,
    group: Group,
    errors: Arc<Mutex<VecDeque<u8>>>,
    /// Closes once all of its errors were read.
    errors_end: Option<oneshot::Receiver<()>>,
    fault: Arc<OnceLock<String>>,
    /// Read the child's output to its end, so that it is never stuck in a write.
    pumps: JoinSet<()>,
}

/// The two pipes by which a child is talked to.
pub(super) struct Pipes {
    pub(super) input: ChildStdin,
    pub(super) lines: mpsc::Receiver<String>,
    pub(super) unread: Unread,
}

/// How many answers are due to a child. They wait without a bound of their own, so one that asks and
/// does not read is given up.
#[derive(Debug, Clone, Default)]
pub(super) struct Unread(Arc<AtomicUsize>);

impl Unread {
    /// A line was written, which is an answer, or one of the few that we ask.
    pub(super) fn written(&self) {
        let one_less = |due: usize| Some(due.saturating_sub(1));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    }

    /// Whether the child may be owed one more answer.
    fn one_more(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) < UNREAD_MAX
    }
}

/// What tells a question from a notification and from an answer.
#[derive(Deserialize)]
struct Envelope {
    id: Option<IgnoredAny>,
    method: Option<IgnoredAny>,
}

impl Envelope {
    fn wants_answer(&self) -> bool {
        self.id.is_some() == self.method.is_some()
    }
}

impl Process {
    /// Starts the config's program in a group of its own.
    pub(super) fn spawn(config: &AcpConfig, cwd: &Path) -> Result<(Self, Pipes), Failure> {
        let mut command = Command::new(&config.command);
        command
            .args(&config.args)
            .current_dir(cwd)
            .env_clear()
            .envs(environment(std::env::vars_os(), &config.env))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        #[cfg(unix)]
        command.process_group(0);
        let failed = |cause: io::Error| {
            let text = format!(
                "ACP agent \"{}\" did not start: {}: {cause}; check its command and working \
                 directory",
                config.name, config.command
            );
            Failure::new("ACP_SPAWN", text)
        };
        let mut child = command.spawn().map_err(failed)?;
        let group = Group::of(&child);
        let (input, output, errors) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = (input, output, errors) else {
            return Err(failed(io::Error::other("it has no pipes")));
        };
        let mut process = Self {
            child,
            group,
            errors: Arc::default(),
            errors_end: None,
            fault: Arc::default(),
            pumps: JoinSet::new(),
        };
        let (sender, lines) = mpsc::channel(LINES_MAX);
        let unread = Unread::default();
        process.pumps.spawn(pump_lines(output, sender, process.fault.clone(), unread.clone()));
        let (ended, errors_end) = oneshot::channel();
        let pump = pump_errors(errors, config.name.clone(), process.errors.clone());
        process.pumps.spawn(async move {
            pump.await;
            drop(ended);
        });
        process.errors_end = Some(errors_end);
        Ok((process, Pipes { input, lines, unread }))
    }

    /// Resolves when the child has ended and had the time to have its last lines read: what it started
    /// may hold its output open. Safe to drop.
    pub(super) async fn exited(&mut self) {
        let _ = self.child.wait().await;
        tokio::time::sleep(STATUS_GRACE).await;
    }

    /// Whether it wrote what is not the protocol.
    pub(super) fn is_at_fault(&self) -> bool {
        self.fault.get().is_some()
    }

    /// What is known of why it no longer talks.
    pub(super) async fn last_words(&mut self) -> String {
        let mut words = match self.fault.get() {
            Some(fault) => fault.clone(),
            None => match tokio::time::timeout(STATUS_GRACE, self.child.wait()).await {
                Ok(Ok(status)) => format!("it ended by itself ({status})"),
                _ => "it closed its output".to_owned(),
            },
        };
        if let Some(end) = self.errors_end.take() {
            // What it said last may still be on its way; what it started may hold the pipe open.
            let _ = tokio::time::timeout(STATUS_GRACE, end).await;
        }
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = errors.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        if !text.trim().is_empty() {
            words = format!("{words}; its last errors: {}", text.trim());
        }
        words
    }

    /// Ends it: its standard input has ended already, so it may leave by itself; then SIGTERM and
    /// SIGKILL go to the whole group. Returns once nothing of it runs.
    ///
    /// # Errors
    ///
    /// `ACP_PROCESS_LEFT` if something survives SIGKILL.
    pub(super) async fn end(mut self, eof: Duration, term: Duration) -> Result<(), Failure> {
        for (grace, next) in [(eof, Some(false)), (term, Some(true)), (KILL_GRACE, None)] {
            if tokio::time::timeout(grace, self.gone()).await.is_ok() {
                return Ok(());
            }
            match next {
                Some(forced) => self.group.signal(&mut self.child, forced),
                None => break,
            }
        }
        let text = format!("process group {} survives SIGKILL; look what holds it", self.group);
        Err(Failure::new("ACP_PROCESS_LEFT", text))
    }

    /// Resolves once nothing of the group runs. Safe to drop.
    async fn gone(&mut self) {
        // A failed wait has nothing to wait for.
        let _ = self.child.wait().await;
        self.group.emptied().await;
    }
}

/// Hands lines on while somebody takes them, and reads on when nobody does. What is wrong ends them, as
/// the end of the output does: what came before is then heard to its end.
async fn pump_lines(
    output: ChildStdout,
    to: mpsc::Sender<String>,
    fault: Arc<OnceLock<String>>,
    unread: Unread,
) {
    let mut lines = Box::pin(protocol_only(wire::read_lines(output), unread));
    while let Some(line) = lines.next().await {
        let heard = match line {
            Ok(line) => to.send(line).await.is_ok(),
            Err(error) => {
                let _ = fault.set(error.to_string());
                false
            }
        };
        if !heard {
            break;
        }
    }
    drop(to);
    while let Some(_unread) = lines.next().await {}
}

/// Output that cannot be of the protocol is an error, and not left for the peer to sort out.
fn protocol_only(
    lines: impl Stream<Item = io::Result<String>>,
    unread: Unread,
) -> impl Stream<Item = io::Result<String>> {
    let wrong = |text| Some(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
    lines.filter_map(move |line| {
        let line = match line {
            Ok(line) if line.trim().is_empty() => None,
            Ok(line) => match serde_json::from_str::<Envelope>(&line) {
                Ok(envelope) if envelope.wants_answer() && !unread.one_more() => {
                    wrong(format!("it asked {UNREAD_MAX} times without reading an answer"))
                }
                Ok(_) => Some(Ok(line)),
                Err(_) => {
                    let start: String = line.chars().take(80).collect();
                    wrong(format!("it wrote what is not the protocol: {start:?}"))
                }
            },
            Err(error) => Some(Err(error)),
        };
        std::future::ready(line)
    })
}

/// Keeps the end of standard error for diagnostics.
async fn pump_errors(errors: ChildStderr, name: String, kept: Arc<Mutex<VecDeque<u8>>>) {
    let (mut errors, mut bytes) = (BufReader::new(errors), [0; 4096]);
    while let Ok(read @ 1..) = errors.read(&mut bytes).await {
        let text = String::from_utf8_lossy(&bytes[..read]);
        tracing::debug!(agent = name, text = text.trim_end(), "an ACP agent wrote to its errors");
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(&bytes[..read]);
        let over = kept.len().saturating_sub(ERRORS_BYTES_MAX);
        kept.drain(..over);
    }
}
