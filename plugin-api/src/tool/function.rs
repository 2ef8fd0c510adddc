//! Typed async functions as tools.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::config::ToolSchema;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Concurrency, IntoToolOutput, Tool, ToolError, ToolOutput, ToolRun};

type ConcurrencyFn = dyn Fn(&Value) -> Concurrency + Send + Sync;

/// A tool made of an async function; see [`tool_fn`].
pub struct FunctionTool<A, F> {
    schema: Arc<ToolSchema>,
    output_schema: Option<Value>,
    concurrency: Option<Box<ConcurrencyFn>>,
    timeout: Option<Duration>,
    function: F,
    args: PhantomData<fn(A)>,
}

/// Makes a tool of an async function. The argument type gives the schema, and doc comments on its
/// fields tell the model what they mean.
///
/// ```
/// use playhouse_plugin_api::tool::{Json, Tool, ToolRun, tool_fn};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct AddArgs {
///     /// The first summand.
///     a: i64,
///     /// The second summand.
///     b: i64,
/// }
///
/// let add = tool_fn("add", "Adds two numbers", |args: AddArgs, _run: ToolRun| async move {
///     let sum = args.a.checked_add(args.b).ok_or("the sum is too large")?;
///     Ok(Json(sum))
/// })
/// .parallel();
/// assert_eq!(add.schema().name, "add");
/// ```
pub fn tool_fn<A, F, Fut, O>(
    name: impl Into<String>,
    description: impl Into<String>,
    function: F,
) -> FunctionTool<A, F>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    F: Fn(A, ToolRun) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, ToolError>> + Send + 'static,
    O: IntoToolOutput + Send + 'static,
{
    let schema = ToolSchema {
        name: name.into(),
        description: description.into(),
        parameters: schema_of::<A>(),
        defer_loading: false,
    };
    FunctionTool {
        schema: Arc::new(schema),
        output_schema: None,
        concurrency: None,
        timeout: None,
        function,
        args: PhantomData,
    }
}

/// The JSON Schema of a type, as models get it: self-contained, and without what only tools for people
/// read. That of a tool's arguments, or of a child's structured output.
///
/// ```
/// use playhouse_plugin_api::tool::schema_of;
///
/// #[derive(schemars::JsonSchema)]
/// struct Report {
///     /// One sentence.
///     finding: String,
/// }
///
/// let schema = schema_of::<Report>();
/// assert_eq!(schema["properties"]["finding"]["description"], "One sentence.");
/// assert_eq!(schema["type"], "object");
/// ```
pub fn schema_of<T: JsonSchema>() -> Value {
    // Inlined, because not every provider resolves references in a tool's parameters.
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.remove("title");
    schema.to_value()
}

impl<A, F> FunctionTool<A, F> {
    /// Calls may overlap with other parallel calls.
    #[must_use]
    pub fn parallel(self) -> Self {
        self.parallel_if(|_| true)
    }

    /// Calls with such arguments may overlap with other parallel calls.
    #[must_use]
    pub fn parallel_if(mut self, safe: impl Fn(&Value) -> bool + Send + Sync + 'static) -> Self {
        self.concurrency =
            Some(Box::new(
                move |args| {
                    if safe(args) { Concurrency::Parallel } else { Concurrency::Exclusive }
                },
            ));
        self
    }

    /// How long the body may take; see [`Tool::timeout`].
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// A schema that every success value must satisfy.
    #[must_use]
    pub fn output_schema(mut self, schema: Value) -> Self {
        self.output_schema = Some(schema);
        self
    }

    /// The provider loads the definition on demand.
    #[must_use]
    pub fn deferred(mut self) -> Self {
        Arc::make_mut(&mut self.schema).defer_loading = true;
        self
    }
}

impl<A, F, Fut, O> Tool for FunctionTool<A, F>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    F: Fn(A, ToolRun) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, ToolError>> + Send + 'static,
    O: IntoToolOutput + Send + 'static,
{
    fn schema(&self) -> &Arc<ToolSchema> {
        &self.schema
    }

    fn output_schema(&self) -> Option<&Value> {
        self.output_schema.as_ref()
    }

    fn concurrency(&self, args: &Value) -> Concurrency {
        self.concurrency.as_ref().map_or(Concurrency::Exclusive, |safe| safe(args))
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    fn execute(
        &self,
        args: Value,
        run: ToolRun,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
        // The schema cannot say everything that `Deserialize` checks (an integer's range).
        match serde_json::from_value(args) {
            Ok(args) => {
                let running = (self.function)(args, run);
                async move { running.await?.into_output() }.boxed()
            }
            Err(fault) => {
                let error = ToolError::invalid_args(&[fault.to_string()]);
                futures::future::ready(Err(error)).boxed()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(serde::Deserialize, JsonSchema)]
    struct Point {
        x: u8,
    }

    /// For people.
    #[derive(serde::Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Args {
        /// Where.
        at: Point,
        label: Option<String>,
    }

    #[test]
    fn the_schema_is_self_contained_and_carries_the_field_docs() {
        let tool = tool_fn("t", "d", |args: Args, _run| async move {
            Ok(format!("{}{:?}", args.at.x, args.label))
        });
        let parameters = &tool.schema().parameters;
        assert_eq!(parameters["type"], "object");
        assert_eq!(parameters["properties"]["at"]["description"], "Where.");
        assert_eq!(parameters["properties"]["at"]["properties"]["x"]["type"], "integer");
        assert_eq!(parameters["required"], json!(["at"]));
        assert_eq!(parameters["additionalProperties"], false);
        assert!(!parameters.to_string().contains("$"), "{parameters}");
    }

    #[test]
    fn concurrency_and_timeout_are_as_built() {
        let tool = tool_fn("t", "d", |_: Point, _run| async { Ok("x") });
        assert_eq!(tool.concurrency(&json!({})), Concurrency::Exclusive);
        let tool = tool.parallel_if(|args| args["x"] == 1).timeout(Duration::from_secs(1));
        assert_eq!(tool.concurrency(&json!({"x": 1})), Concurrency::Parallel);
        assert_eq!(tool.concurrency(&json!({"x": 2})), Concurrency::Exclusive);
        assert_eq!(Tool::timeout(&tool), Some(Duration::from_secs(1)));
    }
}
