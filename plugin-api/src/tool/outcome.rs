//! What became of one tool call.

use std::sync::Arc;

use playhouse_messages::{content::ContentBlock, message::SharedMessage};
use serde_json::Value;

use super::{ToolError, ToolOutput, render_value};

/// A settled call: a success with a value, or a failure, and what the model sees of it.
///
/// Hooks may make outcomes of their own. A success made outside the tool's body shows the model
/// what [`Tool::render`](super::Tool::render) makes of its value.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutcome {
    pub(crate) status: Result<Arc<Value>, ToolError>,
    pub(crate) content: Vec<ContentBlock>,
    pub(crate) meta: Option<Value>,
    pub(crate) contexts: Vec<SharedMessage>,
    pub(crate) concludes_turn: bool,
    /// The dispatch whose body made this, or 0: only there are the content and meta of a success
    /// believed.
    pub(crate) origin: u64,
}

impl ToolOutcome {
    /// A success of this value.
    pub fn success(value: Value) -> Self {
        Self {
            content: render_value(&value),
            status: Ok(Arc::new(value)),
            meta: None,
            contexts: Vec::new(),
            concludes_turn: false,
            origin: 0,
        }
    }

    /// A failure; the model sees `Error: <message>`.
    pub fn failure(error: ToolError) -> Self {
        Self {
            content: vec![ContentBlock::text(format!("Error: {}", error.message()))],
            status: Err(error),
            meta: None,
            contexts: Vec::new(),
            concludes_turn: false,
            origin: 0,
        }
    }

    /// A failure whose content is exactly its message.
    pub(crate) fn verbatim(error: ToolError) -> Self {
        let content = vec![ContentBlock::text(error.message())];
        Self { content, ..Self::failure(error) }
    }

    pub(crate) fn from_output(output: ToolOutput, origin: u64) -> Self {
        let ToolOutput { value, content, meta } = output;
        Self { content, meta, origin, ..Self::success(value) }
    }

    /// The same outcome with one more message for the next step.
    #[must_use]
    pub fn with_context(mut self, message: SharedMessage) -> Self {
        self.contexts.push(message);
        self
    }

    /// Whether the call failed.
    pub fn is_error(&self) -> bool {
        self.status.is_err()
    }

    /// The success value.
    pub fn value(&self) -> Option<&Arc<Value>> {
        self.status.as_ref().ok()
    }

    /// The failure.
    pub fn error(&self) -> Option<&ToolError> {
        self.status.as_ref().err()
    }

    /// What the model sees.
    pub fn content(&self) -> &[ContentBlock] {
        &self.content
    }

    /// The tool's private data for presentation.
    pub fn meta(&self) -> Option<&Value> {
        self.meta.as_ref()
    }

    /// Messages for the next step, in order.
    pub fn contexts(&self) -> &[SharedMessage] {
        &self.contexts
    }

    /// Whether the turn ends after the batch; only ever set on the final outcome of a success.
    pub fn concludes_turn(&self) -> bool {
        self.concludes_turn
    }

    /// Turns a success that a cancel overtook into the failure that says so. Failures are more
    /// specific than the cancel and stay.
    pub(crate) fn overtaken(self, body_started: bool) -> Self {
        if self.is_error() {
            return self;
        }
        let error =
            if body_started { ToolError::aborted() } else { ToolError::aborted_before_dispatch() };
        Self { contexts: self.contexts, ..Self::failure(error) }
    }
}
