//! In which order a model is told of its tools.

use std::sync::Arc;

use playhouse_messages::config::ToolSchema;

use super::PromptError;

/// Stands in a [`ToolOrder`] for all tools that it does not list.
pub const UNLISTED_TOOLS: &str = "<unlisted-tools>";

/// A configured order of tools: names, and [`UNLISTED_TOOLS`] once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOrder {
    before: Vec<String>,
    after: Vec<String>,
}

impl ToolOrder {
    /// Reads a configured list. Whether the names exist is judged at each assembly.
    pub fn new(names: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, PromptError> {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        for (index, name) in names.iter().enumerate() {
            if names[..index].contains(name) {
                return Err(PromptError::OrderTwice { name: name.clone() });
            }
        }
        let rest = names.iter().position(|name| name == UNLISTED_TOOLS);
        let rest = rest.ok_or(PromptError::OrderWithoutRest)?;
        Ok(Self { before: names[..rest].to_vec(), after: names[rest + 1..].to_vec() })
    }

    /// The listed names that are not in `known`.
    fn unknown(&self, known: &[String]) -> Vec<String> {
        let listed = self.before.iter().chain(&self.after);
        listed.filter(|name| !known.contains(name)).cloned().collect()
    }

    /// Listed tools by their place before or after the unlisted ones.
    fn place(&self, name: &str) -> (u8, usize) {
        if let Some(index) = self.before.iter().position(|listed| listed == name) {
            return (0, index);
        }
        match self.after.iter().position(|listed| listed == name) {
            Some(index) => (2, index),
            None => (1, 0),
        }
    }
}

/// Sorts the tools; unlisted ones by the UTF-16 code units of their names, as other harnesses that
/// share a provider's cache do.
pub(super) fn sort_tools(
    tools: &mut [Arc<ToolSchema>],
    known: &[String],
    order: Option<&ToolOrder>,
) -> Result<(), PromptError> {
    if let Some(order) = order {
        let names = order.unknown(known);
        if !names.is_empty() {
            let mut known = known.to_vec();
            known.sort_by(|a, b| a.encode_utf16().cmp(b.encode_utf16()));
            return Err(PromptError::OrderUnknown { names, known });
        }
    }
    tools.sort_by(|a, b| {
        let place = |tool: &ToolSchema| order.map(|order| order.place(&tool.name));
        place(a).cmp(&place(b)).then_with(|| a.name.encode_utf16().cmp(b.name.encode_utf16()))
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(names: &[&str]) -> Vec<Arc<ToolSchema>> {
        let schema = |name: &&str| ToolSchema {
            name: (*name).to_owned(),
            description: String::new(),
            parameters: serde_json::json!({"type": "object"}),
            defer_loading: false,
        };
        names.iter().map(schema).map(Arc::new).collect()
    }

    fn sorted(names: &[&str], order: Option<&[&str]>) -> Result<Vec<String>, PromptError> {
        let order = order.map(|order| ToolOrder::new(order.iter().copied())).transpose()?;
        let mut tools = tools(names);
        let known: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        sort_tools(&mut tools, &known, order.as_ref())?;
        Ok(tools.iter().map(|tool| tool.name.clone()).collect())
    }

    #[test]
    fn without_an_order_tools_stand_by_code_unit() {
        // U+FF5E is above the surrogates that U+1F600 is written with.
        let names = ["b", "\u{ff5e}", "\u{1f600}", "B", "a"];
        assert_eq!(sorted(&names, None).unwrap(), ["B", "a", "b", "\u{1f600}", "\u{ff5e}"]);
    }

    #[test]
    fn unlisted_tools_stand_at_the_marker() {
        let order = ["z", UNLISTED_TOOLS, "a"];
        assert_eq!(sorted(&["a", "y", "x", "z"], Some(&order)).unwrap(), ["z", "x", "y", "a"]);
    }

    #[test]
    fn an_order_that_cannot_be_meant_is_refused() {
        for (order, text) in [
            (&["a", "a", UNLISTED_TOOLS][..], "toolOrder lists \"a\" more than once"),
            (
                &[UNLISTED_TOOLS, UNLISTED_TOOLS],
                "toolOrder lists \"<unlisted-tools>\" more than once",
            ),
            (
                &["a"],
                "toolOrder must contain \"<unlisted-tools>\" exactly once, where unlisted tools stand",
            ),
            (
                &["x", "y", UNLISTED_TOOLS],
                "toolOrder lists unregistered tool(s) \"x\", \"y\"; known tools: a, b",
            ),
        ] {
            assert_eq!(sorted(&["b", "a"], Some(order)).unwrap_err().to_string(), text);
        }
        let error = sorted(&[], Some(&["x", UNLISTED_TOOLS])).unwrap_err();
        assert!(error.to_string().ends_with("known tools: (none)"), "{error}");
    }
}
