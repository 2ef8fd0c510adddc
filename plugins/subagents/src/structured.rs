//! Structured output: a child answers by calling a tool whose parameters are the caller's schema.
//!
//! A value counts in two phases. The tool's body only *stages* it, since policy may still turn the
//! call's success into an error; it is *captured* when the call's final outcome is a success, or
//! that of the call that it is nested in. The first capture wins: the child can call nothing after.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{chunk::Failure, config::ToolSchema, event::StepAt, id::CallId};
use playhouse_plugin_api::{
    prompt::Section,
    scope::Scope,
    tool::{ArgumentSchema, SchemaError, Tool, ToolCallContext, ToolError, ToolOutput, ToolRun},
    world::World,
};
use serde_json::{Value, json};

/// The name of the tool, and of the section that tells of it.
pub const STRUCTURED_OUTPUT: &str = "structured_output";

/// Where that section stands.
pub const STRUCTURED_ORDER: f64 = 190.0;

const DESCRIPTION: &str = "\
Gives your result to whoever delegated the task to you. Call it once, when the result is complete: \
the call ends your work.";

const GUIDANCE: &str = "\
Your result is what you pass to the tool `structured_output`, and nothing else: text that you \
write is not given to whoever delegated the task to you. When you have all that its parameters ask \
for, call it once. If it refuses the arguments, correct them and call it again; once it has \
recorded a result you can call no further tool.";

const RECORDED: &str =
    "the result has been recorded by `structured_output`, so no further tool can be called";

/// A result that is asked for by a schema, and what was given. Clones are the same.
#[derive(Clone)]
pub struct Structured {
    schema: Arc<ToolSchema>,
    capture: Arc<Mutex<Capture>>,
}

impl Structured {
    /// A result of this schema, which must say that it is an object.
    ///
    /// # Errors
    ///
    /// `UNSUPPORTED_SCHEMA` if it does not, is no JSON Schema, or refers to something outside
    /// itself.
    pub fn new(schema: &Value) -> Result<Self, SchemaError> {
        if schema.get("type").and_then(Value::as_str) != Some("object") {
            let violations = "the schema of a structured output needs \"type\": \"object\"";
            return Err(SchemaError { violations: violations.to_owned() });
        }
        ArgumentSchema::parameters(schema)?;
        let schema = ToolSchema {
            name: STRUCTURED_OUTPUT.to_owned(),
            description: DESCRIPTION.to_owned(),
            parameters: schema.clone(),
            defer_loading: false,
        };
        Ok(Self { schema: Arc::new(schema), capture: Arc::default() })
    }

    /// What the child gave, once it counts.
    pub fn captured(&self) -> Option<Value> {
        self.capture().captured().cloned()
    }

    /// Registers tool, guidance and guard in the scope of a child that is not yet live.
    ///
    /// # Errors
    ///
    /// What the registries say.
    pub fn install(&self, world: &World, scope: &Scope) -> Result<(), Failure> {
        let tools = world.tools.registry();
        tools.register(scope, Arc::new(self.clone()))?;
        let section = Section::text(STRUCTURED_OUTPUT, STRUCTURED_ORDER, GUIDANCE);
        world.prompts.section(scope, section)?;
        let capture = self.clone();
        tools.guard(scope, move |call| {
            capture.capture().is_over(call.at()).then(|| RECORDED.to_owned())
        })?;
        let capture = self.clone();
        world.tools.hooks().result.add(scope, move |settled| {
            let call = Execution::of(&settled.call);
            capture.capture().settle(&call, !settled.outcome.is_error());
        })?;
        Ok(())
    }

    fn capture(&self) -> MutexGuard<'_, Capture> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tool for Structured {
    fn schema(&self) -> &Arc<ToolSchema> {
        &self.schema
    }

    fn execute(
        &self,
        args: Value,
        run: ToolRun,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
        self.capture().stage(Execution::of(run.call()), args);
        run.conclude_turn();
        futures::future::ready(Ok(ToolOutput::new(json!({"recorded": true})))).boxed()
    }
}

impl fmt::Debug for Structured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Structured")
            .field("schema", &self.schema.parameters)
            .finish_non_exhaustive()
    }
}

/// One call, told apart from all others of its agent.
#[derive(Debug, Clone, PartialEq)]
struct Execution {
    at: Option<StepAt>,
    id: CallId,
    root: CallId,
}

impl Execution {
    fn of(call: &ToolCallContext) -> Self {
        let (id, root) = (call.call_id().clone(), call.root_call_id().clone());
        Self { at: call.at(), id, root }
    }

    fn is_nested(&self) -> bool {
        self.id != self.root
    }

    fn encloses(&self, other: &Self) -> bool {
        self.at == other.at && self.id == other.root && !self.is_nested()
    }
}

/// How far a value has got.
#[derive(Debug, Default, PartialEq)]
enum Capture {
    #[default]
    Nothing,
    /// The body of this call has it, or all of the call if it is nested in another.
    Staged {
        by: Execution,
        settled: bool,
        value: Value,
    },
    Captured(Value),
}

impl Capture {
    fn captured(&self) -> Option<&Value> {
        match self {
            Self::Captured(value) => Some(value),
            _ => None,
        }
    }

    fn stage(&mut self, by: Execution, value: Value) {
        if self.captured().is_none() {
            *self = Self::Staged { by, settled: false, value };
        }
    }

    /// Whether a call at `at` comes too late. What was staged in an earlier step will never settle:
    /// its executor is gone.
    fn is_over(&mut self, at: Option<StepAt>) -> bool {
        match self {
            Self::Staged { by, .. } if by.at != at => {
                *self = Self::Nothing;
                false
            }
            Self::Nothing => false,
            Self::Staged { .. } | Self::Captured(_) => true,
        }
    }

    /// A call has its final outcome.
    fn settle(&mut self, call: &Execution, success: bool) {
        let Self::Staged { by, settled, value } = self else { return };
        let own = by == call;
        let enclosing = *settled && call.encloses(by);
        if !(own || enclosing) {
            return;
        }
        *self = match (success, own && by.is_nested()) {
            (false, _) => Self::Nothing,
            (true, false) => Self::Captured(value.take()),
            (true, true) => Self::Staged { by: by.clone(), settled: true, value: value.take() },
        };
    }
}

#[cfg(test)]
mod tests {
    mod subagents {
        use super::super::*;

        fn call(step: u32, id: &str, root: &str) -> Execution {
            Execution { at: Some(StepAt { turn: 1, step }), id: id.into(), root: root.into() }
        }

        fn staged(by: &Execution) -> Capture {
            let mut capture = Capture::default();
            capture.stage(by.clone(), json!({"n": 1}));
            capture
        }

        #[test]
        fn orchestration_1_6_a_value_counts_once_its_own_call_has_succeeded() {
            let own = call(1, "a", "a");
            let mut capture = staged(&own);
            assert_eq!(capture.captured(), None, "policy may still say no");
            capture.settle(&call(1, "b", "b"), true);
            capture.settle(&call(2, "a", "a"), true);
            assert_eq!(capture.captured(), None, "not its own call");
            capture.settle(&own, true);
            assert_eq!(capture.captured(), Some(&json!({"n": 1})));
            capture.stage(call(2, "c", "c"), json!({"n": 2}));
            capture.settle(&call(2, "c", "c"), true);
            assert_eq!(capture.captured(), Some(&json!({"n": 1})), "the first one wins");

            let mut capture = staged(&own);
            capture.settle(&own, false);
            assert_eq!(capture, Capture::Nothing, "blocked: the model may try again");
        }

        #[test]
        fn orchestration_1_6_a_nested_call_counts_once_its_enclosing_call_has_succeeded() {
            let (nested, outer) = (call(1, "a/1", "a"), call(1, "a", "a"));
            for success in [true, false] {
                let mut capture = staged(&nested);
                capture.settle(&outer, true);
                assert_eq!(capture.captured(), None, "its own outcome comes first");
                capture.settle(&nested, true);
                assert_eq!(capture.captured(), None);
                capture.settle(&outer, success);
                assert_eq!(capture.captured().is_some(), success);
            }
            let mut capture = staged(&nested);
            capture.settle(&nested, false);
            capture.settle(&outer, true);
            assert_eq!(capture.captured(), None);
        }

        #[test]
        fn orchestration_1_6_later_calls_are_denied_while_a_value_is_staged_and_once_it_counts() {
            let own = call(1, "a", "a");
            let mut capture = Capture::default();
            assert!(!capture.is_over(own.at));
            capture = staged(&own);
            assert!(capture.is_over(own.at));
            capture.settle(&own, true);
            assert!(capture.is_over(own.at) && capture.is_over(call(2, "b", "b").at));

            let mut lost = staged(&own);
            assert!(!lost.is_over(call(2, "b", "b").at), "its executor died before the outcome");
            assert_eq!(lost, Capture::Nothing);
        }

        #[test]
        fn orchestration_1_6_only_schemas_of_objects_are_taken() {
            let object = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
            assert!(Structured::new(&object).is_ok());
            for schema in [
                json!({"type": "array"}),
                json!({"properties": {}}),
                json!({"type": ["object", "null"]}),
                json!("object"),
                json!({"type": "object", "properties": {"a": {"type": "wrong"}}}),
                json!({"type": "object", "$ref": "https://example.com/schema.json"}),
            ] {
                let refused = Structured::new(&schema).map(|_| ()).unwrap_err();
                assert_eq!(refused.code(), "UNSUPPORTED_SCHEMA", "{schema}");
            }
        }
    }
}
