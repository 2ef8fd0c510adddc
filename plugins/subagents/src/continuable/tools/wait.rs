//! Waiting for children, bounded and cancellable.

use std::{sync::Arc, time::Duration};

use playhouse_messages::{content::ContentBlock, event::InboxTarget, id::SessionId};
use playhouse_plugin_api::{
    agent::Agent,
    tool::{Tool, ToolError, ToolOutput, ToolRun, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::caller;
use crate::{
    Continuations,
    continuable::{
        Activation, ActivationState,
        ending::{REPORT_KIND, SETTLED_KIND, Unread, unread},
    },
};

/// The tool's name.
pub const WAIT_TOOL: &str = "wait_agent";

/// How long a call waits unless it says otherwise, in milliseconds.
pub const WAIT_MS_DEFAULT: u64 = 30_000;

/// The longest that a call may wait, in milliseconds.
pub const WAIT_MS_MAX: u64 = 600_000;

const DESCRIPTION: &str = "\
Waits until one of your background sub-agents settles or reports, and says which; what it said reaches \
you with your next step. With `agent_id` only that sub-agent counts. Returns early when there is \
nothing to wait for, when you are sent something else, and after `timeout_ms` (30000 by default, at \
most 600000). You need not wait to be told: if you have nothing else to do, you may also end your turn.";

#[derive(Debug, Deserialize, JsonSchema)]
struct Args {
    /// The sub-agent to wait for; any of yours if absent.
    agent_id: Option<String>,
    /// How long to wait at most, in milliseconds.
    #[schemars(range(min = 1, max = 600_000))]
    timeout_ms: Option<u64>,
}

/// What ended a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Waited {
    Settled(SessionId),
    Reported(SessionId),
    /// Somebody else has sent the caller something, which waits there.
    Input(InboxTarget),
    /// No such child runs.
    Nothing,
    TimedOut,
}

/// The tool; its value is `{outcome, agentId?}`, the outcome one of `settled`, `reported`, `input`,
/// `nothing` and `timeout`.
pub fn wait_tool(service: Continuations) -> Arc<dyn Tool> {
    Arc::new(tool_fn(WAIT_TOOL, DESCRIPTION, move |args: Args, call: ToolRun| {
        let service = service.clone();
        async move {
            let caller = caller(&call)?;
            let limit = args.timeout_ms.unwrap_or(WAIT_MS_DEFAULT).clamp(1, WAIT_MS_MAX);
            let only = args.agent_id.as_deref().map(SessionId::from);
            let ended = wait(&service, caller, only.as_ref());
            let ended = tokio::time::timeout(Duration::from_millis(limit), ended);
            let ended = call.cancel().race(ended).await.ok_or_else(ToolError::aborted)?;
            Ok(ended.unwrap_or(Waited::TimedOut).output())
        }
    }))
}

async fn wait(service: &Continuations, caller: &Agent, only: Option<&SessionId>) -> Waited {
    let mut changes = service.watch();
    loop {
        changes.borrow_and_update();
        let before = caller.session().log().len();
        if let Some(waited) = reached(service, caller, only) {
            return waited;
        }
        let mut grown = caller.session().events(before);
        tokio::select! {
            biased;
            _ = grown.next() => {}
            changed = changes.changed() => if changed.is_err() { return Waited::Nothing },
        }
    }
}

/// Whether there is nothing more to wait for. What was told before the call and was not read yet
/// counts: the caller cannot have known it.
fn reached(service: &Continuations, caller: &Agent, only: Option<&SessionId>) -> Option<Waited> {
    let is_meant = |id: &SessionId| only.is_none_or(|only| only == id);
    let mut input = None;
    for Unread { list, kind, from } in unread(caller) {
        match (kind.as_str(), from) {
            (SETTLED_KIND, Some(from)) if is_meant(&from) => return Some(Waited::Settled(from)),
            (REPORT_KIND, Some(from)) if is_meant(&from) => return Some(Waited::Reported(from)),
            (SETTLED_KIND | REPORT_KIND, _) => {}
            _ => input = input.or(Some(list)),
        }
    }
    let at_work = |child: &Activation| {
        child.parent == *caller.id()
            && is_meant(&child.child)
            && child.state != ActivationState::Parked
    };
    let runs = service.activations().iter().any(at_work);
    match (input, runs) {
        (Some(list), _) => Some(Waited::Input(list)),
        (None, false) => Some(Waited::Nothing),
        (None, true) => None,
    }
}

impl Waited {
    fn output(self) -> ToolOutput {
        let (outcome, agent, text) = match self {
            Self::Settled(id) => {
                ("settled", Some(id.clone()), format!("Sub-agent {id} has settled."))
            }
            Self::Reported(id) => {
                ("reported", Some(id.clone()), format!("Sub-agent {id} has reported."))
            }
            Self::Input(InboxTarget::NextStep) => (
                "input",
                None,
                "Something else was sent to you: it is in your next step.".to_owned(),
            ),
            // Another wait would end as this one did.
            Self::Input(InboxTarget::NextTurn) => {
                let text = "A new prompt waits for you: end this turn to get it.";
                ("input", None, text.to_owned())
            }
            Self::Nothing => ("nothing", None, "No such sub-agent is at work.".to_owned()),
            Self::TimedOut => {
                ("timeout", None, "Nothing happened in that time; it still works.".to_owned())
            }
        };
        let mut value = json!({"outcome": outcome});
        if let Some(agent) = agent {
            value["agentId"] = agent.as_str().into();
        }
        ToolOutput::new(value).showing(vec![ContentBlock::text(text)])
    }
}
