//! What is seen and remembered of a simulated world while it lives.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fastrand::Rng;
use playhouse_messages::{
    event::{Event, EventBody},
    id::{MessageId, SessionId},
    invariants::Invariants,
};
use playhouse_plugin_api::{
    agent::{Agent, Disposal},
    clock::{Clock, CountingIds, Ids},
    session::Session,
};
use tokio::time::Instant;

use super::{checks, disk::Disk, mischief, plan::Plan};
use crate::testing::{FaultyStore, word};

/// How many of the last lines a report shows.
const LINES_KEPT: usize = 80;

/// What outlives the lives of the harness: the plan, what was promised, what was seen.
pub(super) struct Witness {
    pub(super) plan: Plan,
    pub(super) ids: Arc<CountingIds>,
    seen: Mutex<Seen>,
}

pub(super) struct Seen {
    /// Decides what is decided on the way.
    pub(super) rng: Rng,
    /// Epoch milliseconds at which the life began, and when that was on tokio's clock.
    began: (i64, Option<Instant>),
    /// How often something was done or went wrong, by its name.
    pub(super) tally: BTreeMap<&'static str, u64>,
    /// Messages whose acceptance was told, and which no crash since may have taken.
    pub(super) promised: BTreeSet<(SessionId, MessageId)>,
    /// The newest incarnation of each session in this life.
    pub(super) sessions: BTreeMap<SessionId, Session>,
    /// Those whose disposal ended well.
    pub(super) released: BTreeSet<SessionId>,
    /// Which deed each client does next.
    pub(super) cursors: Vec<usize>,
    pub(super) next_mischief: usize,
    /// The store of this life.
    pub(super) store: Option<(FaultyStore, Disk)>,
    lines: VecDeque<String>,
    /// Every line is also kept here, if somebody traces.
    pub(super) trace: Option<Vec<String>>,
    /// The first thing that must not be.
    pub(super) fault: Option<String>,
}

impl Witness {
    pub(super) fn new(plan: Plan, trace: bool) -> Arc<Self> {
        let cursors = vec![0; plan.clients.len()];
        let seen = Mutex::new(Seen {
            rng: Rng::with_seed(plan.seed ^ 0x5eed),
            began: (1_000_000, None),
            tally: BTreeMap::new(),
            promised: BTreeSet::new(),
            sessions: BTreeMap::new(),
            released: BTreeSet::new(),
            cursors,
            next_mischief: 0,
            store: None,
            lines: VecDeque::new(),
            trace: trace.then(Vec::new),
            fault: None,
        });
        Arc::new(Self { plan, ids: Arc::default(), seen })
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A life begins, on the runtime that this is called on.
    pub(super) fn begin(&self) {
        let now = Instant::now();
        let mut seen = self.seen();
        seen.began.1 = Some(now);
        seen.sessions.clear();
        seen.released.clear();
    }

    /// A life has ended; the next one begins a second later.
    pub(super) fn end(&self) {
        let now = self.now_ms();
        self.seen().began = (now + 1_000, None);
    }

    pub(super) fn note(&self, line: impl Into<String>) {
        let line = format!("{:>9} {}", self.now_ms() - 1_000_000, line.into());
        let mut seen = self.seen();
        if seen.lines.len() == LINES_KEPT {
            seen.lines.pop_front();
        }
        if let Some(trace) = &mut seen.trace {
            trace.push(line.clone());
        }
        seen.lines.push_back(line);
    }

    /// Something must not be. Only the first counts: others follow from it.
    pub(super) fn fail(&self, what: impl Into<String>) {
        let what = what.into();
        self.note(format!("FAILED {what}"));
        self.seen().fault.get_or_insert(what);
    }

    pub(super) fn count(&self, what: &'static str) {
        *self.seen().tally.entry(what).or_default() += 1;
    }

    /// Whether something with this chance in a thousand happens now.
    pub(super) fn happens(&self, odds: u32) -> bool {
        self.seen().rng.u32(0..1_000) < odds
    }

    pub(super) fn below(&self, most: u64) -> u64 {
        self.seen().rng.u64(0..=most)
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.seen().lines.iter().cloned().collect()
    }

    pub(super) fn promise(&self, session: &SessionId, message: &MessageId) {
        self.seen().promised.insert((session.clone(), message.clone()));
    }

    /// An agent enters the world, anew or again. Of what was promised in its session, it may lack what
    /// a disposal could not store: whoever disposed was told.
    pub(super) fn enter(&self, agent: &Agent) {
        let entered = checks::entered(&agent.session().log());
        let told = mischief::store_failures(self) > 0;
        let mut lost = Vec::new();
        {
            let mut seen = self.seen();
            seen.sessions.insert(agent.id().clone(), agent.session().clone());
            seen.released.remove(agent.id());
            seen.promised.retain(|(session, message)| {
                let kept = session != agent.id() || entered.contains(message);
                if !kept {
                    lost.push(message.clone());
                }
                kept
            });
        }
        if !lost.is_empty() && !told {
            self.fail(format!("session {} came again without {lost:?}", agent.id()));
        }
    }

    /// Watches an agent until it is disposed: what its log says, and whether it may.
    pub(super) async fn watch(self: Arc<Self>, agent: Agent) {
        let mut invariants = Invariants::new();
        let session = agent.session();
        let (mut events, old) = (session.events(0), session.log().len());
        let mut disposal = agent.cell().disposal();
        let mut observe = |event: &Event| {
            if event.seq >= old {
                self.note(format!("{} {} {}", agent.id(), event.seq, described(event)));
            }
            if let Err(violation) = invariants.observe(event.into()) {
                self.fail(format!("session {}: {violation}", agent.id()));
            }
        };
        loop {
            tokio::select! {
                biased;
                event = events.next() => observe(&event),
                _ = disposal.wait_for(|state| *state == Disposal::Disposed) => break,
            }
        }
        while let Some(event) = events.try_next() {
            observe(&event);
        }
    }
}

/// An event's word, and the ids that it moves.
fn described(event: &Event) -> String {
    let word = word(event);
    match &event.body {
        EventBody::InboxSpliced(splice) => {
            let ids: Vec<_> = splice.inserted.iter().map(|message| message.id.as_str()).collect();
            let target = splice.target;
            format!("{word} {target:?} at {} -{} +{ids:?}", splice.start, splice.removed_count)
        }
        EventBody::TurnEnd(end) => format!("{word} {:?}", end.reason),
        EventBody::UserMessage(message) => format!("{word} {}", message.id),
        _ => word,
    }
}

impl Clock for WitnessClock {
    fn now_ms(&self) -> i64 {
        self.0.now_ms()
    }
}

/// The clock of a simulated world: virtual time since its first life began.
pub(super) struct WitnessClock(pub(super) Arc<Witness>);

/// Ids that go on over all lives.
pub(super) struct WitnessIds(pub(super) Arc<CountingIds>);

impl Ids for WitnessIds {
    fn fresh(&self) -> String {
        self.0.fresh()
    }
}

impl Witness {
    pub(super) fn now_ms(&self) -> i64 {
        let (began, instant) = self.seen().began;
        let elapsed = instant.map_or(0, |instant| instant.elapsed().as_millis());
        began + i64::try_from(elapsed).unwrap_or(0)
    }
}
