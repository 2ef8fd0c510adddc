//! The front door: messages and cancels, whose order decides what runs.

use super::{Awaiting, Effect, Machine, Moment, Phase, Ticket};
use crate::{
    event::{CancelCause, InboxTarget},
    message::SharedMessage,
    session::{Accept, Command, InboxEdit},
};

impl Machine {
    #[allow(clippy::too_many_arguments, reason = "the fields of one input")]
    pub(super) fn send(
        &mut self,
        ticket: Ticket,
        message: SharedMessage,
        mut target: InboxTarget,
        wake: bool,
        retry: bool,
        moment: &Moment,
        out: &mut Vec<Effect>,
    ) {
        let mut open = false;
        // Rule W (core 3.4) is decided before the insertion, so that nothing it causes changes it.
        let cancelled = moment.cancelled.as_ref();
        let may_run = !self.disposed && cancelled != Some(&CancelCause::Disposed);
        match &mut self.phase {
            Phase::Idle if wake && !self.disposed => open = true,
            Phase::Idle => {}
            Phase::Repairing { wake: latched } => *latched |= wake && may_run,
            Phase::Maintenance { wake: latched } => {
                if wake && cancelled.is_some() {
                    target = InboxTarget::NextTurn;
                }
                *latched |= wake && may_run;
            }
            Phase::Running(run) if wake => {
                if cancelled.is_some() {
                    target = InboxTarget::NextTurn;
                    run.latch |= may_run;
                } else if run.stage.may_miss() {
                    run.reopen = true;
                }
            }
            Phase::Running(_) => {}
        }
        if open {
            self.begin_run(out);
        }
        let accept = Accept { message, target, open, retry };
        self.command(Awaiting::Accept { ticket, opens: open }, Command::Accept(accept), out);
    }

    pub(super) fn cancel(
        &mut self,
        announcement: u64,
        cause: CancelCause,
        keep_inbox: bool,
        out: &mut Vec<Effect>,
    ) {
        self.cancels_handled = self.cancels_handled.max(announcement);
        self.disposed |= cause == CancelCause::Disposed;
        if !keep_inbox {
            self.command(Awaiting::Clear, Command::Edit(InboxEdit::Clear), out);
        }
        match &mut self.phase {
            Phase::Idle => {}
            Phase::Repairing { wake } => *wake &= keep_inbox,
            Phase::Maintenance { wake } => {
                *wake &= keep_inbox;
                out.push(Effect::Fire(cause));
            }
            Phase::Running(run) => {
                run.latch &= keep_inbox;
                // Sent before the cancel: kept input waits for a later wake.
                run.reopen = false;
                out.push(Effect::Fire(cause));
            }
        }
    }
}
