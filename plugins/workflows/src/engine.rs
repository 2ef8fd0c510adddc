//! The engine: starts workflows.

use std::{fmt, sync::Arc};

use playhouse_plugin_api::{agent::Agent, cancel::CancelToken, clock::Ids, hook::Notify, watch};
use playhouse_subagents::ChildProviders;
use serde_json::Value;

use crate::{
    Cx, EngineConfig, Halt, Meta, NoticeKind, WorkflowError, WorkflowNotice, WorkflowRun,
    children::Children,
    config::is_name,
    error::code,
    host::{Host, Observer, Teller},
    native,
    protocol::{FromGuest, Guest, GuestMessage},
    run::{Control, Progress},
    script,
    settlement::Settlement,
};

/// The service under which the plugin offers its [`WorkflowEngine`].
pub const WORKFLOW_ENGINE_SERVICE: &str = "workflowEngine";

/// Starts workflows. Clones are the same engine.
///
/// A run does not need the engine any more: it ends with its workflow, its starter's cancel or its
/// parent, also when the plugin is unloaded meanwhile.
#[derive(Clone)]
pub struct WorkflowEngine(Arc<Inner>);

struct Inner {
    providers: ChildProviders,
    ids: Arc<dyn Ids>,
    config: Arc<EngineConfig>,
    notices: Arc<Notify<WorkflowNotice>>,
    runs: Gauge,
    workers: Gauge,
}

/// Counts what lives.
#[derive(Default)]
struct Gauge(Arc<()>);

/// One of those that live.
pub(crate) struct Alive(#[expect(dead_code, reason = "its being there is what counts")] Arc<()>);

impl Gauge {
    fn one(&self) -> Alive {
        Alive(self.0.clone())
    }

    fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// What lives of an engine's runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Live {
    /// Runs of which something is left.
    pub runs: usize,
    /// Threads of scripts, and tasks of native workflows.
    pub workers: usize,
}

/// What a workflow is started with, beside what it does.
#[derive(Clone)]
pub struct WorkflowRequest {
    parent: Agent,
    meta: Value,
    args: Value,
    provider: Option<String>,
    max_total_agents: Option<u32>,
    cancel: CancelToken,
    observer: Option<Observer>,
}

impl WorkflowRequest {
    /// A workflow for this agent. `meta` is a [`Meta`], or JSON that is to be one.
    pub fn new(parent: &Agent, meta: impl Into<Value>) -> Self {
        Self {
            parent: parent.clone(),
            meta: meta.into(),
            args: Value::Null,
            provider: None,
            max_total_agents: None,
            cancel: CancelToken::new(),
            observer: None,
        }
    }

    /// What a script finds as `args`.
    #[must_use]
    pub fn args(mut self, args: Value) -> Self {
        self.args = args;
        self
    }

    /// With children of this provider, in place of the engine's.
    #[must_use]
    pub fn provider(mut self, provider: impl Into<String>) -> Self {
        self.provider = Some(provider.into());
        self
    }

    /// With no more children than this; the engine's limit holds as well.
    #[must_use]
    pub fn max_total_agents(mut self, limit: u32) -> Self {
        self.max_total_agents = Some(limit);
        self
    }

    /// Cancelled when this token fires.
    #[must_use]
    pub fn cancelled_by(mut self, cancel: CancelToken) -> Self {
        self.cancel = cancel;
        self
    }

    /// Watched by this function, in order, beside the engine's own listeners. It must return quickly,
    /// and is not asked for anything.
    #[must_use]
    pub fn observed_by(mut self, observer: impl Fn(&NoticeKind) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }
}

impl WorkflowEngine {
    /// An engine that starts children by these providers.
    ///
    /// # Errors
    ///
    /// [`WorkflowError::Config`] if the limits cannot be kept.
    pub fn new(
        providers: ChildProviders,
        ids: Arc<dyn Ids>,
        config: EngineConfig,
    ) -> Result<Self, WorkflowError> {
        config.check()?;
        Ok(Self(Arc::new(Inner {
            providers,
            ids,
            config: Arc::new(config),
            notices: Arc::default(),
            runs: Gauge::default(),
            workers: Gauge::default(),
        })))
    }

    /// Its limits.
    pub fn config(&self) -> &EngineConfig {
        &self.0.config
    }

    /// The providers of its children.
    pub fn providers(&self) -> &ChildProviders {
        &self.0.providers
    }

    /// Where to listen for what happens in its runs.
    pub fn notices(&self) -> &Notify<WorkflowNotice> {
        &self.0.notices
    }

    /// What lives of its runs.
    pub fn live(&self) -> Live {
        Live { runs: self.0.runs.count(), workers: self.0.workers.count() }
    }

    /// Starts a script. Everything is checked, and the script parsed, before any of it runs.
    ///
    /// # Errors
    ///
    /// In this order: the meta with all that is wrong with it, arguments, the provider, the script's
    /// text, the system's lack of a thread. Nothing has run then.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn start(
        &self,
        request: WorkflowRequest,
        script: impl Into<String>,
    ) -> Result<WorkflowRun, WorkflowError> {
        let plan = self.plan(request)?;
        let script = script.into();
        check_script(&script, &self.0.config)?;
        let args = plan.args.clone();
        let alive = self.0.workers.one();
        let (guest, mut from_guest) = script::launch(script, args, &self.0.config, alive)?;
        // Nothing but the parsing is waited for: on the script's own thread.
        match from_guest.recv().await {
            Some(GuestMessage::Ready) => Ok(self.host(plan, guest, from_guest)),
            Some(GuestMessage::Result(Err(failure))) if failure.code == code::SCRIPT_PARSE => {
                Err(WorkflowError::ScriptParse(failure.message))
            }
            Some(GuestMessage::Result(Err(failure))) => {
                Err(WorkflowError::Thread(failure.to_string()))
            }
            other => Err(WorkflowError::Thread(format!("it ended before its script: {other:?}"))),
        }
    }

    /// Starts a workflow in Rust; see [`Cx`]. Its future runs in a task of its own, and is dropped when
    /// the run ends before it.
    ///
    /// # Errors
    ///
    /// As [`WorkflowEngine::start`], without those of a script.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn start_native<W, Fut>(
        &self,
        request: WorkflowRequest,
        workflow: W,
    ) -> Result<WorkflowRun, WorkflowError>
    where
        W: FnOnce(Cx) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Value, Halt>> + Send + 'static,
    {
        let plan = self.plan(request)?;
        let items_max = self.0.config.max_items_per_call;
        let (guest, from_guest) = native::launch(workflow, items_max, self.0.workers.one());
        Ok(self.host(plan, guest, from_guest))
    }

    fn plan(&self, request: WorkflowRequest) -> Result<Plan, WorkflowError> {
        let WorkflowRequest { parent, meta, args, provider, max_total_agents, cancel, observer } =
            request;
        let meta = Meta::from_json(&meta)?;
        let ceiling = self.0.config.max_total_agents;
        let total_max = max_total_agents.unwrap_or(ceiling);
        if !(1..=ceiling).contains(&total_max) {
            let text = format!("maxTotalAgents {total_max}: give 1 to {ceiling}");
            return Err(WorkflowError::InvalidArgument(text));
        }
        let provider = provider.unwrap_or_else(|| self.0.config.provider.clone());
        if !is_name(&provider) {
            let text =
                format!("subagentProvider {provider:?}: give a name without spaces around it");
            return Err(WorkflowError::InvalidArgument(text));
        }
        if self.0.providers.get(&provider).is_none() {
            let known = self.0.providers.names().join(", ");
            return Err(WorkflowError::NoProvider { provider, known });
        }
        Ok(Plan { parent, meta, args, provider, total_max, cancel, observer })
    }

    fn host(&self, plan: Plan, guest: Box<dyn Guest>, from_guest: FromGuest) -> WorkflowRun {
        let Plan { parent, meta, provider, total_max, cancel, observer, .. } = plan;
        let Inner { providers, ids, config, notices, runs, .. } = &*self.0;
        let id = ids.fresh();
        let control = Arc::new(Control::default());
        let progress = watch::Sender::new(Progress::default());
        let run = WorkflowRun::new(id.clone(), meta.clone(), control.clone(), progress.subscribe());
        let children = Children::new(parent.clone(), provider, providers.clone());
        let host = Host {
            machine: Settlement::new(config.concurrency(), total_max),
            children,
            guest,
            from_guest,
            teller: Teller { run: id, parent, notices: notices.clone(), observer },
            progress,
            grace: config.dispose_grace,
            guest_there: true,
            deadline: None,
        };
        let alive = runs.one();
        tokio::spawn(async move {
            host.run(meta, control, cancel).await;
            drop(alive);
        });
        run
    }
}

impl fmt::Debug for WorkflowEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkflowEngine")
            .field("config", &self.0.config)
            .field("live", &self.live())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WorkflowRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkflowRequest")
            .field("parent", self.parent.id())
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}

/// A request, checked.
struct Plan {
    parent: Agent,
    meta: Meta,
    args: Value,
    provider: String,
    total_max: u32,
    cancel: CancelToken,
    observer: Option<Observer>,
}

fn check_script(script: &str, config: &EngineConfig) -> Result<(), WorkflowError> {
    if script.len() > config.script_bytes {
        let text = format!(
            "the script has {} bytes, and may have {}; move data into args",
            script.len(),
            config.script_bytes
        );
        return Err(WorkflowError::InvalidArgument(text));
    }
    if declares_meta(script) {
        let text = "it declares meta as code; give the meta beside the script, and remove it here";
        return Err(WorkflowError::ScriptParse(text.to_owned()));
    }
    Ok(())
}

/// Whether the first statement declares `meta`.
fn declares_meta(script: &str) -> bool {
    let mut rest = script.trim_start();
    loop {
        let after = match (rest.strip_prefix("//"), rest.strip_prefix("/*")) {
            (Some(line), _) => line.split_once('\n').map(|(_, after)| after),
            (_, Some(block)) => block.split_once("*/").map(|(_, after)| after),
            _ => break,
        };
        rest = after.unwrap_or_default().trim_start();
    }
    let mut words = rest.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$');
    let mut words = words.by_ref().filter(|word| !word.is_empty());
    let mut word = words.next();
    let exported = word == Some("export");
    if exported {
        word = words.next();
    }
    matches!(word, Some("const" | "let" | "var")) && words.next() == Some("meta")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_declares_its_meta_as_code_is_known() {
        let declares = [
            "export const meta = {}",
            "  // a comment\n/* and\nanother */ const meta={name: 1}; return 1",
            "let meta",
        ];
        assert!(declares.iter().all(|script| declares_meta(script)));
        let does_not = ["", "return 1", "const metal = 1", "// const meta = 1", "const x = meta"];
        assert!(!does_not.iter().any(|script| declares_meta(script)));
    }
}
