//! The decisions one by one.

use playhouse_messages::id::SessionId;

use super::{
    DrainScope, Effect, Input,
    model::{Task, World},
};
use crate::continuable::ActivationState;

fn id(name: &str) -> SessionId {
    name.into()
}

/// The root with these children, by whom, all quiet in the middle of a turn.
fn family(children: &[(&str, &str)]) -> World {
    let mut world = World::new();
    for (parent, child) in children {
        world.start(&id(parent), &id(child));
        while let Some(task) = world.tasks.pop() {
            world.perform(task, true);
        }
    }
    world
}

/// The tasks under way, by kind and child.
fn under_way(world: &World) -> Vec<String> {
    let tasks = world.tasks.iter().map(|task| match task {
        Task::Effect(Effect::Make { child, .. }) => format!("make {child}"),
        Task::Effect(Effect::Send { child, .. }) => format!("send {child}"),
        Task::Effect(Effect::Report { to, .. }) => format!("report to {to}"),
        Task::Effect(Effect::Dispose { child, keep_inbox, .. }) => {
            format!("dispose {child}{}", if *keep_inbox { "" } else { " whole" })
        }
        Task::Effect(Effect::Notice { child, to, wake, .. }) => {
            format!("notice of {child} to {to}{}", if *wake { "" } else { ", no wake" })
        }
        other => format!("{other:?}"),
    });
    tasks.collect()
}

fn perform(world: &mut World, which: &str) {
    let at = under_way(world).iter().position(|task| task == which);
    let task = world.tasks.remove(at.unwrap_or_else(|| panic!("{which}: {:?}", world.tasks)));
    world.perform(task, true);
}

fn finish(world: &mut World, child: &str) {
    world.agents.get_mut(child).unwrap().finish();
    world.look(&id(child));
    let look = world.tasks.pop().unwrap();
    world.perform(look, true);
}

fn state(world: &World, child: &str) -> Option<ActivationState> {
    world.machine.activation(&id(child)).map(|child| child.state)
}

fn code(world: &World, op: u64) -> Option<String> {
    let answer = world.answers.get(&op)?;
    Some(answer.as_ref().map_or_else(|error| error.code().to_owned(), |()| "ok".to_owned()))
}

#[test]
fn orchestration_1_14_7_a_parent_waits_for_its_child_and_hears_of_it_before_it_settles() {
    let mut world = family(&[("root", "a"), ("a", "b")]);
    finish(&mut world, "a");
    assert_eq!(state(&world, "a"), Some(ActivationState::Waiting));
    finish(&mut world, "b");
    perform(&mut world, "dispose b");
    // The notice is on its way: neither is let go.
    assert_eq!(under_way(&world), ["notice of b to a"]);
    world.look(&id("a"));
    let look = world.tasks.pop().unwrap();
    world.perform(look, true);
    assert_eq!(under_way(&world), ["notice of b to a"]);
    perform(&mut world, "notice of b to a");
    assert_eq!((state(&world, "b"), state(&world, "a")), (None, Some(ActivationState::Running)));
    finish(&mut world, "a");
    perform(&mut world, "dispose a");
    perform(&mut world, "notice of a to root");
    assert!(world.machine.activations().is_empty());
}

#[test]
fn orchestration_1_7_a_quiet_moment_before_a_message_settles_nothing() {
    let mut world = family(&[("root", "a")]);
    world.agents.get_mut("a").unwrap().finish();
    world.look(&id("a"));
    let stale = world.tasks.pop().unwrap();
    let op = world.deliver(&id("root"), &id("a"));
    perform(&mut world, "send a");
    world.perform(stale, true);
    assert_eq!((code(&world, op).as_deref(), under_way(&world).len()), (Some("ok"), 0));
    finish(&mut world, "a");
    assert_eq!(under_way(&world), ["dispose a"]);
}

#[test]
fn orchestration_1_7_a_child_that_waited_and_was_sent_more_is_not_settled_by_its_childs_end() {
    let mut world = family(&[("root", "a"), ("a", "b")]);
    finish(&mut world, "a");
    world.deliver(&id("root"), &id("a"));
    perform(&mut world, "send a");
    world.look(&id("a"));
    let look = world.tasks.pop().unwrap();
    world.perform(look, true);
    // Its end wakes nobody, so that nothing but the running turn keeps its parent.
    world.agents.get_mut("b").unwrap().finish();
    world.look(&id("b"));
    let look = world.tasks.pop().unwrap();
    world.perform(look, true);
    perform(&mut world, "dispose b");
    let notice = world.tasks.pop().unwrap();
    world.perform(notice, false);
    assert_eq!(world.tasks.len(), 0, "{:?}", world.tasks);
    assert_eq!(state(&world, "a"), Some(ActivationState::Running));
}

#[test]
fn orchestration_1_7_what_comes_during_a_disposal_resumes_the_child_after_it() {
    let mut world = family(&[("root", "a")]);
    finish(&mut world, "a");
    let op = world.deliver(&id("root"), &id("a"));
    assert_eq!(under_way(&world), ["dispose a"]);
    perform(&mut world, "dispose a");
    perform(&mut world, "notice of a to root");
    assert_eq!((under_way(&world), code(&world, op)), (vec!["make a".to_owned()], None));
    perform(&mut world, "make a");
    perform(&mut world, "send a");
    assert_eq!(code(&world, op).as_deref(), Some("ok"));
}

#[test]
fn orchestration_1_17_messages_of_one_child_are_sent_one_after_the_other() {
    let mut world = family(&[("root", "a")]);
    let first = world.deliver(&id("root"), &id("a"));
    let second = world.deliver(&id("root"), &id("a"));
    assert_eq!(under_way(&world), ["send a"]);
    finish(&mut world, "a");
    assert_eq!(under_way(&world), ["send a"], "what is queued keeps it from settling");
    perform(&mut world, "send a");
    assert_eq!((code(&world, first).as_deref(), code(&world, second)), (Some("ok"), None));
    perform(&mut world, "send a");
    assert_eq!(code(&world, second).as_deref(), Some("ok"));
}

#[test]
fn orchestration_1_14_10_parked_input_keeps_an_interrupted_child() {
    let mut world = family(&[("root", "a")]);
    world.deliver(&id("root"), &id("a"));
    perform(&mut world, "send a");
    world.agents.get_mut("a").unwrap().cut(true);
    world.look(&id("a"));
    let look = world.tasks.pop().unwrap();
    world.perform(look, true);
    assert_eq!(state(&world, "a"), Some(ActivationState::Parked));
    assert!(under_way(&world).is_empty());
}

#[test]
fn orchestration_1_14_12_a_scoped_drain_refuses_below_one_agent_alone() {
    let mut world = family(&[("root", "a"), ("root", "b"), ("a", "c")]);
    world.drain(DrainScope::Below(vec![id("a")]), false);
    assert_eq!(under_way(&world), ["dispose c whole"]);
    let below = world.start(&id("a"), &id("d"));
    assert_eq!(code(&world, below).as_deref(), Some("DRAINING"));
    let deeper = world.start(&id("c"), &id("d"));
    assert_eq!(code(&world, deeper).as_deref(), Some("DRAINING"));
    let beside = world.start(&id("b"), &id("d"));
    perform(&mut world, "make d");
    assert_eq!(code(&world, beside).as_deref(), Some("ok"));
    perform(&mut world, "dispose c whole");
    perform(&mut world, "notice of c to a, no wake");
    world.input(Input::Gone { agent: id("a") });
    let again = world.start(&id("a"), &id("e"));
    perform(&mut world, "make e");
    assert_eq!(code(&world, again).as_deref(), Some("ok"));
}

#[test]
fn orchestration_1_15_a_tree_is_cut_off_top_down_and_released_bottom_up() {
    let mut world = family(&[("root", "b"), ("b", "d")]);
    let effects = world.machine.handle(Input::Drain {
        drain: 99,
        scope: DrainScope::Below(vec![id("root")]),
        keep_inbox: false,
    });
    let order: Vec<_> = effects
        .iter()
        .map(|effect| match effect {
            Effect::Cancel { child, .. } => format!("cancel {child}"),
            Effect::Dispose { child, .. } => format!("dispose {child}"),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(order, ["cancel b", "cancel d", "dispose d"]);
}

#[test]
fn orchestration_1_14_6_a_start_that_is_given_up_leaves_nothing() {
    let mut world = World::new();
    let op = world.start(&id("root"), &id("a"));
    world.cancel(op);
    assert_eq!(code(&world, op), None, "what is made is awaited");
    perform(&mut world, "make a");
    assert_eq!(code(&world, op).as_deref(), Some("CANCELLED"));
    assert!(world.machine.activations().is_empty() && world.tasks.is_empty());
}

#[test]
fn orchestration_1_7_who_is_refused() {
    let mut world = family(&[("root", "a"), ("a", "b")]);
    let twice = world.start(&id("root"), &id("a"));
    assert_eq!(code(&world, twice).as_deref(), Some("DUPLICATE_CHILD"));
    let deeper = world.deliver(&id("root"), &id("b"));
    assert_eq!(code(&world, deeper).as_deref(), Some("UNAUTHORIZED"));
    let may = |caller: &str, target: &str, by_user| {
        let may = world.machine.may_interrupt(&id(caller), &id(target), by_user);
        may.map_err(|error| error.code().to_owned())
    };
    let unauthorized = Err("UNAUTHORIZED".to_owned());
    assert_eq!(may("root", "b", false), Ok(true));
    assert_eq!(may("root", "b", true), unauthorized);
    assert_eq!(may("a", "b", true), Ok(true));
    assert_eq!(may("b", "b", false), unauthorized);
    assert_eq!(may("b", "a", false), unauthorized);
    assert_eq!(may("b", "stored", false), Ok(false));
    let foreign = world.machine.direct_children(&id("root"), &[id("a"), id("b"), id("none")]);
    assert_eq!(foreign.unwrap_err().code(), "UNAUTHORIZED");
}

#[test]
fn orchestration_1_7_a_report_of_a_child_that_is_ended_is_refused() {
    let mut world = family(&[("root", "a")]);
    let before = world.report(&id("a"));
    perform(&mut world, "report to root");
    assert_eq!(code(&world, before).as_deref(), Some("ok"));
    world.drain(DrainScope::Children(vec![id("a")]), false);
    let closing = world.report(&id("a"));
    assert_eq!(code(&world, closing).as_deref(), Some("ACTIVATION_CLOSING"));
    perform(&mut world, "dispose a whole");
    perform(&mut world, "notice of a to root");
    let gone = world.report(&id("a"));
    assert_eq!(code(&world, gone).as_deref(), Some("UNAUTHORIZED"));
}
