//! How long a child has worked.

use playhouse_messages::{
    event::{EventBody, Seq},
    log::Log,
};

/// How long a child has worked, in turns of its own; what it inherited is its parent's work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timing {
    /// In turns that have ended, together; milliseconds.
    pub settled_ms: u64,
    /// The turn that is open.
    pub active: Option<OpenTurn>,
}

/// A turn that is open, in epoch milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenTurn {
    /// When it began.
    pub since: i64,
    /// When its last event came.
    pub through: i64,
}

impl Timing {
    /// Folds a session's own events: those behind the ones that it inherited.
    ///
    /// ```
    /// use playhouse_messages::log::Log;
    /// use playhouse_subagents::listing::Timing;
    ///
    /// assert_eq!(Timing::of(&Log::new(), 0), Timing::default());
    /// ```
    pub fn of(log: &Log, inherited_event_count: Seq) -> Self {
        let mut timing = Self::default();
        for event in log.range(inherited_event_count..log.len()) {
            let time = event.time;
            match (&event.body, &mut timing.active) {
                (EventBody::TurnStart(_), active) => {
                    *active = Some(OpenTurn { since: time, through: time });
                }
                (EventBody::TurnEnd(_), active) => {
                    let took = active.take().map_or(0, |turn| time.saturating_sub(turn.since));
                    timing.settled_ms += u64::try_from(took).unwrap_or(0);
                }
                (_, Some(turn)) => turn.through = time,
                (_, None) => {}
            }
        }
        timing
    }
}

#[cfg(test)]
mod tests {
    mod subagents {
        use std::sync::Arc;

        use playhouse_messages::event::{NewEvent, StepAt, TurnEnd, TurnEndReason, TurnStart};

        use super::super::*;

        #[test]
        fn orchestration_1_9_only_turns_of_its_own_count_and_an_open_one_apart() {
            let start = |turn| EventBody::TurnStart(TurnStart { turn });
            let end = |turn| EventBody::TurnEnd(TurnEnd { turn, reason: TurnEndReason::Completed });
            let step = |turn| EventBody::StepStart(StepAt { turn, step: 1 });
            let events = [
                (100, start(1)),
                (900, end(1)),
                (1_000, start(2)),
                (1_250, end(2)),
                (2_000, start(3)),
                (2_010, end(3)),
                (3_000, start(4)),
                (3_007, step(4)),
            ];
            let log: Log = (0..)
                .zip(events)
                .map(|(seq, (time, body))| Arc::new(NewEvent::log_only(body).at(seq, time)))
                .collect();
            let active = Some(OpenTurn { since: 3_000, through: 3_007 });
            assert_eq!(Timing::of(&log, 2), Timing { settled_ms: 260, active });
            assert_eq!(Timing::of(&log, 8), Timing::default());
        }
    }
}
