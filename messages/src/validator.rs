//! Rules beyond the core's own, held against each event before it is committed.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::{candidate::Candidate, log::Log};

/// A rule that every session's log keeps.
///
/// It is asked for each event that the core itself would take. A refusal fails the append with code
/// `INVARIANT`, and leaves the log as it was. What is stored already is never refused.
pub trait Validator: Send + Sync + 'static {
    /// Names the rule in errors, and to allow and block it.
    fn name(&self) -> &str;

    /// What the rule remembers of an empty log. After a panic here the rule refuses every event.
    fn trace(&self) -> Box<dyn Trace>;
}

/// What a rule remembers of one session's log. Pure: it decides by the events alone.
pub trait Trace: Send + Sync + 'static {
    /// Takes the next event, and says how it breaks the rule if it does.
    ///
    /// A live event is taken by a fork, which takes the trace's place once the event is committed: an
    /// event that this or another rule refuses leaves nothing behind. For an event of a log that
    /// existed before, the answer changes nothing, and the trace goes on from what this made of it. A
    /// panic is a refusal.
    fn follow(&mut self, event: Candidate<'_>) -> Result<(), String>;

    /// An equal trace. Asked for each event: it must be cheap, however long the log. A panic is a
    /// refusal.
    fn fork(&self) -> Box<dyn Trace>;
}

/// An event broke a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("refused by validator \"{validator}\": {reason}")]
pub struct Veto {
    /// The rule.
    pub validator: String,
    /// How.
    pub reason: String,
}

impl Veto {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        "INVARIANT"
    }
}

/// The validators of one session, each with its trace. Clones share the traces.
#[derive(Clone, Default)]
pub(crate) struct Validation(Vec<Followed>);

#[derive(Clone)]
struct Followed {
    validator: Arc<dyn Validator>,
    /// Why there is none: then the rule refuses everything.
    trace: Result<Arc<dyn Trace>, String>,
}

impl Validation {
    /// Follows a log with these validators. One that followed it before goes on.
    pub(crate) fn over(&self, log: &Log, validators: &[Arc<dyn Validator>]) -> Self {
        let follow = |validator: &Arc<dyn Validator>| {
            let known = self.0.iter().find(|known| Arc::ptr_eq(&known.validator, validator));
            known.cloned().unwrap_or_else(|| {
                let trace = contained(|| {
                    let mut trace = validator.trace();
                    for event in log.iter() {
                        let _ = contained(|| trace.follow(Candidate::from(&**event)));
                    }
                    Ok(trace.into())
                });
                Followed { validator: validator.clone(), trace }
            })
        };
        Self(validators.iter().map(follow).collect())
    }

    /// The traces after an event, if no rule refuses it.
    pub(crate) fn next(&self, event: Candidate<'_>) -> Result<Self, Veto> {
        let follow = |Followed { validator, trace }: &Followed| {
            let next = contained(|| {
                let mut trace = trace.as_ref().map_err(Clone::clone)?.fork();
                trace.follow(event)?;
                Ok(trace.into())
            });
            let veto = |reason| Veto { validator: validator.name().to_owned(), reason };
            Ok(Followed { validator: validator.clone(), trace: Ok(next.map_err(veto)?) })
        };
        self.0.iter().map(follow).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Debug for Validation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|followed| followed.validator.name())).finish()
    }
}

/// A rule may be a plugin's: its panic must not be the session's.
fn contained<T>(ask: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Err(format!("it panicked: {}", text.unwrap_or("(no message)")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{event::Seq, testing::user};

    /// Remembers the seqs that it followed, and refuses one.
    #[derive(Clone)]
    struct Seqs(Vec<Seq>, Option<Seq>);

    impl Validator for Seqs {
        fn name(&self) -> &str {
            "seqs"
        }

        fn trace(&self) -> Box<dyn Trace> {
            self.fork()
        }
    }

    impl Trace for Seqs {
        fn follow(&mut self, event: Candidate<'_>) -> Result<(), String> {
            self.0.push(event.seq);
            match self.1 == Some(event.seq) {
                true => Err(format!("{:?}", self.0)),
                false => Ok(()),
            }
        }

        fn fork(&self) -> Box<dyn Trace> {
            Box::new(self.clone())
        }
    }

    fn refusing(seq: Seq) -> Arc<dyn Validator> {
        Arc::new(Seqs(Vec::new(), Some(seq)))
    }

    fn log(len: Seq) -> Log {
        (0..len).map(|seq| Arc::new(user(&format!("u{seq}"), "x").at(seq, 0))).collect()
    }

    #[test]
    fn a_refusal_leaves_no_residue_in_the_rules_that_were_asked_before() {
        let event = user("a", "a");
        let at = |seq| Candidate::new(seq, &event);
        let validation = Validation::default().over(&log(2), &[refusing(3), refusing(2)]);
        let veto = validation.next(at(2)).unwrap_err();
        assert_eq!((veto.reason.as_str(), veto.code()), ("[0, 1, 2]", "INVARIANT"));
        // The first had followed the refused event; it did not happen.
        let veto = validation.next(at(3)).unwrap_err();
        assert_eq!(veto.reason, "[0, 1, 3]");
    }

    #[test]
    fn history_is_followed_whatever_it_says_and_only_once() {
        let (known, new) = (refusing(3), refusing(1));
        let validation = Validation::default().over(&log(2), std::slice::from_ref(&known));
        let event = user("a", "a");
        let validation = validation.next(Candidate::new(2, &event)).unwrap();
        // The log is shorter than what the first has followed, so that asking it again would show.
        let validation = validation.over(&log(2), &[known, new]);
        let veto = validation.next(Candidate::new(3, &event)).unwrap_err();
        assert_eq!(veto.reason, "[0, 1, 2, 3]");
        assert_eq!(format!("{validation:?}"), r#"["seqs", "seqs"]"#);
        assert_eq!(format!("{:?}", validation.over(&log(2), &[])), "[]");
    }
}
