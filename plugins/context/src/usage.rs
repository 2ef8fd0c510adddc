//! What a session's calls cost so far, and how full its window is: folds for people and policies.

use playhouse_messages::{
    chunk::{StreamChunk, Usage},
    event::{Event, EventBody, StepAt},
    packed::StreamRecord,
};
use serde::Serialize;

/// The sum of what providers reported, over the whole log.
///
/// A step counts once: of several reports in a row for one step, as a retry makes them, the last
/// one counts. A failed step's counts too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenUsage {
    /// Input that no cache served.
    pub uncached_input_tokens: u64,
    /// Output, reasoning included.
    pub output_tokens: u64,
    /// Input served by a cache.
    pub cache_read_tokens: u64,
    /// Input written to a cache.
    pub cache_write_tokens: u64,
}

impl TokenUsage {
    fn add(&mut self, usage: &Usage) {
        self.uncached_input_tokens += usage.input_tokens;
        self.output_tokens += usage.output_tokens;
        self.cache_read_tokens += usage.cache_read_tokens.unwrap_or(0);
        self.cache_write_tokens += usage.cache_write_tokens.unwrap_or(0);
    }
}

/// How full the context window is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContextPressure {
    /// The prompt of the last call whose provider reported it, cached parts included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_tokens: Option<u64>,
    /// The same, and what the conversation has gained or lost since, estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projected_tokens: Option<u64>,
    /// The window of the route that the last request took, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
}

/// What the next request is made of, estimated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContextBreakdown {
    /// System messages.
    pub system_tokens: u64,
    /// Tool definitions.
    pub tools_tokens: u64,
    /// All other messages.
    pub message_tokens: u64,
}

/// The three projections of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionUsage {
    /// What calls cost so far.
    pub token_usage: TokenUsage,
    /// How full the context window is.
    pub context_pressure: ContextPressure,
    /// What the next request is made of.
    pub context_breakdown: ContextBreakdown,
}

/// What an event reports of a call's cost.
fn reported(event: &Event) -> Option<(StepAt, Usage)> {
    match &event.body {
        EventBody::AssistantMessage(data) => {
            let usage = data.usage.or_else(|| last_usage(&data.stream))?;
            Some((StepAt { turn: data.turn, step: data.step }, usage))
        }
        EventBody::AssistantAttempt(data) => {
            let usage = last_usage(&data.stream)?;
            Some((StepAt { turn: data.turn, step: data.step }, usage))
        }
        _ => None,
    }
}

fn last_usage(stream: &[StreamRecord]) -> Option<Usage> {
    stream.iter().rev().find_map(|record| match record {
        StreamRecord::Chunk { chunk: StreamChunk::Usage { usage }, .. } => Some(*usage),
        _ => None,
    })
}

/// Tokens of a prompt as its provider counted them.
pub(crate) fn prompt_tokens(usage: &Usage) -> u64 {
    usage.input_tokens
        + usage.cache_read_tokens.unwrap_or(0)
        + usage.cache_write_tokens.unwrap_or(0)
}

/// The fold behind [`TokenUsage`].
#[derive(Debug, Clone, Copy, Default)]
pub struct UsageFold {
    settled: TokenUsage,
    open: Option<(StepAt, Usage)>,
}

impl UsageFold {
    /// Folds the next event of a log.
    pub fn apply(&mut self, event: &Event) {
        let Some((at, usage)) = reported(event) else { return };
        if let Some((before, earlier)) = self.open.replace((at, usage))
            && before != at
        {
            self.settled.add(&earlier);
        }
    }

    /// The sum so far.
    pub fn value(&self) -> TokenUsage {
        let mut sum = self.settled;
        if let Some((_, usage)) = &self.open {
            sum.add(usage);
        }
        sum
    }
}

/// The fold behind [`ContextPressure`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PressureFold {
    /// The last reported prompt, and what the surface weighed under it.
    sample: Option<(u64, u64)>,
    window: Option<u64>,
}

impl PressureFold {
    /// Folds an event; `surface` is what the surface weighed before it.
    pub(crate) fn apply(&mut self, event: &Event, surface: u64) {
        if let EventBody::RequestContext(context) = &event.body {
            self.window = context.context_window;
        }
        if let Some((_, usage)) = reported(event) {
            self.sample = Some((prompt_tokens(&usage), surface));
        }
    }

    pub(crate) fn value(&self, surface: u64) -> ContextPressure {
        let projected =
            |(pressure, before): (u64, u64)| (pressure + surface).saturating_sub(before);
        ContextPressure {
            pressure_tokens: self.sample.map(|(pressure, _)| pressure),
            projected_tokens: self.sample.map(projected),
            context_window: self.window,
        }
    }
}
