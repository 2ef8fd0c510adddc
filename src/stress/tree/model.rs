//! A model that delegates as the shape says, and the tool that its agents call.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use futures::{StreamExt, stream::BoxStream};
use playhouse_messages::{
    chunk::{Failure, FinishReason, StreamChunk, Usage},
    content::{ContentBlock, ToolCallBlock},
    id::CallId,
};
use playhouse_models::scripted::{Conversation, Script, ScriptedAdapter};
use playhouse_plugin_api::{
    cancel::CancelToken,
    llm::{LlmAdapter, LlmRequest},
    tool::{Tool, ToolError, ToolRun, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::shape::{Node, Shape};

const MEASURE: &str = "measure";

/// Answers at once: an agent's prompt is its place, and what its tools said decides the rest.
pub(super) struct Model {
    shape: Shape,
}

impl Model {
    pub(super) fn adapter(shape: Shape) -> impl LlmAdapter {
        let model = Self { shape };
        ScriptedAdapter::new(Script::new()).streamed(move |_, request| model.stream(request))
    }

    fn stream(&self, request: LlmRequest) -> BoxStream<'static, Result<StreamChunk, Failure>> {
        let conversation = Conversation::of(&request);
        let blocks = match self.answer(&conversation) {
            Ok(blocks) => blocks,
            Err(failure) => return futures::stream::iter([Err(failure)]).boxed(),
        };
        let calls = blocks.iter().any(|block| matches!(block, ContentBlock::ToolCall(_)));
        let reason = if calls { FinishReason::ToolCalls } else { FinishReason::Stop };
        let usage = Usage {
            input_tokens: conversation.bytes as u64 / 4,
            output_tokens: 10 * blocks.len() as u64,
            ..Usage::default()
        };
        let mut chunks = Vec::with_capacity(3 * blocks.len() + 2);
        for (index, block) in (0..).zip(blocks) {
            chunks.push(StreamChunk::BlockStart { index, block_type: block.kind().to_owned() });
            chunks.push(match &block {
                ContentBlock::ToolCall(call) => StreamChunk::ToolCallDelta {
                    index,
                    id: call.id.clone(),
                    name: Some(call.name.clone()),
                    arguments_delta: call.arguments.clone(),
                },
                block => StreamChunk::TextDelta {
                    index,
                    text: block.as_text().unwrap_or_default().to_owned(),
                },
            });
            chunks.push(StreamChunk::BlockEnd { index, block });
        }
        chunks.push(StreamChunk::Usage { usage });
        chunks.push(StreamChunk::Finish { reason, replay_state: None });
        futures::stream::iter(chunks.into_iter().map(Ok)).boxed()
    }

    fn answer(&self, conversation: &Conversation) -> Result<Vec<ContentBlock>, Failure> {
        if conversation.results.is_empty() {
            let node = read(&conversation.prompt).ok_or_else(|| lost(&conversation.prompt))?;
            let here = json!({"level": node.level, "number": node.number});
            let below = self.shape.children(node).map(|child| {
                let Node { level, number } = child;
                let description = format!("branch {level}.{number}");
                ("subagent", json!({"description": description, "prompt": prompt(child)}))
            });
            let calls = std::iter::once((MEASURE, here)).chain(below).enumerate();
            let call = |(index, (name, arguments)): (usize, (&str, serde_json::Value))| {
                ContentBlock::ToolCall(ToolCallBlock {
                    id: CallId::from(format!("call-{}", index + 1)),
                    name: name.to_owned(),
                    arguments: arguments.to_string(),
                })
            };
            return Ok(calls.map(call).collect());
        }
        let mut whole = (0_u64, 0_u64);
        for result in &conversation.results {
            // What failed is not counted, and so the root's report is not what it should be.
            if let Some((agents, sum)) = reported(&result.text) {
                whole = (whole.0 + agents, whole.1.wrapping_add(sum));
            }
        }
        Ok(vec![ContentBlock::text(format!("{} {}", whole.0, whole.1))])
    }
}

/// What an agent is asked for.
pub(super) fn prompt(node: Node) -> String {
    format!("grow {} {}", node.level, node.number)
}

fn read(prompt: &str) -> Option<Node> {
    let (level, number) = prompt.strip_prefix("grow ")?.split_once(' ')?;
    Some(Node { level: level.parse().ok()?, number: number.parse().ok()? })
}

/// How many agents a report is about, and the sum of what they are worth.
pub(super) fn reported(text: &str) -> Option<(u64, u64)> {
    let (agents, sum) = text.split_once(' ')?;
    Some((agents.parse().ok()?, sum.parse().ok()?))
}

fn lost(prompt: &str) -> Failure {
    Failure::new("LOST", format!("`{prompt}` is no place in the tree"))
}

/// Where the agents of one tree wait for each other.
pub(super) struct Gathering {
    expected: u64,
    arrived: AtomicU64,
    complete: CancelToken,
}

impl Gathering {
    pub(super) fn of(expected: u64) -> Arc<Self> {
        Arc::new(Self { expected, arrived: AtomicU64::new(0), complete: CancelToken::new() })
    }

    /// How many have called their tool.
    pub(super) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Acquire)
    }

    /// Resolves once all are there.
    pub(super) async fn complete(&self) {
        self.complete.cancelled().await;
    }

    async fn arrive(&self) {
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.expected {
            self.complete.cancel(crate::CancelCause::User);
        }
        self.complete().await;
    }
}

/// Where the agents of the tree of the moment gather.
#[derive(Clone)]
pub(super) struct Meeting(Arc<Mutex<Arc<Gathering>>>);

impl Meeting {
    pub(super) fn new(gathering: Arc<Gathering>) -> Self {
        Self(Arc::new(Mutex::new(gathering)))
    }

    pub(super) fn replace(&self, gathering: Arc<Gathering>) {
        *self.lock() = gathering;
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Gathering>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Deserialize, JsonSchema)]
struct Place {
    level: u32,
    number: u64,
}

/// The tool: waits for all others, and says what its agent is worth.
pub(super) fn measure(meeting: Meeting, seed: u64) -> Arc<dyn Tool> {
    let tool = tool_fn(MEASURE, "Measures a place.", move |place: Place, run: ToolRun| {
        let gathering = meeting.lock().clone();
        async move {
            if run.cancel().race(gathering.arrive()).await.is_none() {
                return Err(ToolError::aborted());
            }
            let worth = Node { level: place.level, number: place.number }.worth(seed);
            Ok(format!("1 {worth}"))
        }
    });
    Arc::new(tool.parallel())
}
