//! What the tests of this folder share.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{future::BoxFuture, stream::BoxStream};
use playhouse::{
    Agent, AgentHandle, AgentOptions, CancelToken, Event, EventBody, Failure, Harness, NewAgent,
    Outcome, Plugin,
    messages::{chunk::StreamChunk, config::Route, event::StepAt, log::Log},
    models::scripted::{Reply, Script, ScriptedAdapter},
    plugin_api::{
        clock::{CountingIds, StepClock},
        llm::{
            AdapterRegistration, Backoff, EncodeInput, Frame, FrameInput, LlmAdapter, LlmRequest,
            ModelInfo, RetryPolicy,
        },
        points::Hooks,
    },
    policies::{
        Retry,
        retry::{Scheduled, Started},
    },
    supervisor::plugin_host::{PluginHandle, PluginStatus},
    testing::trace,
};
use tokio::time::Instant;

/// No wait of these tests takes long; one that does has failed.
pub async fn soon<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(600), wait).await.expect("it ends soon")
}

/// A call that fails with this code.
pub fn fails(code: &str) -> Reply {
    Reply::error(code, "it broke")
}

/// A call that fails and asks to wait.
pub fn asks_for(ms: u64) -> Reply {
    let mut reply = fails("RATE_LIMIT");
    reply.fault.as_mut().unwrap().retry_after_ms = Some(ms);
    reply
}

pub fn normal(max_retries: u32, codes: &[&str]) -> RetryPolicy {
    let retryable_codes = codes.iter().map(|code| (*code).to_owned()).collect();
    RetryPolicy::Normal { max_retries, retryable_codes, backoff: Backoff::default() }
}

pub fn always() -> RetryPolicy {
    RetryPolicy::Always { backoff: Backoff::default() }
}

/// A scripted model that counts and times its calls, and whose retry policy can be changed.
pub struct Model {
    scripted: ScriptedAdapter,
    policy: Mutex<RetryPolicy>,
    pub prepared: AtomicUsize,
    sent: Mutex<Vec<Instant>>,
}

impl Model {
    pub fn new(policy: RetryPolicy, replies: impl IntoIterator<Item = Reply>) -> Arc<Self> {
        let scripted = ScriptedAdapter::new(Script::sequence(replies));
        scripted.stage().record(true);
        let (policy, sent) = (Mutex::new(policy), Mutex::default());
        Arc::new(Self { scripted, policy, prepared: AtomicUsize::new(0), sent })
    }

    pub fn requests(&self) -> Vec<LlmRequest> {
        self.scripted.captured()
    }

    /// What each request said.
    pub fn texts(&self) -> Vec<Vec<String>> {
        let texts = |request: LlmRequest| request.messages.iter().map(|m| m.text()).collect();
        self.requests().into_iter().map(texts).collect()
    }

    /// The times between requests, in milliseconds.
    pub fn waits(&self) -> Vec<u128> {
        let sent = self.sent.lock().unwrap();
        sent.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect()
    }
}

impl LlmAdapter for Model {
    fn retry_policy(&self, _provider: &str) -> Option<RetryPolicy> {
        Some(self.policy.lock().unwrap().clone())
    }

    fn resolve<'a>(
        &'a self,
        route: &'a Route,
        cancel: &'a CancelToken,
    ) -> BoxFuture<'a, Result<ModelInfo, Failure>> {
        self.prepared.fetch_add(1, Ordering::Relaxed);
        self.scripted.resolve(route, cancel)
    }

    fn encode(&self, input: &EncodeInput<'_>) -> Result<Bytes, Failure> {
        self.scripted.encode(input)
    }

    fn frame(&self, request: &FrameInput<'_>) -> Result<Frame, Failure> {
        self.scripted.frame(request)
    }

    fn stream(&self, request: LlmRequest) -> BoxStream<'static, Result<StreamChunk, Failure>> {
        self.sent.lock().unwrap().push(Instant::now());
        self.scripted.stream(request)
    }
}

/// A harness with retry, a model under `p/m` and an agent that uses it.
pub struct Rig {
    pub harness: Harness,
    pub model: Arc<Model>,
    pub agent: AgentHandle,
    pub retry: PluginHandle,
    registration: AdapterRegistration,
}

impl Rig {
    pub async fn new(policy: RetryPolicy, replies: impl IntoIterator<Item = Reply>) -> Self {
        let builder = playhouse::minimal().ids(CountingIds::default());
        let harness = builder.clock(StepClock::default()).start().await.unwrap();
        let retry = host(&harness, Retry::new().random(|| 0.5)).await;
        let model = Model::new(policy, replies);
        let registration = harness.world().models.register(["p"], model.clone()).unwrap();
        let agent = create(&harness).await;
        Self { harness, model, agent, retry, registration }
    }

    /// One more route.
    pub fn route(&self, provider: &str, replies: impl IntoIterator<Item = Reply>) -> Arc<Model> {
        let model = Model::new(normal(0, &["SERVER"]), replies);
        let models = &self.harness.world().models;
        let _ = models.register([provider], model.clone()).unwrap();
        model
    }

    pub fn hooks(&self) -> &Hooks {
        &self.harness.world().hooks
    }

    /// From the next preparation of a call on.
    pub fn set_policy(&self, policy: RetryPolicy) {
        *self.model.policy.lock().unwrap() = policy;
        self.registration.replace(["p"]).unwrap();
    }

    pub async fn prompt(&self) -> Outcome {
        let outcome = soon(self.agent.prompt("go")).await.unwrap();
        soon(self.agent.when_idle()).await.unwrap();
        outcome
    }

    /// Sends a prompt, and waits until the log holds an event of this kind.
    pub async fn until(&self, kind: &str) -> playhouse::MessageId {
        let id = self.agent.followup("go").await.unwrap();
        let mut events = self.agent.session().events(0);
        while soon(events.next()).await.body.kind() != kind {}
        id
    }

    /// The log in one line, without the inbox.
    pub fn steps(&self) -> String {
        let trace = trace(&self.agent.session().log());
        let words = trace.split(' ').filter(|word| !word.starts_with("IN"));
        words.collect::<Vec<_>>().join(" ")
    }

    pub fn scheduled(&self) -> Vec<Scheduled> {
        let log = self.agent.session().log();
        log.iter().filter_map(|event| Scheduled::read(&event.body)).collect()
    }

    /// Judges the log, and ends.
    pub async fn end(self) {
        check_retries(&self.agent.session().log());
        self.harness.shutdown().await.unwrap();
    }
}

pub async fn create(harness: &Harness) -> AgentHandle {
    let options = AgentOptions::new().model("p", "m");
    harness.create(NewAgent::new(options)).await.unwrap()
}

/// Hosts a plugin, and waits until it is set up.
pub async fn host(harness: &Harness, plugin: impl Plugin) -> PluginHandle {
    let handle = harness.host(plugin).await.unwrap();
    let mut status = handle.watch();
    soon(status.wait_for(|status| *status == PluginStatus::Active)).await.unwrap();
    handle
}

pub fn reason_of(agent: &Agent) -> Option<playhouse::TurnEndReason> {
    let log = agent.session().log();
    log.iter().rev().find_map(|event| match &event.body {
        EventBody::TurnEnd(end) => Some(end.reason.clone()),
        _ => None,
    })
}

/// What holds of retries in every log: each is of the open step and of the provider that was asked,
/// follows the one before it, and starts at most once.
pub fn check_retries(log: &Log) {
    let mut at = None;
    let mut provider = String::new();
    let mut chains: BTreeMap<String, u32> = BTreeMap::new();
    let mut pending: Option<Started> = None;
    for event in log.iter() {
        let of_step = |this: StepAt, event: &Event| {
            assert_eq!(Some(this), at, "a retry outside of its step: {event:?}");
        };
        match &event.body {
            EventBody::StepStart(open) => (at, pending) = (Some(*open), None),
            EventBody::StepEnd(_) => at = None,
            EventBody::RequestHeader(data) => {
                provider.clone_from(&data.header.config.provider);
            }
            body => {
                if let Some(retry) = Scheduled::read(body) {
                    of_step(retry.at, event);
                    assert_eq!(retry.provider, provider, "a retry of another provider");
                    let last = chains.insert(retry.retry_id.clone(), retry.retry);
                    assert_eq!(retry.retry, last.unwrap_or(0) + 1, "a retry was left out");
                    pending = Some(retry.started());
                } else if let Some(started) = Started::read(body) {
                    of_step(started.at, event);
                    assert_eq!(pending.take(), Some(started), "it starts what was scheduled, once");
                }
            }
        }
    }
}
