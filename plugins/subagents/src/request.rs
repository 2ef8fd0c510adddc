//! What is asked of a child.

use playhouse_messages::{config::ModelChoice, content::ContentBlock};
use playhouse_plugin_api::{
    agent::Agent, budget::Budget, cancel::CancelToken, scope::Scope, tool::ToolFilter,
};
use serde_json::Value;

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
    /// What it may spend itself; none of its parent's.
    pub budget: Option<Budget>,
    /// What it and all below it may spend together, beside the budgets of the trees that it stands in.
    pub tree_budget: Option<Budget>,
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
