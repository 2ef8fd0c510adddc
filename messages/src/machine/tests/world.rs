//! What the world answers: a script with defaults.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    chunk::{Failure, FinishReason, StreamChunk, Usage},
    config::{AdapterDefaults, CallConfig, SystemPromptUpdate, ToolList, ToolUpdate},
    machine::{Decision, Entry, Preparation, Proposal, Recovery},
    message::SharedMessage,
    prepared::{Prepared, Ticket},
    runtime_context::{ContextSection, RuntimeContext},
    settlement::StreamEnd,
};

/// How the model's attempt goes.
#[derive(Debug, Clone)]
pub enum Answer {
    NotStarted(Failure),
    Stream(Vec<StreamChunk>, StreamEnd),
}

pub fn delta(text: &str) -> StreamChunk {
    StreamChunk::TextDelta { index: 0, text: text.into() }
}

pub fn call_delta(id: &str, index: u32) -> StreamChunk {
    StreamChunk::ToolCallDelta {
        index,
        id: id.into(),
        name: Some("tool".into()),
        arguments_delta: "{}".into(),
    }
}

pub fn usage() -> StreamChunk {
    StreamChunk::Usage { usage: Usage { input_tokens: 7, output_tokens: 2, ..Usage::default() } }
}

pub fn finish(reason: FinishReason) -> StreamChunk {
    StreamChunk::Finish { reason, replay_state: None }
}

/// A stream that was cut, or ends without a finish.
pub fn chunks(chunks: Vec<StreamChunk>) -> Answer {
    Answer::Stream(chunks, StreamEnd::Ended)
}

pub fn says(text: &str) -> Answer {
    chunks(vec![delta(text), usage(), finish(FinishReason::Stop)])
}

pub fn calls(ids: &[&str]) -> Answer {
    let calls = ids.iter().zip(1..).map(|(id, index)| call_delta(id, index));
    let head = [delta("so:")].into_iter();
    chunks(head.chain(calls).chain([finish(FinishReason::ToolCalls)]).collect())
}

pub fn cut(text: &str, ids: &[&str]) -> Answer {
    let text = (!text.is_empty()).then(|| delta(text));
    let calls = ids.iter().zip(1..).map(|(id, index)| call_delta(id, index));
    chunks(text.into_iter().chain(calls).chain([finish(FinishReason::MaxTokens)]).collect())
}

pub fn fails(code: &str) -> Answer {
    let failure = Failure { status: Some(503), ..Failure::new(code, "it broke") };
    chunks(vec![delta("par"), finish(FinishReason::Error { failure })])
}

pub fn throws(code: &str) -> Answer {
    Answer::Stream(vec![delta("par")], StreamEnd::Thrown(Failure::new(code, "thrown")))
}

/// What the pre-step chain decides.
#[derive(Debug, Clone)]
pub enum Pre {
    Reject,
    /// Enter with these and nothing else.
    Rewrite(Vec<SharedMessage>),
    /// Enter as by default, plus these.
    Extra(Vec<SharedMessage>),
    /// Enter as by default, and start a series.
    Series,
    Fail(&'static str),
}

#[derive(Debug, Clone)]
pub struct World {
    pub prompt: Result<String, Failure>,
    pub tools: ToolList,
    pub in_history: bool,
    pub tool_update: Option<ToolUpdate>,
    pub window: Option<u64>,
    pub default_effort: Option<String>,
    pub default_max: Option<u64>,
    pub context: Vec<ContextSection>,
    pub temperature: Option<f64>,
    /// What a request hook makes of the model.
    pub hooked_model: Option<String>,
    pub pre: VecDeque<Pre>,
    pub unprepared: VecDeque<Failure>,
    pub answers: VecDeque<Answer>,
    pub verdicts: VecDeque<Result<Recovery, Failure>>,
    pub executor: VecDeque<Failure>,
    /// How many calls a failing executor starts, and to how many it gives a result.
    pub fails_after: (u8, u8),
    pub stopping: VecDeque<Failure>,
    pub concludes: bool,
}

impl Default for World {
    fn default() -> Self {
        Self {
            prompt: Ok("P".into()),
            tools: Arc::new([]),
            in_history: false,
            tool_update: None,
            window: None,
            default_effort: None,
            default_max: None,
            context: Vec::new(),
            temperature: None,
            hooked_model: None,
            pre: VecDeque::new(),
            unprepared: VecDeque::new(),
            answers: VecDeque::new(),
            verdicts: VecDeque::new(),
            executor: VecDeque::new(),
            fails_after: (0, 0),
            stopping: VecDeque::new(),
            concludes: false,
        }
    }
}

impl World {
    pub fn fact(&mut self, text: &str) {
        let section = ContextSection { name: "clock".into(), text: text.into() };
        self.context = if text.is_empty() { vec![] } else { vec![section] };
    }

    pub fn declare(&mut self, names: &[&str]) {
        self.tools = names.iter().map(|name| crate::testing::schema(name)).collect();
    }

    /// The tools with another description.
    pub fn redefine(&mut self, deferred: bool) {
        let tools = self.tools.iter().map(|tool| {
            let mut tool = (**tool).clone();
            tool.description = format!("deferred: {deferred}");
            tool.into()
        });
        self.tools = tools.collect();
    }

    pub fn propose(
        &mut self,
        claimed: Vec<SharedMessage>,
        told: &RuntimeContext,
        id: &str,
    ) -> Result<Proposal, Failure> {
        let mut entry = Entry { messages: claimed, ..Entry::default() };
        let pre = self.pre.pop_front();
        if !matches!(pre, Some(Pre::Rewrite(_)))
            && let Some(candidate) = told.candidate(&self.context, || id.into())
        {
            entry.candidate = Some(candidate.id.clone());
            entry.messages.push(Arc::new(candidate));
        }
        let decision = match pre {
            Some(Pre::Fail(code)) => return Err(Failure::new(code, "pre-step")),
            Some(Pre::Reject) => Decision::Reject,
            Some(Pre::Rewrite(messages)) => Decision::Enter(Entry { messages, ..Entry::default() }),
            Some(Pre::Extra(messages)) => {
                entry.messages.extend(messages);
                Decision::Enter(entry)
            }
            Some(Pre::Series) => Decision::Enter(Entry { starts_series: true, ..entry }),
            None => Decision::Enter(entry),
        };
        let prompt = self.prompt.clone().map(Arc::from);
        Ok(Proposal { decision, prompt, tools: self.tools.clone() })
    }

    pub fn prepare(&mut self, seed: CallConfig) -> Result<Preparation, Failure> {
        if let Some(failure) = self.unprepared.pop_front() {
            return Err(failure);
        }
        let mut proposed = seed;
        if self.temperature.is_some() {
            proposed.temperature = self.temperature;
        }
        if let Some(model) = &self.hooked_model {
            proposed.model.clone_from(model);
        }
        let mut config = proposed.clone();
        let adapter_defaults = AdapterDefaults {
            reasoning_effort: config.reasoning_effort.is_none() && self.default_effort.is_some(),
            max_tokens: config.max_tokens.is_none() && self.default_max.is_some(),
        };
        config.reasoning_effort = config.reasoning_effort.or(self.default_effort.clone());
        config.max_tokens = config.max_tokens.or(self.default_max);
        let prepared = Prepared {
            ticket: Some(Ticket::new(1)),
            adapter_defaults,
            context_window: self.window,
            system_prompt_update: self.in_history.then_some(SystemPromptUpdate::InHistory),
            tool_update: self.tool_update,
            ..Prepared::unserved(config)
        };
        Ok(Preparation { proposed, prepared: Arc::new(prepared), context: self.context.clone() })
    }
}
