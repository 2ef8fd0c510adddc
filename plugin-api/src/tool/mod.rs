//! Tools: what the model may call, and the pipeline that every call goes through.
//!
//! Most tools are a typed async function ([`tool_fn`]); the [`Tool`] trait is there for the rest.
//! A [`ToolRegistry`] says which tools a scope sees, a [`ToolPipeline`] runs one call through
//! policy, body and post-processing, and a [`ToolBatchExecutor`] runs all calls of one assistant
//! message.

pub mod call;
pub mod error;
pub mod executor;
pub mod function;
pub mod hooks;
pub mod outcome;
pub mod pipeline;
pub mod registry;
pub mod schema;

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use playhouse_messages::content::ContentBlock;
pub use playhouse_messages::{batch::Concurrency, config::ToolSchema};
use serde::Serialize;
use serde_json::Value;

pub use self::{
    call::{ToolCallContext, ToolRun},
    error::ToolError,
    executor::{BatchHost, BatchOutcome, ToolBatch, ToolBatchExecutor},
    function::{FunctionTool, schema_of, tool_fn},
    hooks::{
        Approval, ApprovalGate, PostVerdict, PreVerdict, Replacement, ToolExecution, ToolHooks,
        ToolSettled,
    },
    outcome::ToolOutcome,
    pipeline::{Judged, Settled, ToolCallRequest, ToolDispatch, ToolPipeline},
    registry::{ToolFilter, ToolRegistry, ToolRegistryError},
    schema::{ArgumentSchema, SchemaError},
};

/// Something that the model may call.
///
/// Everything but [`Tool::execute`] is synchronous, pure and quick. A panic anywhere becomes an
/// error result for the model.
pub trait Tool: Send + Sync + 'static {
    /// What the model is told: name, description and a JSON Schema of the arguments.
    fn schema(&self) -> &Arc<ToolSchema>;

    /// A JSON Schema that every success value must satisfy; `None` takes any JSON.
    fn output_schema(&self) -> Option<&Value> {
        None
    }

    /// Whether a call with these (valid) arguments may overlap with others. Asked right before the
    /// call would start.
    ///
    /// A parallel call must not change state that the calling agent owns.
    fn concurrency(&self, _args: &Value) -> Concurrency {
        Concurrency::Exclusive
    }

    /// How long the body may take before its token is cancelled and the result is a timeout. The
    /// body is still awaited: the budget is cooperative.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// Runs the call. The arguments satisfy the schema. The body watches [`ToolRun::cancel`]: after
    /// a cancel it is awaited for a grace time, and then dropped.
    fn execute(
        &self,
        args: Value,
        run: ToolRun,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolError>>;

    /// What the model sees of a success value that did not come from [`Tool::execute`] (a hook put
    /// it there).
    fn render(&self, _args: &Value, value: &Value) -> Vec<ContentBlock> {
        render_value(value)
    }

    /// The last word on what the model sees; `None` keeps the content. Asked exactly once an
    /// outcome, failures included.
    fn finalize(
        &self,
        _call: &ToolCallContext,
        _outcome: &ToolOutcome,
    ) -> Option<Vec<ContentBlock>> {
        None
    }

    /// One line for people about a call with these arguments. Must be a function of the arguments,
    /// so that a replay of the log shows the same.
    fn present_call(&self, _args: &Value) -> Option<String> {
        None
    }
}

/// What a tool's body returns.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutput {
    /// The canonical value, for programs. Never logged.
    pub value: Value,
    /// What the model sees.
    pub content: Vec<ContentBlock>,
    /// Private data for presentation, logged with the result and never sent to a model.
    pub meta: Option<Value>,
}

impl ToolOutput {
    /// An output whose content is the value's text.
    pub fn new(value: Value) -> Self {
        Self { content: render_value(&value), value, meta: None }
    }

    /// The same output with presentation data.
    #[must_use]
    pub fn with_meta(mut self, meta: Value) -> Self {
        self.meta = Some(meta);
        self
    }

    /// The same output showing the model something else.
    #[must_use]
    pub fn showing(mut self, content: Vec<ContentBlock>) -> Self {
        self.content = content;
        self
    }
}

impl From<Value> for ToolOutput {
    fn from(value: Value) -> Self {
        Self::new(value)
    }
}

impl From<String> for ToolOutput {
    fn from(text: String) -> Self {
        Self::new(Value::String(text))
    }
}

impl From<&str> for ToolOutput {
    fn from(text: &str) -> Self {
        Self::new(Value::from(text))
    }
}

/// A serializable value as a tool's output: `Ok(Json(report))`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Json<T>(pub T);

/// What a tool function may return.
pub trait IntoToolOutput {
    /// The output, or why the value is none.
    fn into_output(self) -> Result<ToolOutput, ToolError>;
}

impl IntoToolOutput for ToolOutput {
    fn into_output(self) -> Result<ToolOutput, ToolError> {
        Ok(self)
    }
}

impl IntoToolOutput for Value {
    fn into_output(self) -> Result<ToolOutput, ToolError> {
        Ok(self.into())
    }
}

impl IntoToolOutput for String {
    fn into_output(self) -> Result<ToolOutput, ToolError> {
        Ok(self.into())
    }
}

impl IntoToolOutput for &str {
    fn into_output(self) -> Result<ToolOutput, ToolError> {
        Ok(self.into())
    }
}

impl<T: Serialize> IntoToolOutput for Json<T> {
    fn into_output(self) -> Result<ToolOutput, ToolError> {
        serde_json::to_value(self.0)
            .map(ToolOutput::new)
            .map_err(|fault| ToolError::new(format!("the result is not JSON: {fault}")))
    }
}

/// A value as content: a string as it is, anything else as JSON text.
pub fn render_value(value: &Value) -> Vec<ContentBlock> {
    vec![match value {
        Value::String(text) => ContentBlock::text(text),
        other => ContentBlock::text(other.to_string()),
    }]
}

/// The arguments as the model wrote them, as a value: nothing is an empty object, and text that is
/// not JSON stays the string that it is (validation refuses it later).
pub fn parse_arguments(raw: &str) -> Value {
    if raw.is_empty() {
        return Value::Object(serde_json::Map::new());
    }
    serde_json::from_str(raw).unwrap_or_else(|_| Value::String(raw.to_owned()))
}

#[cfg(test)]
mod scenario {
    use serde_json::json;

    use super::*;

    #[test]
    fn core_96_invalid_json_stays_a_string_and_empty_text_is_an_empty_object() {
        assert_eq!(parse_arguments(""), json!({}));
        assert_eq!(parse_arguments("{\"a\":1}"), json!({"a": 1}));
        assert_eq!(parse_arguments("{\"a\":"), json!("{\"a\":"));
    }
}
