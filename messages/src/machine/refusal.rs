//! What is left to do when the log refuses an event that the loop wanted.

use super::{
    Effect, Machine, Moment, Phase,
    step::{Outcome, Stage, Then, run_of},
};
use crate::{chunk::Failure, frame::FrameOutcome, session_state::AppendError};

impl Machine {
    /// The table of the core specification, 5.4.
    pub(super) fn refused(&mut self, error: AppendError, moment: &Moment, out: &mut Vec<Effect>) {
        let Phase::Running(run) = &mut self.phase else {
            // A log that cannot be balanced says so at each turn; the agent answers all the same.
            if matches!(self.phase, Phase::Repairing { .. }) {
                self.phase = Phase::Idle;
            }
            return self.report(error.into(), out);
        };
        let stage = std::mem::replace(&mut run.stage, Stage::Opening);
        match stage {
            Stage::Opening => {
                self.report(error.into(), out);
                self.rest_idle(out);
            }
            Stage::Starting(_) => {
                run.step -= 1;
                if !self.aborted(moment, out) {
                    self.fail_turn(error.into(), out);
                }
            }
            Stage::Admitting { .. } => self.end_step(Outcome::Failed(error.into()), out),
            Stage::Settling { then, .. } => {
                out.push(Effect::EndAttempt(FrameOutcome::Abandoned));
                let mut failure = Failure::from(error);
                if let Then::Recover(first) | Then::Fail(first) = then {
                    failure.message = format!("[{first}; {}]", failure.message);
                }
                self.end_step(Outcome::Failed(failure), out);
            }
            Stage::Ending(_) => {
                let step = run.step;
                if !self.aborted(moment, out) {
                    self.fail_step(step, error.into(), out);
                }
            }
            Stage::Claiming => {
                if !self.aborted(moment, out) {
                    self.fail_turn(error.into(), out);
                }
            }
            // The turn stays open in the log; idle is reached all the same.
            Stage::Closing { .. } => {
                self.report(error.into(), out);
                self.rest(out);
            }
            stage => {
                debug_assert!(false, "refused in {stage:?} {moment:?}: {error}");
                run_of(&mut self.phase).stage = stage;
            }
        }
    }
}
