//! Who is at which call: the state of a replay.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use playhouse_messages::{chunk::Failure, id::SessionId};

use super::{Recording, ReplayError, recording::Call};

/// Recordings, and how far each was played.
#[derive(Debug)]
pub(super) struct Performance {
    recordings: Vec<Recording>,
    anonymous: Recording,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    /// Which recording each session took.
    bound: HashMap<SessionId, usize>,
    /// The next call of each recording that was taken.
    next: HashMap<usize, usize>,
    next_anonymous: usize,
}

impl Performance {
    pub(super) fn new(recordings: Vec<Recording>, anonymous: Recording) -> Self {
        Self { recordings, anonymous, places: Mutex::default() }
    }

    pub(super) fn recordings(&self) -> impl Iterator<Item = &Recording> {
        self.recordings.iter().chain([&self.anonymous])
    }

    /// The call that is up for this session, and which one it is.
    pub(super) fn next(&self, session: Option<&SessionId>) -> Result<(usize, &Call), Failure> {
        let mut places = self.lock();
        let (recording, next) = match session {
            None => (&self.anonymous, &mut places.next_anonymous),
            Some(session) => {
                let at = self.bind(&mut places, session)?;
                (&self.recordings[at], places.next.entry(at).or_default())
            }
        };
        let Some(call) = recording.calls.get(*next) else {
            let who = session.map_or("calls without a session".to_owned(), SessionId::to_string);
            let message = format!("all {} recorded calls were made ({who})", recording.len());
            return Err(Failure::new("REPLAY_EXHAUSTED", message));
        };
        *next += 1;
        Ok((*next - 1, call))
    }

    fn bind(&self, places: &mut Places, session: &SessionId) -> Result<usize, Failure> {
        if let Some(at) = places.bound.get(session) {
            return Ok(*at);
        }
        let free = |at: &usize| !places.bound.values().any(|taken| taken == at);
        let its_own = self.recordings.iter().position(|r| r.session.as_ref() == Some(session));
        let first = (0..self.recordings.len()).find(free);
        let at = its_own.filter(free).or(first).ok_or_else(|| {
            let message = format!(
                "session {session} was not recorded: all {} recordings were taken by others",
                self.recordings.len()
            );
            Failure::new("REPLAY_UNRECORDED_SESSION", message)
        })?;
        places.bound.insert(session.clone(), at);
        Ok(at)
    }

    pub(super) fn check_consumed(&self) -> Result<(), ReplayError> {
        let places = self.lock();
        let mut left = Vec::new();
        let mut count = |name: String, recording: &Recording, made: usize| {
            let of = recording.len();
            if made < of {
                left.push(format!("{} of {of} of {name}", of - made));
            }
        };
        for (at, recording) in self.recordings.iter().enumerate() {
            let id = recording.session.as_ref().map(|id| format!(" ({id})")).unwrap_or_default();
            let made = places.next.get(&at).copied().unwrap_or(0);
            count(format!("recording {}{id}", at + 1), recording, made);
        }
        count("the anonymous recording".to_owned(), &self.anonymous, places.next_anonymous);
        if left.is_empty() {
            return Ok(());
        }
        Err(ReplayError::Leftovers { left: left.join(", ") })
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        // Each change is one step, so a panic elsewhere leaves the places usable.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
