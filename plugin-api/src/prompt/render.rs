//! From an assembly to the texts that a model reads.

use std::collections::BTreeMap;

use playhouse_messages::{chunk::Failure, runtime_context::ContextSection};

use super::{Assembly, PromptError, is_variable_name};

/// The system prompt: the sections with their variables put in, empty ones left out, joined by blank
/// lines. Empty if there is none.
pub fn render_prompt(assembly: &Assembly) -> Result<String, Failure> {
    let mut texts = Vec::with_capacity(assembly.sections.len());
    for section in &assembly.sections {
        let text = interpolate(&section.text, &assembly.variables, "section", &section.name)?;
        if !text.is_empty() {
            texts.push(text);
        }
    }
    Ok(texts.join("\n\n"))
}

/// The runtime facts with their variables put in; empty facts are left out.
pub fn runtime_sections(assembly: &Assembly) -> Result<Vec<ContextSection>, Failure> {
    let mut sections = Vec::with_capacity(assembly.contexts.len());
    for context in &assembly.contexts {
        let text = interpolate(&context.text, &assembly.variables, "context", &context.name)?;
        if !text.is_empty() {
            sections.push(ContextSection { name: context.name.clone(), text });
        }
    }
    Ok(sections)
}

/// Puts values in for `{{name}}`. Strict: what looks like a reference and is none is an error, so
/// that a typing mistake never reaches a model. A `{{` that nothing closes is text, and values are
/// not scanned again.
fn interpolate(
    text: &str,
    variables: &BTreeMap<String, Option<String>>,
    kind: &str,
    name: &str,
) -> Result<String, PromptError> {
    let place = || format!("{kind} \"{name}\"");
    let mut output = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((reference, remaining)) = after.split_once("}}") else { break };
        if !is_variable_name(reference) {
            let reference = reference.to_owned();
            return Err(PromptError::VariableMalformed { reference, place: place() });
        }
        let value = match variables.get(reference) {
            Some(Some(value)) => value,
            Some(None) => {
                let variable = reference.to_owned();
                return Err(PromptError::VariableUnset { variable, place: place() });
            }
            None => {
                return Err(PromptError::VariableUnknown {
                    variable: reference.to_owned(),
                    place: place(),
                    registered: variables.keys().cloned().collect(),
                });
            }
        };
        output.push_str(before);
        output.push_str(value);
        rest = remaining;
    }
    output.push_str(rest);
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interpolated(text: &str) -> Result<String, String> {
        let variables = BTreeMap::from([
            ("a".to_owned(), Some("1".to_owned())),
            ("nested".to_owned(), Some("{{a}}".to_owned())),
            ("unset".to_owned(), None),
        ]);
        interpolate(text, &variables, "section", "s").map_err(|error| error.to_string())
    }

    #[test]
    fn references_are_replaced_and_everything_else_is_text() {
        for (text, expected) in [
            ("", ""),
            ("{a} }} {", "{a} }} {"),
            ("x{{a}}y{{a}}", "x1y1"),
            ("{{nested}}", "{{a}}"),
            ("{{a}} {{a", "1 {{a"),
            ("{{", "{{"),
        ] {
            assert_eq!(interpolated(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_reference_that_cannot_be_meant_is_refused() {
        for (text, expected) in [
            (
                "{{b}}",
                r#"unknown prompt variable "{{b}}" in section "s"; registered variables: a, nested, unset"#,
            ),
            (
                "{{unset}}",
                r#"prompt variable "{{unset}}" has no value for this assembly (section "s")"#,
            ),
            (
                "{{ a }}",
                r#"malformed prompt variable reference "{{ a }}" in section "s"; write {{name}} without spaces"#,
            ),
            (
                "{{{a}}}",
                r#"malformed prompt variable reference "{{{a}}" in section "s"; write {{name}} without spaces"#,
            ),
        ] {
            assert_eq!(interpolated(text).unwrap_err(), expected);
        }
        let error = interpolate("{{b}}", &BTreeMap::new(), "section", "s").unwrap_err();
        assert!(error.to_string().ends_with("registered variables: (none)"), "{error}");
        assert_eq!(error.code(), "PROMPT_VARIABLE_UNKNOWN");
    }
}
