//! What rules see of a request, be it in process or on the wire.

use playhouse_messages::message::{Message, Role};
use playhouse_plugin_api::llm::{LlmRequest, Purpose};

/// A request, boiled down to what scripts are matched against.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Conversation {
    /// The model asked for.
    pub model: String,
    /// The system prompts, in order.
    pub system: Vec<String>,
    /// The last user text, context that plugins add on the user's side left aside while there is any
    /// other. In process, the message's source tells them apart; on the wire, context is a user
    /// message that follows another or a tool message.
    pub prompt: String,
    /// How many assistant messages stand after it.
    pub assistant_messages: usize,
    /// The tool results after the last assistant message.
    pub results: Vec<ToolOutcome>,
    /// The names of the declared tools.
    pub tools: Vec<String>,
    /// How many images the messages show.
    pub images: usize,
    /// What the call is for.
    pub purpose: Option<Purpose>,
    /// The number that the next minted call id gets.
    pub next_call: usize,
    /// All text, in bytes.
    pub bytes: usize,
}

/// A tool result as rules see it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolOutcome {
    /// The tool, empty if the call is not in the conversation.
    pub tool: String,
    /// The result's text.
    pub text: String,
}

/// One message, whatever it was read from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Turn<'a> {
    System(String),
    /// The flag tells a person's or a delegating agent's words from context.
    User(String, bool),
    /// Text length, and ids and names of the calls.
    Assistant(usize, Vec<(&'a str, &'a str)>),
    Tool(&'a str, String),
}

impl Conversation {
    /// Reads a request in process.
    pub fn of(request: &LlmRequest) -> Self {
        let mut conversation =
            Self::build(request.messages.iter().filter_map(|message| turn(message)));
        conversation.model = request.config.model.clone();
        conversation.tools = request.tools.iter().map(|tool| tool.name.clone()).collect();
        conversation.purpose = request.purpose;
        let blocks = request.messages.iter().flat_map(|message| &message.content);
        conversation.images = blocks.filter(|block| block.shown_image().is_some()).count();
        conversation
    }

    pub(crate) fn build<'a>(turns: impl Iterator<Item = Turn<'a>>) -> Self {
        let mut out = Self { next_call: 1, ..Self::default() };
        let mut spoken = false;
        let mut calls: Vec<(&str, &str)> = Vec::new();
        for turn in turns {
            match turn {
                Turn::System(text) => {
                    out.bytes += text.len();
                    out.system.push(text);
                }
                Turn::User(text, speaks) => {
                    out.bytes += text.len();
                    if speaks || !spoken {
                        out.prompt = text;
                        out.assistant_messages = 0;
                        spoken |= speaks;
                    }
                }
                Turn::Assistant(len, asked) => {
                    out.bytes += len;
                    out.assistant_messages += 1;
                    out.results.clear();
                    out.next_call += asked.len();
                    // Compaction may have cut calls away, so the ids that remain count as well.
                    let highest = asked.iter().filter_map(|(id, _)| number_of(id)).max();
                    out.next_call = out.next_call.max(highest.unwrap_or(0) + 1);
                    calls = asked;
                }
                Turn::Tool(id, text) => {
                    out.bytes += text.len();
                    let tool = calls.iter().find(|(call, _)| *call == id);
                    let tool = tool.map(|(_, name)| (*name).to_owned()).unwrap_or_default();
                    out.results.push(ToolOutcome { tool, text });
                }
            }
        }
        out
    }
}

fn number_of(id: &str) -> Option<usize> {
    id.strip_prefix("call-")?.parse().ok()
}

fn turn(message: &Message) -> Option<Turn<'_>> {
    Some(match message.role {
        Role::System => Turn::System(message.text()),
        Role::Developer => return None,
        Role::User => Turn::User(
            message.text(),
            matches!(message.source.kind(), "user" | "delegation" | "coordinator"),
        ),
        Role::Assistant => {
            let len =
                message.content.iter().filter_map(|block| block.as_text()).map(str::len).sum();
            let calls = message.tool_calls().map(|call| (call.id.as_str(), call.name.as_str()));
            Turn::Assistant(len, calls.collect())
        }
        Role::Tool => {
            let id = message.tool_call_id.as_ref().map(|id| id.as_str()).unwrap_or_default();
            Turn::Tool(id, message.text())
        }
    })
}
