//! Reads a request's body, as strictly as a provider.

use playhouse_plugin_api::llm::Purpose;
use serde_json::Value;

use crate::scripted::{Conversation, Turn};

/// The conversation in a request, or what a provider would say against it.
pub(super) fn read(body: &Value, compaction: bool) -> Result<Conversation, String> {
    let model = body.get("model").and_then(Value::as_str).filter(|model| !model.is_empty());
    let model = model.ok_or("`model` must be a non-empty string")?;
    if body.get("stream") != Some(&Value::Bool(true)) {
        return Err("only `stream: true` is served".into());
    }
    let messages = body.get("messages").and_then(Value::as_array).filter(|m| !m.is_empty());
    let messages = messages.ok_or("`messages` must be a non-empty array")?;
    let turns = turns(messages)?;
    let mut conversation = Conversation::build(turns.into_iter());
    conversation.model = model.to_owned();
    conversation.tools = tools(body)?;
    conversation.purpose = compaction.then_some(Purpose::Compaction);
    let parts = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    conversation.images = parts.filter(|part| is_image(part)).count();
    Ok(conversation)
}

fn tools(body: &Value) -> Result<Vec<String>, String> {
    let Some(tools) = body.get("tools") else { return Ok(Vec::new()) };
    let tools = tools.as_array().filter(|tools| !tools.is_empty());
    let tools = tools.ok_or("`tools` must be a non-empty array if present")?;
    let mut names: Vec<String> = Vec::new();
    for (index, tool) in tools.iter().enumerate() {
        let function = tool.get("function").filter(|_| tool["type"] == "function");
        let name = function.and_then(|function| function.get("name")?.as_str());
        let name = name.filter(|name| !name.is_empty());
        let name = name.ok_or(format!("tools[{index}] must be a function with a name"))?;
        if names.iter().any(|other| other == name) {
            return Err(format!("tools[{index}]: the name {name} is taken"));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

fn turns(messages: &[Value]) -> Result<Vec<Turn<'_>>, String> {
    let mut turns = Vec::with_capacity(messages.len());
    let mut unanswered: Vec<&str> = Vec::new();
    let mut previous = "";
    for (index, message) in messages.iter().enumerate() {
        let at = |fault: &str| format!("messages[{index}]: {fault}");
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
        if role != "tool" && !unanswered.is_empty() {
            return Err(at(&format!(
                "an assistant message with `tool_calls` must be followed by tool messages \
                 responding to each `tool_call_id`; missing {}",
                unanswered.join(", ")
            )));
        }
        let content = message.get("content").and_then(Value::as_str);
        let text = || content.map(str::to_owned).ok_or_else(|| at("`content` must be a string"));
        turns.push(match role {
            "system" => Turn::System(text()?),
            // The wire does not say who speaks, but context follows a prompt or tool results.
            "user" => {
                let parts = message.get("content").and_then(Value::as_array);
                let text = match parts {
                    Some(parts) => parts_text(parts).map_err(|fault| at(&fault))?,
                    None => text()?,
                };
                Turn::User(text, !matches!(previous, "user" | "tool"))
            }
            "assistant" => {
                let calls = calls(message).ok_or_else(|| at("`tool_calls` is malformed"))?;
                for (position, (id, _)) in calls.iter().enumerate() {
                    if calls[..position].iter().any(|(earlier, _)| earlier == id) {
                        return Err(at(&format!("the call id {id} is used twice")));
                    }
                }
                let reasoning = message.get("reasoning_content").and_then(Value::as_str);
                let silent = content.unwrap_or_default().is_empty();
                if silent && calls.is_empty() && reasoning.unwrap_or_default().is_empty() {
                    return Err(at("an assistant message needs content or `tool_calls`"));
                }
                if content.is_none() && calls.is_empty() {
                    return Err(at("`content` must be a string"));
                }
                unanswered = calls.iter().map(|(id, _)| *id).collect();
                Turn::Assistant(content.unwrap_or_default().len(), calls)
            }
            "tool" => {
                let id = message.get("tool_call_id").and_then(Value::as_str).unwrap_or_default();
                let Some(place) = unanswered.iter().position(|open| *open == id) else {
                    return Err(at(&format!("no call `{id}` waits for this tool message")));
                };
                unanswered.remove(place);
                Turn::Tool(id, text()?)
            }
            other => return Err(at(&format!("unknown role `{other}`"))),
        });
        previous = role;
    }
    if unanswered.is_empty() {
        Ok(turns)
    } else {
        Err(format!("messages: no tool messages for {}", unanswered.join(", ")))
    }
}

fn is_image(part: &Value) -> bool {
    part["type"] == "image_url"
}

/// The text of a message in parts, without the words that name an image right before it.
fn parts_text(parts: &[Value]) -> Result<String, String> {
    let mut said = String::new();
    for (index, part) in parts.iter().enumerate() {
        let named = parts.get(index + 1).is_some_and(is_image);
        let url = part["image_url"]["url"].as_str().unwrap_or_default();
        match part["text"].as_str() {
            Some(text) if part["type"] == "text" && !named => said.push_str(text),
            Some(_) if part["type"] == "text" => {}
            _ if is_image(part) && url.contains(':') => {}
            _ => return Err(format!("`content[{index}]` is neither text nor an image's URL")),
        }
    }
    if parts.is_empty() { Err("`content` must not be empty".to_owned()) } else { Ok(said) }
}

fn calls(message: &Value) -> Option<Vec<(&str, &str)>> {
    let Some(calls) = message.get("tool_calls") else { return Some(Vec::new()) };
    let calls = calls.as_array().filter(|calls| !calls.is_empty())?;
    let call = |call: &'_ Value| -> Option<_> {
        let function = call.get("function")?;
        function.get("arguments")?.as_str()?;
        (call.get("type")? == "function").then_some(())?;
        Some(())
    };
    calls
        .iter()
        .map(|value| {
            call(value)?;
            let id = value.get("id")?.as_str().filter(|id| !id.is_empty())?;
            Some((id, value.get("function")?.get("name")?.as_str()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fault(messages: Value) -> String {
        let body = json!({"model": "m", "stream": true, "messages": messages});
        read(&body, false).unwrap_err()
    }

    fn asking(id: &str) -> Value {
        let function = json!({"name": "t", "arguments": "{"});
        json!({"role": "assistant", "content": null,
               "tool_calls": [{"id": id, "type": "function", "function": function}]})
    }

    fn result(id: &str) -> Value {
        json!({"role": "tool", "tool_call_id": id, "content": "r"})
    }

    #[test]
    fn history_that_a_provider_refuses_is_refused() {
        let user = json!({"role": "user", "content": "x"});
        assert!(fault(json!([])).contains("non-empty"));
        assert!(fault(json!([user, asking("a")])).contains("no tool messages for a"));
        assert!(fault(json!([user, asking("a"), user])).contains("missing a"));
        assert!(fault(json!([user, result("a")])).contains("no call `a`"));
        let twice = json!([user, asking("a"), result("a"), result("a")]);
        assert!(fault(twice).contains("messages[3]"));
        let silent = json!({"role": "assistant", "content": ""});
        assert!(fault(json!([user, silent])).contains("needs content"));
        let reasoning = json!({"role": "assistant", "content": null, "reasoning_content": "r"});
        assert!(fault(json!([user, reasoning])).contains("must be a string"));
        assert!(fault(json!([{"role": "developer", "content": "x"}])).contains("unknown role"));
        assert!(fault(json!([{"role": "user", "content": null}])).contains("string"));
        assert!(fault(json!([user, asking("")])).contains("malformed"));
        let parts = |parts: Value| json!([{"role": "user", "content": parts}]);
        assert!(fault(parts(json!([]))).contains("must not be empty"));
        for bad in [json!({"type": "image_url"}), json!({"type": "file"}), json!({"type": "text"})]
        {
            assert!(fault(parts(json!([bad]))).contains("`content[0]`"));
        }
    }

    #[test]
    fn images_are_counted_and_their_names_are_no_part_of_the_prompt() {
        let text = |text: &str| json!({"type": "text", "text": text});
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}});
        let content = json!([text("look"), text("\n[Image a]"), image, text(" and tell")]);
        let messages = json!([{"role": "user", "content": content}]);
        let body = json!({"model": "m", "stream": true, "messages": messages});
        let conversation = read(&body, false).unwrap();
        assert_eq!((conversation.images, &*conversation.prompt), (1, "look and tell"));
    }

    #[test]
    fn answered_calls_pass_and_are_seen() {
        let messages = json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            {"role": "user", "content": "context"},
            asking("call-3"),
            result("call-3"),
            {"role": "user", "content": "reminder"},
        ]);
        let tools = json!([{"type": "function", "function": {"name": "t"}}]);
        let body = json!({"model": "m", "stream": true, "messages": messages, "tools": tools});
        let conversation = read(&body, true).unwrap();
        assert_eq!(conversation.prompt, "u");
        assert_eq!(conversation.assistant_messages, 1);
        assert_eq!(conversation.system, ["s"]);
        assert_eq!(conversation.results[0].tool, "t");
        assert_eq!(conversation.tools, ["t"]);
        assert_eq!(conversation.next_call, 4);
        assert_eq!(conversation.purpose, Some(Purpose::Compaction));
    }
}
