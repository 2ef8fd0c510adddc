//! The thread of a script, and the host's end of it.

use std::{
    panic::AssertUnwindSafe,
    sync::mpsc::{Sender, channel},
};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::hook::panic_text;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{play::play, watchdog::Watchdog};
use crate::{
    EngineConfig, WorkflowError,
    engine::Alive,
    error::code,
    protocol::{FromGuest, GUEST_MESSAGES_MAX, Guest, GuestMessage, HostMessage},
};

/// Stack beside what the script may use: of the interpreter's own frames and ours.
const STACK_BESIDE: usize = 1 << 20;

/// A script and its limits.
pub(super) struct Script {
    pub(super) body: String,
    pub(super) args: Value,
    pub(super) memory_bytes: usize,
    pub(super) stack_bytes: usize,
    pub(super) items_max: usize,
}

/// The host's end.
struct Thread {
    /// Holds no more messages than calls that the run may make, and two.
    to_script: Option<Sender<HostMessage>>,
    dog: Watchdog,
}

impl Guest for Thread {
    fn tell(&mut self, message: HostMessage) {
        if let HostMessage::Cancel(reason) = &message {
            self.dog.condemn(Failure::new(code::CANCELLED, reason));
        }
        if let Some(to_script) = &self.to_script {
            // It may have ended.
            let _ = to_script.send(message);
        }
    }

    fn kill(&mut self) {
        self.dog.condemn(Failure::new(code::CANCELLED, "the script was killed"));
        self.to_script = None;
    }

    fn stuck(&self) -> BoxFuture<'static, Failure> {
        self.dog.clone().unheard().boxed()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a thread that parses the script, and runs it once it is told to. The thread is counted
/// until it has ended.
///
/// # Errors
///
/// [`WorkflowError::Thread`] if the system has none left.
pub(crate) fn launch(
    body: String,
    args: Value,
    config: &EngineConfig,
    alive: Alive,
) -> Result<(Box<dyn Guest>, FromGuest), WorkflowError> {
    let (to_host, from_guest) = mpsc::channel(GUEST_MESSAGES_MAX);
    let (to_script, from_host) = channel();
    let dog = Watchdog::new(config.sync_timeout);
    let script = Script {
        body,
        args,
        memory_bytes: config.memory_bytes,
        stack_bytes: config.stack_bytes,
        items_max: config.max_items_per_call,
    };
    let guest = Thread { to_script: Some(to_script), dog: dog.clone() };
    let builder = std::thread::Builder::new().name("workflow".to_owned());
    let spawned = builder.stack_size(config.stack_bytes + STACK_BESIDE).spawn(move || {
        // They go last: the channel's end says that the thread is over.
        let (alive, to_host) = (alive, to_host);
        let played = std::panic::catch_unwind(AssertUnwindSafe(|| {
            play(&script, &dog, &to_host, &from_host)
        }));
        let last = match played {
            Ok(None) => None,
            Ok(Some(result)) => Some(GuestMessage::Result(result)),
            Err(panic) => {
                let text = format!("the interpreter panicked: {}", panic_text(&*panic));
                Some(GuestMessage::Died(text))
            }
        };
        if let Some(last) = last {
            // Nobody may be listening any more.
            let _ = to_host.blocking_send(last);
        }
        drop(alive);
        drop(to_host);
    });
    // Nothing waits for the thread itself: what it holds is counted, and its channel tells its end.
    spawned.map(drop).map_err(|fault| WorkflowError::Thread(fault.to_string()))?;
    Ok((Box::new(guest), from_guest))
}
