//! What a workflow says of itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::WorkflowError;

/// What a workflow says of itself, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Meta {
    /// A short name.
    pub name: String,
    /// What it does, in a sentence.
    pub description: String,
    /// When to use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_to_use: Option<String>,
    /// The phases that it goes through.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
}

/// A phase of a workflow, for people: what it says of models chooses none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Phase {
    /// Its title.
    pub title: String,
    /// What happens in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The provider of the model that its agents use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The model that its agents use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

impl Meta {
    /// A name and a description.
    pub fn new(name: impl Into<String>, description: impl Into<String>) -> Self {
        let (name, description) = (name.into(), description.into());
        Self { name, description, when_to_use: None, phases: Vec::new() }
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// [`WorkflowError::MetaInvalid`] with everything that is wrong.
    pub fn from_json(value: &Value) -> Result<Self, WorkflowError> {
        let mut found = Violations::default();
        match value.as_object() {
            Some(meta) => found.meta(meta),
            None => found.add("meta must be an object"),
        }
        let violations = found.0;
        if !violations.is_empty() {
            return Err(WorkflowError::MetaInvalid { violations });
        }
        Self::deserialize(value)
            .map_err(|fault| WorkflowError::MetaInvalid { violations: vec![fault.to_string()] })
    }

    /// Whether it is as it must be.
    ///
    /// # Errors
    ///
    /// As [`Meta::from_json`].
    pub fn check(&self) -> Result<(), WorkflowError> {
        Self::from_json(&self.clone().into()).map(drop)
    }
}

impl From<Meta> for Value {
    fn from(meta: Meta) -> Self {
        let Meta { name, description, when_to_use, phases } = meta;
        let mut fields = json!({"name": name, "description": description});
        if let Some(when) = when_to_use {
            fields["whenToUse"] = when.into();
        }
        if !phases.is_empty() {
            fields["phases"] = phases.into_iter().map(Value::from).collect();
        }
        fields
    }
}

impl From<Phase> for Value {
    fn from(phase: Phase) -> Self {
        let Phase { title, detail, provider, model } = phase;
        let optional = [("detail", detail), ("provider", provider), ("model", model)];
        let optional = optional.into_iter().filter_map(|(key, text)| Some((key, text?)));
        let fields = std::iter::once(("title", title)).chain(optional);
        fields.map(|(key, text)| (key.to_owned(), Self::from(text))).collect()
    }
}

#[derive(Default)]
struct Violations(Vec<String>);

impl Violations {
    fn add(&mut self, violation: impl Into<String>) {
        self.0.push(violation.into());
    }

    fn meta(&mut self, meta: &Map<String, Value>) {
        self.text(meta, "meta", "name", true);
        self.text(meta, "meta", "description", true);
        self.text(meta, "meta", "whenToUse", false);
        match meta.get("phases") {
            None | Some(Value::Null) => {}
            Some(Value::Array(phases)) => {
                for (index, phase) in phases.iter().enumerate() {
                    let place = format!("meta.phases[{index}]");
                    let Some(phase) = phase.as_object() else {
                        self.add(format!("{place} must be an object"));
                        continue;
                    };
                    self.text(phase, &place, "title", true);
                    for key in ["detail", "provider", "model"] {
                        self.text(phase, &place, key, false);
                    }
                    self.unknown(phase, &place, &["title", "detail", "provider", "model"]);
                }
            }
            Some(_) => self.add("meta.phases must be an array"),
        }
        self.unknown(meta, "meta", &["name", "description", "whenToUse", "phases"]);
    }

    fn text(&mut self, of: &Map<String, Value>, place: &str, key: &str, required: bool) {
        match of.get(key) {
            None if !required => {}
            None => self.add(format!("{place}.{key} is missing")),
            Some(Value::String(text)) if !text.trim().is_empty() => {}
            Some(Value::String(_)) => self.add(format!("{place}.{key} must not be empty")),
            Some(_) => self.add(format!("{place}.{key} must be a string")),
        }
    }

    fn unknown(&mut self, of: &Map<String, Value>, place: &str, known: &[&str]) {
        for key in of.keys().filter(|key| !known.contains(&key.as_str())) {
            self.add(format!("{place}.{key} is unknown; there are {}", known.join(", ")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_violation_is_listed_in_one_error() {
        let cases = [
            (json!(1), vec!["must be an object"]),
            (json!({"name": "n"}), vec!["meta.description is missing"]),
            (
                json!({"name": " ", "when": 1}),
                vec!["meta.name must not be empty", "meta.description is", "meta.when is unknown"],
            ),
            (
                json!({"name": "n", "description": "d", "whenToUse": 1, "phases": [
                    {"title": "a", "colour": "red"}, 7, {}]}),
                vec![
                    "meta.whenToUse must be a string",
                    "meta.phases[0].colour is unknown",
                    "meta.phases[1] must be an object",
                    "meta.phases[2].title is missing",
                ],
            ),
        ];
        for (value, expected) in cases {
            let error = Meta::from_json(&value).unwrap_err();
            let WorkflowError::MetaInvalid { violations } = &error else { panic!("{error:?}") };
            assert_eq!(violations.len(), expected.len(), "{violations:?}");
            for (violation, expected) in violations.iter().zip(expected) {
                assert!(violation.contains(expected), "{violation:?} has no {expected:?}");
            }
            assert_eq!(error.code(), "META_INVALID");
        }
    }

    #[test]
    fn a_whole_meta_is_read_and_written_the_same() {
        let value = json!({"name": "n", "description": "d", "whenToUse": "w", "phases": [
            {"title": "t", "detail": "e", "provider": "p", "model": "m"}]});
        let meta = Meta::from_json(&value).unwrap();
        assert_eq!(serde_json::to_value(&meta).unwrap(), value);
        assert_eq!(Value::from(meta.clone()), value);
        assert!(meta.check().is_ok());
        assert!(Meta::new("", "d").check().is_err());
    }
}
