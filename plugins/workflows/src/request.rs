//! What a workflow asks of a child agent.

use playhouse_messages::{chunk::Failure, config::ModelChoice};
use playhouse_plugin_api::tool::ArgumentSchema;
use serde_json::Value;

use crate::error::code;

/// A label that is made of a prompt has at most so many characters.
const LABEL_CHARS_MAX: usize = 48;

/// A label or a title that is longer than this many characters is cut.
pub(crate) const TITLE_CHARS_MAX: usize = 256;

/// The options of `agent` in scripts.
const OPTIONS: [&str; 5] = ["label", "phase", "schema", "provider", "model"];

/// Options that other engines have, and this one does not yet.
const DEFERRED: [&str; 3] = ["effort", "isolation", "agentType"];

/// What a workflow asks of a child agent.
///
/// ```
/// use playhouse_workflows::AgentRequest;
///
/// let request = AgentRequest::new("Read src/lib.rs.\nThen say what it does.").phase("Read");
/// assert_eq!(request.label_or_default(), "Read src/lib.rs.");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AgentRequest {
    /// What it is to do.
    pub prompt: String,
    /// What it is called; the prompt's beginning if absent.
    pub label: Option<String>,
    /// The phase that it belongs to.
    pub phase: Option<String>,
    /// A JSON Schema of its result, an object.
    pub schema: Option<Value>,
    /// The provider of its model; the parent's if absent.
    pub provider: Option<String>,
    /// Its model; the parent's if absent.
    pub model: Option<String>,
}

impl AgentRequest {
    /// A prompt.
    pub fn new(prompt: impl Into<String>) -> Self {
        let prompt = prompt.into();
        Self { prompt, label: None, phase: None, schema: None, provider: None, model: None }
    }

    /// Called this.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Belonging to a phase.
    #[must_use]
    pub fn phase(mut self, phase: impl Into<String>) -> Self {
        self.phase = Some(phase.into());
        self
    }

    /// With a result of this JSON Schema.
    #[must_use]
    pub fn schema(mut self, schema: Value) -> Self {
        self.schema = Some(schema);
        self
    }

    /// With a model of its own.
    #[must_use]
    pub fn model(mut self, provider: impl Into<String>, model: impl Into<String>) -> Self {
        (self.provider, self.model) = (Some(provider.into()), Some(model.into()));
        self
    }

    /// Reads the arguments of `agent` in a script.
    pub(crate) fn from_script(prompt: Value, options: Value) -> Result<Self, Failure> {
        let invalid = |text: String| Failure::new(code::INVALID_ARGUMENT, text);
        let Value::String(prompt) = prompt else {
            return Err(invalid("agent: the prompt must be a string".to_owned()));
        };
        let mut request = Self::new(prompt);
        let options = match options {
            Value::Null => return Ok(request),
            Value::Object(options) => options,
            _ => return Err(invalid("agent: the options must be an object".to_owned())),
        };
        for (key, value) in options {
            let field = match key.as_str() {
                "schema" => {
                    request.schema = Some(value);
                    continue;
                }
                "label" => &mut request.label,
                "phase" => &mut request.phase,
                "provider" => &mut request.provider,
                "model" => &mut request.model,
                other => return Err(unsupported(other)),
            };
            match value {
                Value::String(text) if !text.trim().is_empty() => *field = Some(text),
                Value::Null => {}
                _ => return Err(invalid(format!("agent: {key} must be a string, and not empty"))),
            }
        }
        Ok(request)
    }

    /// Whether it can be asked for at all.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.prompt.trim().is_empty() {
            return Err(Failure::new(
                code::INVALID_ARGUMENT,
                "agent: the prompt must not be empty",
            ));
        }
        match self.schema.as_ref().map(ArgumentSchema::parameters) {
            Some(Err(fault)) => {
                let text = format!("agent: {fault}; give a JSON Schema of type \"object\"");
                Err(Failure::new(code::UNSUPPORTED_SCHEMA, text))
            }
            _ => Ok(()),
        }
    }

    /// What it is called.
    pub fn label_or_default(&self) -> String {
        match &self.label {
            Some(label) => clip(label, TITLE_CHARS_MAX),
            None => {
                let line = self.prompt.trim().lines().next().unwrap_or_default();
                clip(line.trim_end(), LABEL_CHARS_MAX)
            }
        }
    }

    /// Its model, if it names one; `current` is the parent's, for the half that it leaves out.
    pub(crate) fn choice(
        &self,
        current: impl FnOnce() -> Option<ModelChoice>,
    ) -> Result<Option<ModelChoice>, Failure> {
        let (provider, model) = match (&self.provider, &self.model) {
            (None, None) => return Ok(None),
            (Some(provider), Some(model)) => (provider.clone(), model.clone()),
            (provider, model) => {
                let Some(current) = current() else {
                    let text = "agent: the parent has no model; give both provider and model";
                    return Err(Failure::new(code::AGENT_START, text));
                };
                let or = |given: &Option<String>, other| given.clone().unwrap_or(other);
                (or(provider, current.provider), or(model, current.model))
            }
        };
        Ok(Some(ModelChoice { provider, model, reasoning_effort: None }))
    }
}

impl From<&str> for AgentRequest {
    fn from(prompt: &str) -> Self {
        Self::new(prompt)
    }
}

impl From<String> for AgentRequest {
    fn from(prompt: String) -> Self {
        Self::new(prompt)
    }
}

fn unsupported(option: &str) -> Failure {
    let text = match DEFERRED.contains(&option) {
        true => format!("agent: the option {option} is not supported yet; leave it out"),
        false => format!("agent: unknown option {option}; there are {}", OPTIONS.join(", ")),
    };
    Failure::new(code::UNSUPPORTED_OPTION, text)
}

/// The text, visibly cut to so many characters.
pub(crate) fn clip(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some(_) => {
            let kept: String = text.chars().take(chars_max.saturating_sub(1)).collect();
            format!("{kept}…")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_agent_does_not_take_is_a_fatal_error_of_its_own_kind() {
        let cases = [
            (json!(1), json!(null), "INVALID_ARGUMENT", "prompt"),
            (json!("p"), json!([]), "INVALID_ARGUMENT", "options"),
            (json!("p"), json!({"label": 1}), "INVALID_ARGUMENT", "label"),
            (json!("p"), json!({"lable": "x"}), "UNSUPPORTED_OPTION", "unknown option lable"),
            (json!("p"), json!({"effort": "high"}), "UNSUPPORTED_OPTION", "not supported yet"),
        ];
        for (prompt, options, code, text) in cases {
            let failure = AgentRequest::from_script(prompt, options).unwrap_err();
            assert_eq!(failure.code, code);
            assert!(failure.message.contains(text), "{}", failure.message);
        }
        let options = json!({"label": "l", "phase": "f", "schema": {}, "model": "m"});
        let request = AgentRequest::from_script(json!("p"), options).unwrap();
        let expected = AgentRequest::new("p").label("l").phase("f").schema(json!({}));
        assert_eq!(request, AgentRequest { model: Some("m".to_owned()), ..expected });
    }

    #[test]
    fn a_request_without_a_prompt_or_with_a_schema_that_is_none_is_refused() {
        assert_eq!(AgentRequest::new(" ").check().unwrap_err().code, "INVALID_ARGUMENT");
        for schema in
            [json!({"type": "string"}), json!("x"), json!({"type": "object", "required": 1})]
        {
            let failure = AgentRequest::new("p").schema(schema).check().unwrap_err();
            assert_eq!(failure.code, "UNSUPPORTED_SCHEMA");
        }
        assert!(AgentRequest::new("p").schema(json!({"type": "object"})).check().is_ok());
    }

    #[test]
    fn a_label_is_the_prompts_first_line_and_48_characters_at_most() {
        let long = "ä".repeat(60);
        let label = AgentRequest::new(format!("{long}\nb")).label_or_default();
        assert_eq!((label.chars().count(), label.ends_with('…')), (48, true));
        assert_eq!(AgentRequest::new("\n a \nb").label_or_default(), "a");
    }

    #[test]
    fn half_a_route_is_completed_by_the_parents() {
        let parent = ModelChoice {
            provider: "p".to_owned(),
            model: "m".to_owned(),
            reasoning_effort: Some("high".to_owned()),
        };
        let mut request = AgentRequest::new("x");
        assert_eq!(request.choice(|| None).unwrap(), None);
        request.model = Some("n".to_owned());
        let choice = request.choice(|| Some(parent)).unwrap().unwrap();
        assert_eq!((&*choice.provider, &*choice.model, choice.reasoning_effort), ("p", "n", None));
        assert_eq!(request.choice(|| None).unwrap_err().code, "AGENT_START");
    }
}
