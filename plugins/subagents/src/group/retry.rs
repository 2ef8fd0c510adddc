//! Another child where one failed.

use std::time::Duration;

use playhouse_messages::retry::{Backoff, spread};

use super::{ChildGroup, ChildOutcome};
use crate::ChildRequest;

/// How often another child is tried, and how far apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChildRetries {
    /// The most children after the first; 0 tries once.
    pub max: u32,
    /// The delays between them, as between the tries of a model request.
    pub backoff: Backoff,
}

impl Default for ChildRetries {
    /// Two more, by the default delays.
    fn default() -> Self {
        Self { max: 2, backoff: Backoff::default() }
    }
}

impl ChildGroup {
    /// Runs a child, and another one, made anew, as long as one fails that
    /// [may be retried](ChildFailed::is_retryable). A cancel ends a wait between two at once.
    ///
    /// # Errors
    ///
    /// Why the last one failed.
    pub async fn retry(
        &self,
        retries: ChildRetries,
        request: impl Fn() -> ChildRequest,
    ) -> ChildOutcome {
        let chain = self.world.ids.fresh();
        for retry in 1..=retries.max {
            let failed = match self.run(request()).await {
                Err(failed) if failed.is_retryable() => failed,
                outcome => return outcome,
            };
            let delay = retries.backoff.delay_ms(retry, spread(&chain, retry - 1));
            if !self.wait(Duration::from_secs_f64(delay / 1_000.0)).await {
                return Err(failed);
            }
        }
        self.run(request()).await
    }

    /// Whether it was waited for so long, and not cancelled.
    async fn wait(&self, delay: Duration) -> bool {
        self.cancel.race(tokio::time::sleep(delay)).await.is_some()
    }
}
