//! The one place that a session has for a prompt: who may enter, and what a cancel means now.

use playhouse_messages::event::CancelCause;
use playhouse_plugin_api::cancel::CancelToken;

/// A session's place for a prompt. Pure: the token only carries the news to who waits.
#[derive(Debug, Default)]
pub(super) struct Slot {
    prompt: Option<Prompt>,
}

#[derive(Debug)]
struct Prompt {
    cancel: CancelToken,
    has_entered: bool,
}

impl Slot {
    /// Takes the place, if it is free. The token fires when the prompt is cancelled.
    pub(super) fn reserve(&mut self) -> Option<CancelToken> {
        if self.prompt.is_some() {
            return None;
        }
        let cancel = CancelToken::new();
        self.prompt = Some(Prompt { cancel: cancel.clone(), has_entered: false });
        Some(cancel)
    }

    /// The prompt goes to the agent now, unless it was cancelled before.
    pub(super) fn enter(&mut self) -> bool {
        match &mut self.prompt {
            Some(prompt) if !prompt.cancel.is_cancelled() => {
                prompt.has_entered = true;
                true
            }
            _ => false,
        }
    }

    /// Cancels the prompt, if there is one. Returns whether the agent is to be cancelled: not while a
    /// prompt is being admitted, of which the agent knows nothing yet.
    pub(super) fn cancel(&mut self) -> bool {
        match &self.prompt {
            Some(prompt) => {
                prompt.cancel.cancel(CancelCause::User);
                prompt.has_entered
            }
            None => true,
        }
    }

    /// The prompt has been answered.
    pub(super) fn free(&mut self) {
        self.prompt = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_reaches_the_agent_only_if_that_has_the_prompt_or_there_is_none() {
        let mut slot = Slot::default();
        assert!(slot.cancel(), "whatever else the agent does");
        let first = slot.reserve().unwrap();
        assert!(slot.reserve().is_none());
        assert!(!slot.cancel() && first.is_cancelled() && !slot.enter());
        slot.free();
        let second = slot.reserve().unwrap();
        assert!(slot.enter() && slot.cancel() && second.is_cancelled());
    }
}
