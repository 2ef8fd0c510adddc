//! The token meter: what the next request of a session weighs.

use std::sync::Arc;

use playhouse_messages::{
    assembler::BlockAssembler,
    boundary::{Boundary, BoundaryError},
    candidate::Candidate,
    chunk::Usage,
    chunked::Chunked,
    config::Header,
    event::{AssistantMessage, Event, EventBody, Seq},
    log::Log,
    surface::SurfaceError,
};
use serde::{Serialize, Serializer};

use crate::{
    prices,
    surface_prices::{NodePrice, SurfacePrices},
    usage::{ContextBreakdown, PressureFold, SessionUsage, UsageFold, prompt_tokens},
};

/// What a measurement starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Baseline {
    /// Nothing: there is neither a request nor a conversation.
    None {
        /// 0.
        tokens: u64,
    },
    /// Prices by [`prices`] alone.
    Estimated {
        /// The estimate.
        tokens: u64,
    },
    /// What the provider reported for the last answer.
    Usage {
        /// Prompt and answer, as the provider counted them.
        tokens: u64,
        /// The report.
        usage: Usage,
    },
}

impl Baseline {
    /// Its tokens.
    pub fn tokens(&self) -> u64 {
        match self {
            Self::None { tokens } | Self::Estimated { tokens } | Self::Usage { tokens, .. } => {
                *tokens
            }
        }
    }
}

/// What the next request of a session weighs, at one moment. Immutable, and cheap to hold: it shares
/// its nodes with the meter.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measurement {
    /// How many events of the log were measured.
    pub log_revision: u64,
    /// What the measurement starts from.
    pub baseline: Baseline,
    /// What the conversation has gained or lost since, estimated.
    pub surface_delta_tokens: i64,
    /// Baseline and delta; 0 at least.
    pub total_tokens: u64,
    /// The conversation alone, estimated.
    pub surface_tokens: u64,
    #[serde(serialize_with = "list")]
    nodes: Chunked<NodePrice>,
}

impl Measurement {
    /// The conversation's nodes with their prices, in the order in which the model sees them.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = NodePrice> + ExactSizeIterator + '_ {
        self.nodes.iter().copied()
    }
}

fn list<S: Serializer>(nodes: &Chunked<NodePrice>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(nodes.iter())
}

impl PartialEq for Measurement {
    fn eq(&self, other: &Self) -> bool {
        let facts = |m: &Self| {
            (m.log_revision, m.baseline, m.surface_delta_tokens, m.total_tokens, m.surface_tokens)
        };
        facts(self) == facts(other) && self.nodes.iter().eq(other.nodes.iter())
    }
}

/// Why an event does not fit. The meter stands before it still, and says the same again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event {seq} (`{kind}`) cannot be metered: {fault}")]
pub struct MeterError {
    /// The event.
    pub seq: Seq,
    /// Its type.
    pub kind: String,
    /// What is wrong with it.
    #[source]
    pub fault: MeterFault,
}

impl MeterError {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match &self.fault {
            MeterFault::Boundary(fault) => fault.code(),
            MeterFault::Surface(fault) => fault.code(),
        }
    }
}

/// What is wrong with an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MeterFault {
    /// It is out of place in its turn or step.
    #[error(transparent)]
    Boundary(#[from] BoundaryError),
    /// It does not fit the surface.
    #[error(transparent)]
    Surface(#[from] SurfaceError),
}

/// The last answer: what the request and it weighed then.
#[derive(Debug, Clone)]
struct Anchor {
    header: Option<Arc<Header>>,
    baseline: Baseline,
    surface: u64,
}

/// Meters one log. A pure fold; clones share what they hold.
///
/// The last answer is the anchor: if its provider reported more than the estimate, the report is
/// the baseline, and what the conversation gained or lost since is estimated. A header that differs
/// from the anchor's makes the report worthless, so everything is estimated.
///
/// The anchor's request holds what the surface held when the answer came, not when its step started:
/// a step's input is admitted after its start, and a handler of a failed attempt may compact.
#[derive(Debug, Clone, Default)]
pub struct TokenMeter {
    next: Seq,
    boundary: Boundary,
    surface: SurfacePrices,
    header: Option<Arc<Header>>,
    anchor: Option<Anchor>,
    usage: UsageFold,
    pressure: PressureFold,
}

impl TokenMeter {
    /// A meter of an empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many events were metered.
    pub fn log_revision(&self) -> u64 {
        self.next
    }

    /// Meters the events of `log` that are new; `log` begins with those that were metered before.
    ///
    /// # Errors
    ///
    /// The first event that does not fit. Those before it count; it and all after it do not.
    pub fn catch_up(&mut self, log: &Log) -> Result<(), MeterError> {
        log.range(self.next..log.len()).try_for_each(|event| self.advance(log, event))
    }

    fn advance(&mut self, log: &Log, event: &Event) -> Result<(), MeterError> {
        let refuse = |fault: MeterFault| MeterError {
            seq: event.seq,
            kind: event.body.kind().to_owned(),
            fault,
        };
        let boundary = self.boundary.next(Candidate::from(event));
        let boundary = boundary.map_err(|fault| refuse(fault.into()))?;
        let change = self.surface.plan(log, event).map_err(|fault| refuse(fault.into()))?;
        let before = self.surface.total();
        self.surface.apply(log, event, &change);
        self.usage.apply(event);
        self.pressure.apply(event, before);
        match &event.body {
            EventBody::RequestHeader(data) => self.header = Some(data.header.clone()),
            EventBody::AssistantMessage(data) if !Candidate::from(event).is_replacement() => {
                self.anchor = Some(self.anchor(data, before));
            }
            _ => {}
        }
        self.boundary = boundary;
        self.next = event.seq + 1;
        Ok(())
    }

    /// `asked` is what the surface weighed in the request.
    fn anchor(&self, answer: &AssistantMessage, asked: u64) -> Anchor {
        let header = self.header.clone();
        let request = header_price(header.as_deref()) + asked;
        let (Some(usage), Some(_)) = (answer.usage, &header) else {
            let kept = prices::message(&answer.message);
            let baseline = Baseline::Estimated { tokens: request + kept };
            return Anchor { header, baseline, surface: asked + kept };
        };
        // What the provider counted is what it sent, not what a settlement kept of it.
        let produced = if answer.stream.is_empty() {
            prices::message(&answer.message)
        } else {
            prices::content(&BlockAssembler::replay(&answer.stream).produced())
        };
        let (reported, estimate) =
            (prompt_tokens(&usage) + usage.output_tokens, request + produced);
        let baseline = if reported >= estimate {
            Baseline::Usage { tokens: reported, usage }
        } else {
            Baseline::Estimated { tokens: estimate }
        };
        Anchor { header, baseline, surface: asked + produced }
    }

    /// What the next request weighs if it has this header; `None` for the last one of the log.
    pub fn measure(&self, header: Option<&Header>) -> Measurement {
        let header = header.or(self.header.as_deref());
        let surface_tokens = self.surface.total();
        let anchor = self.anchor.as_ref().filter(|anchor| same(anchor.header.as_deref(), header));
        let (baseline, surface_delta_tokens) = match anchor {
            Some(anchor) => (anchor.baseline, difference(surface_tokens, anchor.surface)),
            None if header.is_none() && self.surface.nodes().is_empty() => {
                (Baseline::None { tokens: 0 }, 0)
            }
            None => {
                let tokens = header_price(header) + surface_tokens;
                (Baseline::Estimated { tokens }, 0)
            }
        };
        Measurement {
            log_revision: self.next,
            baseline,
            surface_delta_tokens,
            total_tokens: baseline.tokens().saturating_add_signed(surface_delta_tokens),
            surface_tokens,
            nodes: self.surface.nodes().clone(),
        }
    }

    /// What calls cost so far, how full the window is, and with what.
    pub fn session_usage(&self) -> SessionUsage {
        let (total, system) = (self.surface.total(), self.surface.system());
        SessionUsage {
            token_usage: self.usage.value(),
            context_pressure: self.pressure.value(total),
            context_breakdown: ContextBreakdown {
                system_tokens: system,
                tools_tokens: header_price(self.header.as_deref()),
                message_tokens: total - system,
            },
        }
    }
}

/// The prompt stands in the conversation, so of a header only the tools weigh.
fn header_price(header: Option<&Header>) -> u64 {
    header.map_or(0, |header| prices::tools(&header.tools))
}

/// Which fields an adapter filled in is no part of a request.
fn same(a: Option<&Header>, b: Option<&Header>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.config == b.config && a.tools == b.tools,
        (a, b) => a.is_none() && b.is_none(),
    }
}

/// Token counts are far below 2^63: each is a share of text in memory, or a provider's count below
/// 2^53.
fn difference(now: u64, then: u64) -> i64 {
    now.wrapping_sub(then).cast_signed()
}

#[cfg(test)]
mod tests;
