//! What `run` shows while agents work.
//!
//! One thread writes, so that a slow terminal holds nobody but the readers of the agents' logs.

use std::{
    collections::HashMap,
    io::{self, IsTerminal},
    sync::{Arc, OnceLock},
    thread::JoinHandle,
    time::Duration,
};

use playhouse_budgets::Resource;
use playhouse_messages::{
    chunk::{StreamChunk, Usage},
    event::{CancelCause, EventBody, TurnEndReason},
    frame::Frame,
    id::{CallId, SessionId},
};
use playhouse_plugin_api::{agent::Agent, cancel::CancelToken};
use playhouse_subagents::descriptor::Descriptor;
use serde_json::{json, value::RawValue};
use tokio::sync::mpsc;

use super::{
    exit::CliError,
    follow::{Seen, What},
    output::{Format, Out, Paint, brief, frame_json, note, tame},
};

/// How much of arguments and results is shown.
const BRIEF: usize = 100;

/// How the prompt's turn ended.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) session: Option<SessionId>,
    pub(super) reason: TurnEndReason,
    pub(super) text: String,
    pub(super) usage: Option<Usage>,
}

impl End {
    /// Aborted by the user before a turn ran.
    pub(super) fn aborted(session: Option<SessionId>) -> Self {
        let reason = TurnEndReason::Aborted(CancelCause::User);
        Self { session, reason, text: String::new(), usage: None }
    }
}

/// The thread that writes.
pub(super) struct Screen {
    writer: JoinHandle<Result<Painter, CliError>>,
    root: Arc<OnceLock<SessionId>>,
    closed: CancelToken,
}

impl Screen {
    pub(super) fn start(mut seen: mpsc::Receiver<Seen>, format: Format, paint: Paint) -> Self {
        let root = Arc::new(OnceLock::new());
        let closed = CancelToken::new();
        let on_failure = closed.clone();
        let mut painter = Painter {
            format,
            paint,
            root: root.clone(),
            out: Out::new(),
            agents: HashMap::new(),
            children: 0,
            shared_terminal: io::stdout().is_terminal() && io::stderr().is_terminal(),
            root_mid_line: false,
        };
        let writer = std::thread::spawn(move || {
            let mut failed = None;
            while let Some(seen) = seen.blocking_recv() {
                // After a failure the rest is still taken, so that nobody waits in vain.
                if failed.is_none()
                    && let Err(error) = painter.show(&seen)
                {
                    failed = Some(error);
                    on_failure.cancel(CancelCause::User);
                }
            }
            match failed {
                None => Ok(painter),
                Some(error) => Err(error),
            }
        });
        Self { writer, root, closed }
    }

    /// Says which agent the prompt is for.
    pub(super) fn root(&self, id: &SessionId) {
        // There is one root.
        let _ = self.root.set(id.clone());
    }

    /// Fires once nothing more can be shown.
    pub(super) fn closed(&self) -> &CancelToken {
        &self.closed
    }

    /// Waits until all was written, and tells the end.
    pub(super) async fn finish(self, end: Option<End>) -> Result<(), CliError> {
        // Whoever reads the output may keep this waiting for ever.
        let told = tokio::task::spawn_blocking(move || {
            let painter = self.writer.join();
            let mut painter = painter.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            match &end {
                Some(end) => painter.end(end),
                None => painter.out.flush(),
            }
        });
        told.await.unwrap_or_else(|fault| std::panic::resume_unwind(fault.into_panic()))
    }
}

struct Painter {
    format: Format,
    paint: Paint,
    root: Arc<OnceLock<SessionId>>,
    out: Out,
    agents: HashMap<SessionId, Shown>,
    children: usize,
    /// Answer and activity go to one terminal, so they must not share a line.
    shared_terminal: bool,
    root_mid_line: bool,
}

/// What has been shown of an agent.
#[derive(Default)]
struct Shown {
    calls: HashMap<CallId, String>,
    /// A child's text that is not a whole line yet.
    line: String,
    /// Whether the open attempt has streamed text.
    streamed: bool,
    /// Tells sub-agents apart, in the order in which they came; empty for a root.
    label: String,
}

impl Painter {
    fn show(&mut self, seen: &Seen) -> Result<(), CliError> {
        match self.format {
            Format::Jsonl => self.json(seen),
            Format::Text => self.text(seen),
        }
    }

    fn json(&mut self, seen: &Seen) -> Result<(), CliError> {
        let session = seen.agent.id();
        let line = match &seen.what {
            What::Event(event) => {
                // As it is stored, byte for byte.
                let event = RawValue::from_string(event.to_json());
                let event = event.unwrap_or_else(|fault| unreachable!("an event is JSON: {fault}"));
                json_text(&Line { kind: "event", session, event })
            }
            What::Frame(frame) => {
                json!({"kind": "stream", "session": session, "frame": frame_json(frame)})
                    .to_string()
            }
            What::Fault(fault) => {
                json!({"kind": "fault", "session": session, "error": fault.failure}).to_string()
            }
            _ => return Ok(()),
        };
        self.out.line(&line)?;
        self.out.flush()
    }

    fn text(&mut self, seen: &Seen) -> Result<(), CliError> {
        let agent = &seen.agent;
        match &seen.what {
            What::Joined { .. } => {
                if agent.depth() > 0 {
                    self.children += 1;
                    let label = format!("[{}] ", self.children);
                    self.shown(agent).label = label;
                    let about = format!("sub-agent {}", agent.id());
                    self.activity(agent, &self.paint.dim(&about))?;
                }
                Ok(())
            }
            What::Event(event) => {
                if let Ok(Some(Descriptor { label: Some(label), .. })) =
                    Descriptor::read(event.seq, &event.body)
                {
                    self.activity(agent, &self.paint.dim(&brief(&label, BRIEF)))?;
                }
                self.event(agent, &event.body)
            }
            What::Frame(frame) => self.frame(agent, frame),
            What::Fault(fault) => {
                let text = format!("error: {}", brief(&fault.failure.to_string(), 400));
                self.activity(agent, &self.paint.red(&text))
            }
            What::Gone => {
                self.end_line(agent)?;
                self.agents.remove(agent.id());
                Ok(())
            }
            What::Durable(_) | What::Status(_) => Ok(()),
        }
    }

    fn shown(&mut self, agent: &Agent) -> &mut Shown {
        self.agents.entry(agent.id().clone()).or_default()
    }

    fn event(&mut self, agent: &Agent, body: &EventBody) -> Result<(), CliError> {
        match body {
            EventBody::AssistantMessage(data) => {
                // What was streamed is on the screen; a repaired or slow one comes whole.
                let streamed = std::mem::take(&mut self.shown(agent).streamed);
                if !streamed {
                    self.say(agent, &data.message.text())?;
                }
                self.end_line(agent)
            }
            EventBody::AssistantAttempt(_) => {
                self.shown(agent).streamed = false;
                self.end_line(agent)
            }
            EventBody::ToolCall(call) => {
                self.shown(agent).calls.insert(call.call_id.clone(), call.name.clone());
                let text = format!("→ {} {}", call.name, brief(&call.arguments, BRIEF));
                self.activity(agent, &self.paint.cyan(&text))
            }
            EventBody::ToolResult(result) => {
                let call = result.message.tool_call_id.as_ref();
                let name = call.and_then(|call| self.shown(agent).calls.remove(call));
                let name = name.unwrap_or_default();
                let text = brief(&result.message.text(), BRIEF);
                if result.message.is_error == Some(true) {
                    self.activity(agent, &self.paint.red(&format!("✗ {name}: {text}")))
                } else {
                    self.activity(agent, &self.paint.dim(&format!("← {name}: {text}")))
                }
            }
            EventBody::TurnEnd(end) if end.reason != TurnEndReason::Completed => {
                let text = format!("turn {} ended: {}", end.turn, why(&end.reason));
                self.activity(agent, &self.paint.red(&text))
            }
            _ => Ok(()),
        }
    }

    fn frame(&mut self, agent: &Agent, frame: &Frame) -> Result<(), CliError> {
        let Frame::Chunks { chunks, .. } = frame else { return Ok(()) };
        for timed in chunks {
            match &timed.chunk {
                StreamChunk::TextDelta { text, .. } => {
                    self.shown(agent).streamed = true;
                    self.say(agent, text)?;
                }
                StreamChunk::BlockEnd { .. } => self.end_line(agent)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn is_root(&self, agent: &Agent) -> bool {
        match self.root.get() {
            Some(root) => agent.id() == root,
            // The answer to the prompt cannot have begun.
            None => agent.depth() == 0,
        }
    }

    /// The root's text is the result; a child's is activity, shown by the line.
    fn say(&mut self, agent: &Agent, text: &str) -> Result<(), CliError> {
        if text.is_empty() {
            return Ok(());
        }
        if self.is_root(agent) {
            let tamed = io::stdout().is_terminal().then(|| tame(text));
            self.out.bytes(tamed.as_deref().unwrap_or(text).as_bytes())?;
            self.root_mid_line = !text.ends_with('\n');
            return self.out.flush();
        }
        let shown = self.shown(agent);
        shown.line.push_str(text);
        let whole = shown.line.rfind('\n').map(|at| shown.line.drain(..=at).collect::<String>());
        for line in whole.iter().flat_map(|lines| lines.lines()) {
            self.activity(agent, &tame(line))?;
        }
        Ok(())
    }

    fn end_line(&mut self, agent: &Agent) -> Result<(), CliError> {
        if self.is_root(agent) {
            if std::mem::take(&mut self.root_mid_line) {
                self.out.line("")?;
                self.out.flush()?;
            }
            return Ok(());
        }
        let line = std::mem::take(&mut self.shown(agent).line);
        if line.trim().is_empty() { Ok(()) } else { self.activity(agent, &tame(&line)) }
    }

    fn activity(&mut self, agent: &Agent, text: &str) -> Result<(), CliError> {
        if self.shared_terminal && std::mem::take(&mut self.root_mid_line) {
            self.out.line("")?;
            self.out.flush()?;
        }
        let indent = "  ".repeat(agent.depth() as usize);
        let label = self.agents.get(agent.id()).map_or("", |shown| &shown.label);
        note(&format!("{indent}{label}{text}"));
        Ok(())
    }

    fn end(&mut self, end: &End) -> Result<(), CliError> {
        match self.format {
            Format::Jsonl => {
                let line = json!({
                    "kind": "outcome",
                    "session": end.session,
                    "reason": end.reason,
                    "text": end.text,
                    "usage": end.usage,
                });
                self.out.line(&line.to_string())?;
            }
            Format::Text => {
                if let Some(session) = &end.session {
                    let usage = end.usage.map_or_else(String::new, |usage| {
                        format!(", {} tokens in, {} out", usage.input_tokens, usage.output_tokens)
                    });
                    let text = format!("session {session}: {}{usage}", why(&end.reason));
                    note(&self.paint.dim(&text));
                }
            }
        }
        self.out.flush()
    }
}

#[derive(serde::Serialize)]
struct Line<'a> {
    kind: &'static str,
    session: &'a SessionId,
    event: Box<RawValue>,
}

fn json_text(value: &impl serde::Serialize) -> String {
    // Strings and raw JSON always serialise.
    serde_json::to_string(value).unwrap_or_else(|fault| unreachable!("to JSON: {fault}"))
}

/// Why a turn ended, for people.
pub(super) fn why(reason: &TurnEndReason) -> String {
    match reason {
        TurnEndReason::Aborted(cause) => {
            let cause = json!(cause);
            format!("aborted ({})", cause["kind"].as_str().unwrap_or("unknown"))
        }
        TurnEndReason::Error(failure) => format!("error: {}", brief(&failure.to_string(), 400)),
        TurnEndReason::Budget(spent) => {
            let (used, limit) =
                (amount(&spent.resource, spent.used), amount(&spent.resource, spent.limit));
            format!("out of {}: {used} of {limit}", spent.resource)
        }
        other => other.kind().to_owned(),
    }
}

/// Logs count time in milliseconds and cost in millionths; people do not.
fn amount(resource: &str, amount: u64) -> String {
    if resource == Resource::WallTime.name() {
        humantime::format_duration(Duration::from_millis(amount)).to_string()
    } else if resource == Resource::Cost.name() {
        (amount as f64 / 1e6).to_string()
    } else {
        amount.to_string()
    }
}
