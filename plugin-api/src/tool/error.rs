//! How a tool call fails, as the model and programs see it.

use playhouse_messages::{chunk::Failure, event::ToolErrorInfo, repair::OUTCOME_UNKNOWN_TEXT};

/// Why a tool call failed. The model reads `Error: <message>`; programs read the code, which only
/// errors of the harness and of careful tools have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    message: String,
    info: Option<ToolErrorInfo>,
}

impl ToolError {
    /// A failure with a message for the model.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), info: None }
    }

    /// A failure that programs can tell apart.
    pub fn coded(
        name: impl Into<String>,
        code: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        let info = ToolErrorInfo { name: name.into(), code: code.into(), reason: None };
        Self { message: message.into(), info: Some(info) }
    }

    /// Any error's message, with the messages of its causes.
    pub fn from_error(error: impl std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self::new(message)
    }

    /// The same failure with a reason beside its code; nothing without a code.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        if let Some(info) = &mut self.info {
            info.reason = Some(reason.into());
        }
        self
    }

    /// The message, without the `Error: ` that the model sees before it.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The stable code, if the failure has one.
    pub fn code(&self) -> Option<&str> {
        self.info.as_ref().map(|info| info.code.as_str())
    }

    /// Name, code and reason, if the failure has them.
    pub fn info(&self) -> Option<&ToolErrorInfo> {
        self.info.as_ref()
    }

    /// The model named a tool that it does not have.
    pub fn unknown_tool(name: &str) -> Self {
        Self::coded("ToolNotFoundError", "UNKNOWN_TOOL", format!("unknown tool \"{name}\""))
    }

    /// The arguments do not satisfy the schema.
    pub fn invalid_args(violations: &[String]) -> Self {
        let message = format!("invalid arguments: {}", violations.join("; "));
        Self::coded("ToolArgsError", "INVALID_ARGS", message)
    }

    /// The body's value does not satisfy the tool's own output schema.
    pub fn invalid_output(name: &str, violations: &[String]) -> Self {
        let message = format!("tool \"{name}\" returned invalid output: {}", violations.join("; "));
        Self::coded("ToolOutputError", "INVALID_TOOL_OUTPUT", message)
    }

    /// The tool's own time budget ran out.
    pub fn timeout(millis: u128) -> Self {
        let message = format!("tool call timed out after {millis}ms");
        Self::coded("ToolTimeoutError", "TOOL_TIMEOUT", message)
    }

    /// The call was cancelled after its body had started.
    pub fn aborted() -> Self {
        Self::coded("AbortError", "ABORTED", "tool call aborted")
    }

    /// The call was cancelled before its body started.
    pub fn aborted_before_dispatch() -> Self {
        let message = "tool call aborted before dispatch";
        Self::coded("AbortError", "ABORTED_BEFORE_DISPATCH", message)
    }

    /// The body did not end within the grace time after a cancel and was dropped.
    pub fn abandoned() -> Self {
        let text = OUTCOME_UNKNOWN_TEXT;
        Self::coded("ToolOutcomeUnknownError", "TOOL_OUTCOME_UNKNOWN", text).because("abandoned")
    }

    /// A hook or a seam failed. A code that says nothing (`UNKNOWN`, `PANIC`) is left out.
    pub(crate) fn from_failure(failure: &Failure) -> Self {
        match failure.code.as_str() {
            "UNKNOWN" | "PANIC" => Self::new(&failure.message),
            code => Self::coded("Failure", code, &failure.message),
        }
    }
}

impl From<String> for ToolError {
    fn from(message: String) -> Self {
        Self::new(message)
    }
}

impl From<&str> for ToolError {
    fn from(message: &str) -> Self {
        Self::new(message)
    }
}

impl From<std::io::Error> for ToolError {
    fn from(error: std::io::Error) -> Self {
        Self::from_error(error)
    }
}

impl From<serde_json::Error> for ToolError {
    fn from(error: serde_json::Error) -> Self {
        Self::from_error(error)
    }
}

impl From<Failure> for ToolError {
    fn from(failure: Failure) -> Self {
        Self::from_failure(&failure)
    }
}

impl From<Box<dyn std::error::Error + Send + Sync>> for ToolError {
    fn from(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        Self::from_error(&*error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_that_says_nothing_is_left_out() {
        assert_eq!(ToolError::from(Failure::unknown("m")).info(), None);
        assert_eq!(ToolError::from(Failure::new("STORE_FULL", "m")).code(), Some("STORE_FULL"));
    }
}
