//! What the model is told of a delegation tool.

use playhouse_messages::config::ToolSchema;
use playhouse_plugin_api::prompt::Section;
use serde_json::json;

use super::Behind;

const STANDALONE: &str = "\
Delegates a task to a sub-agent and returns its final answer. The sub-agent works on its own and \
sees nothing of this conversation: write a prompt that stands alone, with all facts, paths and \
constraints, and say what the answer must contain. Call it several times at once for tasks that do \
not depend on each other.";

const INHERITING: &str = "\
Delegates a task to a sub-agent and returns its final answer. The sub-agent sees the completed \
turns of this conversation: state only what is new, and what the answer must contain. Call it \
several times at once for tasks that do not depend on each other.";

const AS_A_JOB: &str = "\
Return at once with the id of a job, and let the sub-agent work on meanwhile. Default false: the \
call returns the answer.";

const AS_CONTINUABLE: &str = "\
Let the sub-agent work on while you do; you are told when it is done, and can send to it again. \
Default true. With false the call returns the answer.";

const GUIDANCE: &str = "\
Sub-agents that `{name}` starts run in the background unless you say otherwise: start those that do \
not depend on each other together, and go on with your own work. Ask for the foreground only if your \
next action needs the result. You are told when each is done, so do not wait by asking.";

/// Where the guidance on tools whose children can be continued stands.
const GUIDANCE_ORDER: f64 = 116.5;

/// What the prompt says of a tool whose children can be continued.
pub(super) fn section(name: &str) -> Section {
    Section::text(format!("tool:{name}"), GUIDANCE_ORDER, GUIDANCE.replace("{name}", name))
}

pub(super) fn schema(name: &str, inherits: bool, background: Option<&Behind>) -> ToolSchema {
    let text = |description: &str| json!({"type": "string", "description": description});
    let mut parameters = json!({
        "type": "object",
        "properties": {
            "description": text("The task in 3 to 5 words, for people."),
            "prompt": text("The whole task."),
        },
        "required": ["description", "prompt"],
    });
    if let Some(behind) = background {
        let told = match behind {
            Behind::Jobs(_) => AS_A_JOB,
            Behind::Continuations(_) => AS_CONTINUABLE,
        };
        parameters["properties"]["run_in_background"] =
            json!({"type": "boolean", "description": told});
    }
    ToolSchema {
        name: name.to_owned(),
        description: if inherits { INHERITING } else { STANDALONE }.to_owned(),
        parameters,
        defer_loading: false,
    }
}
