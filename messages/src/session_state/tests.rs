use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    event::{InboxTarget, StepAt, TurnEnd, TurnEndReason, TurnStart},
    gate::HistoryGate,
    message::Message,
    outcome::{OutcomeFold, Progress},
    repair::{fork_seed, interrupted_closers},
    surface::SurfaceChange,
    testing::{Grower, user},
};

fn known() -> KnownKinds {
    KnownKinds::new()
}

fn reread(log: &Log) -> Log {
    log.iter()
        .map(|event| {
            let text = event.to_json();
            let event = Event::from_json(&text).unwrap();
            assert_eq!(event.to_json(), text, "core invariant 52");
            Arc::new(event)
        })
        .collect()
}

fn turn_start(turn: u32) -> NewEvent {
    NewEvent::log_only(EventBody::TurnStart(TurnStart { turn }))
}

#[test]
fn a_refusal_changes_nothing_and_has_a_code() {
    let mut grower = Grower::new();
    grower.push(turn_start(1)).unwrap();
    let before = grower.clone();
    let result = {
        let mut script = crate::testing::Script::new();
        script.turn(1).step(1, 1);
        script.result("c", "x");
        let event = script.log.last().unwrap();
        NewEvent::append(event.body.clone())
    };
    for (code, event) in [
        ("TURN_OPEN", turn_start(2)),
        ("INVALID_MESSAGE", user("", "x")),
        ("SURFACE_OPERATION_MISSING", NewEvent::log_only(user("x", "x").body)),
        ("NO_OPEN_STEP", result.clone()),
    ] {
        assert_eq!(grower.push(event).unwrap_err().code(), code);
    }
    assert_eq!(grower.state, before.state);
    assert_eq!(grower.log.len(), before.log.len());
    grower.push(NewEvent::log_only(EventBody::StepStart(StepAt { turn: 1, step: 1 }))).unwrap();
    assert_eq!(grower.push(result).unwrap_err().code(), "TOOL_RESULT_WITHOUT_CALL");
}

#[test]
fn an_unknown_required_kind_refuses_to_load() {
    let mut log = Log::new();
    let push = |log: &mut Log, event: NewEvent| log.push(Arc::new(event.at(log.len(), 0)));
    push(&mut log, NewEvent::custom("x/note", json!(1)).ignorable());
    assert!(SessionState::fold(&log, &known()).is_ok());
    push(&mut log, NewEvent::custom("x/required", json!(1)));
    let fault = SessionState::fold(&log, &known()).unwrap_err();
    assert_eq!((fault.code(), fault.seq()), ("FORMAT_UNSUPPORTED", 1));
    assert!(fault.to_string().contains("x/required"));
    assert!(SessionState::fold(&log, &["x/required"].into_iter().collect()).is_ok());
}

#[test]
#[should_panic(expected = "planned as")]
fn a_stale_plan_is_not_applied() {
    let mut grower = Grower::new();
    let planned = grower.state.check(&grower.log, &turn_start(1)).unwrap();
    grower.push(user("u", "u")).unwrap();
    let event = turn_start(1).at(1, 0);
    let log = grower.log.clone();
    grower.state.apply(&log, planned, &event);
}

#[test]
fn an_id_is_remembered_after_it_left_the_inbox() {
    let mut grower = Grower::new();
    let inbox = grower.state.inbox().clone();
    let insert = inbox.insert_at_tail(InboxTarget::NextTurn, Arc::new(Message::user("m", "m")));
    grower.push(NewEvent::log_only(EventBody::InboxSpliced(insert.unwrap()))).unwrap();
    let gone = grower.state.inbox().remove(&"m".into()).unwrap();
    grower.push(NewEvent::log_only(EventBody::InboxSpliced(gone))).unwrap();
    grower.push(user("u", "u")).unwrap();
    assert!(!grower.state.inbox().contains(&"m".into()));
    for (id, had) in [("m", true), ("u", true), ("z", false)] {
        assert_eq!(grower.state.ever_had(&id.into()), had);
    }
}

/// Each fold hears of its events: one turn that moves all of them.
#[test]
fn every_fold_is_driven() {
    let mut script = crate::testing::Script::new();
    script.turn(1).step(1, 1);
    script.system("P");
    script.push(user("u", "u"));
    let told = RuntimeContext::new().candidate(&[], || "never".into());
    assert_eq!(told, None);
    let section = crate::runtime_context::ContextSection { name: "n".into(), text: "t".into() };
    let told = RuntimeContext::new().candidate(&[section], || "ctx".into()).unwrap();
    script.push(NewEvent::append(EventBody::UserMessage(Arc::new(told))));
    script.header(&["tool"]);
    script.context();
    script.assistant("", &["c"]);
    let call = script.call("c");
    let state = SessionState::fold(&script.log, &known()).unwrap();
    assert_eq!(state.boundary().at(), Some(StepAt { turn: 1, step: 1 }));
    assert_eq!(state.surface().len(), 4);
    assert_eq!(state.history(), &script.history);
    assert_eq!(state.requests().header_seq(), Some(5));
    assert!(state.requests().context().is_some());
    assert_eq!(state.selection().next().unwrap().model, "m");
    assert_eq!(state.tools().active().unwrap().len(), 1);
    assert_eq!(state.recovery().pending().next().unwrap().started, Some(call));
    assert!(matches!(state.runtime_context(), RuntimeContext::Retained { seq: 4, .. }));
    assert_eq!(state.consumed().end(), None);
    script.result("c", "x");
    script.end_step(1, 1).end_turn(1, TurnEndReason::Completed);
    let state = SessionState::fold(&script.log, &known()).unwrap();
    assert_eq!(state.consumed().end().unwrap().turn, 1);
    assert_eq!(state.recovery().pending().count(), 0);
}

mod scenario {
    use super::*;

    #[test]
    fn newest_37_a_fork_inherits_the_pending_prompt() {
        let mut grower = Grower::new();
        let message = Arc::new(Message::user("m", "m"));
        let insert = grower.state.inbox().insert_at_tail(InboxTarget::NextTurn, message).unwrap();
        grower.push(NewEvent::log_only(EventBody::InboxSpliced(insert))).unwrap();
        let seed = fork_seed(&grower.log, None, 0).unwrap();
        let child = SessionState::fold(&seed.log, &known()).unwrap();
        assert!(child.inbox().contains(&"m".into()));
    }

    #[test]
    fn newest_38_the_inbox_is_updated_with_its_event() {
        let mut grower = Grower::new();
        let message = Arc::new(Message::user("m", "m"));
        let insert = grower.state.inbox().insert_at_tail(InboxTarget::NextStep, message).unwrap();
        grower.push(NewEvent::log_only(EventBody::InboxSpliced(insert))).unwrap();
        assert_eq!(grower.state.inbox().list(InboxTarget::NextStep).len(), 1);
    }

    #[test]
    fn newest_39_same_id_in_both_lists_fails_the_load_with_the_seq() {
        let mut log = Log::new();
        for target in [InboxTarget::NextTurn, InboxTarget::NextStep] {
            let message = Arc::new(Message::user("m", "m"));
            let insert = Inbox::new().insert_at_tail(target, message).unwrap();
            let event = NewEvent::log_only(EventBody::InboxSpliced(insert));
            log.push(Arc::new(event.at(log.len(), 0)));
        }
        let fault = SessionState::fold(&log, &known()).unwrap_err();
        assert_eq!((fault.code(), fault.seq()), ("ALREADY_PENDING", 1));
        assert!(fault.to_string().contains("invalid persisted inbox splice at session seq 1"));
    }

    #[test]
    fn core_138_the_child_continues_the_turn_numbers() {
        let mut grower = Grower::new();
        grower.push(turn_start(1)).unwrap();
        let seed = fork_seed(&grower.log, None, 0).unwrap();
        let child = SessionState::fold(&seed.log, &known()).unwrap();
        assert!(child.boundary().open_turn().is_none());
        assert!(child.check(&seed.log, &turn_start(1)).is_err());
        assert!(child.check(&seed.log, &turn_start(2)).is_ok());
    }

    #[test]
    fn core_145_an_open_turn_refuses_the_next_until_it_is_repaired() {
        let mut grower = Grower::new();
        grower.push(turn_start(1)).unwrap();
        assert_eq!(grower.push(turn_start(2)).unwrap_err().code(), "TURN_OPEN");
        for closer in interrupted_closers(&grower.log, None) {
            let Event { body, .. } = closer;
            grower.push(NewEvent::log_only(body)).unwrap();
        }
        grower.push(turn_start(2)).unwrap();
    }
}

fn choices() -> impl Strategy<Value = Vec<(u8, u8)>> {
    // Random choices rarely open a step, so most logs start in one.
    let opening = prop_oneof![Just(vec![]), Just(vec![(6, 0), (9, 0)])];
    let rest = prop::collection::vec(any::<(u8, u8)>(), 0..160);
    (opening, rest).prop_map(|(opening, rest)| [opening, rest].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Core invariant 13: incremental == full refold == refold after a JSON round trip.
    #[test]
    fn incremental_is_full_is_reread(choices in choices()) {
        let grower = Grower::grown(&choices);
        let full = SessionState::fold(&grower.log, &known()).unwrap();
        prop_assert_eq!(&grower.state, &full);
        let reread = reread(&grower.log);
        prop_assert_eq!(&grower.state, &SessionState::fold(&reread, &known()).unwrap());
        prop_assert_eq!(full.history(), &History::derive(&grower.log, full.surface()));
        prop_assert_eq!(full.next_seq(), grower.log.len());
    }

    /// Core invariants 10 and 11: every crash prefix and its closers is balanced and loads; repair
    /// is deterministic, and of a repaired log empty. The same for every cut of a fork.
    #[test]
    fn every_prefix_can_be_repaired(choices in choices()) {
        let grower = Grower::grown(&choices);
        for len in 0..=grower.log.len() {
            let mut prefix: Log = grower.log.range(0..len).cloned().collect();
            let closers = interrupted_closers(&prefix, None);
            prop_assert_eq!(&closers, &interrupted_closers(&prefix, None));
            for closer in closers {
                prefix.push(Arc::new(closer));
            }
            let state = SessionState::fold(&prefix, &known()).unwrap();
            prop_assert!(state.boundary().open_turn().is_none());
            prop_assert!(interrupted_closers(&prefix, None).is_empty());
            if let Some(cut) = len.checked_sub(1) {
                let seed = fork_seed(&grower.log, Some(cut), 0).unwrap();
                let state = SessionState::fold(&seed.log, &known()).unwrap();
                prop_assert!(state.boundary().open_turn().is_none());
            }
        }
    }

    /// Core invariants 14 to 16, 19, 20, 22 and 37, event by event; and a clone never changes.
    #[test]
    fn each_event_keeps_the_invariants(choices in choices()) {
        let mut grower = Grower::new();
        let mut gate = HistoryGate::new();
        for (what, which) in choices {
            let before = grower.clone();
            let image = before.state.clone();
            grower.choose(what, which);
            prop_assert_eq!(&before.state, &image);
            let state = &grower.state;
            let mut generation = before.state.surface().content_generation();
            let mut at = before.state.clone();
            for event in grower.log.range(before.log.len()..grower.log.len()) {
                let planned = at.plan(&grower.log, Candidate::from(&**event)).unwrap();
                generation += u64::from(matches!(
                    planned.surface(),
                    SurfaceChange::Replace { .. } | SurfaceChange::Project(_)
                ));
                at.apply(&grower.log, planned, event);
            }
            prop_assert_eq!(state.surface().content_generation(), generation);
            let nodes: Vec<_> = state.surface().nodes().collect();
            let distinct: BTreeSet<_> = nodes.iter().collect();
            prop_assert_eq!(distinct.len(), nodes.len());
            let body = |seq: &Seq| &grower.log.get(*seq).unwrap().body;
            prop_assert!(nodes.iter().all(|seq| body(seq).is_surface()));
            prop_assert!(!nodes.is_empty() || !grower.log.iter().any(|e| e.body.is_surface()));
            let is_system = |seq: &Seq| matches!(body(seq), EventBody::SystemMessage(_));
            let systems: Vec<_> = state.surface().system_nodes(&grower.log).map(|s| s.0).collect();
            let scanned: Vec<_> = nodes.iter().copied().filter(is_system).collect();
            prop_assert_eq!(systems, scanned);
            if before.state.surface().nodes().next().is_some_and(|seq| is_system(&seq)) {
                prop_assert!(is_system(&nodes[0]));
            }
            // Invariants 14 and 22: within a generation history only grows, by surface events alone,
            // and what was encoded stays so.
            let old = before.state.history();
            if before.state.surface().content_generation() == generation {
                let surface_events = grower
                    .log
                    .range(before.log.len()..grower.log.len())
                    .filter(|event| event.body.is_surface())
                    .count();
                prop_assert!(state.history().len() <= old.len() + surface_events);
                for (was, is) in old.iter().zip(state.history().iter()) {
                    prop_assert!(Arc::ptr_eq(&was.message, &is.message));
                    was.wire.wire(1, || Ok::<_, ()>(bytes::Bytes::new())).unwrap();
                    prop_assert!(is.wire.wire(1, || Err(())).is_ok());
                }
                prop_assert!(state.history().len() >= old.len());
            }
            let verdict = gate.check(state.history(), state.surface().content_generation());
            let fresh = HistoryGate::new()
                .check(state.history(), state.surface().content_generation());
            prop_assert_eq!(verdict, fresh);
        }
    }

    /// Core invariant 39: each message that entered the inbox pends, was dropped or was claimed, and
    /// following it alone says the same as the inbox.
    #[test]
    fn each_message_is_in_one_place(choices in choices()) {
        let grower = Grower::grown(&choices);
        let mut open_turn = None;
        let mut inbox = Inbox::new();
        let mut claimed = std::collections::BTreeMap::new();
        let mut entered = BTreeSet::new();
        for event in grower.log.iter() {
            match &event.body {
                EventBody::TurnStart(data) => open_turn = Some(data.turn),
                EventBody::InboxSpliced(splice) => {
                    for message in inbox.removed(splice).unwrap() {
                        claimed.insert(message.id.clone(), open_turn.filter(|_| splice.is_claim()));
                    }
                    inbox.apply(event.seq, splice).unwrap();
                    entered.extend(splice.inserted.iter().map(|m| (m.id.clone(), event.seq)));
                }
                _ => {}
            }
        }
        for (id, seq) in entered {
            let turn = match OutcomeFold::fold(&grower.log, seq, id.clone()) {
                Progress::Pending => {
                    prop_assert!(grower.state.inbox().contains(&id));
                    continue;
                }
                Progress::Unknown => return Err(TestCaseError::fail("its splice was seen")),
                Progress::Dropped => None,
                Progress::Running { turn } => Some(turn),
                Progress::Ended(outcome) => Some(outcome.turn),
            };
            prop_assert!(!grower.state.inbox().contains(&id));
            prop_assert_eq!(claimed.get(&id), Some(&turn));
        }
    }

    /// A damaged log is refused with an error that names an event, never with a panic.
    #[test]
    fn damage_is_refused_or_harmless(choices in choices(), drop_at in any::<prop::sample::Index>()) {
        let grower = Grower::grown(&choices);
        if grower.log.is_empty() {
            return Ok(());
        }
        let dropped = drop_at.index(grower.log.len() as usize) as u64;
        let rest = grower.log.iter().filter(|event| event.seq != dropped);
        let damaged: Log = rest
            .zip(0..)
            .map(|(event, seq)| Arc::new(Event { seq, ..(**event).clone() }))
            .collect();
        if let Err(fault) = SessionState::fold(&damaged, &known()) {
            prop_assert!(fault.seq() < damaged.len());
            prop_assert!(!fault.code().is_empty());
        }
    }
}

/// The generator reaches every kind of event; a kind that it cannot make would be untested above.
#[test]
fn the_generator_reaches_every_kind() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let mut kinds = BTreeSet::new();
    let mut replaced = BTreeSet::new();
    for _ in 0..300 {
        let choices = choices().new_tree(&mut runner).unwrap().current();
        for event in Grower::grown(&choices).log.iter() {
            kinds.insert(event.body.kind().to_owned());
            if Candidate::from(&**event).is_replacement() {
                replaced.insert(event.body.kind().to_owned());
            }
        }
    }
    assert_eq!(kinds.len(), 18, "{kinds:?}");
    assert_eq!(replaced.len(), 3, "{replaced:?}");
}

#[test]
fn a_forged_turn_end_of_another_turn_is_refused() {
    let mut grower = Grower::new();
    grower.push(turn_start(1)).unwrap();
    let end = TurnEnd { turn: 2, reason: TurnEndReason::Completed };
    let fault = grower.push(NewEvent::log_only(EventBody::TurnEnd(end))).unwrap_err();
    assert_eq!(fault.code(), "NOT_THE_OPEN_TURN");
}
