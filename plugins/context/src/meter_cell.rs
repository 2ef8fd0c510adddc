//! A meter that follows a live session.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use playhouse_messages::{config::Header, log::Log};
use playhouse_plugin_api::session::Session;

use crate::{
    meter::{Measurement, MeterError, TokenMeter},
    usage::SessionUsage,
};

/// Meters a session on demand: each question costs the events that are new since the last one.
///
/// Nothing runs between questions, and nothing has to be told of appends.
pub struct MeterCell {
    session: Session,
    meter: Mutex<TokenMeter>,
}

impl MeterCell {
    /// A meter of this session, which has metered nothing yet.
    pub fn new(session: Session) -> Self {
        Self { session, meter: Mutex::default() }
    }

    /// What the session's next request weighs, under another header than its last one if one is
    /// given.
    ///
    /// # Errors
    ///
    /// If an event of the log does not fit; the same one each time.
    pub fn measure(&self, header: Option<&Header>) -> Result<Measurement, MeterError> {
        Ok(self.caught_up(&self.session.log())?.measure(header))
    }

    /// What the session's calls cost so far, and how full its window is.
    ///
    /// # Errors
    ///
    /// As [`MeterCell::measure`].
    pub fn session_usage(&self) -> Result<SessionUsage, MeterError> {
        Ok(self.caught_up(&self.session.log())?.session_usage())
    }

    fn caught_up(&self, log: &Log) -> Result<MutexGuard<'_, TokenMeter>, MeterError> {
        let mut meter = self.meter.lock().unwrap_or_else(|poisoned| {
            // A panic may have left an event half metered; the log gives everything anew.
            let mut meter = PoisonError::into_inner(poisoned);
            *meter = TokenMeter::new();
            self.meter.clear_poison();
            meter
        });
        meter.catch_up(log)?;
        Ok(meter)
    }
}

impl fmt::Debug for MeterCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeterCell").field("session", self.session.id()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use playhouse_models::scripted::{Reply, Script, ScriptedAdapter};
    use playhouse_plugin_api::{creation::NewAgent, options::AgentOptions};
    use playhouse_supervisor::harness::Harness;

    use super::*;
    use crate::Baseline;

    #[tokio::test]
    async fn a_cell_follows_its_session() {
        let harness = Harness::builder().start().await.unwrap();
        let model = ScriptedAdapter::new(Script::new().reply(Reply::text("Hello.")));
        let _ = harness.world().models.register(["p"], Arc::new(model)).unwrap();
        let new = NewAgent::new(AgentOptions::new().model("p", "m"));
        let agent = harness.create(new).await.unwrap();
        let cell = MeterCell::new(agent.session().clone());
        assert_eq!(cell.measure(None).unwrap().baseline, Baseline::None { tokens: 0 });
        for turn in 1..=3 {
            agent.prompt("Hi").await.unwrap();
            agent.when_idle().await.unwrap();
            let log = agent.session().log();
            let mut scratch = TokenMeter::new();
            scratch.catch_up(&log).unwrap();
            let measured = cell.measure(None).unwrap();
            assert_eq!(measured, scratch.measure(None));
            assert_eq!(measured.log_revision, log.len());
            let usage = cell.session_usage().unwrap();
            assert_eq!(usage, scratch.session_usage());
            assert_eq!(usage.token_usage.output_tokens, turn * 2, "a report a turn");
        }
        // What panics while it meters costs the others nothing.
        let poison = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let _meter = cell.meter.lock();
                    panic!("on purpose");
                })
                .join()
        });
        assert!(poison.is_err() && cell.meter.is_poisoned());
        assert_eq!(cell.measure(None).unwrap().log_revision, agent.session().log().len());
        assert!(!cell.meter.is_poisoned());
        harness.shutdown().await.unwrap();
    }
}
