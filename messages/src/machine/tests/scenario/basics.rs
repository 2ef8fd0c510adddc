use crate::{
    content::ContentBlock,
    event::{CancelCause, InboxTarget},
    machine::{
        LoopOptions, Recovery, Status,
        tests::{
            rig::{Rig, m, options},
            world::{Answer, Pre, calls, fails, says},
        },
    },
};
use Status::{Idle, Running};

const FIRST: &str = "IN+(T,A) TS1 IN-(T,1) SS1.1 SYS+ U(A) H(initial) C A SE1.1 TE1(completed)";

#[test]
fn core_1_one_prompt_one_turn() {
    let mut rig = Rig::new();
    rig.followup("A").run();
    assert_eq!(rig.news(), FIRST);
    assert_eq!(rig.statuses, [Running, Idle]);
    assert_eq!(rig.request(0), "s:P u:A");
}

#[test]
fn core_2_a_second_turn_adds_only_its_own() {
    let mut rig = Rig::new();
    rig.followup("A").run().news();
    rig.followup("B").run();
    assert_eq!(rig.news(), "IN+(T,B) TS2 IN-(T,1) SS2.1 U(B) A SE2.1 TE2(completed)");
    assert_eq!(rig.request(1), "s:P u:A a:hi u:B");
}

#[test]
fn core_3_a_tool_round_trip() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(calls(&["c1"]));
    rig.followup("A").run();
    assert_eq!(
        rig.steps(),
        "TS1 SS1.1 SYS+ U(A) H(initial) C A(c1) TC(c1) TR(c1) SE1.1 SS1.2 A SE1.2 TE1(completed)"
    );
    assert_eq!(rig.request(1), "s:P u:A a:so: t:out");
}

#[test]
fn core_4_a_burst_of_three_is_three_turns_and_one_running_interval() {
    let mut rig = Rig::new();
    rig.followup("A").followup("B").followup("C").run();
    let news = rig.news();
    assert!(news.starts_with("IN+(T,A) TS1 IN-(T,1) IN+(T,B) IN+(T,C) SS1.1"), "{news}");
    assert!(news.ends_with("TE3(completed)"), "{news}");
    assert_eq!(rig.last_request(), "s:P u:A a:hi u:B a:hi u:C");
    assert_eq!(rig.statuses, [Running, Idle]);
}

#[test]
fn core_5_a_prompt_right_after_another_is_not_merged() {
    let mut rig = Rig::new();
    rig.followup("A").after("Accept").followup("B").run();
    let news = rig.news();
    assert!(
        news.contains("U(A)") && news.contains("TE1(completed) TS2 IN-(T,1) SS2.1 U(B)"),
        "{news}"
    );
}

/// Observers are asynchronous: the nearest windows are those right after the claim, and while the
/// model streams.
#[test]
fn core_6_a_prompt_sent_after_the_claim_is_of_the_next_turn() {
    for window in ["Propose", "Dispatch", "Stopping", "CloseTurn", "Rest"] {
        let mut rig = Rig::new();
        rig.followup("A").before(window).followup("B").run();
        let news = rig.news();
        assert!(news.contains("TE1(completed)"), "{window}: {news}");
        assert!(news.ends_with("SS2.1 U(B) A SE2.1 TE2(completed)"), "{window}: {news}");
        assert_eq!(rig.statuses.last(), Some(&Idle));
    }
}

/// An actor takes one message at a time, so that nothing re-enters; a second message of one id is
/// what is left to refuse.
#[test]
fn core_7_a_refused_send_leaves_the_other_alone() {
    let mut rig = Rig::new();
    rig.followup("A").inject("A").run();
    assert_eq!(rig.news(), FIRST);
    assert!(rig.accepted[0].1.is_ok());
    assert_eq!(rig.accepted[1].1.as_ref().unwrap_err().code(), "ALREADY_PENDING");
}

#[test]
fn core_8_steer_while_idle_is_a_prompt() {
    let mut rig = Rig::new();
    rig.steer("A").run();
    assert_eq!(
        rig.news(),
        "IN+(S,A) TS1 IN-(S,1) SS1.1 SYS+ U(A) H(initial) C A SE1.1 TE1(completed)"
    );
}

#[test]
fn core_9_steer_during_a_tool_joins_the_turn() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(calls(&["c1"]));
    rig.followup("A").before("RunTools").steer("B").run();
    let news = rig.news();
    assert!(news.contains("TR(c1) SE1.1 IN-(S,1) SS1.2 U(B) A SE1.2 TE1(completed)"), "{news}");
}

#[test]
fn core_10_inject_during_a_tool_does_not_part_call_and_result() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(calls(&["c1"]));
    rig.followup("A").before("RunTools").tool_call("c1").inject("B").quiet();
    rig.run();
    let news = rig.news();
    assert!(news.contains("TC(c1) IN+(S,B) TR(c1) SE1.1 IN-(S,1) SS1.2 U(B)"), "{news}");
    assert_eq!(rig.request(1), "s:P u:A a:so: t:out u:B");
}

#[test]
fn core_11_inject_while_idle_waits_for_the_next_prompt() {
    let mut rig = Rig::new();
    rig.inject("B").run();
    assert_eq!(rig.news(), "IN+(S,B)");
    assert_eq!(rig.statuses, []);
    rig.followup("A").run();
    assert_eq!(rig.request(0), "s:P u:B u:A");
}

#[test]
fn core_12_an_invalid_message_appends_nothing() {
    let mut rig = Rig::new();
    let mut message = (*m("A")).clone();
    message.content = vec![ContentBlock::ToolAddition { tool_name: "x".into() }];
    rig.send(message.into(), InboxTarget::NextStep, false);
    rig.run();
    assert_eq!(rig.news(), "");
    assert_eq!(rig.accepted[0].1.as_ref().unwrap_err().code(), "INVALID_MESSAGE");
}

#[test]
fn core_13_inject_during_the_request_chain_misses_that_request() {
    let mut rig = Rig::new();
    rig.followup("A").before("Prepare").inject("B").run();
    assert_eq!(rig.request(0), "s:P u:A");
    assert_eq!(rig.request(1), "s:P u:A a:hi u:B");
    let news = rig.news();
    assert!(news.contains("SE1.1 IN-(S,1) SS1.2 U(B)"), "{news}");
}

#[test]
fn core_14_the_order_of_a_claim() {
    let mut rig = Rig::new();
    // Parked: a turn that ends in an error leaves them.
    rig.world.pre.push_back(Pre::Fail("X"));
    rig.followup("Z").before("Propose").inject("a").steer("b").inject("c").followup("A").run();
    rig.news();
    rig.inject("d").followup("B").run();
    let news = rig.news();
    assert!(news.starts_with("IN+(S,d) IN+(T,B) TS2 IN-(S,4) IN-(T,1) SS2.1"), "{news}");
    assert_eq!(rig.request(0), "s:P u:a u:b u:c u:d u:A");
}

/// The splice and the opening are one command, so that the message cannot be removed between
/// them; a turn over nothing opens where a wake finds its message gone.
#[test]
fn core_15_a_turn_that_finds_nothing_to_claim_has_no_step() {
    let mut rig = Rig::new();
    rig.world.pre.push_back(Pre::Rewrite(vec![]));
    rig.followup("A").remove("A").run();
    assert_eq!(rig.news(), "IN+(T,A) TS1 IN-(T,1) TE1(completed)");
    assert!(rig.sent.is_empty());
}

#[test]
fn core_16_without_a_model_the_turn_fails_before_any_step() {
    let mut rig = Rig::with(LoopOptions::default());
    rig.followup("A").run();
    assert_eq!(rig.news(), "IN+(T,A) TS1 IN-(T,1) TE1(error:NO_MODEL)");
    assert_eq!((rig.reports.len(), rig.counts.propose), (1, 0));
    rig.choose("m").followup("B").run();
    assert!(rig.news().ends_with("TE2(completed)"));
}

/// Stream middleware is the provider's business; to the machine it is a prepared call without
/// capabilities, which the world's default is.
#[test]
fn core_17_a_route_without_capabilities_logs_what_was_proposed() {
    let mut rig = Rig::new();
    rig.followup("A").run();
    let requests = rig.state().requests();
    let header = requests.header().unwrap();
    assert_eq!((&*header.config.provider, header.adapter_defaults.is_empty()), ("p", true));
    let context = requests.context().unwrap();
    assert_eq!((context.context_window, context.system_prompt_update), (None, None));
}

#[test]
fn core_18_no_adapter_is_a_failed_attempt() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(fails("NO_ADAPTER"));
    rig.followup("A").run();
    assert!(rig.news().ends_with("C AT SE1.1 TE1(error:NO_ADAPTER)"));
}

#[test]
fn core_19_a_valid_limit_is_in_the_header() {
    let mut rig = Rig::with(LoopOptions { max_tokens: Some(9), ..options() });
    rig.followup("A").run();
    assert_eq!(rig.state().requests().header().unwrap().config.max_tokens, Some(9));
}

#[test]
fn core_95_contexts_of_a_disposed_batch_stay_parked() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(calls(&["c1"]));
    rig.followup("A").before("RunTools").tool_call("c1");
    rig.cancel_by(CancelCause::Disposed, true).inject("ctx").run();
    let news = rig.news();
    assert!(news.ends_with("TC(c1) IN+(S,ctx) TR(c1) SE1.1 TE1(aborted:disposed)"), "{news}");
    rig.followup("B").run();
    assert_eq!(rig.news(), "IN+(T,B)");
}

/// Wakes that come while a command that may open nothing is on its way.
#[test]
fn core_46_a_wake_during_an_opening_that_comes_to_nothing_is_not_lost() {
    // The opening message is refused.
    let mut rig = Rig::new();
    rig.inject("A").run();
    rig.followup("A").followup("B").run();
    assert!(rig.news().ends_with("TE1(completed)"));
    assert!(rig.state().inbox().is_empty());
    // The latched message is gone when its turn would open.
    let mut rig = Rig::new();
    rig.followup("A").before("Dispatch").cancel().followup("B").remove("B");
    rig.before("OpenTurn").followup("C").run();
    let news = rig.news();
    assert!(news.contains("U(C)") && news.ends_with("TE2(completed)"), "{news}");
}

#[test]
fn core_46_turn_start_refused_keeps_the_input_and_reaches_idle() {
    let mut rig = Rig::new();
    rig.followup("A").before("CloseTurn").followup("B").quiet();
    rig.run();
    rig.news();
    // A refused turn/end leaves the turn open: the next one cannot start until a repair.
    rig.veto = Some("CloseTurn");
    rig.followup("C").run();
    assert!(rig.news().ends_with("SE3.1"));
    assert_eq!(rig.statuses.last(), Some(&Idle));
    rig.followup("D").run();
    assert_eq!(rig.news(), "IN+(T,D)");
    assert_eq!(rig.reports.len(), 2);
    assert_eq!(rig.statuses.last(), Some(&Idle));
}

#[test]
fn newest_22_a_retry_without_a_change_logs_no_header() {
    let mut rig = Rig::new();
    rig.world.answers.extend([fails("X"), says("ok")]);
    rig.world.verdicts.push_back(Ok(Recovery::Retry));
    rig.followup("A").run();
    assert_eq!(rig.steps(), "TS1 SS1.1 SYS+ U(A) H(initial) C AT A SE1.1 TE1(completed)");
    assert_eq!(rig.statuses, [Running, Idle]);
}

#[test]
fn core_53_what_never_started_leaves_no_attempt_and_no_frames() {
    let mut rig = Rig::new();
    let failure = crate::chunk::Failure::new("STORE_FULL", "no space");
    rig.world.answers.push_back(Answer::NotStarted(failure));
    rig.followup("A").run();
    assert!(rig.news().ends_with("H(initial) C SE1.1 TE1(error:STORE_FULL)"));
    assert_eq!((rig.frames.len(), rig.counts.recover), (0, 0));
}

#[test]
fn core_146_maintenance_latches_a_wake() {
    let mut rig = Rig::new();
    rig.input(crate::machine::Input::Maintain { ticket: 1 });
    rig.input(crate::machine::Input::Maintain { ticket: 2 });
    rig.followup("A").inject("B").run();
    assert_eq!((rig.news(), &*rig.maintenance), ("IN+(T,A) IN+(S,B)".into(), &[true, false][..]));
    rig.input(crate::machine::Input::Maintained);
    rig.run();
    assert_eq!(rig.request(0), "s:P u:B u:A");
}
