use crate::{
    chunk::{Failure, FinishReason},
    content::ContentBlock,
    event::EventBody,
    machine::{
        LoopOptions,
        tests::{
            rig::{Rig, m, options},
            world::{Pre, call_delta, calls, chunks, cut, delta, finish, says, usage},
        },
    },
    message::{Message, Source},
};

#[test]
fn core_20_the_output_limit_ends_the_turn() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(cut("par", &[]));
    rig.followup("A").run();
    assert!(rig.news().ends_with("A SE1.1 TE1(max-tokens)"));
}

#[test]
fn core_21_llm_18_once_cut_a_turn_stays_cut() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(cut("par", &[]));
    rig.followup("A").before("Stopping").steer("B").run();
    let news = rig.news();
    assert!(news.ends_with("SE1.1 IN+(S,B) IN-(S,1) SS1.2 U(B) A SE1.2 TE1(max-tokens)"), "{news}");
}

#[test]
fn core_22_the_next_turn_is_not_cut() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(cut("par", &[]));
    rig.followup("A").followup("B").run();
    let news = rig.news();
    assert!(news.contains("TE1(max-tokens)") && news.ends_with("TE2(completed)"), "{news}");
}

#[test]
fn core_23_anchor_l18_a_cut_answer_runs_no_call() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(cut("par", &["c1"]));
    rig.followup("A").run();
    assert!(rig.news().ends_with("C A SE1.1 TE1(max-tokens)"));
}

#[test]
fn core_24_a_cut_call_alone_leaves_an_empty_answer() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(cut("", &["c1"]));
    rig.followup("A").run();
    assert!(rig.news().ends_with("C A() SE1.1 TE1(max-tokens)"));
    rig.followup("B").run();
    assert_eq!(rig.request(1), "s:P u:A u:B");
}

#[test]
fn core_25_llm_16_an_answer_without_content_is_logged_and_not_shown() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(chunks(vec![usage(), finish(FinishReason::Stop)]));
    rig.followup("A").run();
    let EventBody::AssistantMessage(answer) = &rig.core.log().iter().rev().nth(2).unwrap().body
    else {
        panic!("the answer stands before the ends of step and turn")
    };
    assert_eq!(answer.usage.map(|usage| usage.input_tokens), Some(7));
    assert!(rig.news().ends_with("C A() SE1.1 TE1(completed)"));
    rig.followup("B").run();
    assert_eq!(rig.request(1), "s:P u:A u:B");
}

#[test]
fn llm_17_blocks_decide_whether_tools_run_and_not_the_finish() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(chunks(vec![call_delta("c1", 0), finish(FinishReason::Stop)]));
    rig.followup("A").run();
    let steps = rig.steps();
    assert!(steps.ends_with("A(c1) TC(c1) TR(c1) SE1.1 SS1.2 A SE1.2 TE1(completed)"), "{steps}");
    let mut rig = Rig::new();
    rig.world.answers.push_back(chunks(vec![delta("x"), finish(FinishReason::ToolCalls)]));
    rig.followup("A").run();
    assert!(rig.news().ends_with("C A SE1.1 TE1(completed)"));
}

#[test]
fn core_26_tools_of_a_cut_turn_run_without_a_further_request() {
    let mut rig = Rig::new();
    rig.world.answers.extend([cut("par", &[]), calls(&["c1"])]);
    rig.followup("A").before("Stopping").steer("B").run();
    let news = rig.news();
    assert!(news.ends_with("U(B) A(c1) TC(c1) TR(c1) SE1.2 TE1(max-tokens)"), "{news}");
    assert_eq!(rig.sent.len(), 2);
}

#[test]
fn core_27_a_tool_may_conclude_the_turn() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(calls(&["c1"]));
    rig.world.concludes = true;
    rig.followup("A").run();
    assert!(rig.news().ends_with("TR(c1) SE1.1 TE1(completed)"));
    rig.followup("B").run();
    assert_eq!(rig.request(1), "s:P u:A a:so: t:out u:B");
}

#[test]
fn core_28_a_conclusion_does_not_skip_steering() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(calls(&["c1"]));
    rig.world.concludes = true;
    rig.followup("A").before("RunTools").steer("B").run();
    let news = rig.news();
    assert!(news.ends_with("TR(c1) SE1.1 IN-(S,1) SS1.2 U(B) A SE1.2 TE1(completed)"), "{news}");
    assert_eq!(rig.counts.stopping, 1, "listeners are asked once nothing waits");
}

#[test]
fn core_29_a_stopping_listener_steers_once() {
    let mut rig = Rig::new();
    rig.followup("A").before("Stopping").steer("B").quiet();
    rig.complete();
    rig.before("Stopping").run();
    let news = rig.news();
    assert!(news.ends_with("IN-(S,1) SS1.2 U(B) A SE1.2 TE1(completed)"), "{news}");
}

/// A turn whose close is decided when the steering of another sender is taken first.
fn steered_close() -> Rig {
    let mut rig = Rig::new();
    rig.followup("A").before("Stopping").complete();
    let close = rig.commands.pop_front().unwrap();
    let splice = rig.state().inbox().insert_at_tail(crate::event::InboxTarget::NextStep, m("B"));
    rig.append(crate::event::NewEvent::log_only(EventBody::InboxSpliced(splice.unwrap())));
    rig.commands.push_back(close);
    rig
}

#[test]
fn core_29_steering_that_arrives_with_the_close_keeps_the_turn_open() {
    let mut rig = steered_close();
    rig.run();
    let news = rig.news();
    assert!(news.ends_with("IN-(S,1) SS1.2 U(B) A SE1.2 TE1(completed)"), "{news}");
}

#[test]
fn core_5_2_a_keeping_cancel_leaves_such_steering_where_it_is() {
    let mut rig = steered_close();
    rig.cancel_by(crate::event::CancelCause::User, true).run();
    let news = rig.news();
    assert!(news.ends_with("A SE1.1 IN+(S,B) TE1(aborted)"), "{news}");
}

/// A prompt that came while the close was on its way is the going turn's to run, if it can.
#[test]
fn core_32_a_turn_that_goes_on_and_fails_parks_what_came() {
    let mut rig = steered_close();
    rig.world.pre.push_back(Pre::Fail("X"));
    rig.followup("C").run();
    let news = rig.news();
    assert!(news.ends_with("TE1(error:X)"), "{news}");
    assert_eq!(rig.core.pending(crate::event::InboxTarget::NextTurn).len(), 1);
}

#[test]
fn core_30_a_failing_stopping_listener_is_an_error() {
    let mut rig = Rig::new();
    rig.world.stopping.push_back(Failure::new("X", "x"));
    rig.followup("A").run();
    assert!(rig.news().ends_with("SE1.1 TE1(error:X)"));
    assert_eq!(rig.reports.len(), 1);
    rig.followup("B").run();
    assert!(rig.news().ends_with("TE2(completed)"));
}

#[test]
fn core_31_a_rejected_first_step_is_blocked() {
    let mut rig = Rig::new();
    rig.world.pre.push_back(Pre::Reject);
    rig.followup("A").run();
    assert_eq!(rig.news(), "IN+(T,A) TS1 IN-(T,1) TE1(blocked)");
    assert!(rig.reports.is_empty());
}

#[test]
fn core_32_a_rejected_step_leaves_later_prompts_parked() {
    let mut rig = Rig::new();
    rig.world.pre.push_back(Pre::Reject);
    rig.followup("A").followup("B").run();
    assert!(rig.news().ends_with("IN+(T,B) TE1(blocked)"));
    rig.followup("C").run();
    assert_eq!(
        rig.steps(),
        "TS2 SS2.1 SYS+ U(B) H(initial) C A SE2.1 TE2(completed) TS3 SS3.1 U(C) A SE3.1 TE3(completed)"
    );
}

#[test]
fn core_33_what_is_injected_during_a_reject_survives() {
    let mut rig = Rig::new();
    rig.world.pre.push_back(Pre::Reject);
    rig.inject("a").followup("A").before("Propose").inject("b").run();
    assert!(rig.news().ends_with("IN-(S,1) IN-(T,1) IN+(S,b) TE1(blocked)"));
    rig.followup("B").run();
    assert_eq!(rig.request(0), "s:P u:b u:B");
}

#[test]
fn core_34_a_rejected_second_step_loses_what_it_claimed() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(calls(&["c1"]));
    rig.followup("A").before("RunTools");
    rig.world.pre.push_back(Pre::Reject);
    rig.steer("B").run();
    assert!(rig.news().ends_with("TR(c1) SE1.1 IN-(S,1) TE1(blocked)"));
    assert!(rig.state().inbox().is_empty());
}

#[test]
fn core_35_an_emptied_first_step_stops_the_driver() {
    let mut rig = Rig::new();
    rig.world.pre.push_back(Pre::Rewrite(vec![]));
    rig.followup("A").followup("B").run();
    assert_eq!(rig.news(), "IN+(T,A) TS1 IN-(T,1) IN+(T,B) TE1(completed)");
}

#[test]
fn core_36_an_emptied_later_step_closes_the_turn() {
    let mut rig = Rig::new();
    rig.followup("A").before("Dispatch");
    rig.world.pre.push_back(Pre::Rewrite(vec![]));
    rig.steer("B").run();
    assert!(rig.news().ends_with("A SE1.1 IN-(S,1) TE1(completed)"));
}

#[test]
fn core_37_only_the_rewritten_message_is_logged() {
    let mut rig = Rig::new();
    rig.world.pre.push_back(Pre::Rewrite(vec![m("A2")]));
    rig.followup("A").run();
    assert_eq!(rig.request(0), "s:P u:A2");
    let news = rig.news();
    assert!(news.contains("SYS+ U(A2) H") && !news.contains("U(A)"), "{news}");
}

#[test]
fn core_38_an_extra_message_keeps_its_place_and_source() {
    let mut rig = Rig::new();
    let extra = Message::user_from("X", vec![ContentBlock::text("X")], Source::of_kind("memory"));
    rig.world.pre.push_back(Pre::Extra(vec![extra.into()]));
    rig.followup("A").run();
    assert!(rig.news().contains("SYS+ U(A) U(X) H"));
    assert_eq!(rig.sent[0].request.messages.get(2).unwrap().message.source.kind(), "memory");
}

#[test]
fn core_40_a_step_is_proposed_before_it_starts() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(calls(&["c1"]));
    rig.followup("A").before("Propose");
    assert_eq!(rig.news(), "IN+(T,A) TS1 IN-(T,1)");
    assert_eq!(rig.machine.step(), None);
    rig.before("RunTools").complete();
    rig.before("Propose");
    let Some(crate::machine::Effect::Propose { at, claimed, .. }) = &rig.work else { panic!() };
    assert_eq!((at.turn, at.step, claimed.len()), (1, 2, 0));
}

#[test]
fn core_41_a_failing_pre_step_keeps_steering_for_the_next_wake() {
    let mut rig = Rig::new();
    rig.world.pre.push_back(Pre::Fail("X"));
    rig.followup("A").before("Propose").steer("B").run();
    assert!(rig.news().ends_with("IN+(S,B) TE1(error:X)"));
    assert_eq!(rig.reports.len(), 1);
    rig.followup("C").run();
    assert_eq!(rig.request(0), "s:P u:B u:C");
}

#[test]
fn core_42_a_failing_request_chain_admits_nothing() {
    let mut rig = Rig::new();
    rig.world.unprepared.push_back(Failure::unknown("42"));
    rig.followup("A").run();
    assert_eq!(rig.steps(), "TS1 SS1.1 SE1.1 TE1(error:UNKNOWN)");
    assert_eq!(rig.reports, [(1, 1, Failure::unknown("42"))]);
}

/// An error value whose text cannot be rendered comes as an empty one.
#[test]
fn core_43_a_failure_without_words_still_ends_the_turn() {
    let mut rig = Rig::new();
    let silent = Failure { provider_retry_after_ms: Some(u64::MAX), ..Failure::new("", "") };
    rig.world.unprepared.push_back(silent);
    rig.followup("A").run();
    assert_eq!(rig.steps(), "TS1 SS1.1 SE1.1 TE1(error:UNKNOWN)");
    rig.followup("B").run();
    assert!(rig.news().ends_with("TE2(completed)"));
}

#[test]
fn design_17_a_turn_has_its_limit_of_steps() {
    let mut rig = Rig::with(LoopOptions { max_steps: 2, ..options() });
    rig.world.answers.extend([calls(&["c1"]), calls(&["c2"]), says("never")]);
    rig.followup("A").run();
    assert!(rig.news().ends_with("TR(c2) SE1.2 TE1(budget)"));
    assert_eq!(rig.sent.len(), 2);
}
