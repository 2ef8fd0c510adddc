//! What a run came to.

use std::{collections::BTreeMap, fmt, time::Duration};

use playhouse_messages::{event::Seq, id::SessionId};

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The session, if it is about one.
    pub session: Option<SessionId>,
    /// The event, if it is about one.
    pub seq: Option<Seq>,
    /// What is wrong.
    pub what: String,
}

impl Fault {
    /// Of no session.
    pub(super) fn general(what: impl Into<String>) -> Self {
        Self { session: None, seq: None, what: what.into() }
    }

    /// Of a session, and of no event.
    pub(super) fn of(session: &SessionId, what: impl Into<String>) -> Self {
        Self { session: Some(session.clone()), ..Self::general(what) }
    }

    /// At an event.
    pub(super) fn at(mut self, seq: Option<Seq>) -> Self {
        self.seq = seq;
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(session) = &self.session {
            write!(f, "session {session}")?;
            if let Some(seq) = self.seq {
                write!(f, ", event {seq}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.what)
    }
}

/// How far a run has got.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// Since it began.
    pub elapsed: Duration,
    /// Turns that were asked for and have ended.
    pub turns: u64,
    /// Actors that were killed.
    pub kills: u64,
    /// Inputs that were acknowledged.
    pub acknowledged: u64,
    /// Clients that are not done.
    pub busy: usize,
    /// Faults found so far.
    pub faults: usize,
}

/// What a run came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// How long it took, the settling and the judgement included.
    pub elapsed: Duration,
    /// Sessions, those of children included.
    pub sessions: u64,
    /// Turns in the logs.
    pub turns: u64,
    /// Events in the logs.
    pub events: u64,
    /// Inputs that were acknowledged, each held against the logs.
    pub acknowledged: u64,
    /// Tool bodies that ran.
    pub tool_runs: u64,
    /// Actors that were killed, by kind.
    pub kills: BTreeMap<&'static str, u64>,
    /// Successors that supervisors started.
    pub restarts: u64,
    /// Operations of the store that failed or were late, by kind.
    pub store_faults: BTreeMap<&'static str, u64>,
    /// Streams that were cut.
    pub streams_dropped: u64,
    /// How often the store was compared with what it had promised, during the run.
    pub audits: u64,
    /// Agents that were given up because their actors died too often; their logs say so.
    pub given_up: u64,
    /// Half of the turns took no longer, from the prompt to its result.
    pub turn_p50: Duration,
    /// 99 of 100 turns took no longer.
    pub turn_p99: Duration,
    /// What must not be.
    pub faults: Vec<Fault>,
}

impl Report {
    /// How many actors were killed.
    pub fn killed(&self) -> u64 {
        self.kills.values().sum()
    }
}

/// The value that `percent` of 100 do not exceed.
pub(super) fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_there() {
        let times: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 50), Duration::from_millis(100));
        assert_eq!(percentile(&times, 99), Duration::from_millis(198));
        assert_eq!(percentile(&times[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }

    #[test]
    fn a_fault_names_its_place() {
        let fault = Fault::of(&"s".into(), "is lost");
        assert_eq!(fault.to_string(), "session s: is lost");
        assert_eq!(fault.at(Some(3)).to_string(), "session s, event 3: is lost");
        assert_eq!(Fault::general("it hangs").to_string(), "it hangs");
    }
}
