//! `playhouse run`: one prompt, one agent and those that it delegates to.

use std::{io::Read, path::PathBuf, sync::Arc};

use playhouse_messages::{
    chunk::Failure,
    event::{CancelCause, TurnEndReason},
    id::SessionId,
};
use playhouse_plugin_api::{
    agent::{Agent, AgentError, Prompt},
    cancel::CancelToken,
    creation::NewAgent,
    store::StoreError,
};
use playhouse_stores::StoreKind;
use playhouse_supervisor::harness::Harness;

use super::{
    choice::Choice,
    config::{Config, DEFAULT_PLUGINS, SessionChoice},
    exit::{CliError, EXIT_CODES, Exit},
    follow::{Which, follow},
    house,
    images::{self, Image},
    output::{Format, LAST_WORDS, Paint},
    providers::Providers,
    rpc::{Control, Desk},
    show::{End, Screen},
    signals,
};

/// Runs one prompt to its end, and shows the agents at work.
///
/// The answer goes to standard output; tool calls, sub-agents and progress go to standard error.
/// Without --model a built-in script plays a root agent that delegates to three sub-agents: no
/// network and no key are needed.
///
/// The first SIGINT or SIGTERM cancels all agents and waits until the end of their turns is
/// durable; the second exits at once.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXIT_CODES)]
pub struct Run {
    /// What to ask; `-` reads standard input.
    prompt: String,
    /// A PNG, JPEG, GIF or WebP image to show with the prompt; may be given more than once.
    #[arg(long = "image", value_name = "FILE")]
    images: Vec<PathBuf>,
    #[command(flatten)]
    choice: Choice,
    /// The store's directory [default: the config's, or .playhouse].
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Drives this session: makes it at the first use, resumes it later.
    #[arg(long, value_name = "ID", conflicts_with = "resume")]
    session: Option<String>,
    /// Resumes this session, which must exist.
    #[arg(long, value_name = "ID")]
    resume: Option<String>,
    /// The agent's working directory [default: the current one].
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// How results are shown.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl Run {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// Why nothing was run, or what failed beside the turn.
    pub async fn run(self) -> Result<Exit, CliError> {
        let config = Config::load(self.choice.config.as_deref())?;
        let plan = self.plan(&config)?;
        let prompt = read_prompt(self.prompt)?;
        let images = self.images.iter().map(|file| Image::read(file));
        let images = images.collect::<Result<Vec<_>, _>>()?;
        let signal = signals::listen()?;
        let dir = house::store_dir(self.store, &config);
        if let SessionChoice::Resume(id) = &plan.session
            && StoreKind::detect(&dir).is_err()
        {
            // Opening it would make it.
            let (id, store) = (SessionId::from(id.as_str()), dir.display().to_string());
            return Err(StoreError::NotFound { id, store }.into());
        }
        // The same tools whatever model is asked, so that a job can be compared over routes; a config
        // names its own.
        let harness = house::open(&config, &plan.providers, &dir, &DEFAULT_PLUGINS).await?;
        let (seen, followers) = follow(harness.world(), Which::New)?;
        #[cfg(unix)]
        let control = {
            let (harness, providers) = (harness.clone(), Arc::new(plan.providers));
            let (kind, agents) = (config.store.kind(), config.agents.into());
            Control::listen(kind, &dir, Desk { harness, providers, agents, budget: config.budget })
        };
        let screen = Screen::start(seen, self.format, Paint::stderr());
        let turn = async {
            let Some(made) = signal
                .race(house::enter(&harness, &plan.session, plan.label.as_deref(), plan.new))
                .await
            else {
                return Ok(End::aborted(None));
            };
            let agent = made?;
            screen.root(agent.id());
            let store = &*harness.world().attachments;
            let prompt = images::prompt(prompt, images, store).await?;
            turn(&harness, agent.agent(), prompt, &signal, screen.closed()).await
        };
        let ended = turn.await;
        #[cfg(unix)]
        control.iter().for_each(Control::end);
        let down = harness.shutdown().await;
        #[cfg(unix)]
        if let Some(control) = control {
            control.close().await;
        }
        let last = ended.as_ref().ok().cloned();
        let last_words = async {
            followers.finish().await;
            screen.finish(last).await
        };
        let Some(shown) = unless_unread(last_words, &signal).await else {
            tracing::warn!("nobody read the rest of the output; it is in the logs");
            return Ok(Exit::Aborted);
        };
        let end = ended?;
        down.map_err(CliError::Failed)?;
        match shown {
            // The turn says how it went, seen or not.
            Ok(()) | Err(CliError::OutputClosed) => {}
            Err(error) => return Err(error),
        }
        Ok(Exit::from(&end.reason))
    }

    fn plan(&self, config: &Config) -> Result<Plan, CliError> {
        let chosen = self.choice.of(config)?;
        let session = match (&self.session, &self.resume, chosen.entry) {
            (Some(id), _, _) => SessionChoice::Exact(id.clone()),
            (None, Some(id), _) => SessionChoice::Resume(id.clone()),
            (None, None, Some(agent)) => agent.session.clone(),
            (None, None, None) => SessionChoice::Fresh,
        };
        if session.id() == Some("") {
            let text = "a session id must not be empty; leave --session out for a fresh one";
            return Err(CliError::Usage(text.to_owned()));
        }
        let cwd = chosen.entry.and_then(|agent| agent.cwd.as_deref());
        let cwd = house::working_dir(self.cwd.as_deref().or(cwd))?;
        Ok(Plan {
            session,
            label: chosen.entry.map(|agent| agent.id.clone()),
            new: chosen.new_agent().cwd(cwd),
            providers: chosen.providers,
        })
    }
}

/// What the arguments and the config come to.
struct Plan {
    providers: Providers,
    session: SessionChoice,
    label: Option<String>,
    new: NewAgent,
}

/// Prompts the agent, and cancels it and all below it at a signal, or when nobody sees the answer.
async fn turn(
    harness: &Harness,
    agent: &Agent,
    prompt: Prompt,
    signal: &CancelToken,
    unseen: &CancelToken,
) -> Result<End, CliError> {
    let prompted = agent.prompt(prompt);
    tokio::pin!(prompted);
    let ended = tokio::select! {
        outcome = &mut prompted => Some(outcome),
        () = signal.cancelled() => None,
        () = unseen.cancelled() => None,
    };
    let outcome = match ended {
        Some(outcome) => outcome,
        None => {
            harness.cancel_tree(agent, CancelCause::User).await;
            prompted.await
        }
    };
    match outcome {
        Ok(outcome) => Ok(End {
            session: Some(agent.id().clone()),
            reason: outcome.reason,
            text: outcome.text,
            usage: outcome.usage,
        }),
        // The cancel came before the turn did.
        Err(AgentError::Dropped { .. }) => Ok(End::aborted(Some(agent.id().clone()))),
        Err(error @ AgentError::Refused(_)) => {
            let failure = Failure::from(error);
            Ok(End {
                reason: TurnEndReason::Error(failure),
                ..End::aborted(Some(agent.id().clone()))
            })
        }
        // It was disposed under our hands: the harness has failed.
        Err(error) => Err(CliError::Failed(error.into())),
    }
}

/// Waits for the last words as long as it takes; after a signal, only so long.
async fn unless_unread<T>(last_words: impl Future<Output = T>, signal: &CancelToken) -> Option<T> {
    tokio::pin!(last_words);
    tokio::select! {
        biased;
        shown = &mut last_words => return Some(shown),
        () = signal.cancelled() => {}
    }
    tokio::time::timeout(LAST_WORDS, last_words).await.ok()
}

fn read_prompt(prompt: String) -> Result<String, CliError> {
    let prompt = if prompt == "-" {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        read.map_err(|cause| match cause.kind() {
            std::io::ErrorKind::InvalidData => {
                let text = "the prompt on standard input is not UTF-8; convert it first";
                CliError::Usage(text.to_owned())
            }
            _ => CliError::io("reading the prompt from standard input", cause),
        })?;
        text
    } else {
        prompt
    };
    if prompt.trim().is_empty() {
        let text =
            "the prompt is empty; say what to do, or give `-` and write it to standard input";
        return Err(CliError::Usage(text.to_owned()));
    }
    Ok(prompt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_signal_bounds_the_wait_for_output_that_nobody_reads() {
        let signal = CancelToken::new();
        let never = std::future::pending::<()>();
        let waited = unless_unread(never, &signal);
        tokio::pin!(waited);
        let patience = tokio::time::timeout(1000 * LAST_WORDS, waited.as_mut());
        assert!(patience.await.is_err(), "without a signal a reader may take its time");
        signal.cancel(CancelCause::User);
        assert_eq!(waited.await, None);
        assert_eq!(unless_unread(async { 1 }, &signal).await, Some(1));
    }
}
