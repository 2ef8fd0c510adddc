//! The system prompt, the runtime context and the tools that a model is told of.
//!
//! Plugins contribute to a [`PromptRegistry`] through their scope. For each step the loop asks it to
//! [`assemble`](PromptRegistry::assemble) what the agent's scope sees, and renders the outcome with
//! [`render_prompt`] and [`runtime_sections`]. An assembly is detached: changing one never changes the
//! next, nor the registry.

mod assemble;
mod order;
mod registry;
mod render;

use std::{collections::BTreeMap, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    chunk::Failure,
    config::{ModelChoice, ToolSchema},
};

pub use self::{
    order::{ToolOrder, UNLISTED_TOOLS},
    registry::PromptRegistry,
    render::{render_prompt, runtime_sections},
};
use crate::{cancel::CancelToken, scope::Scope, scope::ScopeClosed};

/// The name of the section that says what the harness is.
pub const IDENTITY_SECTION: &str = "harness:identity";

/// The first section of a default prompt; a harness registers it in its root scope, or does not.
pub fn identity_section() -> Section {
    Section::text(IDENTITY_SECTION, -100.0, "You are an AI agent running in the Playhouse harness.")
}

/// For whom, and with which model, a prompt is assembled.
#[derive(Debug, Clone)]
pub struct AssembleContext {
    /// The agent's scope: contributions in it and above it count.
    pub scope: Scope,
    /// The captured route; the variables `provider` and `model` come from it.
    pub choice: ModelChoice,
    /// Fires when nobody wants the prompt any more. The assembly then fails with `ABORTED`.
    pub cancel: CancelToken,
}

/// A text that is there, or is computed for each assembly.
#[derive(Clone)]
pub(crate) enum Text {
    Fixed(Arc<str>),
    Computed(Arc<TextFn>),
}

type TextFn =
    dyn Fn(&AssembleContext) -> BoxFuture<'static, Result<Option<String>, Failure>> + Send + Sync;

impl Text {
    pub(crate) fn computed<F, Fut, T>(compute: F) -> Self
    where
        F: Fn(&AssembleContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, Failure>> + Send + 'static,
        T: Into<Option<String>> + 'static,
    {
        Self::Computed(Arc::new(move |ctx| compute(ctx).map(|text| text.map(Into::into)).boxed()))
    }
}

/// A part of the system prompt.
#[derive(Clone)]
pub struct Section {
    pub(crate) name: String,
    pub(crate) order: f64,
    pub(crate) text: Text,
    pub(crate) complete: bool,
}

impl Section {
    /// A section with a fixed text. Sections stand by ascending `order`, equal ones by registration:
    /// -100 is the harness's identity, 0 the persona, 100 to 199 guidance on tools.
    pub fn text(name: impl Into<String>, order: f64, text: impl Into<String>) -> Self {
        let text = Text::Fixed(text.into().into());
        Self { name: name.into(), order, text, complete: false }
    }

    /// A section whose text is computed for each assembly: a `String`, or an `Option` of one with
    /// `None` for no section. A failure fails the assembly.
    pub fn computed<F, Fut, T>(name: impl Into<String>, order: f64, compute: F) -> Self
    where
        F: Fn(&AssembleContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, Failure>> + Send + 'static,
        T: Into<Option<String>> + 'static,
    {
        Self { name: name.into(), order, text: Text::computed(compute), complete: false }
    }

    /// Makes this section the whole prompt: no other section is evaluated or kept, not even one that
    /// a listener adds. Two of them in sight of an agent fail its assemblies.
    #[must_use]
    pub fn complete(mut self) -> Self {
        self.complete = true;
        self
    }
}

/// A runtime fact for the model: part of the snapshot that follows the user's messages.
#[derive(Clone)]
pub struct Context {
    pub(crate) name: String,
    pub(crate) order: f64,
    pub(crate) text: Text,
}

impl Context {
    /// A fixed fact. Contexts stand by ascending `order`, equal ones by registration.
    pub fn text(name: impl Into<String>, order: f64, text: impl Into<String>) -> Self {
        Self { name: name.into(), order, text: Text::Fixed(text.into().into()) }
    }

    /// A fact that is computed for each attempt; see [`Section::computed`].
    pub fn computed<F, Fut, T>(name: impl Into<String>, order: f64, compute: F) -> Self
    where
        F: Fn(&AssembleContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, Failure>> + Send + 'static,
        T: Into<Option<String>> + 'static,
    {
        Self { name: name.into(), order, text: Text::computed(compute) }
    }
}

/// What a tool provider offers for one assembly.
#[derive(Debug, Clone, Default)]
pub struct ToolOffer {
    /// The tools that the model may call.
    pub schemas: Vec<Arc<ToolSchema>>,
    /// Names of tools that exist but are hidden here (by a restriction): a [`ToolOrder`] may list
    /// them. The offered ones are known anyway.
    pub known: Vec<String>,
}

impl From<Vec<Arc<ToolSchema>>> for ToolOffer {
    fn from(schemas: Vec<Arc<ToolSchema>>) -> Self {
        Self { schemas, known: Vec::new() }
    }
}

/// What listeners of [`PromptRegistry::on_assemble`] get.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AssembleInput {
    /// For whom.
    pub ctx: AssembleContext,
    /// What the registry holds for them, evaluated and not yet interpolated.
    pub assembly: Assembly,
}

/// A prompt in its parts, before `{{variables}}` are put in.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Assembly {
    /// The sections of the system prompt, in order.
    pub sections: Vec<AssembledSection>,
    /// The runtime facts, in order.
    pub contexts: Vec<AssembledContext>,
    /// The tools to declare, in order. A stable order is what keeps a provider's prefix cache valid.
    pub tools: Vec<Arc<ToolSchema>>,
    /// Every variable in sight; `None` for one that has no value now, which matters only where it
    /// is referenced.
    pub variables: BTreeMap<String, Option<String>>,
    /// The contexts as the registry gave them, to tell apart later what a listener changed.
    evaluated: Arc<[AssembledContext]>,
}

/// One section of an [`Assembly`].
#[derive(Debug, Clone, PartialEq)]
pub struct AssembledSection {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub order: f64,
    /// Its text; empty for no section.
    pub text: String,
}

/// One runtime fact of an [`Assembly`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssembledContext {
    /// Its name.
    pub name: String,
    /// Its text; empty for none.
    pub text: String,
}

/// Why a contribution was refused, or a prompt could not be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The name is taken in the outermost scope.
    #[error(
        "{kind} \"{name}\" is already registered globally; to replace it for one agent or preset, \
         register it in that scope instead"
    )]
    DuplicateGlobal {
        /// `prompt section`, `runtime context` or `prompt variable`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// The name is taken in this scope.
    #[error(
        "{kind} \"{name}\" is already registered in scope `{scope}`; remove that one first, or \
         register this in a scope below"
    )]
    Duplicate {
        /// `prompt section`, `runtime context` or `prompt variable`.
        kind: &'static str,
        /// The name.
        name: String,
        /// The scope.
        scope: String,
    },
    /// A section or context has no name.
    #[error("a {kind} needs a name that is not empty")]
    EmptyName {
        /// `prompt section` or `runtime context`.
        kind: &'static str,
    },
    /// A variable could never be referenced by this name.
    #[error(
        "invalid prompt variable name \"{name}\": it starts with a-z and goes on with a-z, 0-9 or _"
    )]
    VariableName {
        /// The name.
        name: String,
    },
    /// The order is infinite or not a number.
    #[error("the order of {kind} \"{name}\" must be a finite number, not {order}")]
    Order {
        /// `prompt section` or `runtime context`.
        kind: &'static str,
        /// The name.
        name: String,
        /// The order.
        order: f64,
    },
    /// The scope is closed.
    #[error(transparent)]
    Closed(#[from] ScopeClosed),
    /// Two sections want to be the whole prompt.
    #[error("more than one complete prompt section: {}; keep one", quoted(names))]
    TwoComplete {
        /// The sections' names.
        names: Vec<String>,
    },
    /// A tool order lists a name twice.
    #[error("toolOrder lists \"{name}\" more than once")]
    OrderTwice {
        /// The name.
        name: String,
    },
    /// A tool order does not say where the unlisted tools stand.
    #[error("toolOrder must contain \"{UNLISTED_TOOLS}\" exactly once, where unlisted tools stand")]
    OrderWithoutRest,
    /// A tool order lists tools that nobody knows.
    #[error(
        "toolOrder lists unregistered tool(s) {}; known tools: {}",
        quoted(names),
        listed(known)
    )]
    OrderUnknown {
        /// The unknown names.
        names: Vec<String>,
        /// The known ones.
        known: Vec<String>,
    },
    /// A tool has the name of the marker.
    #[error("a tool provider offers a tool named \"{UNLISTED_TOOLS}\", which is reserved")]
    ReservedTool,
    /// Two providers of one scope offer a tool of one name.
    #[error("two tool providers of one scope offer a tool named \"{name}\"; keep one")]
    ToolTwice {
        /// The tool's name.
        name: String,
    },
    /// A text refers to a variable that nobody registered.
    #[error(
        "unknown prompt variable \"{{{{{variable}}}}}\" in {place}; registered variables: {}",
        listed(registered)
    )]
    VariableUnknown {
        /// The variable.
        variable: String,
        /// Where it is referenced: `section "x"` or `context "x"`.
        place: String,
        /// What is registered.
        registered: Vec<String>,
    },
    /// A text refers to a variable without a value.
    #[error("prompt variable \"{{{{{variable}}}}}\" has no value for this assembly ({place})")]
    VariableUnset {
        /// The variable.
        variable: String,
        /// Where it is referenced: `section "x"` or `context "x"`.
        place: String,
    },
    /// Something between double braces is no variable's name.
    #[error(
        "malformed prompt variable reference \"{{{{{reference}}}}}\" in {place}; write {{{{name}}}} \
         without spaces"
    )]
    VariableMalformed {
        /// What stands between the braces.
        reference: String,
        /// Where: `section "x"` or `context "x"`.
        place: String,
    },
}

impl PromptError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::DuplicateGlobal { .. } | Self::Duplicate { .. } => "PROMPT_DUPLICATE",
            Self::EmptyName { .. } | Self::VariableName { .. } => "PROMPT_NAME",
            Self::Order { .. } => "PROMPT_ORDER",
            Self::Closed(closed) => closed.code(),
            Self::TwoComplete { .. } => "PROMPT_TWO_COMPLETE",
            Self::OrderTwice { .. } | Self::OrderWithoutRest => "TOOL_ORDER_INVALID",
            Self::OrderUnknown { .. } => "TOOL_ORDER_UNKNOWN",
            Self::ReservedTool => "TOOL_NAME_RESERVED",
            Self::ToolTwice { .. } => "TOOL_DUPLICATE",
            Self::VariableUnknown { .. } => "PROMPT_VARIABLE_UNKNOWN",
            Self::VariableUnset { .. } => "PROMPT_VARIABLE_UNSET",
            Self::VariableMalformed { .. } => "PROMPT_VARIABLE_MALFORMED",
        }
    }
}

impl From<PromptError> for Failure {
    fn from(error: PromptError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "(none)".to_owned() } else { names.join(", ") }
}

pub(crate) fn is_variable_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[cfg(test)]
mod tests;
