use std::sync::Arc;

use crate::{
    config::ModelChoice,
    content::ContentBlock,
    event::{EventBody, NewEvent, SystemMessage},
    machine::{
        Input, LoopOptions, Recovery,
        tests::{
            rig::{Rig, options},
            world::{Pre, calls, fails, says},
        },
    },
    message::{Message, Source},
    surface::IMAGE_OFFLOAD,
};

/// A turn with prompt `text`; what the log gained, without the inbox.
fn turn(rig: &mut Rig, text: &str) -> String {
    rig.world.prompt = Ok(text.into());
    let n = rig.state().boundary().last_turn() + 1;
    rig.followup(&format!("u{n}")).run();
    rig.steps()
}

/// Only the prompt and header events of a turn.
fn admitted(rig: &mut Rig, text: &str) -> String {
    let news = turn(rig, text);
    let kept: Vec<_> =
        news.split(' ').filter(|w| ["SY", "H(", "D("].iter().any(|p| w.starts_with(p))).collect();
    kept.join(" ")
}

fn capable() -> Rig {
    let mut rig = Rig::new();
    rig.world.in_history = true;
    rig
}

/// A new instance over the same log and world.
fn resumed(rig: Rig) -> Rig {
    let mut next = Rig::held(options(), rig.core.log().clone());
    next.world = rig.world;
    next.input(Input::Maintained);
    next
}

fn choice(model: &str, effort: Option<&str>) -> ModelChoice {
    ModelChoice {
        provider: "p".into(),
        model: model.into(),
        reasoning_effort: effort.map(Into::into),
    }
}

#[test]
fn newest_1_core_111_an_empty_prompt_reserves_its_place() {
    let mut rig = Rig::new();
    assert_eq!(admitted(&mut rig, ""), "SYS+() H(initial)");
    assert_eq!(rig.last_request(), "u:u1");
    assert_eq!(rig.state().surface().len(), 3);
}

#[test]
fn newest_2_a_reserved_place_is_filled() {
    let mut rig = Rig::new();
    turn(&mut rig, "");
    assert_eq!(admitted(&mut rig, "p"), "SYS~(p) H(series)");
    assert_eq!(rig.last_request(), "s:p u:u1 a:hi u:u2");
}

#[test]
fn newest_3_an_unchanged_prompt_says_nothing() {
    let mut rig = capable();
    turn(&mut rig, "v1");
    assert_eq!(admitted(&mut rig, "v1"), "");
}

#[test]
fn newest_4_core_106_a_capable_route_appends_prompts() {
    let mut rig = capable();
    assert_eq!(admitted(&mut rig, "v1"), "SYS+(v1) H(initial)");
    assert_eq!(admitted(&mut rig, "v2"), "SYS+(v2)");
    assert_eq!(admitted(&mut rig, "v3"), "SYS+(v3)");
    assert_eq!(rig.last_request(), "s:v1 u:u1 a:hi s:v2 u:u2 a:hi s:v3 u:u3");
}

#[test]
fn newest_5_core_108_an_incapable_route_consolidates() {
    let mut rig = capable();
    turn(&mut rig, "v1");
    turn(&mut rig, "v2");
    rig.world.in_history = false;
    assert_eq!(admitted(&mut rig, "v2"), "SYS~() SYS~(v2) H(series)");
    assert_eq!(rig.last_request(), "s:v2 u:u1 a:hi u:u2 a:hi u:u3");
    assert_eq!(admitted(&mut rig, "v2"), "");
}

#[test]
fn newest_6_consolidation_to_another_text() {
    let mut rig = capable();
    turn(&mut rig, "v1");
    turn(&mut rig, "v2");
    rig.world.in_history = false;
    assert_eq!(admitted(&mut rig, "v3"), "SYS~() SYS~(v3) H(series)");
}

#[test]
fn newest_7_a_route_becomes_capable() {
    let mut rig = Rig::new();
    turn(&mut rig, "v1");
    rig.world.in_history = true;
    assert_eq!(admitted(&mut rig, "v2"), "SYS+(v2)");
    assert_eq!(rig.last_request(), "s:v1 u:u1 a:hi s:v2 u:u2");
}

#[test]
fn newest_8_core_109_a_series_with_the_same_text_keeps_the_prefix() {
    let mut rig = capable();
    turn(&mut rig, "v1");
    turn(&mut rig, "v2");
    rig.world.pre.push_back(Pre::Series);
    assert_eq!(admitted(&mut rig, "v2"), "H(series)");
}

#[test]
fn newest_9_a_series_with_another_text_consolidates() {
    let mut rig = capable();
    turn(&mut rig, "v1");
    turn(&mut rig, "v2");
    rig.world.pre.push_back(Pre::Series);
    assert_eq!(admitted(&mut rig, "v3"), "SYS~() SYS~(v3) H(series)");
}

#[test]
fn newest_10_core_110_clearing_and_filling_again() {
    for capable_later in [true, false] {
        let mut rig = capable();
        for text in ["v1", "v2", "v3"] {
            turn(&mut rig, text);
        }
        assert_eq!(admitted(&mut rig, ""), "SYS~() SYS~() SYS~() H(series)");
        assert_eq!(admitted(&mut rig, ""), "");
        let mut rig = resumed(rig);
        assert_eq!(admitted(&mut rig, ""), "H(resume)");
        rig.world.in_history = capable_later;
        let expected = if capable_later { "SYS+(v4)" } else { "SYS~(v4) H(series)" };
        assert_eq!(admitted(&mut rig, "v4"), expected);
        assert_eq!(rig.last_request().matches("s:").count(), 1);
    }
}

fn odd_system(rig: &Rig) -> NewEvent {
    let at = rig.state().boundary().at().unwrap();
    let mut message = Message::system("odd", "one");
    message.content.push(ContentBlock::text("two"));
    NewEvent::append(EventBody::SystemMessage(SystemMessage {
        turn: at.turn,
        step: at.step,
        message: Arc::new(message),
    }))
}

#[test]
fn newest_11_an_opaque_prompt_counts_as_one() {
    let mut rig = capable();
    turn(&mut rig, "v1");
    rig.world.prompt = Ok(String::new());
    rig.followup("A").before("Prepare");
    let odd = odd_system(&rig);
    rig.append(odd).run();
    assert!(rig.news().contains("SYS+(onetwo) SYS~() SYS~() U(A)"));
}

#[test]
fn newest_12_a_capable_route_appends_past_dormant_nodes() {
    let mut rig = capable();
    turn(&mut rig, "v1");
    turn(&mut rig, "v2");
    turn(&mut rig, "");
    assert_eq!(admitted(&mut rig, "x"), "SYS+(x)");
    assert_eq!(rig.last_request(), "u:u1 a:hi u:u2 a:hi u:u3 a:hi s:x u:u4");
}

#[test]
fn newest_13_a_late_prompt_stands_behind_and_may_be_shadowed() {
    let mut rig = Rig::new();
    rig.append(crate::testing::user("early", "early"));
    assert_eq!(admitted(&mut rig, "P"), "SYS+ H(initial)");
    assert_eq!(rig.last_request(), "u:early s:P u:u1");
    rig.compact(0, 2);
    assert_eq!(admitted(&mut rig, "P"), "SYS+ H(series)");
    assert_eq!(rig.last_request(), "u:summary a:hi s:P u:u2");
}

#[test]
fn newest_14_compaction_between_turns_breaks_the_series() {
    for (text, expected) in [("v2", "SYS~(v2) H(series)"), ("v1", "H(series)")] {
        let mut rig = capable();
        turn(&mut rig, "v1");
        rig.compact(1, 1);
        assert_eq!(admitted(&mut rig, text), expected);
    }
}

#[test]
fn newest_17_a_resume_alone_is_no_series() {
    let mut rig = capable();
    turn(&mut rig, "v1");
    turn(&mut rig, "v2");
    let mut rig = resumed(rig);
    assert_eq!(admitted(&mut rig, "v2"), "H(resume)");
    let mut rig = resumed(rig);
    rig.world.prompt = Ok("v3".into());
    rig.followup("A").before("Propose").compact(1, 1).run();
    assert!(rig.news().contains("SYS~() SYS~(v3) U(A) H(resume,S)"));
    assert_eq!(rig.last_request().matches("s:").count(), 1);
}

#[test]
fn newest_18_core_118_two_turns_log_one_header_and_one_context() {
    let mut rig = Rig::new();
    turn(&mut rig, "P");
    assert_eq!(turn(&mut rig, "P"), "TS2 SS2.1 U(u2) A SE2.1 TE2(completed)");
    rig.world.window = Some(10);
    assert!(turn(&mut rig, "P").contains("U(u3) C A"));
    rig.world.in_history = true;
    assert!(turn(&mut rig, "P").contains("U(u4) C A"));
}

#[test]
fn newest_19_core_103_sampling_is_the_hook_s_and_route_is_not() {
    let mut rig = Rig::new();
    turn(&mut rig, "P");
    rig.world.temperature = Some(0.25);
    assert_eq!(admitted(&mut rig, "P"), "H(change)");
    assert_eq!(admitted(&mut rig, "P"), "");
}

#[test]
fn newest_20_compaction_within_retries() {
    let mut rig = capable();
    for text in ["v1", "v2"] {
        turn(&mut rig, text);
    }
    rig.world.prompt = Ok("v3".into());
    rig.world.answers.extend([fails("TOO_LONG"), fails("TOO_LONG"), says("ok")]);
    rig.world.verdicts.extend([Ok(Recovery::Retry), Ok(Recovery::Retry)]);
    let before = rig.counts;
    rig.followup("A").before("Recover").compact(1, 1).run();
    assert!(rig.steps().contains("SYS+(v3) U(A) AT U~(x"));
    assert_eq!(rig.counts.propose - before.propose, 1);
    assert_eq!(rig.sent.len(), 5);
    let headers = rig.core.log().iter().filter(|event| event.body.kind() == "request/header");
    assert_eq!(headers.count(), 2);
    assert_eq!(rig.sent[3].request.messages, rig.sent[4].request.messages);
}

#[test]
fn newest_21_a_lost_window_is_logged() {
    let mut rig = Rig::new();
    rig.world.window = Some(10);
    turn(&mut rig, "P");
    rig.world.window = None;
    assert!(turn(&mut rig, "P").contains("U(u2) C A"));
    assert_eq!(rig.state().requests().context().unwrap().context_window, None);
}

#[test]
fn newest_23_core_100_core_101_defaults_are_resolved_anew() {
    let mut rig = Rig::with(LoopOptions { max_tokens: Some(5), ..options() });
    rig.world.default_effort = Some("medium".into());
    rig.world.default_max = Some(100);
    turn(&mut rig, "P");
    let header = rig.state().requests().header().unwrap().clone();
    assert_eq!(header.config.reasoning_effort.as_deref(), Some("medium"));
    assert_eq!((header.config.max_tokens, header.adapter_defaults.max_tokens), (Some(5), false));
    rig.world.default_effort = None;
    rig.choose("n");
    assert_eq!(admitted(&mut rig, "P"), "H(change)");
    let header = rig.state().requests().header().unwrap().clone();
    assert_eq!((header.config.reasoning_effort.clone(), header.config.max_tokens), (None, Some(5)));
    let mut rig = Rig::new();
    rig.world.default_max = Some(100);
    turn(&mut rig, "P");
    rig.world.default_max = Some(200);
    turn(&mut rig, "P");
    assert_eq!(rig.state().requests().header().unwrap().config.max_tokens, Some(200));
}

#[test]
fn newest_33_core_105_a_choice_takes_effect_at_the_next_step() {
    let mut rig = Rig::new();
    rig.world.answers.extend([fails("X"), calls(&["c1"]), says("ok")]);
    rig.world.verdicts.push_back(Ok(Recovery::Retry));
    rig.followup("A").before("Dispatch").choose("n").run();
    let models: Vec<_> =
        rig.sent.iter().map(|sent| sent.request.header.config.model.clone()).collect();
    assert_eq!(models, ["m", "m", "n"]);
    assert!(rig.news().contains("SS1.2 H(change) C A SE1.2 TE1(completed)"));
}

#[test]
fn newest_34_core_104_a_hook_that_changes_the_route_fails_the_step() {
    let mut rig = Rig::new();
    rig.world.hooked_model = Some("n".into());
    rig.followup("A").run();
    assert_eq!(rig.steps(), "TS1 SS1.1 SE1.1 TE1(error:UNKNOWN)");
    assert!(rig.sent.is_empty());
}

#[test]
fn newest_35_the_log_s_choice_stands_against_the_options() {
    let mut rig = Rig::new();
    rig.choose("b");
    turn(&mut rig, "P");
    let mut rig = resumed(rig);
    turn(&mut rig, "P");
    assert_eq!(rig.sent[0].request.header.config.model, "b");
    rig.choose("c");
    turn(&mut rig, "P");
    assert_eq!(rig.sent[1].request.header.config.model, "c");
}

#[test]
fn newest_36_a_served_choice_is_no_longer_pending() {
    let mut rig = Rig::new();
    rig.choose("b");
    turn(&mut rig, "P");
    let selection = rig.state().selection();
    assert_eq!((&selection.pending, selection.next()), (&None, Some(&choice("b", None))));
}

#[test]
fn core_102_the_prepared_call_decides_the_header() {
    let mut rig = Rig::new();
    rig.world.default_max = Some(100);
    rig.followup("A").before("Admit");
    rig.world.default_max = Some(200);
    rig.run();
    assert_eq!(rig.state().requests().header().unwrap().config.max_tokens, Some(100));
}

#[test]
fn core_107_a_plain_route_rewrites_the_head() {
    let mut rig = Rig::new();
    turn(&mut rig, "v1");
    assert_eq!(turn(&mut rig, "v2"), "TS2 SS2.1 SYS~(v2) U(u2) H(series) A SE2.1 TE2(completed)");
}

#[test]
fn core_112_compaction_in_pre_step_shadows_tails() {
    let mut rig = capable();
    turn(&mut rig, "v1");
    turn(&mut rig, "v2");
    rig.world.prompt = Ok("v3".into());
    // Nodes: v1, u1, hi, v2, u2, hi.
    rig.followup("A").before("Propose").compact(1, 4).run();
    assert!(rig.news().contains("SYS~(v3) U(A) H(series)"));
    assert_eq!(rig.last_request(), "s:v3 u:summary a:hi u:A");
}

#[test]
fn core_116_a_series_over_an_unchanged_config_is_not_repeated_on_retry() {
    let mut rig = Rig::new();
    turn(&mut rig, "P");
    rig.world.pre.push_back(Pre::Series);
    rig.world.answers.extend([fails("X"), says("ok")]);
    rig.world.verdicts.push_back(Ok(Recovery::Retry));
    assert_eq!(admitted(&mut rig, "P"), "H(series)");
    assert_eq!(rig.sent.len(), 3);
}

#[test]
fn core_117_an_image_offload_is_a_series() {
    let mut rig = Rig::new();
    turn(&mut rig, "P");
    let image = ContentBlock::Image { attachment: serde_json::json!({}), offloaded: false };
    let content = vec![ContentBlock::text("look"), image];
    let message = Message::user_from("img", content, Source::user());
    rig.append(NewEvent::append(EventBody::UserMessage(Arc::new(message))));
    let seq = rig.core.log().len() - 1;
    assert_eq!(admitted(&mut rig, "P"), "");
    let target = serde_json::json!({"targets": [{"seq": seq, "imageIndexes": [0]}]});
    rig.append(NewEvent::custom(IMAGE_OFFLOAD, target));
    assert_eq!(admitted(&mut rig, "P"), "H(series)");
    let ids: Vec<_> = rig.sent[2].request.messages.messages().map(|m| m.id.clone()).collect();
    let before: Vec<_> = rig.sent[1].request.messages.messages().map(|m| m.id.clone()).collect();
    assert!(ids.starts_with(&before));
}

#[test]
fn core_119_newest_42_runtime_context_is_told_on_change() {
    let mut rig = Rig::new();
    let mut told = |fact: &str| {
        rig.world.fact(fact);
        let news = turn(&mut rig, "P");
        news.split(' ').find(|w| w.starts_with("CTX")).unwrap_or("none").to_owned()
    };
    assert_eq!(
        ["", "X", "X", "Y", "", ""].map(&mut told),
        ["none", "CTX(X)", "none", "CTX(Y)", "CTX(cleared)", "none"]
    );
}

#[test]
fn core_120_newest_41_a_shadowed_context_is_told_again() {
    let mut rig = Rig::new();
    rig.world.fact("X");
    turn(&mut rig, "P");
    rig.world.answers.extend([fails("X"), says("ok")]);
    rig.world.verdicts.push_back(Ok(Recovery::Retry));
    // Nodes: P, u1, X, hi, u2.
    rig.followup("A").before("Recover").compact(2, 2).run();
    assert!(rig.news().contains("CTX(X) H(series) A"));
    rig.compact(1, 1);
    assert!(!turn(&mut rig, "P").contains("CTX"));
}

/// A candidate that went stale between the pre-step and the admission is told as it is now, in its
/// place in the batch.
#[test]
fn newest_10_facts_are_refreshed_in_place() {
    let mut rig = Rig::new();
    rig.world.fact("X");
    let late = Arc::new(Message::user("late", "late"));
    rig.world.pre.push_back(Pre::Extra(vec![late]));
    rig.followup("A").before("Prepare");
    rig.world.fact("Y");
    rig.run();
    assert!(rig.news().contains("U(A) CTX(Y) U(late) H"));
}

#[test]
fn core_121_malformed_context_is_told_again() {
    let mut rig = Rig::new();
    let blocks = vec![ContentBlock::text("X"), ContentBlock::text("")];
    let source = Source::of_kind(crate::runtime_context::RUNTIME_CONTEXT);
    let odd = Message::user_from("odd", blocks, source);
    rig.append(NewEvent::append(EventBody::UserMessage(Arc::new(odd))));
    rig.world.fact("X");
    assert!(turn(&mut rig, "P").contains("U(u1) CTX(X)"));
    assert!(!turn(&mut rig, "P").contains("CTX"));
}

/// Rendering fails the step, once it is open; the pre-step fails the turn.
#[test]
fn core_4_5_a_prompt_that_cannot_be_rendered_fails_its_step() {
    let mut rig = Rig::new();
    rig.world.prompt = Err(crate::chunk::Failure::new("UNKNOWN_VARIABLE", "x"));
    rig.followup("A").run();
    assert_eq!(rig.steps(), "TS1 SS1.1 SE1.1 TE1(error:UNKNOWN_VARIABLE)");
    assert_eq!(rig.reports[0].1, 1);
}
