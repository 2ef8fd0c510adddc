//! Whatever happens in whatever order: no message is lost or comes twice, every operation is answered
//! once, every epoch ends and is told of at most once, and every drain ends.

use playhouse_messages::id::SessionId;
use proptest::{prelude::*, sample::Index};

use super::{
    DrainScope, Input,
    model::{Task, World},
};

#[derive(Debug, Clone)]
enum Move {
    Start { caller: Index, child: Index },
    Deliver { caller: Option<Index>, child: Index },
    Report(Index),
    Cancel(Index),
    Interrupt(Index),
    Finish(Index),
    Look(Index),
    Leave(Index),
    Perform { task: Index, well: bool },
    DrainChild(Index),
    DrainBelow(Index),
    RootGoes,
    DrainAll,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let at = any::<Index>;
    let one = prop_oneof![
        4 => (at(), at()).prop_map(|(caller, child)| Move::Start { caller, child }),
        6 => (prop::option::weighted(0.2, at()), at())
            .prop_map(|(caller, child)| Move::Deliver { caller, child }),
        2 => at().prop_map(Move::Report),
        1 => at().prop_map(Move::Cancel),
        2 => at().prop_map(Move::Interrupt),
        6 => at().prop_map(Move::Finish),
        6 => at().prop_map(Move::Look),
        2 => at().prop_map(Move::Leave),
        20 => (at(), prop::bool::weighted(0.9))
            .prop_map(|(task, well)| Move::Perform { task, well }),
        3 => at().prop_map(Move::DrainChild),
        1 => at().prop_map(Move::DrainBelow),
        1 => Just(Move::RootGoes),
        1 => Just(Move::DrainAll),
    ];
    prop::collection::vec(one, 1..160)
}

const NAMES: [&str; 4] = ["root", "a", "b", "c"];

fn name(at: &Index) -> SessionId {
    NAMES[at.index(NAMES.len())].into()
}

fn child(at: &Index) -> SessionId {
    NAMES[1 + at.index(NAMES.len() - 1)].into()
}

fn go(world: &mut World, step: Move) {
    match step {
        Move::Start { caller, child: id } => {
            let (caller, id) = (name(&caller), child(&id));
            // An id that is stored already is refused by the store, and is not the machine's affair.
            let is_new = !world.agents.contains_key(&id);
            if world.is_live(&caller) && is_new && caller != id {
                world.start(&caller, &id);
            }
        }
        Move::Deliver { caller, child: id } => {
            let id = child(&id);
            let parent = world.agents.get(&id).map(|agent| agent.lineage[0].clone());
            let caller =
                caller.map(|caller| name(&caller)).or(parent).unwrap_or_else(|| id.clone());
            if world.is_live(&caller) && world.agents.contains_key(&id) && caller != id {
                world.deliver(&caller, &id);
            }
        }
        Move::Report(id) => {
            let id = child(&id);
            if world.is_live(&id) {
                world.report(&id);
            }
        }
        Move::Cancel(op) => {
            let op = op.index(world.numbers as usize + 1) as u64;
            world.cancel(op);
        }
        Move::Interrupt(id) => {
            let id = child(&id);
            if world.is_live(&id)
                && matches!(world.machine.may_interrupt(&"root".into(), &id, false), Ok(true))
            {
                world.input(Input::Interrupted { child: id.clone() });
                world.agents.get_mut(&id).unwrap().cut(true);
            }
        }
        Move::Finish(id) => {
            if let Some(agent) = world.agents.get_mut(&name(&id)).filter(|agent| agent.live) {
                agent.finish();
            }
        }
        Move::Look(id) => world.look(&child(&id)),
        Move::Leave(id) => world.leave(&child(&id)),
        Move::Perform { task, well } => {
            if !world.tasks.is_empty() {
                let task = world.tasks.remove(task.index(world.tasks.len()));
                world.perform(task, well);
            }
        }
        Move::DrainChild(id) => {
            let id = child(&id);
            world.drain(DrainScope::Children(vec![id]), true);
        }
        Move::DrainBelow(id) => {
            let id = name(&id);
            if world.is_live(&id) {
                world.drain(DrainScope::Below(vec![id]), false);
            }
        }
        Move::RootGoes => {
            let root = world.agents.get_mut("root").unwrap();
            if std::mem::replace(&mut root.live, false) {
                world.drain(DrainScope::Below(vec!["root".into()]), false);
                world.tasks.push(Task::Tell(Input::Gone { agent: "root".into() }));
            }
        }
        Move::DrainAll => {
            world.drain(DrainScope::All, true);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_nothing_is_lost_and_all_ends(moves in moves()) {
        let mut world = World::new();
        for step in moves {
            go(&mut world, step);
        }
        world.settle();
        world.drain(DrainScope::All, true);
        world.settle();
        world.is_whole();
    }
}
