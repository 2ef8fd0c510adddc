//! A harness with jobs, a model that plays a script, and a producer whose work ends when told to.

use std::sync::{Arc, Mutex};

use playhouse_messages::{chunk::Failure, event::EventBody, message::SharedMessage};
use playhouse_models::scripted::{Script, ScriptedAdapter};
use playhouse_plugin_api::{
    agent::Agent,
    cancel::CancelToken,
    creation::{AgentHandle, NewAgent},
    options::AgentOptions,
    tool::{ToolRun, tool_fn},
};
use playhouse_supervisor::harness::Harness;
use tokio::sync::oneshot;

use crate::{
    JOBS_SERVICE, JobError, JobId, JobOutcome, Jobs, JobsConfig, JobsPlugin, NewJob, Work,
    notice::NOTICE_SOURCE,
};

pub(super) struct Bench {
    pub(super) harness: Harness,
    pub(super) jobs: Arc<Jobs>,
    pub(super) desk: Arc<Desk>,
    pub(super) model: Arc<ScriptedAdapter>,
}

/// The work that was begun, in order.
#[derive(Default)]
pub(super) struct Desk(Mutex<Vec<Item>>);

struct Item {
    end: Option<oneshot::Sender<JobOutcome>>,
    cancel: CancelToken,
}

/// What work does that is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// It ends.
    Obeys,
    /// It says no.
    Refuses,
    /// It says yes, and goes on.
    Ignores,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct BeginArgs {
    label: String,
}

impl Bench {
    pub(super) async fn new(script: Script) -> Self {
        Self::with(script, JobsConfig::default()).await
    }

    pub(super) async fn with(script: Script, config: JobsConfig) -> Self {
        let plugin = JobsPlugin::new(config).unwrap();
        let harness = Harness::builder().plugin(plugin).start().await.unwrap();
        let jobs = harness.world().services.require::<Jobs>(JOBS_SERVICE).unwrap();
        let model = Arc::new(ScriptedAdapter::new(script));
        model.stage().record(true);
        harness.world().models.register(["scripted"], model.clone()).unwrap();
        let desk = Arc::new(Desk::default());
        let (starting, at) = (jobs.clone(), desk.clone());
        let begin = tool_fn("begin", "Begins.", move |args: BeginArgs, run: ToolRun| {
            let new = NewJob::new("work", args.label).owned_by(run.agent().unwrap());
            let begun = starting.start(new, || Ok(at.work(Manner::Obeys)));
            async move { Ok(begun?.to_string()) }
        });
        harness.register_tool(Arc::new(begin)).unwrap();
        Self { harness, jobs, desk, model }
    }

    pub(super) async fn agent(&self) -> AgentHandle {
        let options = AgentOptions::new().model("scripted", "any");
        self.harness.create(NewAgent::new(options)).await.unwrap()
    }

    pub(super) fn start(&self, owner: &Agent, manner: Manner) -> Result<JobId, JobError> {
        let new = NewJob::new("work", "Some work").owned_by(owner);
        self.jobs.start(new, || Ok(self.desk.work(manner)))
    }

    /// Ends the harness; nothing of any job is left.
    pub(super) async fn ends_clean(self) {
        self.harness.shutdown().await.unwrap();
        assert_eq!(self.jobs.active(), 0);
        let metrics = tokio::runtime::Handle::current().metrics();
        for _ in 0..1_000 {
            if metrics.num_alive_tasks() == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{} tasks outlive the harness", metrics.num_alive_tasks());
    }
}

impl Desk {
    pub(super) fn work(&self, manner: Manner) -> Work {
        let (end, ended) = oneshot::channel();
        let cancel = CancelToken::new();
        self.0.lock().unwrap().push(Item { end: Some(end), cancel: cancel.clone() });
        let watched = cancel.clone();
        let work = Work::new(async move {
            let ended = async { ended.await.map_err(|_| Failure::new("LOST", "nobody ends it")) };
            if manner != Manner::Obeys {
                return ended.await;
            }
            match watched.race(ended).await {
                Some(ended) => ended,
                None => {
                    // The end of real work takes its time.
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                    Ok(JobOutcome::killed())
                }
            }
        });
        match manner {
            Manner::Refuses => work.on_cancel(|_| Err(Failure::new("NO", "it will not stop"))),
            Manner::Obeys | Manner::Ignores => work.cancelled_by(cancel),
        }
    }

    /// How much work was begun.
    pub(super) fn begun(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Whether the work was told to end.
    pub(super) fn is_cancelled(&self, nth: usize) -> bool {
        self.0.lock().unwrap()[nth].cancel.is_cancelled()
    }

    pub(super) fn end(&self, nth: usize, outcome: JobOutcome) {
        let end = self.0.lock().unwrap()[nth].end.take().unwrap();
        end.send(outcome).unwrap();
    }
}

/// Waits until the log is as asked for.
pub(super) async fn until(agent: &Agent, mut is_so: impl FnMut(&Agent) -> bool) {
    let mut events = agent.session().events(agent.session().log().len());
    while !is_so(agent) {
        events.next().await;
    }
}

/// Waits until so many turns have ended, and nothing runs.
pub(super) async fn until_turns(agent: &Agent, turns: usize) {
    until(agent, |agent| ended_turns(agent) >= turns).await;
    agent.when_idle().await.unwrap();
    assert_eq!(ended_turns(agent), turns);
}

pub(super) fn ended_turns(agent: &Agent) -> usize {
    let log = agent.session().log();
    log.iter().filter(|event| matches!(event.body, EventBody::TurnEnd(_))).count()
}

/// The notices that the agent's inbox has ever taken.
pub(super) fn notices(agent: &Agent) -> Vec<SharedMessage> {
    let log = agent.session().log();
    let spliced = log.iter().filter_map(|event| match &event.body {
        EventBody::InboxSpliced(splice) => Some(splice.inserted.clone()),
        _ => None,
    });
    spliced.flatten().filter(|message| message.source.kind() == NOTICE_SOURCE).collect()
}

/// The results of the agent's tool calls: whether each is an error, and its text.
pub(super) fn results(agent: &Agent) -> Vec<(bool, String)> {
    let log = agent.session().log();
    let result = |body: &EventBody| match body {
        EventBody::ToolResult(result) => {
            Some((result.message.is_error == Some(true), result.message.text()))
        }
        _ => None,
    };
    log.iter().filter_map(|event| result(&event.body)).collect()
}
