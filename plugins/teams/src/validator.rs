//! No log takes a record that its team could not have.

use std::{collections::BTreeMap, sync::Arc};

use playhouse_messages::{
    candidate::Candidate,
    id::SessionId,
    validator::{Trace, Validator},
};

use crate::{record::Record, team::Team};

/// The rule's name, to allow and block it.
pub const VALIDATOR: &str = "team-fold";

/// Holds the fold's rules against each candidate, whoever appends it.
pub(crate) struct TeamRules;

impl Validator for TeamRules {
    fn name(&self) -> &str {
        VALIDATOR
    }

    fn trace(&self) -> Box<dyn Trace> {
        Box::new(Teams::default())
    }
}

/// By team: a fork of a Lead has the records of another team before those of its own.
#[derive(Clone, Default)]
struct Teams(Arc<BTreeMap<SessionId, Team>>);

impl Trace for Teams {
    fn follow(&mut self, event: Candidate<'_>) -> Result<(), String> {
        let Some((id, record)) = Record::read(event.body)? else { return Ok(()) };
        let teams = Arc::make_mut(&mut self.0);
        teams.entry(id.clone()).or_insert_with(|| Team::new(id)).follow(&record)
    }

    fn fork(&self) -> Box<dyn Trace> {
        Box::new(self.clone())
    }
}
