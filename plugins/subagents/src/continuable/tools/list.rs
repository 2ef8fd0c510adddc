//! Who the continuable children are.

use std::sync::Arc;

use playhouse_messages::content::ContentBlock;
use playhouse_plugin_api::tool::{Tool, ToolError, ToolOutput, ToolRun, tool_fn};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::caller;
use crate::{ChildRow, Continuations, Known, descriptor::Mode, list_children, list_descendants};

/// The tool's name.
pub const LIST_TOOL: &str = "list_agents";

const DESCRIPTION: &str = "\
Lists the sub-agents that can be sent to again: with scope `children` those that you started, with \
`descendants` also those that they started. A sub-agent is `running`, `idle`, or `ready`: it has \
settled, and a message resumes it.";

#[derive(Debug, Deserialize, JsonSchema)]
struct Args {
    /// Which sub-agents; your own if absent.
    scope: Option<ListScope>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ListScope {
    #[default]
    Children,
    Descendants,
}

/// The tool; its value is a list of `{kind: "child", id, label, status, parent?, depth?}` and
/// `{kind: "diagnostic", id, reason, parent?, depth?}`. Children for one prompt are left out.
pub fn list_tool(service: Continuations) -> Arc<dyn Tool> {
    Arc::new(tool_fn(LIST_TOOL, DESCRIPTION, move |args: Args, call: ToolRun| {
        let world = service.0.world.clone();
        async move {
            let id = caller(&call)?.id();
            let scope = args.scope.unwrap_or_default();
            let listed = match scope {
                ListScope::Children => list_children(&world, id, call.cancel()).await,
                ListScope::Descendants => list_descendants(&world, id, call.cancel()).await,
            };
            let listed = listed.map_err(|error| {
                ToolError::coded("SubagentError", error.code(), error.to_string())
            })?;
            let rows: Vec<_> = listed.iter().filter_map(|row| entry(row, scope)).collect();
            let (values, lines): (Vec<Value>, Vec<String>) = rows.into_iter().unzip();
            let text =
                if lines.is_empty() { "(no subagents)".to_owned() } else { lines.join("\n") };
            Ok(ToolOutput::new(values.into()).showing(vec![ContentBlock::text(text)]))
        }
    }))
}

fn entry(row: &ChildRow, scope: ListScope) -> Option<(Value, String)> {
    let id = &row.id;
    let (mut value, mut line) = match &row.known {
        Known::Child { descriptor, .. } if descriptor.mode == Mode::OneShot => return None,
        Known::Child { descriptor, activity, .. } => {
            let (label, status) = (descriptor.label.as_deref().unwrap_or(""), activity.as_str());
            let value = json!({"kind": "child", "id": id, "label": label, "status": status});
            (value, format!("{id} [{status}] — {label}"))
        }
        Known::Diagnostic { reason, .. } => {
            let reason = reason.as_str();
            let value = json!({"kind": "diagnostic", "id": id, "reason": reason});
            (value, format!("{id} [{reason}]"))
        }
    };
    if scope == ListScope::Descendants {
        value["parent"] = row.parent.as_str().into();
        value["depth"] = row.depth.into();
        line = format!("{line} parent={} depth={}", row.parent, row.depth);
    }
    Some((value, line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Activity, Diagnostic,
        descriptor::{Descriptor, Recipe},
    };

    fn row(id: &str, known: Known) -> ChildRow {
        ChildRow { id: id.into(), parent: "p".into(), depth: 2, created_at: 0, known }
    }

    #[test]
    fn orchestration_1_8_a_list_has_rows_for_continuable_children_and_for_those_that_cannot_be_read()
     {
        let child = |descriptor| Known::Child {
            descriptor,
            activity: Activity::Stored,
            has_children: false,
        };
        let once = row("a", child(Descriptor::one_shot("spawn", None)));
        assert_eq!(entry(&once, ListScope::Descendants), None);
        let again = row("b", child(Descriptor::continuable("spawn", "Look", Recipe::default())));
        let expected = json!({"kind": "child", "id": "b", "label": "Look", "status": "ready"});
        assert_eq!(
            entry(&again, ListScope::Children),
            Some((expected, "b [ready] — Look".to_owned()))
        );
        let cause = String::new();
        let broken = row("c", Known::Diagnostic { reason: Diagnostic::Corrupt, cause });
        let expected = json!({
            "kind": "diagnostic", "id": "c", "reason": "corrupt", "parent": "p", "depth": 2,
        });
        assert_eq!(
            entry(&broken, ListScope::Descendants),
            Some((expected, "c [corrupt] parent=p depth=2".to_owned()))
        );
    }
}
