//! Reads a request of the Messages API, as strictly as the provider.

use serde_json::Value;

use super::messages_wire::signature;
use crate::scripted::{Conversation, Turn};

/// The conversation in a request, or what the provider would say against it.
pub(super) fn read(body: &Value) -> Result<Conversation, String> {
    let model = body.get("model").and_then(Value::as_str).filter(|model| !model.is_empty());
    let model = model.ok_or("model: a non-empty string is required")?;
    if body.get("stream") != Some(&Value::Bool(true)) {
        return Err("stream: only true is served".into());
    }
    let limit = body.get("max_tokens").and_then(Value::as_u64).filter(|limit| *limit > 0);
    limit.ok_or("max_tokens: a positive integer is required")?;
    let messages = body.get("messages").and_then(Value::as_array).filter(|m| !m.is_empty());
    let messages = messages.ok_or("messages: at least one message is required")?;
    let mut turns = system(body)?;
    turns.extend(conversation(messages)?);
    let mut conversation = Conversation::build(turns.into_iter());
    conversation.model = model.to_owned();
    conversation.tools = tools(body)?;
    Ok(conversation)
}

fn system(body: &Value) -> Result<Vec<Turn<'_>>, String> {
    let Some(system) = body.get("system") else { return Ok(Vec::new()) };
    let blocks = system.as_array().ok_or("system: must be an array of text blocks")?;
    blocks.iter().map(|block| Ok(Turn::System(text(block, "system")?.to_owned()))).collect()
}

fn tools(body: &Value) -> Result<Vec<String>, String> {
    let tools = match body.get("tools") {
        None => return Ok(Vec::new()),
        Some(tools) => tools.as_array().ok_or("tools: must be an array")?,
    };
    let mut names: Vec<String> = Vec::new();
    for (index, tool) in tools.iter().enumerate() {
        let name = tool.get("name").and_then(Value::as_str).filter(|name| is_name(name));
        let name = name.ok_or(format!("tools.{index}.name: must match ^[a-zA-Z0-9_-]+$"))?;
        if tool.get("input_schema").and_then(|schema| schema.get("type")?.as_str())
            != Some("object")
        {
            return Err(format!("tools.{index}.input_schema.type: must be \"object\""));
        }
        if names.iter().any(|other| other == name) {
            return Err("tools: Tool names must be unique.".into());
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    !name.is_empty() && name.bytes().all(fits)
}

/// Neighbours of one role count as one message of the wire, but as turns of their own.
fn conversation(messages: &[Value]) -> Result<Vec<Turn<'_>>, String> {
    let mut turns = Vec::with_capacity(messages.len());
    let mut unanswered: Vec<&str> = Vec::new();
    let mut previous = "";
    for (index, message) in messages.iter().enumerate() {
        let at = |fault: &str| format!("messages.{index}: {fault}");
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
        let content = message.get("content").and_then(Value::as_array);
        let content = content.filter(|content| !content.is_empty());
        let content = content.ok_or_else(|| at("content must be a non-empty array"))?;
        match role {
            "user" => {
                let results = content.iter().take_while(|block| block["type"] == "tool_result");
                let results = results.count();
                for block in &content[..results] {
                    let id = block.get("tool_use_id").and_then(Value::as_str).unwrap_or_default();
                    let place = unanswered.iter().position(|open| *open == id);
                    let place = place.ok_or_else(|| {
                        at(&format!("unexpected `tool_use_id` found in `tool_result` blocks: {id}"))
                    })?;
                    unanswered.remove(place);
                    turns.push(Turn::Tool(id, spoken(block.get("content"), &at)?));
                }
                let rest = &content[results..];
                if !rest.is_empty() || results == 0 {
                    if !unanswered.is_empty() {
                        return Err(at(&missing(&unanswered)));
                    }
                    // The wire does not say who speaks, but context follows a prompt or results.
                    let speaks = !matches!(previous, "user" | "tool");
                    let text =
                        rest.iter().map(|block| part(block, &at)).collect::<Result<_, _>>()?;
                    turns.push(Turn::User(text, speaks && results == 0));
                }
                previous = if results > 0 { "tool" } else { "user" };
            }
            "assistant" => {
                if previous.is_empty() {
                    return Err(at("first message must use the \"user\" role"));
                }
                if !unanswered.is_empty() {
                    return Err(at(&missing(&unanswered)));
                }
                turns.push(answer(content, &at, &mut unanswered)?);
                previous = "assistant";
            }
            other => return Err(at(&format!("unexpected role \"{other}\""))),
        }
    }
    if !unanswered.is_empty() {
        return Err(missing(&unanswered));
    }
    if previous == "assistant" {
        return Err("the conversation must end with a user message".into());
    }
    Ok(turns)
}

fn missing(unanswered: &[&str]) -> String {
    format!(
        "`tool_use` ids were found without `tool_result` blocks immediately after: missing {}",
        unanswered.join(", ")
    )
}

fn answer<'a>(
    content: &'a [Value],
    at: &impl Fn(&str) -> String,
    unanswered: &mut Vec<&'a str>,
) -> Result<Turn<'a>, String> {
    let mut length = 0;
    let mut calls = Vec::new();
    for block in content {
        match block["type"].as_str().unwrap_or_default() {
            "text" => length += text(block, "text").map_err(|fault| at(&fault))?.len(),
            "thinking" => {
                let thinking = block.get("thinking").and_then(Value::as_str);
                let thinking = thinking.ok_or_else(|| at("thinking: Field required"))?;
                if block.get("signature").and_then(Value::as_str) != Some(&signature(thinking)) {
                    return Err(at("Invalid `signature` in `thinking` block"));
                }
            }
            "redacted_thinking" if block["data"].is_string() => {}
            "tool_use" => {
                let name = |key: &str| block.get(key)?.as_str().filter(|name| is_name(name));
                let id =
                    name("id").ok_or_else(|| at("tool_use.id: must match ^[a-zA-Z0-9_-]+$"))?;
                let tool = name("name").ok_or_else(|| at("tool_use.name: Field required"))?;
                if !block["input"].is_object() {
                    return Err(at("tool_use.input: Input should be a valid dictionary"));
                }
                if unanswered.contains(&id) {
                    return Err(at("`tool_use` ids must be unique"));
                }
                unanswered.push(id);
                calls.push((id, tool));
            }
            other => return Err(at(&format!("unexpected block \"{other}\""))),
        }
    }
    Ok(Turn::Assistant(length, calls))
}

/// The text of a result's content.
fn spoken(content: Option<&Value>, at: &impl Fn(&str) -> String) -> Result<String, String> {
    let blocks = content.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    blocks.iter().map(|block| part(block, at)).collect()
}

/// The text of a block on the user's side; none for an image.
fn part<'a>(block: &'a Value, at: &impl Fn(&str) -> String) -> Result<&'a str, String> {
    match block["type"].as_str().unwrap_or_default() {
        "text" => text(block, "text").map_err(|fault| at(&fault)),
        "image" if block["source"]["data"].is_string() => Ok(""),
        other => Err(at(&format!("unexpected block \"{other}\" in a user message"))),
    }
}

fn text<'a>(block: &'a Value, what: &str) -> Result<&'a str, String> {
    let text = block.get("text").and_then(Value::as_str).filter(|_| block["type"] == "text");
    let text = text.ok_or_else(|| format!("{what}: a text block is required"))?;
    if text.trim().is_empty() {
        return Err(format!("{what}: text content blocks must contain non-whitespace text"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn body(messages: Value) -> Value {
        json!({"model": "m", "max_tokens": 9, "stream": true, "messages": messages})
    }

    fn fault(messages: Value) -> String {
        read(&body(messages)).unwrap_err()
    }

    fn user(text: &str) -> Value {
        json!({"role": "user", "content": [{"type": "text", "text": text}]})
    }

    fn asking(id: &str) -> Value {
        let call = json!({"type": "tool_use", "id": id, "name": "t", "input": {}});
        json!({"role": "assistant", "content": [call]})
    }

    fn result(id: &str) -> Value {
        let content = json!([{"type": "text", "text": "r"}]);
        let result = json!({"type": "tool_result", "tool_use_id": id, "content": content});
        json!({"role": "user", "content": [result]})
    }

    #[test]
    fn history_that_the_provider_refuses_is_refused() {
        let thinking = |signature: &str| {
            let block = json!({"type": "thinking", "thinking": "hm", "signature": signature});
            json!({"role": "assistant", "content": [block]})
        };
        for (messages, words) in [
            (json!([]), "at least one message"),
            (json!([{"role": "user", "content": []}]), "non-empty array"),
            (json!([user(" ")]), "non-whitespace"),
            (json!([{"role": "system", "content": [{}]}]), "unexpected role"),
            (json!([asking("c")]), "first message"),
            (json!([user("u"), asking("c"), user("v")]), "missing c"),
            (json!([user("u"), asking("c")]), "missing c"),
            (json!([user("u"), asking("c"), asking("d")]), "missing c"),
            (json!([user("u"), asking("c"), result("d")]), "unexpected `tool_use_id`"),
            (json!([user("u"), result("c")]), "unexpected `tool_use_id`"),
            (json!([user("u"), asking("c.d")]), "must match"),
            (json!([user("u"), thinking("forged"), user("v")]), "signature"),
            (json!([user("u"), thinking(&signature("hm"))]), "end with a user message"),
        ] {
            let said = fault(messages);
            assert!(said.contains(words), "{said} lacks {words}");
        }
        let mut unlimited = body(json!([user("u")]));
        unlimited["max_tokens"] = json!(0);
        assert!(read(&unlimited).unwrap_err().contains("max_tokens"));
    }

    #[test]
    fn a_conversation_is_read_with_neighbours_of_one_role() {
        let mut body = body(json!([
            user("u"),
            user("context"),
            asking("call-3"),
            result("call-3"),
            user("reminder"),
        ]));
        body["system"] = json!([{"type": "text", "text": "s"}]);
        body["tools"] = json!([{"name": "t", "input_schema": {"type": "object"}}]);
        let conversation = read(&body).unwrap();
        assert_eq!(conversation.prompt, "u");
        assert_eq!(conversation.assistant_messages, 1);
        assert_eq!(conversation.system, ["s"]);
        assert_eq!(conversation.results[0].tool, "t");
        assert_eq!(conversation.tools, ["t"]);
        assert_eq!(conversation.next_call, 4);
    }
}
