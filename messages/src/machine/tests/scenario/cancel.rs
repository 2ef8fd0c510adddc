use crate::{
    chunk::{FinishReason, ReplayState, StreamChunk},
    event::{CancelCause, EventBody, InboxTarget},
    machine::{
        Input, Status,
        tests::{
            ops::tokens,
            rig::{Rig, options},
            world::{Pre, call_delta, calls, chunks, delta, usage},
        },
    },
};
use Status::{Idle, Running};

#[test]
fn core_57_a_cancel_of_an_idle_agent_leaves_no_mark() {
    let mut rig = Rig::new();
    rig.cancel().run();
    assert_eq!((rig.news(), rig.statuses.len()), (String::new(), 0));
    rig.followup("A").run();
    assert!(rig.news().ends_with("TE1(completed)"));
}

#[test]
fn an_idle_agent_is_at_rest_once_what_a_cancel_drops_is_gone() {
    let mut rig = Rig::new();
    rig.inject("A").run();
    rig.cancel();
    assert!(rig.machine.is_idle() && !rig.machine.is_at_rest());
    rig.run();
    assert!(rig.machine.is_at_rest() && rig.state().inbox().is_empty());
}

#[test]
fn core_58_a_cancel_right_after_a_prompt_loses_the_claimed_prompt() {
    for keep in [false, true] {
        let mut rig = Rig::new();
        rig.followup("A").cancel_by(CancelCause::User, keep).run();
        assert_eq!(rig.news(), "IN+(T,A) TS1 IN-(T,1) TE1(aborted)");
        assert!(rig.state().inbox().is_empty());
    }
}

/// The status is told after the turn was asked for: the window before turn/start is gone, so the
/// message of the opening is claimed.
#[test]
fn core_59_a_cancel_while_running_is_announced() {
    let mut rig = Rig::new();
    rig.followup("A");
    assert_eq!(rig.statuses, [Running]);
    rig.cancel().run();
    assert_eq!(rig.statuses, [Running, Idle]);
    assert!(rig.sent.is_empty() && rig.state().inbox().is_empty());
}

#[test]
fn core_60_a_replacement_sent_after_that_cancel_runs() {
    let mut rig = Rig::new();
    rig.followup("A").cancel().followup("B").run();
    let news = rig.news();
    assert!(news.contains("TE1(aborted) TS2 IN-(T,1) SS2.1 SYS+ U(B)"), "{news}");
    assert_eq!(rig.statuses, [Running, Idle, Running, Idle]);
}

#[test]
fn core_61_a_cancel_during_pre_step_has_no_step() {
    for cause in [CancelCause::User, CancelCause::Disposed] {
        let mut rig = Rig::new();
        rig.followup("A").before("Propose").cancel_by(cause, false).run();
        assert!(rig.news().starts_with("IN+(T,A) TS1 IN-(T,1) TE1(aborted"));
        assert!(rig.sent.is_empty());
    }
}

#[test]
fn core_62_a_listener_that_throws_after_the_cancel_is_not_reported() {
    let mut rig = Rig::new();
    rig.world.pre.push_back(Pre::Fail("X"));
    rig.followup("A").before("Propose").cancel().run();
    assert!(rig.news().ends_with("TE1(aborted)"));
    assert_eq!(rig.reports, []);
}

/// The observer of step/start is asynchronous: the cancel comes before the reply.
#[test]
fn core_63_a_cancel_at_step_start_asks_no_provider() {
    let mut rig = Rig::new();
    rig.followup("A").after("StartStep").cancel().run();
    assert_eq!(rig.steps(), "TS1 SS1.1 SE1.1 TE1(aborted)");
    assert_eq!(rig.counts.prepare, 0);
}

#[test]
fn core_64_a_cancel_before_the_admission_commits_nothing() {
    let mut rig = Rig::new();
    rig.followup("A").before("Prepare").cancel().run();
    assert_eq!(rig.steps(), "TS1 SS1.1 SE1.1 TE1(aborted)");
}

#[test]
fn newest_15_newest_16_as_core_64() {
    let mut rig = Rig::new();
    rig.world.unprepared.push_back(crate::chunk::Failure::new("UNSUPPORTED", "x"));
    rig.followup("A").before("Prepare").cancel().run();
    assert_eq!(rig.steps(), "TS1 SS1.1 SE1.1 TE1(aborted)");
}

#[test]
fn core_65_newest_43_a_cut_answer_is_in_the_next_request() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(chunks(vec![delta("He"), usage()]));
    rig.followup("A").before("Dispatch").cancel().run();
    assert!(rig.news().ends_with("C A! SE1.1 TE1(aborted)"));
    rig.followup("B").run();
    assert_eq!(rig.request(1), "s:P u:A a:He u:B");
}

#[test]
fn llm_13_a_cancel_keeps_what_came_and_asks_no_recovery() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(chunks(vec![delta("He"), delta("llo")]));
    rig.followup("A").before("Dispatch").cancel().run();
    assert!(rig.news().ends_with("C A! SE1.1 TE1(aborted)"));
    let answer = rig.core.log().iter().find_map(|event| match &event.body {
        EventBody::AssistantMessage(data) => Some(data.clone()),
        _ => None,
    });
    let answer = answer.unwrap();
    assert_eq!((answer.message.text().as_str(), answer.interrupted), ("Hello", true));
    let chunks = crate::packed::expand(&answer.stream).into_iter().map(|timed| timed.chunk);
    assert_eq!(chunks.collect::<Vec<_>>(), [delta("He"), delta("llo")]);
    assert_eq!(rig.counts.recover, 0);
}

#[test]
fn core_66_visible_reasoning_alone_is_kept() {
    let mut rig = Rig::new();
    let thought = StreamChunk::ReasoningDelta { index: 0, text: "hm".into() };
    rig.world.answers.push_back(chunks(vec![thought]));
    rig.followup("A").before("Dispatch").cancel().run();
    assert!(rig.news().ends_with("C A! SE1.1 TE1(aborted)"));
}

#[test]
fn core_67_a_half_call_is_dropped_from_a_cut_answer() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(chunks(vec![delta("text"), call_delta("c1", 1)]));
    rig.followup("A").before("Dispatch").cancel().run();
    assert!(rig.news().ends_with("C A! SE1.1 TE1(aborted)"));
}

#[test]
fn core_68_newest_44_llm_14_nothing_visible_leaves_an_attempt() {
    for stream in [vec![delta(" \n")], vec![call_delta("c1", 1)], vec![]] {
        let mut rig = Rig::new();
        rig.world.answers.push_back(chunks(stream));
        rig.followup("A").before("Dispatch").cancel().run();
        assert!(rig.news().ends_with("C AT SE1.1 TE1(aborted)"));
        assert_eq!(rig.state().surface().len(), 2);
    }
}

#[test]
fn newest_45_a_cancel_on_the_last_chunk_keeps_the_replay_state() {
    let mut rig = Rig::new();
    let state = ReplayState { response: serde_json::json!("r"), blocks: None };
    let end = StreamChunk::Finish { reason: FinishReason::Stop, replay_state: Some(state) };
    rig.world.answers.push_back(chunks(vec![delta("done"), end]));
    rig.followup("A").before("Dispatch").cancel().run();
    let cut = rig.core.log().iter().find(|event| event.body.kind() == "assistant/message").unwrap();
    let EventBody::AssistantMessage(data) = &cut.body else { panic!() };
    assert!(data.interrupted && data.message.source.field("replayState").is_some());
}

/// The observer of the answer is asynchronous: the cancel comes before the settlement's reply.
#[test]
fn core_69_newest_49_a_cancel_at_the_answer_answers_every_call() {
    let mut rig = Rig::new();
    rig.world.answers.push_back(calls(&["c1", "c2"]));
    rig.followup("A").after("Settle").cancel().run();
    let news = rig.news();
    let pair = |id| format!("TC({id}) TR({id},ABORTED_BEFORE_DISPATCH)");
    let tail = format!("A(c1,c2) {} {} SE1.1 TE1(aborted)", pair("c1"), pair("c2"));
    assert!(news.ends_with(&tail), "{news}");
    rig.followup("B").run();
    assert!(rig.news().ends_with("TE2(completed)"));
}

#[test]
fn core_70_steering_around_a_cancel_in_turn_stopping() {
    let mut rig = Rig::new();
    rig.followup("A").before("Stopping").steer("B").cancel().run();
    assert!(rig.news().ends_with("INx(S,1) TE1(aborted)"));
    let mut rig = Rig::new();
    rig.followup("A").before("Stopping").cancel().inject("B").run();
    assert!(rig.news().ends_with("IN+(S,B) TE1(aborted)"));
    assert_eq!(rig.core.pending(InboxTarget::NextStep).len(), 1);
}

#[test]
fn core_71_a_cancel_drops_the_queue() {
    let mut rig = Rig::new();
    rig.followup("A").followup("B").followup("C").before("Dispatch").cancel().run();
    let news = rig.news();
    assert!(news.contains("INx(T,2)") && news.ends_with("TE1(aborted)"), "{news}");
}

#[test]
fn core_72_kept_input_waits_for_a_wake() {
    let mut rig = Rig::new();
    rig.followup("A").followup("B").before("Dispatch").cancel_by(CancelCause::User, true).run();
    assert!(rig.news().ends_with("TE1(aborted)"));
    rig.followup("C").run();
    let news = rig.steps();
    let (b, c) = (news.find("U(B)").unwrap(), news.find("U(C)").unwrap());
    assert!(b < c && news.contains("TE2(completed) TS3"), "{news}");
}

#[test]
fn core_73_newest_57_a_wake_after_a_keeping_cancel_runs_what_was_kept_first() {
    let mut rig = Rig::new();
    rig.followup("A").followup("B").before("Dispatch");
    rig.cancel_by(CancelCause::User, true).followup("C").run();
    let news = rig.steps();
    let (b, c) = (news.find("U(B)").unwrap(), news.find("U(C)").unwrap());
    assert!(b < c && news.ends_with("TE3(completed)"), "{news}");
    // A plain cancel afterwards drops it.
    let mut rig = Rig::new();
    rig.followup("A").before("Dispatch").cancel_by(CancelCause::User, true).followup("C");
    rig.cancel().run();
    assert!(rig.news().ends_with("TE1(aborted)"));
    assert_eq!(rig.statuses, [Running, Idle]);
    assert!(rig.state().inbox().is_empty());
}

#[test]
fn core_74_a_latch_over_nothing_is_not_replayed() {
    let mut rig = Rig::new();
    rig.followup("A").before("Dispatch").cancel().followup("C").remove("C").run();
    let news = rig.news();
    assert!(news.ends_with("TE1(aborted)") && !news.contains("TS2"), "{news}");
}

#[test]
fn core_75_a_wake_before_the_cancel_is_cleared() {
    let mut rig = Rig::new();
    rig.followup("A").before("Dispatch").followup("C").cancel().run();
    assert!(rig.news().ends_with("TE1(aborted)"));
    assert!(rig.state().inbox().is_empty());
}

/// Not even one that came when the turn was over already.
#[test]
fn core_75_a_wake_before_a_keeping_cancel_waits() {
    for window in ["Dispatch", "CloseTurn", "Rest"] {
        let mut rig = Rig::new();
        rig.followup("A").before(window).followup("C");
        rig.cancel_by(CancelCause::User, true).run();
        assert_eq!(rig.core.pending(InboxTarget::NextTurn).len(), 1, "{window}");
        assert!(!rig.news().contains("TS2"), "{window}");
    }
}

/// An end that came with the log, perhaps by repair, is made durable before idle is announced.
#[test]
fn an_agent_over_an_older_log_rests_before_it_is_idle() {
    let mut rig = Rig::new();
    rig.followup("A").run();
    let mut next = Rig::held(options(), rig.core.log().clone());
    next.input(Input::Maintained);
    assert!(!next.machine.is_idle());
    assert!(next.complete() && next.machine.is_idle());
    // Once is enough, and a new log has no end yet.
    assert!(!next.complete());
    assert!(Rig::new().machine.is_idle());
}

#[test]
fn core_76_steering_after_a_cancel_is_a_prompt_of_its_own() {
    let mut rig = Rig::new();
    rig.followup("A").before("Dispatch").cancel().steer("B").run();
    let news = rig.news();
    assert!(
        news.contains("IN+(T,B)") && news.ends_with("U(B) H(resume) A SE2.1 TE2(completed)")
            || news.contains("U(B)"),
        "{news}"
    );
    assert!(news.ends_with("TE2(completed)"), "{news}");
}

#[test]
fn core_77_a_wake_late_in_a_slow_convergence_runs_after() {
    for window in ["EndStep", "CloseTurn", "Rest"] {
        let mut rig = Rig::new();
        rig.world.answers.push_back(calls(&["c1"]));
        rig.followup("A").before("RunTools").tool_call("c1").cancel();
        rig.before(window).followup("B").run();
        let news = rig.news();
        assert!(
            news.contains("TE1(aborted)") && news.ends_with("TE2(completed)"),
            "{window}: {news}"
        );
    }
}

#[test]
fn core_78_a_wake_after_disposal_never_runs() {
    for first in [CancelCause::User, CancelCause::Disposed] {
        let mut rig = Rig::new();
        rig.followup("A").before("Dispatch").cancel_by(first, true);
        rig.followup("B").cancel_by(CancelCause::Disposed, true).followup("C").run();
        let news = rig.news();
        assert!(!news.contains("TS2"), "{news}");
        assert_eq!(rig.core.pending(InboxTarget::NextTurn).len(), 2);
        rig.followup("D").run();
        assert_eq!(rig.news(), "IN+(T,D)");
    }
}

/// A wake that maintenance latched, whatever cause its token was fired with first.
#[test]
fn core_78_maintenance_of_a_disposed_agent_wakes_nothing() {
    let mut rig = Rig::new();
    rig.input(Input::Maintain { ticket: 1 });
    rig.cancel_by(CancelCause::User, true).followup("A");
    rig.cancel_by(CancelCause::Disposed, true);
    rig.input(Input::Maintained);
    rig.run();
    assert_eq!(rig.news(), "IN+(T,A)");
    rig.input(Input::Maintain { ticket: 2 });
    assert_eq!(rig.maintenance, [true, false]);
}

#[test]
fn core_79_newest_56_the_first_cause_wins() {
    use CancelCause::{Disposed, Parent, User};
    for (first, second, reason) in
        [(User, Parent, "aborted"), (User, Disposed, "aborted"), (Parent, User, "aborted:parent")]
    {
        for delivered in [true, false] {
            let mut rig = Rig::new();
            rig.followup("A").before("Dispatch").announce(first.clone(), false);
            if delivered {
                rig.deliver();
            }
            rig.announce(second.clone(), false);
            while rig.deliver() {}
            rig.run();
            assert!(rig.news().ends_with(&format!("TE1({reason})")));
        }
    }
}

/// The observer of the idle status is asynchronous: its cancel finds the agent idle.
#[test]
fn core_80_a_cancel_at_idle_does_not_poison_the_next_turn() {
    let mut rig = Rig::new();
    rig.followup("A").before("Rest").complete();
    assert_eq!(rig.statuses, [Running, Idle]);
    rig.cancel().followup("B").run();
    assert!(rig.news().ends_with("TE2(completed)"));
}

/// An observer of the token sends after the announcement and before the cancel has arrived; by the
/// order of the mailbox the cancel takes it, unless it keeps the inbox.
#[test]
fn core_81_a_prompt_between_announcement_and_arrival() {
    for (keep, runs) in [(true, true), (false, false)] {
        let mut rig = Rig::new();
        rig.followup("A").before("Dispatch").announce(CancelCause::User, keep).followup("B");
        rig.deliver();
        rig.run();
        assert_eq!(rig.news().contains("U(B)"), runs);
        assert!(rig.state().inbox().is_empty());
    }
}

#[test]
fn core_82_newest_55_a_hook_s_cause_has_its_text() {
    let mut rig = Rig::new();
    let cause = CancelCause::Hook { reason: "why".into() };
    rig.followup("A").before("Dispatch").cancel_by(cause, false).run();
    let end = rig.core.log().last().unwrap().to_json();
    assert!(end.contains(r#"{"kind":"aborted","reason":{"kind":"hook","reason":"why"}}"#), "{end}");
    rig.followup("B").run();
    assert!(rig.news().ends_with("TE2(completed)"));
}

#[test]
fn a_budget_that_runs_out_is_the_turn_s_reason_and_keeps_what_waits() {
    let mut rig = Rig::new();
    let cause = CancelCause::Budget(tokens(u64::MAX));
    rig.followup("A").followup("B").before("Dispatch").cancel_by(cause, true).run();
    let end = rig.core.log().last().unwrap().to_json();
    let used = crate::json::INTEGER_MAX;
    let reason = format!(r#"{{"kind":"budget","resource":"tokens","limit":5,"used":{used}}}"#);
    assert!(end.contains(&reason), "{end}");
    rig.followup("C").run();
    assert!(rig.news().ends_with("TE3(completed)"), "B and C were still there");
}

#[test]
fn newest_40_clear_is_two_splices_and_idempotent() {
    let mut rig = Rig::new();
    rig.world.pre.push_back(Pre::Reject);
    rig.followup("A").before("Propose").inject("S").followup("T").run();
    rig.news();
    rig.cancel().cancel().run();
    assert_eq!(rig.news(), "INx(S,1) INx(T,1)");
}

/// Completions and replies that arrive behind an announcement wait for the cancel.
#[test]
fn design_3_nothing_closes_ahead_of_an_announced_cancel() {
    let mut rig = Rig::new();
    rig.followup("A").before("Stopping").announce(CancelCause::User, false);
    while rig.session() || rig.reply() || rig.complete() {}
    assert!(rig.commands.is_empty() && rig.work.is_none() && !rig.machine.is_idle());
    rig.deliver();
    rig.run();
    assert!(rig.news().ends_with("TE1(aborted)"));
}
