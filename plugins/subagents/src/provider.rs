//! The seam: who starts children, and what is asked of them.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::future::BoxFuture;
use playhouse_messages::{config::ModelChoice, content::ContentBlock};
use playhouse_plugin_api::{
    agent::Agent,
    cancel::CancelToken,
    scope::{Registration, Scope},
    tool::ToolFilter,
};
use serde_json::Value;

use crate::{Basis, ChildError, Lifecycle, Run, RunStarted, structured::Structured};

/// Starts children: in this process, in another, or in a product of its own.
///
/// May be called concurrently for distinct children, which must not depend on each other.
pub trait ChildProvider: Send + Sync + 'static {
    /// Unique in a harness.
    fn name(&self) -> &str;

    /// What requests may ask for.
    fn capabilities(&self) -> Capabilities;

    /// Whether a child sees its parent's history: then a prompt says only what is new.
    fn inherits_parent_context(&self) -> bool {
        false
    }

    /// Whether its children can be continued: they are made in this process, from
    /// [`ChildProvider::basis`], and made again without the provider.
    fn is_continuable(&self) -> bool {
        false
    }

    /// Where the history of a child that is made for this parent now would begin.
    fn basis(&self, _parent: &Agent) -> Basis {
        Basis::Fresh
    }

    /// Starts a child. Resolves once it is published and its prompt accepted; a failure before has
    /// cleaned everything. All failures after settle through the run.
    fn start(&self, request: ChildRequest) -> BoxFuture<'static, Result<Run, ChildError>>;
}

/// What a provider can do. A request that asks for more is refused, never half followed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// A structured result.
    pub output_schema: bool,
    /// A limit on the depth of delegation.
    pub depth_limit: bool,
    /// A restriction of the child's tools.
    pub tool_filter: bool,
    /// A persona of the child's own.
    pub persona: bool,
}

impl Capabilities {
    /// Everything.
    pub const ALL: Self =
        Self { output_schema: true, depth_limit: true, tool_filter: true, persona: true };
}

/// What a child is started with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ChildRequest {
    /// What it is for, for people.
    pub label: Option<String>,
    /// What it is to do.
    pub prompt: Vec<ContentBlock>,
    /// Who delegates.
    pub parent: Agent,
    /// The only way to cancel: until the child is published it fails the start, after that it
    /// cancels the child with cause `parent`.
    pub cancel: CancelToken,
    /// What it does otherwise than its parent.
    pub options: ChildOptions,
    /// A JSON Schema of the result, which must be an object: the child answers by a tool, and a
    /// child that completes without an answer has failed.
    pub output_schema: Option<Value>,
    /// The deepest that the child may stand; 0 forbids delegation. Never more than the parent's own
    /// limit.
    pub max_depth: Option<u32>,
    /// Masks tools that it would see.
    pub tool_filter: Option<ToolFilter>,
    /// Who it is to be.
    pub persona: Option<String>,
    /// The scope that owns it; the parent's if absent.
    pub owner: Option<Scope>,
}

/// Options of a child; what is absent is its parent's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChildOptions {
    /// The route.
    pub model: Option<ModelChoice>,
    /// The output limit of one request, in tokens.
    pub max_tokens: Option<u64>,
    /// The most steps of a turn.
    pub max_steps: Option<u32>,
}

impl ChildRequest {
    /// A prompt for a child of this agent.
    pub fn new(parent: &Agent, prompt: impl Into<String>) -> Self {
        Self {
            label: None,
            prompt: vec![ContentBlock::text(prompt)],
            parent: parent.clone(),
            cancel: CancelToken::new(),
            options: ChildOptions::default(),
            output_schema: None,
            max_depth: None,
            tool_filter: None,
            persona: None,
            owner: None,
        }
    }

    /// Labelled for people.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Cancelled when this token fires.
    #[must_use]
    pub fn cancelled_by(mut self, cancel: CancelToken) -> Self {
        self.cancel = cancel;
        self
    }

    /// With options of its own.
    #[must_use]
    pub fn options(mut self, options: ChildOptions) -> Self {
        self.options = options;
        self
    }

    /// Standing no deeper than this.
    #[must_use]
    pub fn max_depth(mut self, max_depth: u32) -> Self {
        self.max_depth = Some(max_depth);
        self
    }

    /// Answering with a value of this JSON Schema, which must say that it is an object.
    #[must_use]
    pub fn output_schema(mut self, schema: Value) -> Self {
        self.output_schema = Some(schema);
        self
    }

    /// Seeing fewer tools.
    #[must_use]
    pub fn tool_filter(mut self, filter: ToolFilter) -> Self {
        self.tool_filter = Some(filter);
        self
    }

    /// Being somebody.
    #[must_use]
    pub fn persona(mut self, persona: impl Into<String>) -> Self {
        self.persona = Some(persona.into());
        self
    }

    /// Owned by this scope: the child outlives its parent if the scope does.
    #[must_use]
    pub fn owned_by(mut self, owner: Scope) -> Self {
        self.owner = Some(owner);
        self
    }
}

/// The providers of a harness. Clones are the same registry.
#[derive(Clone, Default)]
pub struct ChildProviders(Arc<Inner>);

#[derive(Default)]
struct Inner {
    providers: Mutex<Vec<Arc<dyn ChildProvider>>>,
    lifecycle: Lifecycle,
}

impl ChildProviders {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a provider until `scope` closes. Its going blocks new starts; runs go on.
    ///
    /// # Errors
    ///
    /// [`ChildError::DuplicateProvider`] if the name is taken.
    pub fn register(
        &self,
        scope: &Scope,
        provider: Arc<dyn ChildProvider>,
    ) -> Result<Registration, ChildError> {
        let mut providers = self.lock();
        if providers.iter().any(|other| other.name() == provider.name()) {
            return Err(ChildError::DuplicateProvider { name: provider.name().to_owned() });
        }
        let (registry, leaving) = (self.clone(), provider.clone());
        // Under the lock: a scope that closes meanwhile waits, and then finds what to remove.
        let registration = scope.on_close(move || {
            registry.lock().retain(|other| !Arc::ptr_eq(other, &leaving));
        })?;
        providers.push(provider);
        Ok(registration)
    }

    /// The registered names, in order of registration.
    pub fn names(&self) -> Vec<String> {
        self.lock().iter().map(|provider| provider.name().to_owned()).collect()
    }

    /// The provider of this name.
    pub fn get(&self, name: &str) -> Option<Arc<dyn ChildProvider>> {
        self.lock().iter().find(|provider| provider.name() == name).cloned()
    }

    /// Starts a child.
    ///
    /// # Errors
    ///
    /// In this order: [`ChildError::NoProvider`], [`ChildError::UnsupportedCapability`] for the
    /// first thing that the provider cannot do, [`ChildError::Schema`], and what the provider says.
    pub async fn start(&self, provider: &str, request: ChildRequest) -> Result<Run, ChildError> {
        let Some(provider) = self.get(provider) else {
            let known = self.names().join(", ");
            return Err(ChildError::NoProvider { name: provider.to_owned(), known });
        };
        let can = provider.capabilities();
        let asked = [
            (request.output_schema.is_some(), can.output_schema, "outputSchema"),
            (request.max_depth.is_some(), can.depth_limit, "depthLimit"),
            (request.tool_filter.is_some(), can.tool_filter, "toolFilter"),
            (request.persona.is_some(), can.persona, "persona"),
        ];
        if let Some((_, _, capability)) = asked.into_iter().find(|(asked, can, _)| *asked && !can) {
            let provider = provider.name().to_owned();
            return Err(ChildError::UnsupportedCapability { provider, capability });
        }
        request.output_schema.as_ref().map(Structured::new).transpose()?;
        let parent = request.parent.clone();
        let run = provider.start(request).await?;
        let scope = parent.scope().clone();
        let started = RunStarted::of(parent, provider.name(), &run);
        self.lifecycle().started.tell(&scope, &started);
        // Ends with the run, which ends with whatever owns it.
        let (registry, watched) = (self.clone(), run.clone());
        tokio::spawn(async move {
            let ended = started.ended(watched.result().await.ok());
            registry.lifecycle().ended.tell(&scope, &ended);
        });
        Ok(run)
    }

    /// Where to listen for starts and ends.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.0.lifecycle
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<dyn ChildProvider>>> {
        self.0.providers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ChildProviders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
