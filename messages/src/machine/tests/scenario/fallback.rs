//! Recovery that goes on with another route.

use crate::{
    config::SystemPromptUpdate,
    machine::tests::{
        rig::Rig,
        world::{calls, fails, goes_on_with, says},
    },
};

/// An attempt that fails, and whose step goes on with `q/n`.
fn falls_back() -> Rig {
    let mut rig = Rig::new();
    rig.world.answers.extend([fails("X"), says("ok")]);
    rig.world.verdicts.push_back(Ok(goes_on_with("n")));
    rig
}

/// The route of each request.
fn routes(rig: &Rig) -> Vec<String> {
    rig.sent.iter().map(|sent| sent.request.header.config.route().to_string()).collect()
}

#[test]
fn another_route_takes_the_step_over() {
    let mut rig = falls_back();
    rig.followup("A").run();
    let expected = "TS1 SS1.1 SYS+ U(A) H(initial) C AT M(n) H(change) C A SE1.1 TE1(completed)";
    assert_eq!(rig.steps(), expected);
    assert_eq!(routes(&rig), ["p/m", "q/n"]);
    assert_eq!((rig.counts.propose, rig.counts.prepare), (1, 2));
    // What the first route was asked, and what it had begun to say, changes nothing.
    assert_eq!((rig.request(0), rig.request(1)), ("s:P u:A".into(), "s:P u:A".into()));
}

#[test]
fn the_new_route_s_facts_decide_its_request() {
    let mut rig = falls_back();
    rig.followup("A").before("Recover");
    (rig.world.in_history, rig.world.window, rig.world.default_max) = (true, Some(9), Some(5));
    rig.run();
    let context = rig.state().requests().context().unwrap();
    assert_eq!((&*context.provider, &*context.model, context.context_window), ("q", "n", Some(9)));
    assert_eq!(context.system_prompt_update, Some(SystemPromptUpdate::InHistory));
    let header = &rig.sent[1].request.header;
    assert_eq!((header.config.max_tokens, header.adapter_defaults.max_tokens), (Some(5), true));
}

#[test]
fn later_steps_and_turns_follow_the_recorded_choice() {
    let mut rig = falls_back();
    rig.world.answers.insert(1, calls(&["c1"]));
    rig.followup("A").run();
    rig.followup("B").run();
    assert_eq!(routes(&rig), ["p/m", "q/n", "q/n", "q/n"]);
    assert!(rig.steps().contains("TR(c1) SE1.1 SS1.2 A SE1.2 TE1(completed) TS2"));
}

#[test]
fn a_step_may_change_its_route_more_than_once() {
    let mut rig = falls_back();
    rig.world.answers.push_front(fails("Y"));
    rig.world.verdicts.push_front(Ok(goes_on_with("o")));
    rig.followup("A").run();
    assert_eq!(routes(&rig), ["p/m", "q/o", "q/n"]);
    assert!(
        rig.steps().ends_with("AT M(o) H(change) C AT M(n) H(change) C A SE1.1 TE1(completed)")
    );
}

#[test]
fn a_cancel_beats_another_route_whose_choice_stands() {
    let mut rig = falls_back();
    rig.followup("A").before("Recover").cancel().run();
    assert!(rig.steps().ends_with("C AT M(n) SE1.1 TE1(aborted)"));
    assert_eq!(rig.reports, []);
    rig.followup("B").run();
    assert_eq!(routes(&rig), ["p/m", "q/n"]);
}
