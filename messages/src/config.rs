//! Call configuration, tool schemas, and the header and context snapshots of a request.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use crate::json::marker;

/// The durable part of a model call: what is sent beside messages and tools.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallConfig {
    /// The provider route.
    pub provider: String,
    /// The model under that route.
    pub model: String,
    /// An adapter-defined effort id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// Sampling temperature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// The most output tokens of one request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Stop sequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Vec<String>>,
}

impl CallConfig {
    /// The route that the call takes.
    pub fn route(&self) -> Route {
        Route { provider: self.provider.clone(), model: self.model.clone() }
    }
}

/// A provider and a model under it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Route {
    /// The provider route.
    pub provider: String,
    /// The model under that route; free text.
    pub model: String,
}

impl Route {
    /// A route.
    pub fn new(provider: impl Into<String>, model: impl Into<String>) -> Self {
        Self { provider: provider.into(), model: model.into() }
    }
}

impl std::fmt::Display for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.provider, self.model)
    }
}

/// A durable choice of model. An omitted effort means the adapter's default, not "keep".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelChoice {
    /// The provider route. Not empty.
    pub provider: String,
    /// The model. Not empty.
    pub model: String,
    /// An adapter-defined effort id. Not empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
}

/// Which fields of a config the adapter filled in. A marker is `true` or absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdapterDefaults {
    /// The effort is the adapter's.
    #[serde(default, deserialize_with = "marker", skip_serializing_if = "std::ops::Not::not")]
    pub reasoning_effort: bool,
    /// The output limit is the adapter's.
    #[serde(default, deserialize_with = "marker", skip_serializing_if = "std::ops::Not::not")]
    pub max_tokens: bool,
}

impl AdapterDefaults {
    /// Whether no marker is set.
    pub fn is_empty(&self) -> bool {
        !self.reasoning_effort && !self.max_tokens
    }
}

/// What the model is told of one tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolSchema {
    /// Unique among the visible tools.
    pub name: String,
    /// For the model.
    pub description: String,
    /// A JSON Schema of the arguments; its root is an object schema.
    pub parameters: Value,
    /// The provider loads the definition on demand.
    #[serde(default, deserialize_with = "marker", skip_serializing_if = "std::ops::Not::not")]
    pub defer_loading: bool,
}

/// The tools of a request, shared and in order.
pub type ToolList = Arc<[Arc<ToolSchema>]>;

/// The snapshot that `request/header` logs: config and tools, never the prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Header {
    /// The resolved call configuration.
    pub config: CallConfig,
    /// Which fields of it are adapter defaults.
    #[serde(
        default,
        deserialize_with = "some_defaults",
        skip_serializing_if = "AdapterDefaults::is_empty"
    )]
    pub adapter_defaults: AdapterDefaults,
    /// The active tools, in order; absent when there are none.
    #[serde(
        default = "no_tools",
        deserialize_with = "some_tools",
        skip_serializing_if = "slice_is_empty"
    )]
    pub tools: ToolList,
}

fn no_tools() -> ToolList {
    Arc::new([])
}

fn some_tools<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ToolList, D::Error> {
    let tools = ToolList::deserialize(deserializer)?;
    if tools.is_empty() {
        Err(D::Error::custom("`tools` is not empty when present"))
    } else {
        Ok(tools)
    }
}

fn some_defaults<'de, D: Deserializer<'de>>(deserializer: D) -> Result<AdapterDefaults, D::Error> {
    let defaults = AdapterDefaults::deserialize(deserializer)?;
    if defaults.is_empty() {
        return Err(D::Error::custom("`adapterDefaults` is not empty when present"));
    }
    Ok(defaults)
}

fn slice_is_empty(tools: &ToolList) -> bool {
    tools.is_empty()
}

/// Why a header was logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeaderReason {
    /// The session's first.
    Initial,
    /// The first of this agent instance, over an older one.
    Resume,
    /// Config, markers or tools differ.
    Change,
    /// Nothing differs, but a new request series starts.
    Series,
}

/// How a route takes a changed system prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SystemPromptUpdate {
    /// A later system message supersedes earlier ones.
    InHistory,
}

/// How a route takes a changed tool set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToolUpdate {
    /// Additions and removals stand in history.
    InHistory,
    /// Additions stand in history; removed tools leave the declarations.
    AdditionOnly,
}

/// The snapshot that `request/context` logs: facts of the route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestContext {
    /// The provider route.
    pub provider: String,
    /// The model.
    pub model: String,
    /// The model's context window in tokens, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// How the route takes a changed system prompt; absent if only by rewriting the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt_update: Option<SystemPromptUpdate>,
}
