//! Tools that the client runs: each call is a request to it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{config::ToolSchema, content::ContentBlock};
use playhouse_plugin_api::{
    scope::{Registration, Scope},
    tool::{Concurrency, Tool, ToolError, ToolOutput, ToolRegistry, ToolRun},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::wire::{Outbox, RpcError};

type Answer = Result<Value, Value>;

/// The client's tools, and its calls under way.
pub(super) struct ClientTools {
    outbox: Outbox,
    next: AtomicU64,
    calls: Mutex<Calls>,
    registered: Mutex<HashMap<(String, Option<String>), Registration>>,
}

#[derive(Default)]
struct Calls {
    waiting: HashMap<String, oneshot::Sender<Answer>>,
    client_gone: bool,
}

/// A tool as the client describes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Description {
    name: String,
    description: String,
    /// A JSON Schema of the arguments.
    parameters: Value,
    /// Whether calls may overlap.
    #[serde(default)]
    parallel: bool,
    timeout_ms: Option<u64>,
    /// The agent that gets it; all if absent.
    pub(super) agent: Option<String>,
}

impl ClientTools {
    pub(super) fn new(outbox: Outbox) -> Arc<Self> {
        Arc::new(Self {
            outbox,
            next: AtomicU64::new(1),
            calls: Mutex::default(),
            registered: Mutex::default(),
        })
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a tool for the agents at or below `scope`.
    pub(super) fn register(
        self: &Arc<Self>,
        tool: Description,
        registry: &ToolRegistry,
        scope: &Scope,
    ) -> Result<(), RpcError> {
        let key = (tool.name.clone(), tool.agent);
        let schema = ToolSchema {
            name: tool.name,
            description: tool.description,
            parameters: tool.parameters,
            defer_loading: false,
        };
        let tool = ClientTool {
            schema: Arc::new(schema),
            parallel: tool.parallel,
            timeout: tool.timeout_ms.map(Duration::from_millis),
            tools: self.clone(),
        };
        let registration = registry
            .register(scope, Arc::new(tool))
            .map_err(|fault| RpcError::application(fault.code(), fault.to_string()))?;
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        registered.insert(key, registration);
        Ok(())
    }

    /// Takes a tool back; calls of it under way go on. Whether there was one.
    pub(super) fn unregister(&self, name: String, agent: Option<String>) -> bool {
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        let registration = registered.remove(&(name, agent));
        drop(registered);
        registration.as_ref().map(Registration::remove).is_some()
    }

    /// Takes the client's answer to a call. One that comes too late finds nobody.
    pub(super) fn answered(&self, id: &Value, answer: Answer) {
        let waiting = id.as_str().and_then(|id| self.calls().waiting.remove(id));
        match waiting {
            // The call may have been dropped meanwhile.
            Some(waiting) => drop(waiting.send(answer)),
            None => tracing::warn!(%id, "an answer to no open tool call: ignored"),
        }
    }

    /// The client went away: its calls fail, now and later.
    pub(super) fn client_gone(&self) {
        let mut calls = self.calls();
        calls.client_gone = true;
        calls.waiting.clear();
    }

    /// As [`ClientTools::client_gone`], and no agent sees its tools any more.
    pub(super) fn leave(&self) {
        self.client_gone();
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, registration) in std::mem::take(&mut *registered) {
            registration.remove();
        }
    }

    /// A call, registered to be answered; `None` if nobody is there to answer.
    fn begin(&self) -> Option<(String, oneshot::Receiver<Answer>)> {
        let id = format!("tool-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let (sender, receiver) = oneshot::channel();
        let mut calls = self.calls();
        if calls.client_gone {
            return None;
        }
        calls.waiting.insert(id.clone(), sender);
        Some((id, receiver))
    }
}

struct ClientTool {
    schema: Arc<ToolSchema>,
    parallel: bool,
    timeout: Option<Duration>,
    tools: Arc<ClientTools>,
}

/// Forgets a call that is dropped before it was answered.
struct Open {
    id: String,
    tools: Arc<ClientTools>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.tools.calls().waiting.remove(&self.id);
    }
}

fn gone(name: &str) -> ToolError {
    let text = format!("the client that runs the tool \"{name}\" went away");
    ToolError::coded("ClientGoneError", "CLIENT_GONE", text)
}

impl Tool for ClientTool {
    fn schema(&self) -> &Arc<ToolSchema> {
        &self.schema
    }

    fn concurrency(&self, _args: &Value) -> Concurrency {
        if self.parallel { Concurrency::Parallel } else { Concurrency::Exclusive }
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    fn execute(
        &self,
        args: Value,
        run: ToolRun,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
        let tools = self.tools.clone();
        async move {
            let (id, mut answer) = tools.begin().ok_or_else(|| gone(run.name()))?;
            let open = Open { id, tools };
            let Open { id, tools } = &open;
            let at = run.call().at();
            let params = json!({
                "agent": run.agent().map(|agent| agent.id()),
                "callId": run.call_id(),
                "name": run.name(),
                "arguments": args,
                "turn": at.map(|at| at.turn),
                "step": at.map(|at| at.step),
            });
            let asked = run.cancel().race(tools.outbox.request(id, "tool/call", &params)).await;
            match asked {
                // The client never heard of it.
                None => return Err(ToolError::aborted()),
                Some(sent) => sent.map_err(|_| gone(run.name()))?,
            }
            let settled = match run.cancel().race(&mut answer).await {
                Some(settled) => settled,
                None => {
                    let cause = run.cancel().cause();
                    let params = json!({"id": id, "callId": run.call_id(), "cause": cause});
                    let told = tools.outbox.notify("tool/abort", &params).await;
                    told.map_err(|_| gone(run.name()))?;
                    // The call ends when the client has stopped; the executor bounds the wait.
                    answer.await
                }
            };
            let settled = settled.map_err(|_| gone(run.name()))?;
            settled.map_err(|error| refused(&error)).and_then(output)
        }
        .boxed()
    }
}

/// A tool's failure, as the client tells it.
fn refused(error: &Value) -> ToolError {
    let text = error["message"].as_str().unwrap_or("the client's tool failed").to_owned();
    match error["data"]["code"].as_str() {
        Some(code) => ToolError::coded("ClientToolError", code, text),
        None => ToolError::new(text),
    }
}

/// A tool's result, as the client tells it: a string, `{"value": any}`, or `{"content": [blocks]}`
/// with or without a value.
fn output(result: Value) -> Result<ToolOutput, ToolError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Parts {
        value: Option<Value>,
        content: Option<Vec<ContentBlock>>,
    }
    let invalid = |cause: &str| {
        let text = format!(
            "the client's result is neither a string nor an object of `value` and `content`: {cause}"
        );
        ToolError::coded("ClientToolError", "INVALID_TOOL_OUTPUT", text)
    };
    if let Value::String(text) = result {
        return Ok(text.into());
    }
    let parts: Parts =
        serde_json::from_value(result).map_err(|fault| invalid(&fault.to_string()))?;
    match parts {
        Parts { value: None, content: None } => Err(invalid("it has neither")),
        Parts { value, content: Some(content) } => {
            Ok(ToolOutput::new(value.unwrap_or_default()).showing(content))
        }
        Parts { value: Some(value), content: None } => Ok(ToolOutput::new(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_answer_in_three_ways() {
        assert_eq!(output(json!("t")).unwrap().content, [ContentBlock::text("t")]);
        let value = output(json!({"value": {"n": 1}})).unwrap();
        assert_eq!(value.content, [ContentBlock::text(r#"{"n":1}"#)]);
        let content = json!({"content": [{"type": "text", "text": "c"}]});
        assert_eq!(output(content).unwrap().content, [ContentBlock::text("c")]);
        for bad in [json!(1), json!({}), json!({"text": "t"})] {
            assert_eq!(output(bad).unwrap_err().code(), Some("INVALID_TOOL_OUTPUT"));
        }
    }
}
