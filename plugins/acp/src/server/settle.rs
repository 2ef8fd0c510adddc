//! How a prompt is answered.

use agent_client_protocol::v1::schema::StopReason;
use playhouse_messages::{
    chunk::Failure,
    event::{EventBody, Seq, TurnEndReason},
    log::Log,
};

/// What is known of a prompt once its agent is idle.
#[derive(Debug)]
pub(super) struct Settlement<'a> {
    /// The client cancelled it.
    pub(super) cancelled: bool,
    /// All that came of it was sent.
    pub(super) delivered: bool,
    /// Another turn that ran meanwhile has failed.
    pub(super) failed_beside: Option<Failure>,
    /// How its own turn ended, if it had one.
    pub(super) end: Option<&'a TurnEndReason>,
}

impl Settlement<'_> {
    /// The answer. What comes first in the order of fields decides.
    ///
    /// A spent budget answers `max_turn_requests` whatever its resource: a refusal would have the
    /// client forget the prompt, which the agent does not.
    pub(super) fn answer(self) -> Result<StopReason, Failure> {
        if self.cancelled {
            return Ok(StopReason::Cancelled);
        }
        if !self.delivered {
            let text = "the client did not take all of the answer; the session's log has it";
            return Err(Failure::new("OUTPUT_LOST", text));
        }
        if let Some(failure) = self.failed_beside {
            return Err(failure);
        }
        match self.end {
            None | Some(TurnEndReason::Interrupted) => Ok(StopReason::Cancelled),
            Some(TurnEndReason::Error(failure)) => Err(failure.clone()),
            Some(TurnEndReason::MaxTokens) => Ok(StopReason::MaxTokens),
            Some(TurnEndReason::Budget(_)) => Ok(StopReason::MaxTurnRequests),
            Some(_) => Ok(StopReason::EndTurn),
        }
    }
}

/// The failure of a turn other than `turn` that ended at or after `from`.
pub(super) fn failed_beside(log: &Log, from: Seq, turn: Option<u32>) -> Option<Failure> {
    log.range(from..log.len()).find_map(|event| match &event.body {
        EventBody::TurnEnd(end) if Some(end.turn) != turn => match &end.reason {
            TurnEndReason::Error(failure) => Some(failure.clone()),
            _ => None,
        },
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    mod subagents {
        use playhouse_messages::event::{BudgetSpent, CancelCause};

        use super::super::*;

        #[test]
        fn orchestration_16_2_a_cancel_comes_first_then_lost_output_then_failures_then_the_turns_end()
         {
            let failure = |code: &str| Failure::new(code, "boom");
            let own = TurnEndReason::Error(failure("OWN"));
            let all = |cancelled, delivered, beside: bool| {
                let failed_beside = beside.then(|| failure("BESIDE"));
                Settlement { cancelled, delivered, failed_beside, end: Some(&own) }
                    .answer()
                    .map_err(|failure| failure.code)
            };
            assert_eq!(all(true, false, true), Ok(StopReason::Cancelled));
            assert_eq!(all(false, false, true), Err("OUTPUT_LOST".into()));
            assert_eq!(all(false, true, true), Err("BESIDE".into()));
            assert_eq!(all(false, true, false), Err("OWN".into()));
        }

        #[test]
        fn orchestration_16_2_each_end_of_a_turn_has_its_answer() {
            let spent = BudgetSpent { resource: "tokens".into(), limit: 1, used: 2 };
            let hook = CancelCause::Hook { reason: "no".into() };
            for (end, answer) in [
                (None, StopReason::Cancelled),
                (Some(TurnEndReason::Interrupted), StopReason::Cancelled),
                (Some(TurnEndReason::Completed), StopReason::EndTurn),
                (Some(TurnEndReason::Blocked), StopReason::EndTurn),
                (Some(TurnEndReason::Aborted(hook)), StopReason::EndTurn),
                (Some(TurnEndReason::MaxTokens), StopReason::MaxTokens),
                (Some(TurnEndReason::Budget(spent)), StopReason::MaxTurnRequests),
            ] {
                let end = end.as_ref();
                let known =
                    Settlement { cancelled: false, delivered: true, failed_beside: None, end };
                assert_eq!(known.answer(), Ok(answer), "{end:?}");
            }
        }
    }
}
