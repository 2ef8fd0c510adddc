//! Where a script is played: its place in the sequence, gates, and what was asked.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{llm::LlmRequest, watch};

use super::{Conversation, Reply, Script, plan::Step};

/// One performance of a script. Adapters and servers that share it share its place in the sequence
/// and its gates.
#[derive(Default)]
pub struct Stage {
    script: Script,
    recording: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: usize,
    captured: Vec<LlmRequest>,
    gates: HashMap<String, Arc<Gate>>,
}

impl Stage {
    /// Puts a script on stage. Requests are recorded if it is a sequence.
    pub fn new(script: Script) -> Arc<Self> {
        let recording = AtomicBool::new(!script.sequence.is_empty());
        Arc::new(Self { script, recording, state: Mutex::default() })
    }

    /// The script.
    pub fn script(&self) -> &Script {
        &self.script
    }

    /// Starts or stops recording requests. A script of rules records none unless told to: many
    /// agents may share it for long.
    pub fn record(&self, on: bool) {
        self.recording.store(on, Ordering::Relaxed);
    }

    /// The requests so far, in order of arrival.
    pub fn captured(&self) -> Vec<LlmRequest> {
        self.lock().captured.clone()
    }

    /// How many replies of the sequence nobody asked for yet.
    pub fn remaining(&self) -> usize {
        self.script.sequence.len().saturating_sub(self.lock().next)
    }

    /// Checks that the sequence was played to its end.
    ///
    /// # Panics
    ///
    /// If replies are left. It is meant for tests.
    #[track_caller]
    pub fn assert_consumed(&self) {
        let left = self.remaining();
        assert!(
            left == 0,
            "{left} of {} scripted replies were not asked for",
            self.script.sequence.len()
        );
    }

    /// The gate of this name. Every gate starts closed.
    pub fn gate(&self, name: &str) -> Arc<Gate> {
        let mut state = self.lock();
        state.gates.entry(name.to_owned()).or_default().clone()
    }

    pub(super) fn capture(&self, request: &LlmRequest) {
        if self.recording.load(Ordering::Relaxed) {
            self.lock().captured.push(request.clone());
        }
    }

    /// The next answer: its steps, and the reply that they come from.
    pub(crate) fn answer(
        &self,
        conversation: &Conversation,
    ) -> Result<(Vec<Step>, &Reply), Failure> {
        let (reply, captures) = if self.script.sequence.is_empty() {
            self.script
                .answer(conversation)
                .ok_or_else(|| Failure::new("NO_RULE", "no rule of the script fits the request"))?
        } else {
            (self.next_in_sequence()?, Vec::new())
        };
        Ok((super::plan::plan(reply, &captures, conversation), reply))
    }

    fn next_in_sequence(&self) -> Result<&Reply, Failure> {
        let mut state = self.lock();
        let sequence = &self.script.sequence;
        let reply = sequence.get(state.next);
        let reply = reply.or(if self.script.repeat_last { sequence.last() } else { None });
        state.next = (state.next + 1).min(sequence.len());
        reply.ok_or_else(|| {
            let message = format!("all {} scripted replies were used", sequence.len());
            Failure::new("MOCK_SCRIPT_EXHAUSTED", message)
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one step, so a panic elsewhere leaves the state usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage").field("remaining", &self.remaining()).finish_non_exhaustive()
    }
}

/// Holds answers back until a test lets them go.
#[derive(Debug, Default)]
pub struct Gate {
    open: watch::Sender<bool>,
    arrived: watch::Sender<usize>,
}

impl Gate {
    /// Lets every answer through, now and later.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Holds back answers that arrive from now on.
    pub fn close(&self) {
        self.open.send_replace(false);
    }

    /// Resolves once `count` answers have ever arrived here.
    pub async fn arrived(&self, count: usize) {
        let mut arrived = self.arrived.subscribe();
        // The sender is ours, so the wait cannot fail.
        let _ = arrived.wait_for(|&so_far| so_far >= count).await;
    }

    pub(crate) async fn pass(&self) {
        self.arrived.send_modify(|count| *count += 1);
        let mut open = self.open.subscribe();
        let _ = open.wait_for(|&open| open).await;
    }
}
