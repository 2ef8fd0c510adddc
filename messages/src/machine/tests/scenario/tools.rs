use std::sync::Arc;

use crate::{
    config::ToolUpdate,
    event::EventBody,
    machine::{
        Input,
        tests::{
            rig::{Rig, options},
            world::{Pre, fails, goes_on_with},
        },
    },
    tool_history::ToolProjection,
};

/// A turn with these tools and this prompt; its prompt, header and developer events.
fn turn(rig: &mut Rig, text: &str, tools: &[&str]) -> String {
    rig.world.prompt = Ok(text.into());
    rig.world.declare(tools);
    admitted(rig)
}

fn admitted(rig: &mut Rig) -> String {
    let n = rig.state().boundary().last_turn() + 1;
    rig.followup(&format!("u{n}")).run();
    let news = rig.steps();
    let kept: Vec<_> =
        news.split(' ').filter(|w| ["SY", "H(", "D("].iter().any(|p| w.starts_with(p))).collect();
    kept.join(" ")
}

/// What the route is told: declarations (`*` when deferred), and how many developer messages.
fn wire(rig: &Rig, mode: Option<ToolUpdate>) -> (String, usize) {
    let request = &rig.sent.last().unwrap().request;
    let history = request.tool_history.as_ref();
    let messages = &request.messages;
    let mut projection =
        ToolProjection::new(mode, &request.header.tools, history, messages.messages());
    let told = messages.messages().filter(|message| {
        let is_developer = message.role == crate::message::Role::Developer;
        is_developer && projection.message(message).is_some()
    });
    let told = told.count();
    let names = projection.declarations().iter().map(|tool| {
        let mark = if tool.defer_loading { "*" } else { "" };
        format!("{}{mark}", tool.name)
    });
    (names.collect::<Vec<_>>().join(" "), told)
}

fn header_seq_of_last_update(rig: &Rig) -> Option<u64> {
    let update = rig.core.log().iter().rev().find_map(|event| match &event.body {
        EventBody::DeveloperMessage(data) => Some(data.header_seq),
        _ => None,
    });
    update.flatten()
}

#[test]
fn newest_24_an_added_tool_is_told_after_its_header() {
    let mut rig = Rig::new();
    turn(&mut rig, "P", &["search"]);
    assert_eq!(turn(&mut rig, "P", &["search", "fetch"]), "H(change) D(+fetch)");
    assert_eq!(header_seq_of_last_update(&rig), rig.state().requests().header_seq());
    assert_eq!(wire(&rig, None), ("search fetch".into(), 0));
}

#[test]
fn newest_25_a_removed_tool_is_told_without_a_definition() {
    let mut rig = Rig::new();
    turn(&mut rig, "P", &["search", "fetch"]);
    assert_eq!(turn(&mut rig, "P", &["search"]), "H(change) D(-fetch)");
    assert_eq!(header_seq_of_last_update(&rig), None);
    assert_eq!(turn(&mut rig, "P", &["search"]), "");
}

#[test]
fn newest_26_an_in_history_route_keeps_the_declaration() {
    let mut rig = Rig::new();
    rig.world.tool_update = Some(ToolUpdate::InHistory);
    turn(&mut rig, "P", &["search"]);
    turn(&mut rig, "P", &["search", "fetch"]);
    turn(&mut rig, "P", &["search"]);
    assert_eq!(wire(&rig, Some(ToolUpdate::InHistory)), ("search fetch*".into(), 2));
    assert_eq!(rig.state().requests().header().unwrap().tools.len(), 1);
}

#[test]
fn newest_27_an_addition_only_route_drops_what_was_removed() {
    let mut rig = Rig::new();
    rig.world.tool_update = Some(ToolUpdate::AdditionOnly);
    turn(&mut rig, "P", &["search", "fetch"]);
    assert_eq!(turn(&mut rig, "P", &["search"]), "H(change) D(-fetch)");
    assert_eq!(wire(&rig, Some(ToolUpdate::AdditionOnly)), ("search".into(), 0));
}

/// Gives every tool another description.
fn redefine(rig: &mut Rig) {
    let changed = rig.world.tools.iter().map(|tool| {
        let mut tool = (**tool).clone();
        tool.description.push('!');
        Arc::new(tool)
    });
    rig.world.tools = changed.collect();
}

#[test]
fn llm_108_names_are_told_and_definitions_stand_in_the_header() {
    let mut rig = Rig::new();
    turn(&mut rig, "P", &["search"]);
    assert_eq!(turn(&mut rig, "P", &["search", "fetch"]), "H(change) D(+fetch)");
    assert_eq!(turn(&mut rig, "P", &["search", "fetch"]), "");
    redefine(&mut rig);
    assert_eq!(admitted(&mut rig), "H(change)");
}

#[test]
fn newest_28_a_changed_definition_starts_over() {
    let mut rig = Rig::new();
    rig.world.tool_update = Some(ToolUpdate::InHistory);
    turn(&mut rig, "P", &["search"]);
    turn(&mut rig, "P", &["search", "fetch"]);
    redefine(&mut rig);
    assert_eq!(admitted(&mut rig), "H(change)");
    let history = rig.state().tools().snapshot().unwrap();
    assert!(history.updates.is_empty());
    assert_eq!(wire(&rig, Some(ToolUpdate::InHistory)), ("search fetch".into(), 0));
}

#[test]
fn newest_29_core_113_prompt_and_tool_in_one_step_keep_the_prefix() {
    let mut rig = Rig::new();
    rig.world.tool_update = Some(ToolUpdate::InHistory);
    rig.world.in_history = true;
    turn(&mut rig, "v1", &["search"]);
    assert_eq!(turn(&mut rig, "v2", &["search", "fetch"]), "SYS+(v2) H(change) D(+fetch)");
    let [first, second] = [0, 1].map(|n| rig.sent[n].request.messages.clone());
    assert!(second.range(0..first.len()).eq(first.iter()));
}

#[test]
fn newest_30_the_same_with_a_series_starts_over() {
    let mut rig = Rig::new();
    rig.world.tool_update = Some(ToolUpdate::InHistory);
    rig.world.in_history = true;
    turn(&mut rig, "v1", &["search"]);
    rig.world.pre.push_back(Pre::Series);
    assert_eq!(turn(&mut rig, "v2", &["search", "fetch"]), "SYS~(v2) H(change,S) D(+fetch)");
    assert_eq!(wire(&rig, Some(ToolUpdate::InHistory)), ("search fetch".into(), 0));
}

#[test]
fn newest_31_a_tool_change_without_a_tool_update() {
    let build = || {
        let mut rig = Rig::new();
        rig.world.in_history = true;
        turn(&mut rig, "v1", &["search"]);
        turn(&mut rig, "v2", &["search"]);
        rig
    };
    let mut rig = build();
    assert_eq!(turn(&mut rig, "v2", &["search", "fetch"]), "H(change) D(+fetch)");
    let mut rig = build();
    let expected = "SYS~() SYS~(v3) H(change,S) D(+fetch)";
    assert_eq!(turn(&mut rig, "v3", &["search", "fetch"]), expected);
}

#[test]
fn core_114_additions_come_first() {
    let mut rig = Rig::new();
    turn(&mut rig, "P", &["a", "b"]);
    assert_eq!(turn(&mut rig, "P", &["c", "b"]), "H(change) D(+c,-a)");
}

#[test]
fn core_115_a_resume_with_other_tools_is_told_against_the_old_header() {
    let mut rig = Rig::new();
    turn(&mut rig, "P", &["a"]);
    let mut rig = Rig::held(options(), rig.core.log().clone());
    rig.input(Input::Maintained);
    assert_eq!(turn(&mut rig, "P", &["b"]), "H(resume) D(+b,-a)");
}

/// Nothing of a step is committed for tools that no developer message could tell of.
#[test]
fn core_114_tools_of_one_name_fail_the_step_before_its_admission() {
    let mut rig = Rig::new();
    turn(&mut rig, "P", &["a"]);
    rig.world.declare(&["a", "b", "b"]);
    rig.followup("B").run();
    assert_eq!(rig.steps(), "TS2 SS2.1 SE2.1 TE2(error:INVALID_ADDED_TOOL)");
    assert_eq!(turn(&mut rig, "P", &["a", "b"]), "H(change) D(+b)");
}

#[test]
fn another_route_is_told_of_tools_in_its_own_way() {
    let mut rig = Rig::new();
    rig.world.tool_update = Some(ToolUpdate::InHistory);
    turn(&mut rig, "P", &["search"]);
    rig.world.declare(&["search", "fetch"]);
    rig.world.answers.push_back(fails("X"));
    rig.world.verdicts.push_back(Ok(goes_on_with("n")));
    rig.followup("B").before("Recover");
    assert_eq!(wire(&rig, Some(ToolUpdate::InHistory)), ("search fetch*".into(), 1));
    rig.world.tool_update = None;
    rig.run();
    assert!(
        rig.steps().ends_with("H(change) D(+fetch) AT M(n) H(change) C A SE2.1 TE2(completed)")
    );
    assert_eq!(wire(&rig, None), ("search fetch".into(), 0));
}
