use std::sync::Arc;

use crate::{
    chunk::{Failure, FinishReason},
    event::{EventBody, InboxTarget, NewEvent, TurnEndReason},
    frame::FrameOutcome,
    machine::{
        Input, Recovery,
        tests::{
            rig::{Rig, m},
            world::{Pre, calls, chunks, delta, fails, finish, says, throws},
        },
    },
    message::Message,
    session::Reply,
};

fn ended(rig: &Rig) -> TurnEndReason {
    match &rig.core.log().last().unwrap().body {
        EventBody::TurnEnd(end) => end.reason.clone(),
        body => panic!("{body:?}"),
    }
}

fn settled(rig: &Rig) -> Vec<&str> {
    let kinds = rig.frames.iter().map(|frame| match frame {
        FrameOutcome::Committed { event_type, .. } => event_type.as_str(),
        FrameOutcome::Abandoned => "abandoned",
    });
    kinds.collect()
}

#[test]
fn core_44_a_failure_keeps_its_facts() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(fails("X"));
    rig.followup("A").run();
    assert!(rig.news().ends_with("C AT SE1.1 TE1(error:X)"));
    let failure = Failure { status: Some(503), ..Failure::new("X", "it broke") };
    assert_eq!(ended(&rig), TurnEndReason::Error(failure.clone()));
    assert_eq!(rig.reports, [(1, 1, failure)]);
}

#[test]
fn core_44_a_failure_without_a_code_ends_the_turn_all_the_same() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(fails(""));
    rig.followup("A").run();
    assert!(rig.news().ends_with("AT SE1.1 TE1(error:UNKNOWN)"));
}

#[test]
fn core_45_an_aborted_finish_without_a_cancel_is_an_error() {
    let mut rig = Rig::new();
    let failure = Failure::new("ABORTED", "gone");
    rig.world
        .answers
        .push_back(chunks(vec![delta("x"), finish(FinishReason::Aborted { failure })]));
    rig.followup("A").run();
    assert!(rig.news().ends_with("AT SE1.1 TE1(error:ABORTED)"));
}

#[test]
fn core_46_two_retries_and_one_answer_are_one_step() {
    let mut rig = Rig::new();
    rig.world.answers.extend([fails("X"), fails("X"), says("ok")]);
    rig.world.verdicts.extend([Ok(Recovery::Retry), Ok(Recovery::Retry)]);
    rig.followup("A").run();
    assert_eq!(rig.steps(), "TS1 SS1.1 SYS+ U(A) H(initial) C AT AT A SE1.1 TE1(completed)");
    assert_eq!((rig.counts.propose, rig.counts.prepare, rig.counts.recover), (1, 3, 2));
    assert_eq!(settled(&rig), ["assistant/attempt", "assistant/attempt", "assistant/message"]);
}

#[test]
fn core_47_a_retry_after_compaction_derives_from_it() {
    let mut rig = Rig::new();
    rig.followup("A").run();
    rig.world.answers.extend([fails("TOO_LONG"), says("ok")]);
    rig.world.verdicts.push_back(Ok(Recovery::Retry));
    rig.followup("B").before("Recover").compact(1, 2);
    rig.world.prompt = Ok("Q".into());
    rig.news();
    rig.run();
    // The prompt was rendered once for the step.
    assert_eq!(rig.news(), "H(series) A SE2.1 TE2(completed)");
    assert_eq!(rig.last_request(), "s:P u:summary u:B");
}

#[test]
fn core_48_a_retry_with_other_sampling_logs_the_change() {
    let mut rig = Rig::new();
    rig.world.answers.extend([fails("X"), says("ok")]);
    rig.world.verdicts.push_back(Ok(Recovery::Retry));
    rig.followup("A").before("Recover");
    rig.world.temperature = Some(0.5);
    rig.run();
    assert!(rig.news().ends_with("AT H(change) A SE1.1 TE1(completed)"));
}

#[test]
fn core_49_a_cancel_beats_a_retry() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(fails("X"));
    rig.world.verdicts.push_back(Ok(Recovery::Retry));
    rig.followup("A").before("Recover").cancel().run();
    assert!(rig.news().ends_with("C AT SE1.1 TE1(aborted)"));
    assert_eq!(rig.reports, []);
}

#[test]
fn core_50_a_failing_recovery_ends_the_turn_with_its_error() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(fails("X"));
    rig.world.verdicts.push_back(Err(Failure::new("Y", "y")));
    rig.followup("A").run();
    assert!(rig.news().ends_with("AT SE1.1 TE1(error:Y)"));
}

#[test]
fn core_51_no_verdict_is_terminal() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(fails("X"));
    rig.followup("A").run();
    assert_eq!((rig.counts.recover, rig.sent.len()), (1, 1));
    assert!(rig.news().ends_with("AT SE1.1 TE1(error:X)"));
}

#[test]
fn core_52_newest_47_failing_middleware_is_not_offered_for_recovery() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(throws("X"));
    rig.followup("A").run();
    assert!(rig.news().ends_with("C AT SE1.1 TE1(error:X)"));
    assert_eq!(rig.counts.recover, 0);
}

#[test]
fn core_54_newest_46_llm_15_each_attempt_settles_its_own_stream() {
    let mut rig = Rig::new();
    rig.world.answers.extend([fails("X"), says("ok")]);
    rig.world.verdicts.push_back(Ok(Recovery::Retry));
    rig.followup("A").run();
    let text = |kind: &str| {
        let event = rig.core.log().iter().find(|event| event.body.kind() == kind).unwrap();
        event.to_json()
    };
    assert!(text("assistant/attempt").contains(r#""par""#));
    let message = text("assistant/message");
    assert!(message.contains(r#""ok""#) && !message.contains("par"), "{message}");
    assert_eq!(rig.sent[0].request.messages, rig.sent[1].request.messages);
    assert_eq!(settled(&rig), ["assistant/attempt", "assistant/message"]);
}

#[test]
fn core_55_a_refused_settlement_is_abandoned() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(calls(&["c1"]));
    rig.veto = Some("Settle");
    rig.followup("A").run();
    assert_eq!(
        rig.steps(),
        "TS1 SS1.1 SYS+ U(A) H(initial) C SE1.1 TE1(error:INVALID_INBOX_SPLICE)"
    );
    assert_eq!(rig.frames, [FrameOutcome::Abandoned]);
}

#[test]
fn newest_48_a_refused_settlement_of_a_failure_tells_both() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(fails("X"));
    rig.veto = Some("Settle");
    rig.followup("A").run();
    let TurnEndReason::Error(failure) = ended(&rig) else { panic!() };
    assert!(failure.message.contains("it broke") && failure.message.contains("inbox splice"));
    assert_eq!((rig.frames.len(), rig.reports.len(), rig.counts.recover), (1, 1, 0));
}

#[test]
fn core_5_4_a_refused_step_start_has_no_step() {
    let mut rig = Rig::new();
    rig.veto = Some("StartStep");
    rig.followup("A").followup("B").run();
    assert_eq!(rig.steps(), "TS1 TE1(error:INVALID_INBOX_SPLICE)");
    rig.followup("C").run();
    assert!(rig.news().contains("SS2.1 SYS+ U(B)"));
}

/// A fired token makes every error an abort, which nobody reports.
#[test]
fn core_5_4_a_refusal_after_a_cancel_is_an_abort() {
    for window in ["StartStep", "Claim", "Admit", "EndStep"] {
        let mut rig = Rig::new();
        rig.world.answers.push_back(calls(&["c1"]));
        rig.followup("A").before(window).cancel();
        rig.veto = Some(window);
        if window == "EndStep" {
            // The step stays open, so the turn does too: both refusals are told.
            rig.run();
            assert_eq!(rig.reports.len(), 1);
            continue;
        }
        rig.run();
        let news = rig.news();
        assert!(news.ends_with("TE1(aborted)"), "{window}: {news}");
        assert_eq!(rig.reports, [], "{window}");
    }
}

#[test]
fn core_5_4_a_refused_step_end_still_reaches_idle() {
    let mut rig = Rig::new();
    rig.veto = Some("EndStep");
    rig.followup("A").run();
    assert!(rig.steps().ends_with("C A"));
    assert_eq!(rig.reports.len(), 2, "the step's end, and the turn's");
    assert!(rig.machine.is_idle());
}

#[test]
fn newest_50_llm_100_a_failing_executor_leaves_a_paired_history() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(calls(&["c1", "c2", "c3"]));
    rig.world.executor.push_back(Failure::new("X", "x"));
    rig.followup("A").before("RunTools").tool_call("c1").tool_result("c1", false).tool_call("c2");
    rig.run();
    let news = rig.news();
    assert!(
        news.ends_with(
            "TC(c1) TR(c1) TC(c2) TR(c2,TOOL_OUTCOME_UNKNOWN) TR(c3,TOOL_NOT_STARTED) SE1.1 \
             TE1(error:X)"
        ),
        "{news}"
    );
    let results = rig.core.log().iter().filter(|event| event.body.kind() == "tool/result");
    let cited: Vec<_> = results.map(|event| event.sources.len()).collect();
    assert_eq!(cited, [1, 1, 0]);
    rig.followup("B").run();
    assert!(rig.news().ends_with("TE2(completed)"));
}

#[test]
fn newest_51_as_50_before_the_second_call_started() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(calls(&["c1", "c2", "c3"]));
    rig.world.executor.push_back(Failure::new("X", "x"));
    rig.followup("A").before("RunTools").tool_call("c1").tool_result("c1", false).run();
    let news = rig.news();
    let tail = "TR(c2,TOOL_NOT_STARTED) TR(c3,TOOL_NOT_STARTED) SE1.1 TE1(error:X)";
    assert!(news.ends_with(tail), "{news}");
}

/// An executor that forgets a call must not brick the session.
#[test]
fn core_35_a_forgotten_call_gets_a_result() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(calls(&["c1", "c2"]));
    rig.followup("A").before("RunTools").tool_call("c1").tool_result("c1", false);
    let Some(crate::machine::Effect::RunTools { task, .. }) = rig.work.take() else { panic!() };
    rig.input(crate::machine::Input::Done(task, crate::machine::Completion::ToolsRun(Ok(false))));
    rig.run();
    let news = rig.news();
    assert!(news.contains("TR(c1) TR(c2,TOOL_NOT_STARTED) SE1.1 SS1.2"), "{news}");
}

/// A plugin's event that a session refuses changes nothing.
#[test]
fn an_append_of_several_is_all_or_nothing() {
    let mut rig = Rig::new();
    let note = || NewEvent::custom("x/note", serde_json::json!(1)).ignorable();
    let bad = NewEvent::custom("turn/start", serde_json::json!({}));
    let command = crate::session::Command::Append(vec![note(), bad]);
    rig.commands.push_back(command);
    rig.session();
    assert!(rig.core.log().is_empty());
    assert!(matches!(rig.replies.pop_front(), Some(crate::session::Reply::Refused(_))));
}

/// What a strict provider would refuse fails its own step, and no other.
#[test]
fn design_15_a_message_that_no_provider_takes_does_not_stay() {
    let empty = |id: &str| Arc::new(Message::user(id, ""));
    for bad in [empty("new"), m("A")] {
        let mut rig = Rig::new();
        rig.followup("A").run();
        rig.news();
        rig.world.prompt = Ok("Q".into());
        rig.world.pre.push_back(Pre::Extra(vec![bad]));
        rig.followup("B").run();
        let steps = rig.steps();
        assert!(steps.starts_with("TS2 SS2.1 SE2.1 TE2(error:HISTORY_"), "{steps}");
        rig.followup("C").run();
        assert_eq!(rig.steps(), "TS3 SS3.1 SYS~(Q) U(C) H(series) A SE3.1 TE3(completed)");
    }
}

#[test]
fn design_15_calls_of_one_id_are_a_failed_attempt() {
    let mut rig = Rig::new();
    rig.world.answers.extend([calls(&["c1", "c1"]), says("ok")]);
    rig.world.verdicts.push_back(Ok(Recovery::Retry));
    rig.followup("A").run();
    assert!(rig.steps().ends_with("C AT A SE1.1 TE1(completed)"));
}

#[test]
fn a_second_send_of_a_message_opens_no_second_turn() {
    let mut rig = Rig::new();
    rig.followup("A").run();
    rig.inject("S").run();
    rig.news();
    let retry = |rig: &mut Rig, id: &str, target| {
        let message = m(id);
        rig.input(Input::Send { ticket: 9, message, target, wake: true, retry: true });
        rig.run();
    };
    retry(&mut rig, "A", InboxTarget::NextTurn);
    assert_eq!(rig.news(), "");
    // One whose wake died with the agent still wakes.
    retry(&mut rig, "S", InboxTarget::NextStep);
    assert!(rig.news().ends_with("U(S) A SE2.1 TE2(completed)"));
}

/// The session could not write a recovery result: both failures are told, and a cancel still makes
/// the turn an aborted one.
#[test]
fn newest_53_a_recovery_that_cannot_be_recorded_is_told_with_its_cause() {
    for (cancel, ending) in [(false, "TE1(error:UNKNOWN)"), (true, "TE1(aborted)")] {
        let mut rig = Rig::new();
        rig.world.unprepared.push_back(Failure::new("X", "first"));
        rig.followup("A").before("Prepare");
        if cancel {
            rig.cancel();
        }
        rig.after("EndStep");
        let Some(Reply::StepEnded(ended)) = rig.replies.front_mut() else { panic!() };
        ended.unrecovered = Some(Failure::new("Y", "second"));
        rig.run();
        assert!(rig.news().ends_with(ending));
        let [(1, 1, failure)] = &*rig.reports else { panic!("{:?}", rig.reports) };
        assert!(failure.message.contains("pending tool results could not be recorded"));
        assert!(failure.message.contains("second"));
        assert_eq!(failure.message.contains("first"), !cancel);
    }
}
