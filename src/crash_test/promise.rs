//! What a store has promised, as lines and as a sum.

use std::{collections::BTreeMap, fmt, str::FromStr};

use playhouse_messages::{event::Seq, id::SessionId};

/// Something that a store has said.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Promise {
    /// A session's events before this seq are written.
    Written(SessionId, Seq),
    /// A session's events before this seq are durable.
    Durable(SessionId, Seq),
    /// So many parts of this attempt's tail are written.
    Tail(SessionId, u64, u64),
    /// The value was put for the nth time.
    Value(u64),
    /// The nth value is durable.
    DurableValue(u64),
    /// A session is deleted, durably.
    Deleted(SessionId),
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Written(id, seq) => write!(f, "written {id} {seq}"),
            Self::Durable(id, seq) => write!(f, "durable {id} {seq}"),
            Self::Tail(id, attempt, parts) => write!(f, "tail {id} {attempt} {parts}"),
            Self::Value(n) => write!(f, "value {n}"),
            Self::DurableValue(n) => write!(f, "durable-value {n}"),
            Self::Deleted(id) => write!(f, "deleted {id}"),
        }?;
        // The last word: a line that was cut cannot be taken for one with a smaller number.
        f.write_str(" .")
    }
}

/// The line is no promise, or half of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no promise")]
pub struct NoPromise;

impl FromStr for Promise {
    type Err = NoPromise;

    fn from_str(line: &str) -> Result<Self, NoPromise> {
        let words: Vec<_> = line.split(' ').collect();
        let number = |word: &str| word.parse().map_err(|_| NoPromise);
        Ok(match words[..] {
            ["written", id, seq, "."] => Self::Written(id.into(), number(seq)?),
            ["durable", id, seq, "."] => Self::Durable(id.into(), number(seq)?),
            ["tail", id, attempt, parts, "."] => {
                Self::Tail(id.into(), number(attempt)?, number(parts)?)
            }
            ["value", n, "."] => Self::Value(number(n)?),
            ["durable-value", n, "."] => Self::DurableValue(number(n)?),
            ["deleted", id, "."] => Self::Deleted(id.into()),
            _ => return Err(NoPromise),
        })
    }
}

/// The sum of promises.
#[derive(Debug, Clone, Default)]
pub struct Promises {
    pub(super) written: BTreeMap<SessionId, Seq>,
    pub(super) durable: BTreeMap<SessionId, Seq>,
    pub(super) tails: BTreeMap<SessionId, (u64, u64)>,
    pub(super) value: u64,
    pub(super) durable_value: u64,
    pub(super) deleted: Vec<SessionId>,
}

impl Promises {
    /// Adds a promise that came after the others.
    pub fn add(&mut self, promise: Promise) {
        fn raise(marks: &mut BTreeMap<SessionId, Seq>, id: SessionId, seq: Seq) {
            let mark = marks.entry(id).or_default();
            *mark = seq.max(*mark);
        }
        match promise {
            Promise::Written(id, seq) => raise(&mut self.written, id, seq),
            Promise::Durable(id, seq) => raise(&mut self.durable, id, seq),
            Promise::Tail(id, attempt, parts) => drop(self.tails.insert(id, (attempt, parts))),
            Promise::Value(n) => self.value = self.value.max(n),
            Promise::DurableValue(n) => self.durable_value = self.durable_value.max(n),
            Promise::Deleted(id) => self.deleted.push(id),
        }
    }

    /// How many events are promised to be written.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.written.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_read_as_they_are_told_and_halves_are_none() {
        let id = || SessionId::from("session-3");
        for promise in [
            Promise::Written(id(), 12),
            Promise::Durable(id(), 120),
            Promise::Tail(id(), 7, 3),
            Promise::Value(4),
            Promise::DurableValue(2),
            Promise::Deleted(id()),
        ] {
            let line = promise.to_string();
            assert_eq!(line.parse(), Ok(promise));
            for cut in 0..line.len() {
                assert_eq!(line[..cut].parse::<Promise>(), Err(NoPromise), "{}", &line[..cut]);
            }
        }
    }

    #[test]
    fn a_sum_never_falls_back_but_the_last_tail_counts() {
        let mut sum = Promises::default();
        let lines =
            ["written s 5 .", "written s 3 .", "tail s 9 4 .", "tail s 10 1 .", "value 2 ."];
        lines.iter().for_each(|line| sum.add(line.parse().unwrap()));
        assert_eq!((sum.events(), sum.tails["s"], sum.value), (5, (10, 1), 2));
    }
}
