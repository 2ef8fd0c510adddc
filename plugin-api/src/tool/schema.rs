//! Checking arguments and outputs against a JSON Schema, in words that a model can act on.
//!
//! The check itself is the `jsonschema` crate's; this module orders its findings and words them.

use jsonschema::{
    JsonType, ValidationError,
    error::{TypeKind, ValidationErrorKind},
};
use serde_json::Value;

/// A compiled schema with a name for the root in messages.
#[derive(Debug)]
pub struct ArgumentSchema {
    root: &'static str,
    /// The root must be an object even if the schema does not say so.
    object: bool,
    source: Value,
    validator: jsonschema::Validator,
}

/// A schema that is no valid JSON Schema, or refers to something outside itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unsupported JSON schema: {violations}")]
pub struct SchemaError {
    /// What is wrong and where, joined by `; `.
    pub violations: String,
}

impl SchemaError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        "UNSUPPORTED_SCHEMA"
    }
}

impl ArgumentSchema {
    /// Compiles the schema of a tool's parameters; the root is called `arguments` and is an object.
    pub fn parameters(schema: &Value) -> Result<Self, SchemaError> {
        let Value::Object(fields) = schema else {
            return Err(SchemaError { violations: "schema must be an object".into() });
        };
        match fields.get("type") {
            None => {}
            Some(Value::String(kind)) if kind == "object" => {}
            Some(_) => {
                return Err(SchemaError { violations: "schema.type must be \"object\"".into() });
            }
        }
        Self::compile("arguments", true, schema)
    }

    /// Compiles the schema of a tool's output; the root is called `value`.
    pub fn output(schema: &Value) -> Result<Self, SchemaError> {
        Self::compile("value", false, schema)
    }

    fn compile(root: &'static str, object: bool, schema: &Value) -> Result<Self, SchemaError> {
        // No resolver is compiled in: a reference that leaves the schema is an error here, never a
        // request to somewhere.
        let validator = jsonschema::validator_for(schema).map_err(|fault| SchemaError {
            violations: format!(
                "{} {fault}",
                dotted("schema", schema, fault.instance_path().as_str())
            ),
        })?;
        Ok(Self { root, object, source: schema.clone(), validator })
    }

    /// All violations, depth first: of each object what is missing, then what is wrong with its
    /// properties in the schema's order, then what is not declared. Empty if the value is valid.
    pub fn violations(&self, value: &Value) -> Vec<String> {
        if self.object && !value.is_object() {
            return vec![format!("\"{}\" must be an object", self.root)];
        }
        if self.validator.is_valid(value) {
            return Vec::new();
        }
        let mut found = Vec::new();
        for error in self.validator.iter_errors(value) {
            self.describe(value, &error, &mut found);
        }
        // Stable: findings at the same place keep the order of their keywords.
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found.into_iter().map(|(_, text)| text).collect()
    }

    fn describe(&self, value: &Value, error: &ValidationError<'_>, out: &mut Vec<(Rank, String)>) {
        let pointer = error.instance_path().as_str();
        let place =
            if pointer.is_empty() { self.root.to_owned() } else { dotted("", value, pointer) };
        let rank = |last: (u8, usize)| self.rank(value, pointer, last);
        let (last, text) = match error.kind() {
            ValidationErrorKind::Required { property } => {
                let name = property.as_str().unwrap_or_default();
                let path = member(pointer, &place, name);
                ((0, 0), format!("missing required property \"{path}\""))
            }
            ValidationErrorKind::AdditionalProperties { unexpected }
            | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
                for (index, name) in unexpected.iter().enumerate() {
                    let path = member(pointer, &place, name);
                    let text = format!(
                        "\"{path}\" is not a declared property (additionalProperties: false)"
                    );
                    out.push((rank((2, index)), text));
                }
                return;
            }
            ValidationErrorKind::Type { kind } => {
                let types = match kind {
                    TypeKind::Single(kind) => type_text(*kind).to_owned(),
                    TypeKind::Multiple(kinds) => {
                        let kinds: Vec<_> = kinds.into_iter().map(type_text).collect();
                        kinds.join(" or ")
                    }
                };
                ((1, 0), format!("\"{place}\" must be {types}"))
            }
            ValidationErrorKind::Enum { options } => {
                ((1, 0), format!("\"{place}\" must be one of {options}"))
            }
            ValidationErrorKind::Constant { expected_value } => {
                ((1, 0), format!("\"{place}\" must be {expected_value}"))
            }
            ValidationErrorKind::OneOfNotValid { .. } => {
                ((1, 0), format!("\"{place}\" must match exactly one oneOf branch (matched 0)"))
            }
            ValidationErrorKind::OneOfMultipleValid { context } => {
                let matched = context.iter().filter(|errors| errors.is_empty()).count();
                let text =
                    format!("\"{place}\" must match exactly one oneOf branch (matched {matched})");
                ((1, 0), text)
            }
            ValidationErrorKind::AnyOf { .. } => {
                ((1, 0), format!("\"{place}\" must match at least one anyOf branch"))
            }
            _ => ((1, 0), format!("\"{place}\" is not valid: {error}")),
        };
        out.push((rank(last), text));
    }

    /// Where a finding sorts: for each step down, after what is missing and before what is not
    /// declared, by the schema's order of properties.
    fn rank(&self, value: &Value, pointer: &str, last: (u8, usize)) -> Rank {
        let mut rank = Rank::new();
        let mut value = value;
        let mut schema = Some(&self.source);
        for segment in segments(pointer) {
            schema = schema.map(|schema| self.resolve(schema));
            let (index, below) = match value {
                Value::Array(items) => {
                    let index = segment.parse().unwrap_or(usize::MAX);
                    (
                        index,
                        items.get(index).map(|item| (item, schema.and_then(|s| s.get("items")))),
                    )
                }
                Value::Object(fields) => {
                    let declared = schema.and_then(|s| s.get("properties")?.as_object());
                    // Undeclared keys (`additionalProperties: {..}`) follow in their own order.
                    let index = declared
                        .and_then(|declared| declared.keys().position(|key| *key == segment))
                        .unwrap_or_else(|| {
                            let at = fields.keys().position(|key| *key == segment).unwrap_or(0);
                            declared.map_or(0, serde_json::Map::len) + at
                        });
                    let below = declared.and_then(|declared| declared.get(&segment));
                    (index, fields.get(&segment).map(|field| (field, below)))
                }
                _ => (usize::MAX, None),
            };
            rank.push((1, index));
            let Some((next, below)) = below else { break };
            (value, schema) = (next, below);
        }
        rank.push(last);
        rank
    }

    /// Follows a reference into the schema itself.
    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|at| at.strip_prefix('#'));
        target.and_then(|pointer| self.source.pointer(pointer)).unwrap_or(schema)
    }
}

type Rank = Vec<(u8, usize)>;

fn type_text(kind: JsonType) -> &'static str {
    match kind {
        JsonType::String => "a string",
        JsonType::Number => "a finite JSON number",
        JsonType::Integer => "an integer",
        JsonType::Boolean => "a boolean",
        JsonType::Null => "null",
        JsonType::Object => "an object",
        JsonType::Array => "an array",
    }
}

/// A property's path; the root's name is left out before a property.
fn member(pointer: &str, place: &str, name: &str) -> String {
    if pointer.is_empty() { name.to_owned() } else { format!("{place}.{name}") }
}

fn segments(pointer: &str) -> impl Iterator<Item = String> {
    pointer.split('/').skip(1).map(|segment| segment.replace("~1", "/").replace("~0", "~"))
}

/// A JSON pointer as `a.b[1]`, after `root`.
fn dotted(root: &str, value: &Value, pointer: &str) -> String {
    let mut path = root.to_owned();
    let mut value = Some(value);
    for segment in segments(pointer) {
        match value {
            Some(Value::Array(items)) => {
                path.push_str(&format!("[{segment}]"));
                value = segment.parse::<usize>().ok().and_then(|index| items.get(index));
            }
            other => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(&segment);
                value = other.and_then(|value| value.get(&segment));
            }
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: Value, value: Value) -> Vec<String> {
        ArgumentSchema::parameters(&schema).unwrap().violations(&value)
    }

    #[test]
    fn each_violation_has_its_text() {
        let schema = json!({"type": "object", "properties": {
            "s": {"type": "string"}, "n": {"type": "number"}, "i": {"type": "integer"},
            "b": {"type": "boolean"}, "z": {"type": "null"}, "o": {"type": "object"},
            "a": {"type": "array", "items": {"type": "string"}},
            "e": {"enum": ["a", "b"]}, "c": {"const": "a"},
            "one": {"oneOf": [{"type": "number"}, {"type": "integer"}, {"type": "string"}]},
            "none": {"oneOf": [{"type": "number"}, {"type": "string"}]},
            "u": {"type": ["string", "null"]},
        }});
        let value = json!({"s": 1, "n": "", "i": 1.5, "b": 1, "z": 1, "o": 1, "a": ["x", 2],
            "e": "c", "c": 1, "one": 1, "none": null, "u": 1});
        assert_eq!(
            check(schema, value),
            [
                "\"s\" must be a string",
                "\"n\" must be a finite JSON number",
                "\"i\" must be an integer",
                "\"b\" must be a boolean",
                "\"z\" must be null",
                "\"o\" must be an object",
                "\"a[1]\" must be a string",
                "\"e\" must be one of [\"a\",\"b\"]",
                "\"c\" must be \"a\"",
                "\"one\" must match exactly one oneOf branch (matched 2)",
                "\"none\" must match exactly one oneOf branch (matched 0)",
                "\"u\" must be null or a string",
            ]
        );
    }

    #[test]
    fn missing_comes_first_then_properties_as_declared_then_undeclared_keys() {
        let inner = json!({"type": "object", "properties": {"y": {"type": "string"},
            "x": {"type": "string"}}, "required": ["y"], "additionalProperties": false});
        let schema = json!({"type": "object", "properties": {"z": {"type": "string"}, "in": inner,
            "list": {"type": "array", "items": {"$ref": "#/properties/in"}}, "a": {"type": "null"}},
            "required": ["q", "p"], "additionalProperties": false});
        let value = json!({"k2": 1, "k1": 1, "a": 1, "list": [{"y": "", "x": 1}, {"x": 1, "w": 1}],
            "in": {"extra": 1, "x": 1}, "z": 1});
        assert_eq!(
            check(schema, value),
            [
                "missing required property \"q\"",
                "missing required property \"p\"",
                "\"z\" must be a string",
                "missing required property \"in.y\"",
                "\"in.x\" must be a string",
                "\"in.extra\" is not a declared property (additionalProperties: false)",
                "\"list[0].x\" must be a string",
                "missing required property \"list[1].y\"",
                "\"list[1].x\" must be a string",
                "\"list[1].w\" is not a declared property (additionalProperties: false)",
                "\"a\" must be null",
                "\"k2\" is not a declared property (additionalProperties: false)",
                "\"k1\" is not a declared property (additionalProperties: false)",
            ]
        );
    }

    #[test]
    fn arguments_that_are_no_object_are_refused_whatever_the_schema_says() {
        assert_eq!(check(json!({}), json!("{\"a\":")), ["\"arguments\" must be an object"]);
        assert!(check(json!({}), json!({"any": 1})).is_empty());
        let output = ArgumentSchema::output(&json!({"type": "string"})).unwrap();
        assert_eq!(output.violations(&json!(1)), ["\"value\" must be a string"]);
    }

    #[test]
    fn keywords_outside_the_subset_are_checked_in_plain_words() {
        let schema = json!({"properties": {"p": {"type": "string", "minLength": 3},
            "q": {"anyOf": [{"type": "null"}, {"type": "string"}]}}});
        assert_eq!(
            check(schema, json!({"p": "ab", "q": 1})),
            [
                "\"p\" is not valid: \"ab\" is shorter than 3 characters",
                "\"q\" must match at least one anyOf branch",
            ]
        );
    }

    mod scenario {
        use super::*;

        #[test]
        fn llm_91_a_schema_that_is_none_is_refused_with_its_place() {
            let refused =
                |schema: Value| ArgumentSchema::parameters(&schema).unwrap_err().to_string();
            let text = refused(json!({"type": "object", "properties": {"p": {"type": "strin"}}}));
            assert!(
                text.starts_with("unsupported JSON schema: schema.properties.p.type "),
                "{text}"
            );
            assert!(refused(json!({"type": "string"})).ends_with("schema.type must be \"object\""));
            assert!(refused(json!(true)).ends_with("schema must be an object"));
            let text =
                refused(json!({"properties": {"p": {"$ref": "https://example.com/x.json"}}}));
            assert!(text.starts_with("unsupported JSON schema: "), "{text}");
        }

        #[test]
        fn llm_91_violations_come_in_order_and_a_choice_says_how_many_branches_match() {
            let schema = json!({"type": "object", "additionalProperties": false,
                "properties": {"a": {"type": "string"}, "b": {"type": "string"},
                    "c": {"type": "integer"},
                    "none": {"oneOf": [{"type": "string"}, {"type": "null"}]},
                    "both": {"oneOf": [{"type": "number"}, {"type": "integer"}]}},
                "required": ["b", "a"]});
            let value = json!({"z": 1, "both": 1, "none": 1, "c": "x"});
            assert_eq!(
                check(schema, value),
                [
                    "missing required property \"b\"",
                    "missing required property \"a\"",
                    "\"c\" must be an integer",
                    "\"none\" must match exactly one oneOf branch (matched 0)",
                    "\"both\" must match exactly one oneOf branch (matched 2)",
                    "\"z\" is not a declared property (additionalProperties: false)",
                ]
            );
        }
    }
}
