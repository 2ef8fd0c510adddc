//! Cancellation with a cause: the first cause wins, and every wait can see it.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use playhouse_messages::event::CancelCause;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// A token that tasks watch. Clones share it; [`CancelToken::child`] is cancelled with its parent
/// and also on its own.
///
/// Cancellation is cooperative: the token says that the work is unwanted, and why.
#[derive(Clone)]
pub struct CancelToken {
    token: CancellationToken,
    cause: Arc<OnceLock<CancelCause>>,
    parent: Option<Arc<CancelToken>>,
}

impl CancelToken {
    /// A token that nothing has cancelled.
    pub fn new() -> Self {
        Self { token: CancellationToken::new(), cause: Arc::default(), parent: None }
    }

    /// Cancels with this cause. Returns whether it was the first.
    pub fn cancel(&self, cause: CancelCause) -> bool {
        let first = self.cause.set(cause).is_ok();
        self.token.cancel();
        first
    }

    /// Whether the token, or one above it, was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// The first cause, if cancelled; a token's own comes before its parent's.
    pub fn cause(&self) -> Option<CancelCause> {
        match self.cause.get() {
            Some(cause) => Some(cause.clone()),
            None => self.parent.as_ref()?.cause(),
        }
    }

    /// Resolves once cancelled. Dropping the future is free.
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// As [`CancelToken::cancelled`], for a future that must own what it waits on.
    pub fn cancelled_owned(&self) -> WaitForCancellationFutureOwned {
        self.token.clone().cancelled_owned()
    }

    /// A token that is cancelled with this one, and can be cancelled alone.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            token: self.token.child_token(),
            cause: Arc::default(),
            parent: Some(Arc::new(self.clone())),
        }
    }

    /// Runs `future` until it ends or the token is cancelled, whichever is first; cancellation wins
    /// a tie. The future is dropped when cancelled, so it must be safe to drop.
    pub async fn race<F: Future>(&self, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.token.cancelled() => None,
            output = future => Some(output),
        }
    }
}

impl Default for CancelToken {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("cause", &self.cause()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_wins() {
        let token = CancelToken::new();
        let child = token.child();
        assert!(token.cancel(CancelCause::User));
        assert!(!token.cancel(CancelCause::Disposed));
        assert_eq!(token.cause(), Some(CancelCause::User));
        assert!(child.is_cancelled());
        assert_eq!(child.cause(), Some(CancelCause::User));
    }

    #[test]
    fn a_child_does_not_cancel_its_parent() {
        let token = CancelToken::new();
        token.child().cancel(CancelCause::Parent);
        assert!(!token.is_cancelled());
        assert_eq!(token.cause(), None);
    }
}
