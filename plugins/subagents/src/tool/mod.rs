//! Delegation as a tool for models.
//!
//! A tool belongs to one provider, and is there while that is. In the foreground the call awaits its
//! child; in the background it answers at once, and the child goes on.

mod background;
mod continued;
mod foreground;
mod mount;
mod wording;

use std::{fmt, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use playhouse_jobs::Jobs;
use playhouse_messages::config::ToolSchema;
use playhouse_plugin_api::{
    agent::Agent,
    cancel::CancelToken,
    options::MAX_DEPTH_DEFAULT,
    tool::{Concurrency, Tool, ToolError, ToolFilter, ToolOutput, ToolRun},
};
use serde::Deserialize;
use serde_json::Value;

pub use self::mount::mount_tool;
use crate::{ChildError, ChildOptions, ChildProvider, ChildProviders, ChildRequest, Continuations};

/// The tool's name unless told otherwise.
pub const TOOL_NAME_DEFAULT: &str = "subagent";

/// How a delegation tool starts its children.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolConfig {
    /// The tool's name.
    pub name: String,
    /// The provider that starts the children.
    pub provider: String,
    /// What `run_in_background` means.
    pub background: Background,
    /// What children do otherwise than their parent.
    pub options: ChildOptions,
    /// The deepest that a child may stand.
    pub max_depth: DepthLimit,
    /// Masks tools that children would see.
    pub tool_filter: Option<ToolFilter>,
    /// Who children are to be.
    pub persona: Option<String>,
}

/// What becomes of a call that asks to run in the background.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Background {
    /// The model cannot ask for it.
    Off,
    /// The child is a job of the caller: for one prompt, and gone with its agent. The model can ask
    /// for it while the plugin `jobs` is there.
    #[default]
    OneShot,
    /// The child goes on after its call, can be sent to again, and tells its parent when it settles; so
    /// the model is told to prefer the background. For that while the harness has a store.
    Continuable,
}

/// The deepest that a child of a tool may stand. An agent's own limit counts all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DepthLimit {
    /// This deep; 0 forbids delegation.
    At(u32),
    /// As the provider sees to it, perhaps not at all.
    ProviderManaged,
}

impl Default for DepthLimit {
    fn default() -> Self {
        Self::At(MAX_DEPTH_DEFAULT)
    }
}

impl ToolConfig {
    /// A tool of the default name for this provider.
    pub fn new(provider: impl Into<String>) -> Self {
        Self {
            name: TOOL_NAME_DEFAULT.to_owned(),
            provider: provider.into(),
            background: Background::default(),
            options: ChildOptions::default(),
            max_depth: DepthLimit::default(),
            tool_filter: None,
            persona: None,
        }
    }

    /// What is wrong with it whatever the provider.
    pub(crate) fn check(&self) -> Result<(), ChildError> {
        let empty = |filter: &ToolFilter| filter.allow.is_none() && filter.deny.is_empty();
        if self.tool_filter.as_ref().is_some_and(empty) {
            return Err(self.fault("its tool filter needs an allow list or a deny list"));
        }
        Ok(())
    }

    /// What is wrong with it for a provider that can do this.
    fn check_for(&self, provider: &dyn ChildProvider) -> Result<(), ChildError> {
        let can = provider.capabilities();
        let lacks = |what| Err(self.fault(&format!("{what} is more than its provider can do")));
        match self.max_depth {
            DepthLimit::At(_) if !can.depth_limit => lacks("a depth that is not provider-managed"),
            _ if self.tool_filter.is_some() && !can.tool_filter => lacks("a tool filter"),
            _ if self.persona.is_some() && !can.persona => lacks("a persona"),
            _ if self.background == Background::Continuable && !provider.is_continuable() => {
                lacks("a child that can be continued")
            }
            _ => Ok(()),
        }
    }

    fn fault(&self, what: &str) -> ChildError {
        let Self { name, provider, .. } = self;
        ChildError::Config(format!("delegation tool \"{name}\" over \"{provider}\": {what}"))
    }

    fn request(&self, parent: &Agent, call: Delegated, cancel: CancelToken) -> ChildRequest {
        let mut request = ChildRequest::new(parent, call.prompt)
            .label(call.description)
            .options(self.options.clone())
            .cancelled_by(cancel);
        request.max_depth = match self.max_depth {
            DepthLimit::At(max_depth) => Some(max_depth),
            DepthLimit::ProviderManaged => None,
        };
        request.tool_filter.clone_from(&self.tool_filter);
        request.persona.clone_from(&self.persona);
        request
    }
}

/// What the model passes.
#[derive(Debug, Clone, Deserialize)]
struct Delegated {
    description: String,
    prompt: String,
    run_in_background: Option<bool>,
}

/// The tool: parallel, since children of one agent do not depend on each other.
struct Delegation {
    schema: Arc<ToolSchema>,
    config: Arc<ToolConfig>,
    providers: ChildProviders,
    background: Option<Behind>,
}

/// Who has a child that runs in the background.
#[derive(Clone)]
enum Behind {
    Jobs(Arc<Jobs>),
    Continuations(Arc<Continuations>),
}

impl Delegation {
    fn new(
        config: Arc<ToolConfig>,
        providers: ChildProviders,
        inherits: bool,
        background: Option<Behind>,
    ) -> Self {
        let schema = wording::schema(&config.name, inherits, background.as_ref());
        Self { schema: Arc::new(schema), config, providers, background }
    }
}

impl Tool for Delegation {
    fn schema(&self) -> &Arc<ToolSchema> {
        &self.schema
    }

    fn concurrency(&self, _args: &Value) -> Concurrency {
        Concurrency::Parallel
    }

    fn present_call(&self, args: &Value) -> Option<String> {
        args.get("description")?.as_str().map(str::to_owned)
    }

    fn execute(
        &self,
        args: Value,
        run: ToolRun,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
        let (config, providers) = (self.config.clone(), self.providers.clone());
        let background = self.background.clone();
        async move {
            let Some(parent) = run.agent() else {
                return Err(ToolError::new("only an agent can delegate to a sub-agent"));
            };
            let call: Delegated = serde_json::from_value(args)?;
            let by_default = matches!(background, Some(Behind::Continuations(_)));
            match (call.run_in_background.unwrap_or(by_default), background) {
                (false, _) => {
                    let label = call.description.clone();
                    let request = config.request(parent, call, run.cancel().clone());
                    foreground::run(&providers, &config.provider, &label, request).await
                }
                (true, Some(Behind::Jobs(jobs))) => {
                    background::start(&jobs, providers, &config, parent, call)
                }
                (true, Some(Behind::Continuations(continuations))) => {
                    let label = call.description.clone();
                    let request = config.request(parent, call, run.cancel().clone());
                    continued::start(&continuations, &config.provider, label, request).await
                }
                (true, None) => {
                    let text =
                        "nothing can run in the background here; leave run_in_background out";
                    Err(ToolError::coded("SubagentError", "BACKGROUND_UNAVAILABLE", text))
                }
            }
        }
        .boxed()
    }
}

impl fmt::Debug for Delegation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delegation").field("config", &self.config).finish_non_exhaustive()
    }
}
