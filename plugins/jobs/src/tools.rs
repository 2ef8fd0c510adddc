//! Jobs as tools for models.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use playhouse_messages::{
    content::{ContentBlock, joined_text},
    event::{EventBody, InboxTarget, ToolErrorInfo},
    id::SessionId,
    message::SharedMessage,
};
use playhouse_plugin_api::{
    agent::Agent,
    tool::{
        Concurrency, Tool, ToolCallContext, ToolError, ToolOutcome, ToolOutput, ToolRun,
        ToolSchema, tool_fn,
    },
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    JobId, JobSnapshot, Jobs, JobsConfig, KillOutcome, PublicJob,
    bound::{keeping_end, keeping_start},
};

/// The tool that reads a job's output.
pub const JOB_OUTPUT: &str = "job_output";
/// The tool that lists the jobs.
pub const JOB_LIST: &str = "job_list";
/// The tool that stops a job.
pub const JOB_KILL: &str = "job_kill";

/// The section of the system prompt on jobs, and where it stands.
pub const JOBS_SECTION: &str = "tool:jobs";
/// Where [`JOBS_SECTION`] stands.
pub const JOBS_ORDER: f64 = 106.0;

pub(crate) const GUIDANCE: &str = "\
Background jobs: some tools start work that goes on while you do something else, and answer with a \
job id. Keep track of every id. Do not poll a job in a loop: go on with other work and you are told \
when it ends, or wait for it once with job_output. Do not start work again that a running job is \
already doing. Before your final answer, collect the output of every job that matters to it, and \
kill the jobs that do not matter any more.";

const OUTPUT_DESCRIPTION: &str = "\
Reads what a background job has put out since you last read it, with its status. With wait it waits \
until the job has ended, up to timeout_ms; a job that has not ended by then goes on. A message from \
the user ends the wait early.";

const LIST_DESCRIPTION: &str = "Lists your background jobs with their ids and statuses.";

const KILL_DESCRIPTION: &str = "\
Stops a background job that you no longer need. The job is asked to end and may take a moment.";

const NO_OUTPUT: &str = "(no new output)";
const NO_JOBS: &str = "(no background jobs)";
const STATUS: &str = "\n[status: ";

#[derive(Debug, Deserialize, JsonSchema)]
struct OutputArgs {
    /// The job.
    job_id: String,
    /// Whether to wait until it has ended.
    wait: Option<bool>,
    /// How long to wait, in milliseconds.
    timeout_ms: Option<f64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ListArgs {}

#[derive(Debug, Deserialize, JsonSchema)]
struct KillArgs {
    /// The job.
    job_id: String,
    /// Why, for whoever runs it.
    reason: Option<String>,
}

/// The three tools. They are exclusive: what they do depends on the calls before them.
pub fn job_tools(jobs: &Jobs, config: &JobsConfig) -> [Arc<dyn Tool>; 3] {
    let (reading, waits) = (jobs.clone(), Waits::of(config));
    let output = tool_fn(JOB_OUTPUT, OUTPUT_DESCRIPTION, move |args: OutputArgs, run: ToolRun| {
        output(reading.clone(), waits, args, run)
    });
    let listing = jobs.clone();
    let list = tool_fn(JOB_LIST, LIST_DESCRIPTION, move |_: ListArgs, run: ToolRun| {
        let rows = list(&listing, caller(run.call()));
        async move { Ok(rows) }
    });
    let killing = jobs.clone();
    let kill = tool_fn(JOB_KILL, KILL_DESCRIPTION, move |args: KillArgs, run: ToolRun| {
        let killed = kill(&killing, &args, caller(run.call()));
        async move { killed }
    });
    [
        Arc::new(Bounded { tool: Arc::new(output), jobs: jobs.clone() }),
        Arc::new(list),
        Arc::new(Bounded { tool: Arc::new(kill), jobs: jobs.clone() }),
    ]
}

/// How long a wait lasts: unless told, and at most.
#[derive(Debug, Clone, Copy)]
struct Waits {
    default: Duration,
    max: Duration,
}

impl Waits {
    fn of(config: &JobsConfig) -> Self {
        Self { default: config.wait_timeout, max: config.max_wait_timeout }
    }

    fn timeout(self, asked_ms: Option<f64>) -> Result<Duration, ToolError> {
        let Some(ms) = asked_ms else { return Ok(self.default.min(self.max)) };
        if !ms.is_finite() || ms <= 0.0 {
            let text = format!("timeout_ms must be a positive number, not {ms}");
            return Err(ToolError::invalid_args(&[text]));
        }
        let asked = Duration::try_from_secs_f64(ms / 1000.0).unwrap_or(self.max);
        // Half a nanosecond is none.
        Ok(asked.clamp(Duration::from_nanos(1), self.max))
    }
}

async fn output(
    jobs: Jobs,
    waits: Waits,
    args: OutputArgs,
    run: ToolRun,
) -> Result<ToolOutput, ToolError> {
    let (id, caller) = (JobId::from(args.job_id), caller(run.call()).cloned());
    let waited = if args.wait == Some(true) {
        let timeout = waits.timeout(args.timeout_ms)?;
        tokio::select! {
            biased;
            job = jobs.wait(&id, timeout, caller.as_ref(), run.cancel()) => {
                job?.status.is_terminal()
            }
            () = steered(run.agent()) => false,
        }
    } else {
        false
    };
    let read = jobs.read(&id, caller.as_ref())?;
    if waited {
        // The read has reported it; one call is one report.
        jobs.report_lost(&id);
    }
    let body = if read.text.is_empty() { NO_OUTPUT } else { &read.text };
    let text = format!("{body}{}", status(&read.job));
    let value = json!({"text": read.text, "job": PublicJob::from(read.job)});
    Ok(ToolOutput::new(value).showing(vec![ContentBlock::text(text)]))
}

/// Resolves when a person steers the agent: a wait must not keep a correction from the model.
async fn steered(agent: Option<&Agent>) {
    let Some(agent) = agent else { return std::future::pending().await };
    let mut events = agent.session().events(agent.session().log().len());
    let by_a_person = |message: &SharedMessage| message.source.kind() == "user";
    loop {
        if let EventBody::InboxSpliced(splice) = &events.next().await.body
            && splice.target == InboxTarget::NextStep
            && splice.inserted.iter().any(by_a_person)
        {
            return;
        }
    }
}

fn list(jobs: &Jobs, caller: Option<&SessionId>) -> ToolOutput {
    let jobs = jobs.list(caller);
    let row = |job: &JobSnapshot| {
        let JobSnapshot { id, kind, status, label, .. } = job;
        format!("{id} [{kind}] {status} — {label}")
    };
    let rows: Vec<_> = jobs.iter().map(row).collect();
    let text = if rows.is_empty() { NO_JOBS.to_owned() } else { rows.join("\n") };
    let value = json!(jobs.into_iter().map(PublicJob::from).collect::<Vec<_>>());
    ToolOutput::new(value).showing(vec![ContentBlock::text(text)])
}

fn kill(jobs: &Jobs, args: &KillArgs, caller: Option<&SessionId>) -> Result<ToolOutput, ToolError> {
    let id = JobId::from(args.job_id.as_str());
    let (outcome, text, job) = match jobs.kill(&id, caller, args.reason.as_deref())? {
        KillOutcome::Requested(job) => {
            ("cancellation-requested", format!("Job {id} was asked to end."), job)
        }
        KillOutcome::AlreadyFinished(job) => {
            ("already-finished", format!("Job {id} had already ended."), job)
        }
    };
    let text = format!("{text}{}", status(&job));
    let value = json!({"outcome": outcome, "job": PublicJob::from(job)});
    Ok(ToolOutput::new(value).showing(vec![ContentBlock::text(text)]))
}

fn status(job: &JobSnapshot) -> String {
    let detail = job.detail.as_ref().map(|detail| format!(", {detail}")).unwrap_or_default();
    format!("{STATUS}{}{detail}]", job.status)
}

fn caller(call: &ToolCallContext) -> Option<&SessionId> {
    call.agent().map(|agent| agent.id())
}

/// A tool on one job, which shows no more than that job's limit, whatever hooks made of its result.
struct Bounded {
    tool: Arc<dyn Tool>,
    jobs: Jobs,
}

impl Tool for Bounded {
    fn schema(&self) -> &Arc<ToolSchema> {
        self.tool.schema()
    }

    fn output_schema(&self) -> Option<&Value> {
        self.tool.output_schema()
    }

    fn concurrency(&self, args: &Value) -> Concurrency {
        self.tool.concurrency(args)
    }

    fn execute(
        &self,
        args: Value,
        run: ToolRun,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
        self.tool.execute(args, run)
    }

    fn finalize(&self, call: &ToolCallContext, outcome: &ToolOutcome) -> Option<Vec<ContentBlock>> {
        let id = JobId::from(call.arguments().get("job_id")?.as_str()?);
        let job = self.jobs.get(&id, caller(call)).ok()?;
        // A cancel overtook what the body returned, and the model will not see it.
        let overtaken = |info: &ToolErrorInfo| info.name == "AbortError" && info.code == "ABORTED";
        if outcome.error().and_then(ToolError::info).is_some_and(overtaken) {
            self.jobs.report_lost(&id);
        }
        let limit = job.output_limit_bytes?;
        let content = outcome.content();
        if !content.iter().all(|block| matches!(block, ContentBlock::Text(_))) {
            return None;
        }
        let text = joined_text(content);
        let text = match text.rfind(STATUS) {
            Some(at) if !outcome.is_error() => keeping_end(&text[..at], &text[at..], Some(limit)),
            _ => keeping_start(&text, Some(limit)),
        };
        Some(vec![ContentBlock::text(text)])
    }

    fn present_call(&self, args: &Value) -> Option<String> {
        Some(format!("{} {}", self.schema().name, args.get("job_id")?.as_str()?))
    }
}
