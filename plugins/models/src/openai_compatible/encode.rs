//! From messages and configuration to the wire's bytes. Pure: the same input gives the same bytes.

use bytes::Bytes;
use playhouse_messages::{
    chunk::Failure,
    content::ContentBlock,
    message::{Message, Role, SharedMessage},
};
use playhouse_plugin_api::llm::{
    Frame, FrameInput, LoadedImages, Purpose, image_handle, offloaded_image,
};
use serde::Serialize;

use super::{
    Dialect, Thinking, image_parts,
    wire::{
        StreamOptions, WireCall, WireContent, WireFunction, WireMessage, WireSuffix, WireThinking,
        WireTool, WireToolFunction,
    },
};

/// A message's element of `messages`; empty if it has none.
pub(super) fn message(
    dialect: &Dialect,
    message: &Message,
    images: &LoadedImages,
) -> Result<Bytes, Failure> {
    let text = text_of(message)?;
    let role = match message.role {
        // Declarations always stand in the request, so changes to them need no words.
        Role::Developer => return Ok(Bytes::new()),
        Role::System if text.is_empty() => return Ok(Bytes::new()),
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let mut wire = WireMessage {
        role,
        tool_call_id: None,
        content: WireContent::Text(text),
        reasoning_content: None,
        tool_calls: Vec::new(),
    };
    if message.role == Role::Tool {
        wire.tool_call_id = message.tool_call_id.as_ref().map(|id| id.as_str());
        if matches!(&wire.content, WireContent::Text(text) if text.is_empty()) {
            wire.content = WireContent::Text("(no output)".to_owned());
        }
    }
    if message.role == Role::User && message.content.iter().any(|it| it.shown_image().is_some()) {
        wire.content = WireContent::Parts(image_parts::user(message, images)?);
    }
    if message.role == Role::Assistant {
        // `content` stays a string even without text: null with reasoning alone is refused, and
        // history would then be refused for ever.
        if dialect.replay_reasoning {
            let reasoning = |block: &ContentBlock| match block {
                ContentBlock::Reasoning(text) => Some(text.clone()),
                _ => None,
            };
            let joined: String = message.content.iter().filter_map(reasoning).collect();
            wire.reasoning_content = Some(joined).filter(|text| !text.is_empty());
        }
        wire.tool_calls = message
            .tool_calls()
            .map(|call| WireCall {
                id: call.id.as_str(),
                r#type: "function",
                function: WireFunction { name: &call.name, arguments: &call.arguments },
            })
            .collect();
    }
    to_bytes(&wire)
}

/// The images of these tool messages, which hold only text, as a user's element.
pub(super) fn result_images(
    results: &[SharedMessage],
    images: &LoadedImages,
) -> Result<Bytes, Failure> {
    to_bytes(&WireMessage {
        role: "user",
        tool_call_id: None,
        content: WireContent::Parts(image_parts::of_results(results, images)?),
        reasoning_content: None,
        tool_calls: Vec::new(),
    })
}

/// All that can be said of a message in text.
fn text_of(message: &Message) -> Result<String, Failure> {
    let mut text = String::new();
    for block in &message.content {
        let image = match block {
            ContentBlock::Text(more) => {
                text.push_str(more);
                continue;
            }
            ContentBlock::Image { attachment, offloaded: true } => offloaded_image(attachment),
            ContentBlock::Image { attachment, .. } => {
                if !matches!(message.role, Role::User | Role::Tool) {
                    let text = "only messages of users and tools can show images on this route";
                    return Err(Failure::new("UNSUPPORTED_CONTENT", text));
                }
                image_handle(attachment)
            }
            _ => continue,
        };
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&image);
    }
    Ok(text)
}

/// The body around `messages`.
pub(super) fn frame(dialect: &Dialect, input: &FrameInput<'_>) -> Result<Frame, Failure> {
    let config = input.config;
    let (thinking, reasoning_effort) = thinking(dialect, input)?;
    let limit = config.max_tokens;
    let suffix = WireSuffix {
        stream: true,
        stream_options: StreamOptions { include_usage: true },
        thinking,
        reasoning_effort,
        tools: input
            .tools
            .iter()
            .map(|tool| WireTool {
                r#type: "function",
                function: WireToolFunction {
                    name: &tool.name,
                    description: &tool.description,
                    parameters: &tool.parameters,
                },
            })
            .collect(),
        temperature: config.temperature,
        max_tokens: limit.filter(|_| !dialect.max_completion_tokens),
        max_completion_tokens: limit.filter(|_| dialect.max_completion_tokens),
        stop: config.stop.as_deref().filter(|stop| !stop.is_empty()),
    };
    let model = to_bytes(&config.model)?;
    let suffix = to_bytes(&suffix)?;
    Ok(Frame {
        prefix: [b"{\"model\":", &model[..], b",\"messages\":["].concat().into(),
        // The object's own brace gives way to the end of the array.
        suffix: [b"],", suffix.get(1..).unwrap_or_default()].concat().into(),
    })
}

type Effort<'a> = (Option<WireThinking>, Option<&'a str>);

fn thinking<'a>(dialect: &Dialect, input: &FrameInput<'a>) -> Result<Effort<'a>, Failure> {
    let switch = |thinking| {
        let r#type = match thinking {
            Thinking::Enabled => "enabled",
            Thinking::Disabled => "disabled",
        };
        Some(WireThinking { r#type })
    };
    let effort = input.config.reasoning_effort.as_deref();
    if !dialect.deepseek_thinking {
        return Ok((None, effort.filter(|_| input.purpose != Some(Purpose::SessionTitle))));
    }
    if input.purpose == Some(Purpose::SessionTitle) {
        return Ok((switch(Thinking::Disabled), None));
    }
    match effort {
        None => Ok((dialect.thinking.and_then(switch), None)),
        Some("off") => Ok((switch(Thinking::Disabled), None)),
        Some(effort @ ("low" | "high" | "max")) if dialect.thinking != Some(Thinking::Disabled) => {
            Ok((switch(Thinking::Enabled), Some(effort)))
        }
        Some(effort) => {
            let message = format!("reasoning effort \"{effort}\" is not supported here");
            Err(Failure::new("UNSUPPORTED_REASONING_EFFORT", message))
        }
    }
}

fn to_bytes(value: &impl Serialize) -> Result<Bytes, Failure> {
    let bytes = serde_json::to_vec(value).map_err(|error| {
        Failure::new("UNSUPPORTED_CONTENT", format!("message does not encode as JSON: {error}"))
    })?;
    Ok(bytes.into())
}

#[cfg(test)]
mod scenario {
    use std::sync::Arc;

    use playhouse_messages::{
        config::{CallConfig, ToolList, ToolSchema},
        content::ToolCallBlock,
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::openai_compatible::Config;

    fn dialect() -> Dialect {
        Config::deepseek_at(None).dialect
    }

    fn encoded(message: &Message) -> String {
        let bytes = super::message(&dialect(), message, &LoadedImages::new()).unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    fn assistant(content: Vec<ContentBlock>) -> Message {
        Message { role: Role::Assistant, content, ..Message::user("a", "") }
    }

    fn call(arguments: &str) -> ContentBlock {
        ContentBlock::ToolCall(ToolCallBlock {
            id: "c1".into(),
            name: "read".into(),
            arguments: arguments.into(),
        })
    }

    fn body(config: &CallConfig, tools: &ToolList, purpose: Option<Purpose>) -> Value {
        let frame =
            frame(&dialect(), &FrameInput { config, messages: &[], tools, purpose }).unwrap();
        serde_json::from_slice(&[frame.prefix, frame.suffix].concat()).unwrap()
    }

    #[test]
    fn llm_38_an_assistant_without_text_keeps_an_empty_string() {
        let calls = assistant(vec![call("{\"p\": /broken")]);
        assert_eq!(
            encoded(&calls),
            r#"{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function","function":{"name":"read","arguments":"{\"p\": /broken"}}]}"#
        );
        let reasoning = assistant(vec![ContentBlock::Reasoning("hm".into())]);
        assert_eq!(
            encoded(&reasoning),
            r#"{"role":"assistant","content":"","reasoning_content":"hm"}"#
        );
    }

    #[test]
    fn llm_39_reasoning_of_a_turn_without_tools_is_sent_back() {
        let reasoning = |text: &str| ContentBlock::Reasoning(text.into());
        let turn = assistant(vec![reasoning("a"), ContentBlock::text("x"), reasoning("b")]);
        let wire = encoded(&turn);
        assert_eq!(wire, r#"{"role":"assistant","content":"x","reasoning_content":"ab"}"#);
        let plain = Config::new("p", "http://x", crate::openai_compatible::KeySource::None).dialect;
        let wire = super::message(&plain, &turn, &LoadedImages::new()).unwrap();
        assert_eq!(&wire[..], br#"{"role":"assistant","content":"x"}"#);
    }

    #[test]
    fn llm_40_each_message_is_one_element() {
        let mut user = Message::user("u", "a");
        user.content.push(ContentBlock::text("b"));
        assert_eq!(encoded(&user), r#"{"role":"user","content":"ab"}"#);
        user.content = vec![ContentBlock::Other(serde_json::Map::new())];
        assert_eq!(encoded(&user), r#"{"role":"user","content":""}"#);
        assert_eq!(encoded(&Message::system("s", "")), "");
        assert_eq!(encoded(&Message::system("s", "x")), r#"{"role":"system","content":"x"}"#);
        let developer = Message { role: Role::Developer, ..Message::user("d", "x") };
        assert_eq!(encoded(&developer), "");
    }

    #[test]
    fn llm_41_an_empty_result_says_so_and_failure_is_not_transmitted() {
        let result = |failed| encoded(&Message::tool("t", &"c1".into(), failed, vec![]));
        let expected = r#"{"role":"tool","tool_call_id":"c1","content":"(no output)"}"#;
        assert_eq!([result(false), result(true)], [expected, expected]);
    }

    #[test]
    fn llm_42_efforts_map_to_the_thinking_switch() {
        let wire = |effort: Option<&str>, purpose| {
            let config = CallConfig {
                model: "m".into(),
                reasoning_effort: effort.map(str::to_owned),
                ..CallConfig::default()
            };
            let body = body(&config, &ToolList::default(), purpose);
            (body.get("thinking").cloned(), body.get("reasoning_effort").cloned())
        };
        let disabled = Some(json!({"type": "disabled"}));
        let enabled = Some(json!({"type": "enabled"}));
        assert_eq!(wire(None, None), (None, None));
        assert_eq!(wire(Some("off"), None), (disabled.clone(), None));
        for effort in ["low", "high", "max"] {
            assert_eq!(wire(Some(effort), None), (enabled.clone(), Some(json!(effort))));
        }
        assert_eq!(wire(Some("max"), Some(Purpose::SessionTitle)), (disabled, None));

        let refused = |dialect: &Dialect, effort: &str| {
            let config =
                CallConfig { reasoning_effort: Some(effort.into()), ..CallConfig::default() };
            let tools = ToolList::default();
            frame(
                dialect,
                &FrameInput { config: &config, messages: &[], tools: &tools, purpose: None },
            )
            .unwrap_err()
            .code
        };
        assert_eq!(refused(&dialect(), "medium"), "UNSUPPORTED_REASONING_EFFORT");
        let off = Dialect { thinking: Some(Thinking::Disabled), ..dialect() };
        assert_eq!(refused(&off, "high"), "UNSUPPORTED_REASONING_EFFORT");
    }

    #[test]
    fn llm_43_what_is_absent_is_not_sent() {
        let config = CallConfig { model: "m".into(), ..CallConfig::default() };
        let bare = body(&config, &ToolList::default(), None);
        let expected = json!({
            "model": "m", "messages": [], "stream": true, "stream_options": {"include_usage": true},
        });
        assert_eq!(bare, expected);
        let tool = ToolSchema {
            name: "read".into(),
            description: "d".into(),
            parameters: json!({"type": "object", "a": 1}),
            defer_loading: false,
        };
        let config = CallConfig {
            temperature: Some(0.2),
            max_tokens: Some(9),
            stop: Some(vec!["END".into()]),
            ..config
        };
        let full = body(&config, &[Arc::new(tool)].into(), None);
        assert_eq!(
            full["tools"][0]["function"]["parameters"].to_string(),
            r#"{"type":"object","a":1}"#
        );
        assert_eq!(full["tools"][0]["type"], "function");
        assert_eq!((&full["temperature"], &full["max_tokens"]), (&json!(0.2), &json!(9)));
        assert_eq!(full["stop"], json!(["END"]));
    }
}
