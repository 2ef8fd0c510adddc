//! What a log says that its agent has spent.

use playhouse_messages::{
    chunk::{StreamChunk, Usage},
    config::Route,
    event::{AssistantMessage, Event, EventBody, NewEvent},
    id::SessionId,
    packed::expand,
    repair::{ABORTED_BEFORE_DISPATCH, TOOL_NOT_STARTED},
};
use serde::{Deserialize, Serialize};

use super::{Amounts, Prices, Resource};

/// By which the log of an agent with a tree budget says what an agent below it has spent. A reader
/// that does not know it loses nothing but that.
pub const BUDGET_CHARGED: &str = "budget/charged";

/// How many bytes of text count as a token, where nobody says better.
const BYTES_A_TOKEN: u64 = 4;

/// The data of [`BUDGET_CHARGED`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Charged {
    /// Who spent it.
    pub session: SessionId,
    /// Tokens of its requests.
    pub tokens: u64,
    /// Their cost in millionths.
    pub cost: u64,
    /// Turns.
    pub turns: u64,
    /// Steps.
    pub steps: u64,
    /// Tool calls.
    pub tool_calls: u64,
}

impl Charged {
    pub(super) fn new(session: SessionId, amounts: &Amounts) -> Self {
        Self {
            session,
            tokens: amounts.get(Resource::Tokens),
            cost: amounts.get(Resource::Cost),
            turns: amounts.get(Resource::Turns),
            steps: amounts.get(Resource::Steps),
            tool_calls: amounts.get(Resource::ToolCalls),
        }
    }

    /// The event that records it.
    pub fn event(&self) -> NewEvent {
        let data = serde_json::to_value(self).unwrap_or_default();
        NewEvent::custom(BUDGET_CHARGED, data).ignorable()
    }

    /// Reads one; `None` for an event of another kind or shape.
    pub fn read(body: &EventBody) -> Option<Self> {
        match body {
            EventBody::Custom { kind, data } if **kind == *BUDGET_CHARGED => {
                serde_json::from_value(data.clone()).ok()
            }
            _ => None,
        }
    }

    fn amounts(&self) -> Amounts {
        Amounts::of(Resource::Tokens, self.tokens)
            .and(Resource::Cost, self.cost)
            .and(Resource::Turns, self.turns)
            .and(Resource::Steps, self.steps)
            .and(Resource::ToolCalls, self.tool_calls)
    }
}

/// All tokens of a request: input, cached or not, and output.
pub fn tokens_of(usage: &Usage) -> u64 {
    let cached = [usage.cache_read_tokens, usage.cache_write_tokens].into_iter().flatten();
    // What a provider reports may be anything.
    [usage.input_tokens, usage.output_tokens].into_iter().chain(cached).fold(0, u64::saturating_add)
}

/// About how many tokens a text of so many bytes is.
pub fn estimated_tokens(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(BYTES_A_TOKEN)
}

/// What an agent has spent in earlier lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// By itself.
    pub own: Amounts,
    /// By those below it, as far as its log was told.
    pub below: Amounts,
}

impl Spent {
    /// Folds the events of an agent's own life: without those that it inherited by a fork.
    ///
    /// A request counts as its provider reported it. One without a report, of which something came,
    /// counts an estimate: what came, at four bytes a token, and the conversation as the report before
    /// counted it, or if there is none by its text. One of which nothing came counts nothing.
    pub fn fold<'a>(events: impl IntoIterator<Item = &'a Event>, prices: &Prices) -> Self {
        let mut spent = Self::default();
        let mut route: Option<Route> = None;
        let (mut turn_started, mut text, mut last) = (None, 0, None);
        for event in events {
            let own = &mut spent.own;
            let stream = match &event.body {
                EventBody::TurnStart(_) => {
                    turn_started = Some(event.time);
                    continue;
                }
                EventBody::TurnEnd(_) => {
                    let took = turn_started.take().map_or(0, |start| event.time - start);
                    own.add(Resource::WallTime, u64::try_from(took).unwrap_or(0));
                    continue;
                }
                EventBody::StepStart(at) => {
                    own.add(Resource::Steps, 1);
                    own.add(Resource::Turns, u64::from(at.step == 1));
                    continue;
                }
                EventBody::ToolCall(_) => {
                    own.add(Resource::ToolCalls, 1);
                    continue;
                }
                EventBody::ToolResult(data) => {
                    text += data.message.text().len();
                    let code = data.error.as_ref().map(|error| error.code.as_str());
                    // The log holds the pair of a call that no policy ever saw.
                    if code
                        .is_some_and(|it| it == ABORTED_BEFORE_DISPATCH || it == TOOL_NOT_STARTED)
                    {
                        own.take(&Amounts::of(Resource::ToolCalls, 1));
                    }
                    continue;
                }
                EventBody::SystemMessage(data) => {
                    text += data.message.text().len();
                    continue;
                }
                EventBody::UserMessage(message) => {
                    text += message.text().len();
                    continue;
                }
                EventBody::RequestHeader(data) => {
                    route = Some(data.header.config.route());
                    continue;
                }
                EventBody::AssistantMessage(data) => &data.stream,
                EventBody::AssistantAttempt(data) => &data.stream,
                body => {
                    if let Some(charged) = Charged::read(body) {
                        spent.below.add_all(&charged.amounts());
                    }
                    continue;
                }
            };
            let mut meter = Meter::new(last.unwrap_or_else(|| estimated_tokens(text)));
            expand(stream).iter().for_each(|timed| meter.see(&timed.chunk));
            if let EventBody::AssistantMessage(AssistantMessage { usage: Some(usage), .. }) =
                &event.body
            {
                meter.reported = Some(*usage);
            }
            let usage = meter.usage();
            last = meter.reported.as_ref().map(tokens_of).or(last);
            own.add(Resource::Tokens, tokens_of(&usage));
            let price = route.as_ref().and_then(|route| prices.of(route));
            own.add(Resource::Cost, price.map_or(0, |price| price.micros(&usage)));
            if let EventBody::AssistantMessage(data) = &event.body {
                text += data.message.text().len();
            }
        }
        spent
    }
}

/// What a stream of chunks shows of its usage.
#[derive(Debug, Clone, Copy)]
pub struct Meter {
    prompt: u64,
    came: usize,
    reported: Option<Usage>,
}

impl Meter {
    /// For a request of about so many tokens.
    pub fn new(prompt: u64) -> Self {
        Self { prompt, came: 0, reported: None }
    }

    /// One more chunk. A later report replaces an earlier one.
    pub fn see(&mut self, chunk: &StreamChunk) {
        match chunk {
            StreamChunk::Usage { usage } => self.reported = Some(*usage),
            StreamChunk::TextDelta { text, .. } | StreamChunk::ReasoningDelta { text, .. } => {
                self.came += text.len();
            }
            StreamChunk::ToolCallDelta { arguments_delta, .. } => {
                self.came += arguments_delta.len().max(1);
            }
            _ => {}
        }
    }

    /// What was reported, if anything was.
    pub fn reported(&self) -> Option<Usage> {
        self.reported
    }

    /// As it was reported, or by the text; nothing if nothing came.
    pub fn usage(&self) -> Usage {
        match self.reported {
            Some(usage) => usage,
            None if self.came == 0 => Usage::default(),
            None => Usage {
                input_tokens: self.prompt,
                output_tokens: estimated_tokens(self.came),
                ..Usage::default()
            },
        }
    }
}
