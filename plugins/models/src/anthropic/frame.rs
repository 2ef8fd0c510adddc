//! From configuration, tools and system prompt to the request around the messages. Pure.

use playhouse_messages::{chunk::Failure, content::ContentBlock, message::Role};
use playhouse_plugin_api::llm::{Frame, FrameInput, Purpose};

use super::{
    Config, ModelEntry, Thinking,
    encode::{text, to_bytes},
    wire::{
        BlockBinding, CacheControl, OutputConfig, WirePrefix, WireSuffix, WireThinking, WireTool,
    },
};

/// The temperature that holds if none is named.
const TEMPERATURE_DEFAULT: f64 = 1.0;

/// The body around `messages`.
pub(super) fn frame(config: &Config, input: &FrameInput<'_>) -> Result<Frame, Failure> {
    let call = input.config;
    let entry = config.entry(&call.model);
    let limit = call
        .max_tokens
        .or_else(|| entry.and_then(|entry| entry.default_max_tokens))
        .unwrap_or(config.default_max_tokens);
    let (thinking, effort) = thinking(entry, input, limit)?;
    let thinks =
        matches!(thinking, Some(WireThinking::Enabled { .. } | WireThinking::Adaptive { .. }));
    let prompts = input.messages.iter().filter(|message| message.role == Role::System);
    let prompts = prompts.flat_map(|message| &message.content).filter_map(ContentBlock::as_text);
    let tools = input.tools.iter().map(|tool| WireTool {
        name: &tool.name,
        description: &tool.description,
        input_schema: &tool.parameters,
    });
    // The order of the wire's cache, so that what changes rarely comes first.
    let prefix = to_bytes(&WirePrefix {
        model: &call.model,
        tools: tools.collect(),
        system: prompts.filter_map(text).collect(),
    })?;
    let suffix = to_bytes(&WireSuffix {
        max_tokens: limit,
        stream: true,
        cache_control: config.prompt_caching.then_some(CacheControl { r#type: "ephemeral" }),
        thinking,
        output_config: effort.map(|effort| OutputConfig { effort }),
        temperature: temperature(entry, call.temperature, thinks)?,
        stop_sequences: call.stop.as_deref().filter(|stop| !stop.is_empty()),
    })?;
    Ok(Frame {
        // The objects' own braces give way to the array.
        prefix: [prefix.strip_suffix(b"}").unwrap_or(&prefix), b",\"messages\":["].concat().into(),
        suffix: [b"],", suffix.strip_prefix(b"{").unwrap_or(&suffix)].concat().into(),
    })
}

/// Whether requests for a model carry settings that are still a beta.
pub(super) fn binds(entry: Option<&ModelEntry>) -> bool {
    let thinking = entry.and_then(|entry| entry.thinking.as_ref());
    matches!(thinking, Some(Thinking::Adaptive { bound: true, .. }))
}

type Effort<'a> = (Option<WireThinking>, Option<&'a str>);

fn thinking<'a>(
    entry: Option<&'a ModelEntry>,
    input: &FrameInput<'a>,
    limit: u64,
) -> Result<Effort<'a>, Failure> {
    let title = input.purpose == Some(Purpose::SessionTitle);
    let effort = input.config.reasoning_effort.as_deref();
    let unsupported = |effort: &str| {
        let model = &input.config.model;
        let message = format!("model \"{model}\" does not take the reasoning effort \"{effort}\"");
        Err(Failure::new("UNSUPPORTED_REASONING_EFFORT", message))
    };
    match entry.and_then(|entry| entry.thinking.as_ref()) {
        None => match effort.filter(|_| !title) {
            None => Ok((None, None)),
            Some(effort) => unsupported(effort),
        },
        Some(Thinking::Budget(budgets)) => match effort.filter(|_| !title) {
            None | Some("off") => Ok((None, None)),
            Some(effort) => match budgets.iter().find(|(name, _)| name == effort) {
                Some((_, budget)) if *budget < limit => {
                    Ok((Some(WireThinking::Enabled { budget_tokens: *budget }), None))
                }
                Some((_, budget)) => Err(unsupported_option(format!(
                    "the reasoning effort \"{effort}\" thinks for {budget} tokens, which the \
                     output limit of {limit} does not allow; raise the limit or lower the effort"
                ))),
                None => unsupported(effort),
            },
        },
        Some(Thinking::Adaptive { efforts, can_be_off, bound }) => {
            let least = if *can_be_off { Some("off") } else { efforts.first().map(String::as_str) };
            match if title { least } else { effort } {
                None => Ok((None, None)),
                Some("off") if *can_be_off => Ok((Some(WireThinking::Disabled), None)),
                Some(effort) if efforts.iter().any(|known| known == effort) => {
                    let behaviour = BlockBinding { prefix_mismatch_behavior: "drop_block" };
                    let adaptive = WireThinking::Adaptive {
                        // Newer models show no thinking unless asked to.
                        display: "summarized",
                        block_binding: bound.then_some(behaviour),
                    };
                    Ok((Some(adaptive), Some(effort)))
                }
                Some(effort) => unsupported(effort),
            }
        }
    }
}

/// What the wire would refuse is refused here, before anything is sent.
fn temperature(
    entry: Option<&ModelEntry>,
    temperature: Option<f64>,
    thinks: bool,
) -> Result<Option<f64>, Failure> {
    let Some(value) = temperature.filter(|value| *value != TEMPERATURE_DEFAULT) else {
        return Ok(None);
    };
    let refuse = |reason: &str| Err(unsupported_option(format!("temperature {value} {reason}")));
    if entry.is_some_and(|entry| !entry.sampling) {
        return refuse("is not taken by this model; leave it out");
    }
    if thinks {
        return refuse(
            "does not go together with thinking; leave it out, or set the effort to off",
        );
    }
    if !(0.0..=TEMPERATURE_DEFAULT).contains(&value) {
        return refuse("is not between 0 and 1");
    }
    Ok(Some(value))
}

fn unsupported_option(message: String) -> Failure {
    Failure::new("UNSUPPORTED_OPTION", message)
}

#[cfg(test)]
mod scenario {
    use std::sync::Arc;

    use playhouse_messages::{
        config::{CallConfig, ToolList, ToolSchema},
        message::Message,
    };
    use serde_json::{Value, json};

    use super::*;

    fn call(model: &str) -> CallConfig {
        CallConfig { model: model.into(), ..CallConfig::default() }
    }

    fn with_effort(model: &str, effort: &str) -> CallConfig {
        CallConfig { reasoning_effort: Some(effort.into()), ..call(model) }
    }

    fn try_body(config: &CallConfig, purpose: Option<Purpose>) -> Result<Value, Failure> {
        let tools = ToolList::default();
        let input = FrameInput { config, messages: &[], tools: &tools, purpose };
        let frame = frame(&Config::anthropic_at(None), &input)?;
        Ok(serde_json::from_slice(&[frame.prefix, frame.suffix].concat()).unwrap())
    }

    fn body(config: &CallConfig) -> Value {
        try_body(config, None).unwrap()
    }

    fn code(config: &CallConfig) -> String {
        try_body(config, None).unwrap_err().code
    }

    #[test]
    fn tools_and_system_prompt_come_before_the_messages_and_settings_after() {
        let tool = Arc::new(ToolSchema {
            name: "read".into(),
            description: "d".into(),
            parameters: json!({"type": "object", "a": 1}),
            defer_loading: false,
        });
        let messages = [
            Message::system("s", "be brief"),
            Message::user("u", "hi"),
            Message::system("t", ""),
            Message::system("v", "be kind"),
        ];
        let messages = messages.map(Arc::new);
        let config = CallConfig { stop: Some(vec!["END".into()]), ..call("m") };
        let tools: ToolList = [tool].into();
        let input =
            FrameInput { config: &config, messages: &messages, tools: &tools, purpose: None };
        let frame = frame(&Config::anthropic_at(None), &input).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&frame.prefix),
            r#"{"model":"m","tools":[{"name":"read","description":"d","input_schema":{"type":"object","a":1}}],"system":[{"type":"text","text":"be brief"},{"type":"text","text":"be kind"}],"messages":["#
        );
        assert_eq!(
            String::from_utf8_lossy(&frame.suffix),
            r#"],"max_tokens":32000,"stream":true,"cache_control":{"type":"ephemeral"},"stop_sequences":["END"]}"#
        );
    }

    #[test]
    fn llm_43_what_is_absent_is_not_sent() {
        let expected = json!({
            "model": "m", "messages": [], "max_tokens": 32_000, "stream": true,
            "cache_control": {"type": "ephemeral"},
        });
        assert_eq!(body(&call("m")), expected);
        let config = Config { prompt_caching: false, ..Config::anthropic_at(None) };
        let (call, tools) = (call("m"), ToolList::default());
        let input = FrameInput { config: &call, messages: &[], tools: &tools, purpose: None };
        let suffix = frame(&config, &input).unwrap().suffix;
        assert_eq!(&suffix[..], br#"],"max_tokens":32000,"stream":true}"#);
    }

    #[test]
    fn efforts_map_to_what_the_model_documents() {
        let wire = |model: &str, effort: &str| {
            let body = body(&with_effort(model, effort));
            (body["thinking"].clone(), body["output_config"].clone())
        };
        let adaptive = json!({"type": "adaptive", "display": "summarized",
            "block_binding": {"prefix_mismatch_behavior": "drop_block"}});
        assert_eq!(wire("claude-opus-5-5", "max"), (adaptive, json!({"effort": "max"})));
        assert_eq!(wire("claude-haiku-5-5", "off"), (json!({"type": "disabled"}), Value::Null));
        let budget = json!({"type": "enabled", "budget_tokens": 10_000});
        assert_eq!(wire("claude-haiku-4-5-20251001", "medium"), (budget, Value::Null));
        assert_eq!(wire("claude-haiku-4-5", "off"), (Value::Null, Value::Null));
        for (model, effort) in
            [("claude-opus-5-5", "off"), ("claude-haiku-4-5", "max"), ("mine", "high")]
        {
            assert_eq!(code(&with_effort(model, effort)), "UNSUPPORTED_REASONING_EFFORT");
        }
    }

    #[test]
    fn a_title_is_not_thought_about() {
        let title = |model: &str, effort: &str| {
            let body = try_body(&with_effort(model, effort), Some(Purpose::SessionTitle)).unwrap();
            (body["thinking"]["type"].clone(), body["output_config"]["effort"].clone())
        };
        assert_eq!(title("claude-opus-5-5", "max"), (json!("adaptive"), json!("low")));
        assert_eq!(title("claude-haiku-5-5", "high"), (json!("disabled"), Value::Null));
        assert_eq!(title("claude-haiku-4-5", "high"), (Value::Null, Value::Null));
    }

    #[test]
    fn what_the_wire_refuses_together_is_refused_before_it_is_sent() {
        let with = |temperature: f64, config: CallConfig| CallConfig {
            temperature: Some(temperature),
            ..config
        };
        assert_eq!(code(&with(0.2, with_effort("claude-haiku-4-5", "low"))), "UNSUPPORTED_OPTION");
        assert_eq!(code(&with(0.2, call("claude-opus-5-5"))), "UNSUPPORTED_OPTION");
        assert_eq!(code(&with(1.5, call("mine"))), "UNSUPPORTED_OPTION");
        assert_eq!(body(&with(0.2, call("mine")))["temperature"], 0.2);
        assert_eq!(body(&with(0.2, with_effort("claude-haiku-4-5", "off")))["temperature"], 0.2);
        // The default needs no saying.
        let plain = body(&with(1.0, with_effort("claude-opus-5-5", "low")));
        assert_eq!(plain.get("temperature"), None);
        let tight = with_effort("claude-haiku-4-5", "high");
        assert_eq!(code(&CallConfig { max_tokens: Some(24_000), ..tight }), "UNSUPPORTED_OPTION");
    }
}
