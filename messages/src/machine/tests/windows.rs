//! The cancel windows of the core specification, section 5.2, as one table.

use super::{
    ops::tokens,
    rig::Rig,
    world::{Pre, call_delta, calls, chunks, delta, fails, goes_on_with, says, usage},
};
use crate::{
    chunk::Failure,
    event::{CancelCause, InboxTarget},
    machine::Recovery,
};

/// A window: its name, how a rig gets there, and what the log holds in the end, without the inbox.
/// `#` stands for the turn's end.
struct Window {
    name: &'static str,
    enter: fn(&mut Rig),
    expected: &'static str,
}

const EMPTY_STEP: &str = "TS1 SS1.1 SE1.1 #";
const ADMITTED: &str = "TS1 SS1.1 SYS+ U(A) H(initial) C";

fn windows() -> Vec<Window> {
    let w = |name, enter, expected| Window { name, enter, expected };
    vec![
        w("idle, inbox empty", |_| {}, ""),
        w(
            "idle, parked input",
            |rig| {
                rig.inject("B").run();
            },
            "",
        ),
        // The splice, turn/start and the claim are one command: the window between the status and
        // turn/start, and that right after the send, are one.
        w(
            "the opening is on its way",
            |rig| {
                rig.followup("A").followup("B");
            },
            "TS1 #",
        ),
        w(
            "the opening's reply is on its way",
            |rig| {
                rig.followup("A").followup("B").after("Accept");
            },
            "TS1 #",
        ),
        w("during pre-step", |rig| to(rig, "Propose"), "TS1 #"),
        w(
            "during pre-step, whose listener then throws",
            |rig| {
                rig.world.pre.push_back(Pre::Fail("X"));
                to(rig, "Propose");
            },
            "TS1 #",
        ),
        w("step/start is on its way", |rig| to(rig, "StartStep"), EMPTY_STEP),
        w("an observer of step/start", |rig| past(rig, "StartStep"), EMPTY_STEP),
        w("during the request chain or the preparation", |rig| to(rig, "Prepare"), EMPTY_STEP),
        w(
            "during the preparation, which then throws",
            |rig| {
                rig.world.unprepared.push_back(Failure::unknown("x"));
                to(rig, "Prepare");
            },
            EMPTY_STEP,
        ),
        w("the admission is on its way", |rig| to(rig, "Admit"), "[] SE1.1 #"),
        w("an observer of the admission", |rig| past(rig, "Admit"), "[] SE1.1 #"),
        w(
            "mid-stream, visible text",
            |rig| {
                rig.world.answers.push_back(chunks(vec![delta("He"), call_delta("c", 1), usage()]));
                to(rig, "Dispatch");
            },
            "[] A! SE1.1 #",
        ),
        w(
            "mid-stream, nothing visible",
            |rig| {
                rig.world.answers.push_back(chunks(vec![delta(" \n"), call_delta("c", 1)]));
                to(rig, "Dispatch");
            },
            "[] AT SE1.1 #",
        ),
        w(
            "mid-stream, nothing at all",
            |rig| {
                rig.world.answers.push_back(chunks(vec![]));
                to(rig, "Dispatch");
            },
            "[] AT SE1.1 #",
        ),
        w(
            "after the last chunk",
            |rig| {
                rig.world.answers.push_back(calls(&["c1"]));
                to(rig, "Dispatch");
            },
            "[] A! SE1.1 #",
        ),
        w(
            "during recovery, which then says retry",
            |rig| {
                rig.world.answers.push_back(fails("X"));
                rig.world.verdicts.push_back(Ok(Recovery::Retry));
                to(rig, "Recover");
            },
            "[] AT SE1.1 #",
        ),
        w(
            "during recovery, which then names another route",
            |rig| {
                rig.world.answers.push_back(fails("X"));
                rig.world.verdicts.push_back(Ok(goes_on_with("n")));
                to(rig, "Recover");
            },
            "[] AT M(n) SE1.1 #",
        ),
        w(
            "a failed attempt's settlement is on its way",
            |rig| {
                rig.world.answers.push_back(fails("X"));
                to(rig, "Settle");
            },
            "[] AT SE1.1 #",
        ),
        w("the settlement is on its way", |rig| tools(rig, "Settle", false), ABORTED_BATCH),
        w("an observer of the answer", |rig| tools(rig, "Settle", true), ABORTED_BATCH),
        w("before the tools", |rig| tools(rig, "RunTools", false), ABORTED_BATCH),
        w(
            "during a tool",
            |rig| {
                tools(rig, "RunTools", false);
                rig.tool_call("c1");
            },
            "[] A(c1,c2) TC(c1) TR(c1) TC(c2) TR(c2,ABORTED_BEFORE_DISPATCH) SE1.1 #",
        ),
        w(
            "during a tool, whose executor then fails",
            |rig| {
                rig.world.executor.push_back(Failure::unknown("x"));
                tools(rig, "RunTools", false);
                rig.tool_call("c1");
            },
            "[] A(c1,c2) TC(c1) TR(c1,TOOL_OUTCOME_UNKNOWN) TR(c2,TOOL_NOT_STARTED) SE1.1 #",
        ),
        w("step/end is on its way", |rig| to(rig, "EndStep"), "[] A SE1.1 #"),
        w("an observer of step/end", |rig| past(rig, "EndStep"), "[] A SE1.1 #"),
        w(
            "a further claim is on its way",
            |rig| {
                tools(rig, "Claim", false);
            },
            "[] A(c1,c2) TC(c1) TR(c1) TC(c2) TR(c2) SE1.1 #",
        ),
        w(
            "a further step is proposed",
            |rig| {
                tools(rig, "Claim", true);
                rig.before("Propose");
            },
            "[] A(c1,c2) TC(c1) TR(c1) TC(c2) TR(c2) SE1.1 #",
        ),
        w("during turn-stopping", |rig| to(rig, "Stopping"), "[] A SE1.1 #"),
        w(
            "during turn-stopping, whose listener then throws",
            |rig| {
                rig.world.stopping.push_back(Failure::unknown("x"));
                to(rig, "Stopping");
            },
            "[] A SE1.1 #",
        ),
        // The turn was closed ahead of the cancel, which takes what waits behind it.
        w("turn/end is on its way", |rig| to(rig, "CloseTurn"), "[] A SE1.1 TE1(completed)"),
        w("an observer of turn/end", |rig| past(rig, "CloseTurn"), "[] A SE1.1 TE1(completed)"),
    ]
}

const ABORTED_BATCH: &str = "[] A(c1,c2) TC(c1) TR(c1,ABORTED_BEFORE_DISPATCH) TC(c2) \
                             TR(c2,ABORTED_BEFORE_DISPATCH) SE1.1 #";

fn to(rig: &mut Rig, name: &str) {
    rig.followup("A").followup("B").before(name);
}

fn past(rig: &mut Rig, name: &str) {
    rig.followup("A").followup("B").after(name);
}

fn tools(rig: &mut Rig, name: &str, past: bool) {
    rig.world.answers.push_back(calls(&["c1", "c2"]));
    to(rig, name);
    if past {
        rig.after(name);
    }
}

fn causes() -> [(CancelCause, &'static str); 5] {
    [
        (CancelCause::User, "aborted"),
        (CancelCause::Parent, "aborted:parent"),
        (CancelCause::Hook { reason: "h".into() }, "aborted:hook:h"),
        (CancelCause::Budget(tokens(7)), "budget:tokens"),
        (CancelCause::Disposed, "aborted:disposed"),
    ]
}

mod scenario {
    use super::*;

    #[test]
    fn core_5_2_the_cancel_windows() {
        for Window { name, enter, expected } in windows() {
            for (cause, reason) in causes() {
                for (keep, late) in [(false, false), (false, true), (true, false), (true, true)] {
                    let what = format!("{name}, {cause:?}, keep={keep}, late={late}");
                    let mut rig = Rig::new();
                    enter(&mut rig);
                    rig.announce(cause.clone(), keep);
                    if late {
                        // Everything on its way arrives first, and is held back.
                        while rig.session() || rig.reply() || rig.complete() {}
                    }
                    rig.deliver();
                    rig.run();
                    let expected = expected.replace("[]", ADMITTED);
                    let expected = expected.replace('#', &format!("TE1({reason})"));
                    assert_eq!(rig.steps(), expected, "{what}");
                    assert!(rig.machine.is_idle(), "{what}");
                    assert_eq!(rig.reports, [], "{what}: a cancel is no error");
                    let pending = pending(&rig);
                    // Nothing but the idle agent's cancel finds nothing to keep.
                    let kept = if keep && name != "idle, inbox empty" { vec!["B"] } else { vec![] };
                    assert_eq!(pending, kept, "{what}");
                    afterwards(&mut rig, &cause, &what);
                }
            }
        }
    }

    /// The next prompt runs as if nothing had been, behind what was kept; after disposal none does.
    fn afterwards(rig: &mut Rig, cause: &CancelCause, what: &str) {
        rig.world = super::super::world::World::default();
        let before = rig.sent.len();
        rig.followup("Z").run();
        if *cause == CancelCause::Disposed {
            assert_eq!(rig.news(), "IN+(T,Z)", "{what}");
            return;
        }
        assert!(rig.sent.len() > before, "{what}");
        assert!(rig.last_request().ends_with("u:Z"), "{what}: {}", rig.last_request());
        assert!(rig.news().ends_with("(completed)"), "{what}");
        assert!(rig.state().inbox().is_empty(), "{what}");
    }

    #[test]
    fn core_5_2_contexts_of_drained_tools_stay_parked() {
        let mut rig = Rig::new();
        tools(&mut rig, "RunTools", false);
        rig.tool_call("c1").cancel().inject("ctx").run();
        assert_eq!(pending(&rig), ["ctx"]);
        rig.world.answers.push_back(says("ok"));
        rig.followup("Z").run();
        assert!(rig.last_request().ends_with("u:ctx u:Z"));
    }
}

fn pending(rig: &Rig) -> Vec<&str> {
    let lists = [InboxTarget::NextStep, InboxTarget::NextTurn].map(|t| rig.core.pending(t));
    lists.into_iter().flatten().map(|message| message.id.as_str()).collect()
}
