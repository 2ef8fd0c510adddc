use std::{
    collections::HashMap,
    sync::{Mutex, atomic::AtomicU64},
    time::Duration,
};

use playhouse_messages::{
    content::ToolCallBlock,
    event::{CancelCause, Event, EventBody, NewEvent, Seq, StepAt},
    id::MessageId,
    message::{Message, SharedMessage},
};
use playhouse_plugin_api::{
    agent::Agent,
    cancel::CancelToken,
    scope::{Registration, Scope},
    tool::{BatchHost, Tool, ToolError, ToolRun, executor::DEFAULT_GRACE, tool_fn},
};
use tokio::{sync::Notify, task::JoinHandle};

use super::*;

mod grace;
mod interleaving;
mod scenario;

/// A session and agent that only keep what they are told.
struct Host {
    /// The agent's, below the one that holds the tools.
    scope: Scope,
    events: Mutex<Vec<Event>>,
    /// `TC a`, `TR a`, `CTX id`, `run a`, `end a`.
    trace: Mutex<Vec<String>>,
    ids: AtomicU64,
    /// Appends of this line are refused.
    refuse: Mutex<Option<(String, Failure)>>,
    /// Fires this token when this line is noted.
    trip: Mutex<Option<(String, CancelToken)>>,
    checkpoint: Mutex<Result<(), Failure>>,
    gates: Mutex<HashMap<String, Arc<Notify>>>,
}

impl Host {
    fn note(&self, line: String) {
        if let Some((at, token)) = &*self.trip.lock().unwrap()
            && *at == line
        {
            token.cancel(CancelCause::User);
        }
        self.trace.lock().unwrap().push(line);
    }

    fn gate(&self, name: &str) -> Arc<Notify> {
        self.gates.lock().unwrap().entry(name.to_owned()).or_default().clone()
    }

    fn append_now(&self, event: NewEvent) -> Result<Seq, Failure> {
        let line = match &event.body {
            EventBody::ToolCall(call) => format!("TC {}", call.call_id),
            EventBody::ToolResult(result) => {
                format!("TR {}", result.message.tool_call_id.as_ref().unwrap())
            }
            body => panic!("an executor does not log {body:?}"),
        };
        if let Some((refused, failure)) = &*self.refuse.lock().unwrap()
            && *refused == line
        {
            return Err(failure.clone());
        }
        self.note(line);
        let mut events = self.events.lock().unwrap();
        let seq = events.len() as Seq;
        events.push(event.at(seq, 0));
        Ok(seq)
    }
}

impl BatchHost for Host {
    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn agent(&self) -> Option<Agent> {
        None
    }

    fn append(&self, event: NewEvent) -> BoxFuture<'static, Result<Seq, Failure>> {
        let appended = self.append_now(event);
        // As with a real session, the answer comes later than the append.
        async move {
            tokio::task::yield_now().await;
            appended
        }
        .boxed()
    }

    fn accept_context(&self, message: SharedMessage) -> BoxFuture<'static, Result<(), Failure>> {
        self.note(format!("CTX {}", message.id));
        std::future::ready(Ok(())).boxed()
    }

    fn checkpoint(&self) -> BoxFuture<'static, Result<(), Failure>> {
        std::future::ready(self.checkpoint.lock().unwrap().clone()).boxed()
    }

    fn new_message_id(&self) -> MessageId {
        format!("m{}", self.ids.fetch_add(1, Ordering::Relaxed)).into()
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct NoArgs {}

/// An executor over a host with a few tools: `p` (parallel) and `x` (exclusive) run until the gate
/// of their call opens; `fast` returns at once; `hang` never ends and ignores its token; `ctx`
/// defers a context and waits for its gate.
struct Rig {
    host: Arc<Host>,
    executor: ToolExecutor,
    cancel: CancelToken,
    cap: usize,
}

impl Rig {
    fn new(cap: usize) -> Self {
        let host = Arc::new(Host {
            scope: Scope::root("root").child("agent").unwrap(),
            events: Mutex::default(),
            trace: Mutex::default(),
            ids: AtomicU64::new(0),
            refuse: Mutex::default(),
            trip: Mutex::default(),
            checkpoint: Mutex::new(Ok(())),
            gates: Mutex::default(),
        });
        let executor = ToolExecutor::new(ToolPipeline::default());
        let rig = Self { host, executor, cancel: CancelToken::new(), cap };
        rig.gated("p", true);
        rig.gated("x", false);
        rig.add(tool_fn("fast", "", |_: NoArgs, _run| async { Ok("fast") }).parallel());
        let note = rig.host.clone();
        let hang = move |_: NoArgs, run: ToolRun| {
            note.note(format!("run {}", run.call_id()));
            std::future::pending::<Result<String, ToolError>>()
        };
        rig.add(tool_fn("hang", "", hang).parallel());
        let host = rig.host.clone();
        let defer = move |_: NoArgs, run: ToolRun| {
            let host = host.clone();
            async move {
                let id = format!("of-{}", run.call_id());
                run.defer_context(Message::user(id.as_str(), "x"));
                host.gate(run.call_id().as_str()).notified().await;
                Ok("deferred")
            }
        };
        rig.add(tool_fn("ctx", "", defer).parallel());
        rig
    }

    fn add(&self, tool: impl Tool) -> Registration {
        let scope = self.host.scope.parent().unwrap();
        self.executor.pipeline.registry().register(scope, Arc::new(tool)).unwrap()
    }

    fn gated(&self, name: &str, parallel: bool) -> Registration {
        let host = self.host.clone();
        let tool = tool_fn(name, "", move |_: NoArgs, run: ToolRun| {
            let host = host.clone();
            async move {
                let call = run.call_id().as_str().to_owned();
                host.note(format!("run {call}"));
                host.gate(&call).notified().await;
                host.note(format!("end {call}"));
                Ok(format!("result of {call}"))
            }
        });
        self.add(tool.parallel_if(move |_| parallel))
    }

    /// Starts a batch written as `id:tool id:tool`.
    fn start(&self, calls: &str) -> JoinHandle<Result<BatchOutcome, Failure>> {
        self.start_with(calls, "{}")
    }

    fn start_with(
        &self,
        calls: &str,
        arguments: &str,
    ) -> JoinHandle<Result<BatchOutcome, Failure>> {
        let block = |call: &str| {
            let (id, name) = call.split_once(':').unwrap();
            ToolCallBlock { id: id.into(), name: name.into(), arguments: arguments.into() }
        };
        tokio::spawn(self.executor.execute(ToolBatch {
            host: self.host.clone(),
            at: StepAt { turn: 1, step: 1 },
            calls: calls.split_whitespace().map(block).collect(),
            max_parallel: self.cap,
            cancel: self.cancel.clone(),
            grace: DEFAULT_GRACE,
            supervisor: None,
            span: tracing::Span::none(),
        }))
    }

    /// Lets the body of a call end, and everything that follows from it.
    async fn open(&self, call: &str) {
        self.host.gate(call).notify_one();
        quiet().await;
    }

    fn trace(&self) -> Vec<String> {
        self.host.trace.lock().unwrap().clone()
    }

    /// The durable part of the trace, as one line.
    fn log(&self) -> String {
        let trace = self.trace();
        let durable = trace.iter().filter(|line| line.starts_with('T'));
        durable.cloned().collect::<Vec<_>>().join(" · ")
    }

    /// The text and code of a call's result, which must cite its `tool/call`.
    fn result(&self, call: &str) -> (String, Option<String>) {
        let events = self.host.events.lock().unwrap();
        let of = |event: &&Event| match &event.body {
            EventBody::ToolCall(data) => data.call_id == *call,
            EventBody::ToolResult(data) => data.message.tool_call_id.as_ref().unwrap() == call,
            _ => false,
        };
        let mut of_call = events.iter().filter(of);
        let (logged, result) = (of_call.next().unwrap(), of_call.next().unwrap());
        assert!(of_call.next().is_none(), "one result a call");
        assert_eq!(result.sources, [logged.seq]);
        let EventBody::ToolResult(data) = &result.body else { panic!("{result:?}") };
        assert!(data.error.is_none() || data.message.is_error == Some(true));
        (data.message.text(), data.error.as_ref().map(|error| error.code.clone()))
    }
}

/// Waits until every task waits for something: under the paused clock, time moves only then.
async fn quiet() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}
