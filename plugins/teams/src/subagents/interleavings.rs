//! Two members and the Lead do whatever they like, with whatever they have read, in any order.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{LEAD, act, create, team};
use crate::{Task, TaskAction, TaskId, TaskStatus, Team};

#[derive(Debug, Clone)]
enum Move {
    Create,
    /// Reads the board, as it is remembered until the next time.
    Read(usize),
    Act {
        by: usize,
        task: u64,
        what: What,
    },
}

#[derive(Debug, Clone, Copy)]
enum What {
    Claim,
    Release,
    Complete,
    Reopen,
    Delete,
    Give(usize),
    Wait(u64),
}

const WHO: [&str; 3] = ["ann", "bob", LEAD];

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let what = prop_oneof![
        4 => Just(What::Claim),
        1 => Just(What::Release),
        2 => Just(What::Complete),
        1 => Just(What::Reopen),
        1 => Just(What::Delete),
        1 => (0..3usize).prop_map(What::Give),
        1 => (1..5u64).prop_map(What::Wait),
    ];
    let one = prop_oneof![
        1 => Just(Move::Create),
        3 => (0..3usize).prop_map(Move::Read),
        6 => (0..3usize, 1..5u64, what).prop_map(|(by, task, what)| Move::Act { by, task, what }),
    ];
    prop::collection::vec(one, 0..80)
}

/// The board, as simply as it can be told.
#[derive(Debug, Default)]
struct Model(BTreeMap<u64, ModelTask>);

#[derive(Debug, Clone, Default)]
struct ModelTask {
    revision: u64,
    at: At,
    waits: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum At {
    #[default]
    Free,
    Given(&'static str),
    Worked(&'static str),
    Done(Option<&'static str>),
    Gone,
}

impl Model {
    fn reaches(&self, from: u64, to: u64) -> bool {
        let next = self.0.get(&from).filter(|task| task.at != At::Gone);
        from == to || next.is_some_and(|task| task.waits.iter().any(|on| self.reaches(*on, to)))
    }

    /// Whether the move is taken.
    fn act(&mut self, by: &'static str, task: u64, revision: u64, what: What) -> bool {
        let Some(known) = self.0.get(&task).cloned() else { return false };
        if known.at == At::Gone || known.revision != revision {
            return false;
        }
        let is_done = |on: &u64| matches!(self.0.get(on).map(|task| &task.at), Some(At::Done(_)));
        let ready = known.waits.iter().all(is_done);
        let owner = match known.at {
            At::Given(owner) | At::Worked(owner) => Some(owner),
            At::Done(owner) => owner,
            At::Free | At::Gone => None,
        };
        let may = by == LEAD || owner == Some(by);
        let mut waits = known.waits.clone();
        let at = match (what, &known.at) {
            (What::Claim, At::Free) if ready => At::Worked(by),
            (What::Claim, At::Given(to)) if *to == by && ready => At::Worked(by),
            (What::Release, At::Free | At::Given(_) | At::Worked(_)) if may => At::Free,
            (What::Complete, At::Worked(_)) if may => At::Done(owner),
            (What::Reopen, At::Done(_)) if may => At::Free,
            (What::Give(to), At::Free | At::Given(_)) if by == LEAD => At::Given(WHO[to]),
            (What::Give(to), At::Worked(_)) if by == LEAD => At::Worked(WHO[to]),
            (What::Wait(on), at) if may && !matches!(at, At::Done(_)) => {
                let stands = self.0.get(&on).is_some_and(|task| task.at != At::Gone);
                if !stands || self.reaches(on, task) {
                    return false;
                }
                waits = vec![on];
                at.clone()
            }
            (What::Delete, _) if may => {
                let waits = |other: &ModelTask| other.at != At::Gone && other.waits.contains(&task);
                if self.0.values().any(waits) {
                    return false;
                }
                At::Gone
            }
            _ => return false,
        };
        self.0.insert(task, ModelTask { revision: revision + 1, at, waits });
        true
    }
}

fn told(task: &Task) -> At {
    let owner =
        task.owner_id.as_ref().map(|owner| WHO.into_iter().find(|who| owner == who).unwrap());
    match (task.status, owner) {
        (TaskStatus::Pending, None) => At::Free,
        (TaskStatus::Pending, Some(owner)) => At::Given(owner),
        (TaskStatus::InProgress, Some(owner)) => At::Worked(owner),
        (TaskStatus::Completed, owner) => At::Done(owner),
        (TaskStatus::Deleted, _) => At::Gone,
        (TaskStatus::InProgress, None) => panic!("{task:?}"),
    }
}

fn action(what: What) -> TaskAction {
    match what {
        What::Claim => TaskAction::Claim,
        What::Release => TaskAction::Release,
        What::Complete => TaskAction::Complete,
        What::Reopen => TaskAction::Reopen,
        What::Delete => TaskAction::Delete,
        What::Give(to) => TaskAction::Reassign(Some(WHO[to].into())),
        What::Wait(on) => TaskAction::SetDependencies(vec![TaskId(on)]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_interleaving_loses_or_doubles_a_claim_and_the_board_is_what_a_simple_model_says(
        moves in moves(),
    ) {
        let (mut team, mut model) = (team(&["ann", "bob"]), Model::default());
        let mut read: [Team; 3] = std::array::from_fn(|_| team.clone());
        let mut claims: BTreeMap<(u64, u64), &str> = BTreeMap::new();
        for one in moves {
            match one {
                Move::Create => {
                    let id = create(&mut team, "s", &[]);
                    model.0.insert(id.0, ModelTask { revision: 1, ..ModelTask::default() });
                }
                Move::Read(who) => read[who] = team.clone(),
                Move::Act { by, task, what } => {
                    let seen = read[by].task(TaskId(task)).map_or(0, |task| task.revision);
                    let taken = act(&mut team, WHO[by], task, seen, action(what));
                    let expected = model.act(WHO[by], task, seen, what);
                    prop_assert_eq!(taken.is_ok(), expected, "{:?} {:?}", what, taken);
                    if matches!(what, What::Claim) && taken.is_ok() {
                        let before = claims.insert((task, seen), WHO[by]);
                        prop_assert_eq!(before, None, "a claim was doubled");
                    }
                }
            }
            for task in team.tasks() {
                let known = &model.0[&task.id.0];
                prop_assert_eq!((task.revision, told(task)), (known.revision, known.at.clone()));
            }
        }
        // Who claimed and did not let go still has it.
        for (&(task, at), &who) in &claims {
            let now = team.task(TaskId(task)).unwrap();
            if now.revision == at + 1 {
                prop_assert_eq!(told(now), At::Worked(who));
            }
        }
    }
}
