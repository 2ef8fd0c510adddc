//! What a client is told of what happens in a session.

use agent_client_protocol::v1::schema::{
    self as acp, ContentChunk, SessionUpdate, ToolCallContent, ToolCallStatus, ToolCallUpdate,
    ToolCallUpdateFields,
};
use playhouse_messages::{
    chunk::StreamChunk,
    content::ContentBlock,
    event::{Event, EventBody, Seq, StepAt},
    frame::Frame,
    id::CallId,
    message::Message,
};
use serde_json::Value;

/// Something to tell.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Told {
    Update(Box<SessionUpdate>),
    /// An image, by its record; its bytes are to be fetched.
    Image(Speaker, Value),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaker {
    User,
    Agent,
}

impl From<SessionUpdate> for Told {
    fn from(update: SessionUpdate) -> Self {
        Self::Update(Box::new(update))
    }
}

impl Speaker {
    pub(super) fn says(self, content: impl Into<acp::ContentBlock>) -> ContentChunk {
        ContentChunk::new(content.into())
    }

    pub(super) fn update(self, chunk: ContentChunk) -> SessionUpdate {
        match self {
            Self::User => SessionUpdate::UserMessageChunk(chunk),
            Self::Agent => SessionUpdate::AgentMessageChunk(chunk),
        }
    }
}

/// A call's id for clients: providers' own ids may come again in another step.
pub(super) fn call_id(at: StepAt, id: &CallId) -> acp::ToolCallId {
    acp::ToolCallId::new(format!("{}.{}.{id}", at.turn, at.step))
}

/// Turns a session's events, and its live stream, into updates.
///
/// Answers are told as they stream, and what an event adds to its stream is told with the event. An
/// attempt that failed was told too; the next one is another message, by its id.
#[derive(Debug, Default)]
pub(super) struct Updates {
    /// The client does not know what came before; its own prompts from here on it does.
    replay_until: Seq,
    message: String,
    text: String,
    thought: String,
}

impl Updates {
    pub(super) fn replaying_until(replay_until: Seq) -> Self {
        Self { replay_until, ..Self::default() }
    }

    fn begin(&mut self, message: impl Into<String>) {
        self.message = message.into();
        self.text.clear();
        self.thought.clear();
    }

    fn say(&self, text: &str) -> Told {
        let chunk = Speaker::Agent.says(text).message_id(self.message_id());
        Told::from(Speaker::Agent.update(chunk))
    }

    fn think(&self, text: &str) -> Told {
        let chunk = ContentChunk::new(text.into()).message_id(self.message_id());
        Told::from(SessionUpdate::AgentThoughtChunk(chunk))
    }

    fn message_id(&self) -> acp::MessageId {
        acp::MessageId::from(self.message.clone())
    }

    /// What a frame of the live stream tells.
    pub(super) fn frame(&mut self, frame: &Frame) -> Vec<Told> {
        let chunks = match frame {
            Frame::Start { attempt_id, .. } => {
                self.begin(attempt_id);
                return Vec::new();
            }
            Frame::Chunks { chunks, .. } => chunks,
            Frame::End { .. } => return Vec::new(),
        };
        let (mut text, mut thought) = (String::new(), String::new());
        for timed in chunks {
            match &timed.chunk {
                StreamChunk::TextDelta { text: more, .. } => text.push_str(more),
                StreamChunk::ReasoningDelta { text: more, .. } => thought.push_str(more),
                _ => {}
            }
        }
        self.text.push_str(&text);
        self.thought.push_str(&thought);
        let thought = (!thought.is_empty()).then(|| self.think(&thought));
        let text = (!text.is_empty()).then(|| self.say(&text));
        thought.into_iter().chain(text).collect()
    }

    /// What an event tells.
    pub(super) fn event(&mut self, event: &Event) -> Vec<Told> {
        match &event.body {
            EventBody::UserMessage(message)
                if event.seq < self.replay_until && message.source.kind() == "user" =>
            {
                message.content.iter().filter_map(|block| said(Speaker::User, block)).collect()
            }
            EventBody::AssistantMessage(data) => {
                let told = self.settled(&data.message);
                self.begin("");
                told
            }
            EventBody::AssistantAttempt(_) => {
                self.begin("");
                Vec::new()
            }
            EventBody::ToolCall(call) => {
                let at = StepAt { turn: call.turn, step: call.step };
                let raw = Value::String(call.arguments.clone());
                let arguments = serde_json::from_str(&call.arguments).unwrap_or(raw);
                let call = acp::ToolCall::new(call_id(at, &call.call_id), call.name.clone())
                    .name(call.name.clone())
                    .status(ToolCallStatus::InProgress)
                    .raw_input(arguments);
                vec![Told::from(SessionUpdate::ToolCall(call))]
            }
            EventBody::ToolResult(result) => {
                let Some(id) = &result.message.tool_call_id else { return Vec::new() };
                let at = StepAt { turn: result.turn, step: result.step };
                let status = match result.message.is_error {
                    Some(true) => ToolCallStatus::Failed,
                    _ => ToolCallStatus::Completed,
                };
                let texts = result.message.content.iter().filter_map(ContentBlock::as_text);
                let content = texts.map(|text| ToolCallContent::from(text.to_owned())).collect();
                let fields = ToolCallUpdateFields::new()
                    .status(status)
                    .content(Some(content).filter(|content: &Vec<_>| !content.is_empty()));
                let update = ToolCallUpdate::new(call_id(at, id), fields);
                vec![Told::from(SessionUpdate::ToolCallUpdate(update))]
            }
            _ => Vec::new(),
        }
    }

    /// What of a message was not streamed, or streamed otherwise.
    fn settled(&mut self, message: &Message) -> Vec<Told> {
        let joined = |reasoning: bool| -> String {
            let texts = message.content.iter().filter_map(|block| match block {
                ContentBlock::Text(text) if !reasoning => Some(text.as_str()),
                ContentBlock::Reasoning(text) if reasoning => Some(text.as_str()),
                _ => None,
            });
            texts.collect()
        };
        let rest = |whole: &str, told: &str| whole.strip_prefix(told).unwrap_or(whole).to_owned();
        let (thought, text) =
            (rest(&joined(true), &self.thought), rest(&joined(false), &self.text));
        if self.message.is_empty() {
            self.message = message.id.to_string();
        }
        let mut told = Vec::new();
        if !thought.is_empty() {
            told.push(self.think(&thought));
        }
        if !text.is_empty() {
            told.push(self.say(&text));
        }
        let images = message.content.iter().filter_map(ContentBlock::shown_image);
        told.extend(images.map(|image| Told::Image(Speaker::Agent, image.clone())));
        told
    }
}

fn said(who: Speaker, block: &ContentBlock) -> Option<Told> {
    match (block, block.shown_image()) {
        (ContentBlock::Text(text), _) if !text.is_empty() => {
            Some(Told::from(who.update(who.says(text.as_str()))))
        }
        (_, Some(image)) => Some(Told::Image(who, image.clone())),
        _ => None,
    }
}

#[cfg(test)]
#[path = "updates/tests.rs"]
mod tests;
