//! The machine by tables, and over random lives.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn agent(call: CallNo) -> Input {
    let request = AgentRequest::new(format!("job {call}"));
    Input::Guest(GuestMessage::Agent { call, request })
}

fn result(value: Result<Value, Failure>) -> Input {
    Input::Guest(GuestMessage::Result(value))
}

fn started(call: CallNo) -> Input {
    Input::ChildStarted { call, child: format!("child-{call}").into() }
}

fn settled(call: CallNo) -> Input {
    let answer = ChildAnswer { outcome: AgentOutcome::Completed, value: json!(call) };
    Input::ChildSettled { call, settled: Ok(answer) }
}

/// An effect in a word.
fn word(effect: &Effect) -> String {
    match effect {
        Effect::TellGuest(HostMessage::Settled { call, answer: Ok(value) }) => {
            format!("answer {call} {value}")
        }
        Effect::TellGuest(HostMessage::Settled { call, answer: Err(failure) }) => {
            format!("answer {call} {}", failure.code)
        }
        Effect::TellGuest(HostMessage::Cancel(reason)) => format!("tell {reason}"),
        Effect::TellGuest(HostMessage::Go) => "go".to_owned(),
        Effect::KillGuest => "kill".to_owned(),
        Effect::ArmGrace => "grace".to_owned(),
        Effect::Start { call, .. } => format!("start {call}"),
        Effect::Await { call } => format!("await {call}"),
        Effect::Dispose { call } => format!("dispose {call}"),
        Effect::AbortChildren => "abort".to_owned(),
        Effect::Notify(NoticeKind::AgentStart { seq, .. }) => format!("begin {seq}"),
        Effect::Notify(NoticeKind::AgentEnd { seq, outcome, .. }) => {
            format!("end {seq} {outcome:?}")
        }
        Effect::Notify(NoticeKind::End { stop_reason, .. }) => format!("end {stop_reason:?}"),
        Effect::Notify(notice) => format!("{notice:?}"),
        Effect::Settle(result) => {
            let code = result.error.as_ref().map_or("-", |error| error.code.as_str());
            format!("settle {:?} {code}", result.stop_reason)
        }
    }
}

/// What the last of these inputs brings about, for a run of two slots and three agents.
fn last(inputs: Vec<Input>) -> String {
    let mut machine = Settlement::new(2, 3);
    let mut effects = Vec::new();
    for input in inputs {
        effects = machine.step(input);
    }
    effects.iter().map(word).collect::<Vec<_>>().join(", ")
}

mod subagents {
    use super::*;

    #[test]
    fn what_happens_decides_what_is_done() {
        let stop = || Input::Cancel("stop".to_owned());
        let lost = || Failure::new("GONE", "x");
        let cases: Vec<(&str, Vec<Input>, &str)> = vec![
            ("a call starts", vec![agent(1)], "start 1"),
            ("the third waits", vec![agent(1), agent(2), agent(3)], ""),
            ("it is told of once it is there", vec![agent(1), started(1)], "begin 1, await 1"),
            (
                "its result is held until it is gone",
                vec![agent(1), started(1), settled(1)],
                "dispose 1",
            ),
            (
                "then it is told, and the next has the slot",
                vec![
                    agent(1),
                    agent(2),
                    agent(3),
                    started(1),
                    settled(1),
                    Input::ChildDisposed { call: 1 },
                ],
                "end 1 Completed, answer 1 1, start 3",
            ),
            (
                "one too many",
                vec![agent(1), agent(2), agent(3), agent(4)],
                "abort, end Error, kill, settle Error AGENT_CAP",
            ),
            (
                "one that cannot be started",
                vec![agent(1), Input::ChildStartFailed { call: 1, failure: lost() }],
                "abort, end Error, kill, settle Error AGENT_START",
            ),
            (
                "one that is lost",
                vec![
                    agent(1),
                    agent(2),
                    started(1),
                    started(2),
                    Input::ChildSettled { call: 1, settled: Err(lost()) },
                ],
                "dispose 1, abort, dispose 2, end 1 Failed, end 2 Cancelled, end Error, kill, \
                 settle Error AGENT_RESULT",
            ),
            (
                "a result ends what still runs, and who waits",
                vec![agent(1), agent(2), agent(3), started(1), result(Ok(json!(1)))],
                "abort, dispose 1, end 1 Cancelled, end Completed, kill, settle Completed -",
            ),
            (
                "one that was being started is disposed when it is there",
                vec![agent(1), result(Ok(json!(1))), started(1)],
                "dispose 1",
            ),
            (
                "a cancel answers who waits, and lets the rest end",
                vec![agent(1), agent(2), agent(3), started(1), stop()],
                "answer 3 CANCELLED, tell stop, abort, grace",
            ),
            ("the first cancel counts", vec![stop(), Input::Cancel("no".to_owned())], ""),
            (
                "a result after a cancel is none",
                vec![stop(), result(Ok(json!(1)))],
                "abort, end Cancelled, kill, settle Cancelled CANCELLED",
            ),
            ("nothing starts after a cancel", vec![stop(), agent(1)], "answer 1 CANCELLED"),
            (
                "a child that was being started is told of also after a cancel",
                vec![agent(1), stop(), started(1)],
                "begin 1, await 1",
            ),
            (
                "nor is a phase or a line told",
                vec![stop(), Input::Guest(GuestMessage::Log("x".to_owned()))],
                "",
            ),
            (
                "the grace ends a run that does not",
                vec![agent(1), started(1), stop(), Input::GraceExpired],
                "abort, dispose 1, end 1 Cancelled, end Cancelled, kill, settle Cancelled CANCELLED",
            ),
            ("a grace that nothing waits for", vec![Input::GraceExpired], ""),
            (
                "a death is an error",
                vec![agent(1), started(1), Input::GuestGone],
                "abort, dispose 1, end 1 Cancelled, end Error, kill, settle Error WORKER_DIED",
            ),
            (
                "a death after a cancel is none",
                vec![stop(), Input::Guest(GuestMessage::Died("x".to_owned()))],
                "abort, end Cancelled, kill, settle Cancelled CANCELLED",
            ),
            (
                "a disposal waits for no child's result",
                vec![agent(1), started(1), Input::Dispose],
                "tell the run was disposed, abort, grace, dispose 1",
            ),
            (
                "the first end counts",
                vec![result(Ok(json!(1))), Input::GuestGone, stop(), result(Ok(json!(2)))],
                "",
            ),
            (
                "after a cancel all that is answered is the cancel",
                vec![agent(1), started(1), settled(1), stop(), Input::ChildDisposed { call: 1 }],
                "end 1 Completed, answer 1 CANCELLED",
            ),
            (
                "a schema that is none",
                vec![Input::Guest(GuestMessage::Agent {
                    call: 1,
                    request: AgentRequest::new("x").schema(json!(1)),
                })],
                "abort, end Error, kill, settle Error UNSUPPORTED_SCHEMA",
            ),
        ];
        for (what, inputs, expected) in cases {
            assert_eq!(last(inputs), expected, "{what}");
        }
    }

    /// The world around a machine: what may happen next.
    #[derive(Default)]
    struct World {
        starting: Vec<CallNo>,
        running: Vec<CallNo>,
        disposing: Vec<CallNo>,
        calls: CallNo,
        grace: bool,
        guest_gone: bool,
        killed: bool,
        /// What was seen.
        effects: Vec<Effect>,
        disposed: usize,
        begun: usize,
        peak: usize,
        cancelled: bool,
    }

    impl World {
        fn perform(&mut self, effects: Vec<Effect>) {
            for effect in effects {
                match &effect {
                    Effect::Start { call, .. } => self.starting.push(*call),
                    Effect::Await { call } => self.running.push(*call),
                    Effect::Dispose { call } => self.disposing.push(*call),
                    Effect::ArmGrace => self.grace = true,
                    Effect::KillGuest => self.killed = true,
                    _ => {}
                }
                self.effects.push(effect);
            }
        }

        /// An input that may come now, by this choice; `None` if it may not.
        fn choose(&mut self, choice: u8, pick: usize) -> Option<Input> {
            fn take(from: &mut Vec<CallNo>, pick: usize) -> Option<CallNo> {
                (!from.is_empty()).then(|| from.swap_remove(pick % from.len()))
            }
            let talks = !self.guest_gone && !self.killed;
            Some(match choice {
                0..=5 if talks => {
                    self.calls += 1;
                    agent(self.calls)
                }
                6 if talks => Input::Guest(GuestMessage::Log("x".to_owned())),
                7 if talks => Input::Guest(GuestMessage::Phase("x".to_owned())),
                8 if talks && pick.is_multiple_of(8) => result(Ok(json!(1))),
                9 if talks && pick.is_multiple_of(8) => result(Err(Failure::new("E", "x"))),
                10 if !self.guest_gone && (self.killed || pick.is_multiple_of(16)) => {
                    self.guest_gone = true;
                    Input::GuestGone
                }
                11 if pick.is_multiple_of(8) => {
                    self.cancelled = true;
                    Input::Cancel("x".to_owned())
                }
                12 if pick.is_multiple_of(16) => {
                    self.cancelled = true;
                    Input::Dispose
                }
                13 if std::mem::take(&mut self.grace) => Input::GraceExpired,
                14..=20 => {
                    let call = take(&mut self.starting, pick)?;
                    if pick.is_multiple_of(32) {
                        return Some(Input::ChildStartFailed {
                            call,
                            failure: Failure::new("E", "x"),
                        });
                    }
                    self.begun += 1;
                    started(call)
                }
                21..=27 => {
                    let call = take(&mut self.running, pick)?;
                    match pick.is_multiple_of(32) {
                        true => Input::ChildSettled { call, settled: Err(Failure::new("E", "x")) },
                        false => settled(call),
                    }
                }
                28..=34 => {
                    let call = take(&mut self.disposing, pick)?;
                    self.disposed += 1;
                    Input::ChildDisposed { call }
                }
                _ => return None,
            })
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_happens_every_run_has_one_end_and_leaves_no_child(
            slots in 1_usize..4,
            agents in 1_u32..8,
            choices in prop::collection::vec((0_u8..35, any::<usize>()), 0..200),
        ) {
            let mut machine = Settlement::new(slots, agents);
            let mut world = World::default();
            for (choice, pick) in choices {
                let told = world.effects.len();
                let was_cancelled = world.cancelled;
                let was_settled = machine.is_settled();
                let Some(input) = world.choose(choice, pick) else { continue };
                let effects = machine.step(input);
                world.perform(effects);
                world.peak = world.peak.max(machine.live());
                for effect in &world.effects[told..] {
                    if was_settled {
                        prop_assert!(
                            matches!(effect, Effect::Dispose { .. }),
                            "after the end: {effect:?}"
                        );
                    }
                    if was_cancelled {
                        let noise = matches!(effect, Effect::Start { .. }
                            | Effect::Notify(NoticeKind::Log { .. } | NoticeKind::Phase { .. }));
                        prop_assert!(!noise, "after a cancel: {effect:?}");
                    }
                }
            }
            // The rest of the life, as a host would have it.
            let effects = machine.step(Input::Cancel("the end".to_owned()));
            world.perform(effects);
            for _ in 0..100 {
                for choice in [13, 14, 21, 28] {
                    while let Some(input) = world.choose(choice, 1) {
                        let effects = machine.step(input);
                        world.perform(effects);
                    }
                }
            }
            let effects = machine.step(Input::GuestGone);
            world.perform(effects);
            for choice in [14, 21, 28] {
                while let Some(input) = world.choose(choice, 1) {
                    let effects = machine.step(input);
                    world.perform(effects);
                }
            }
            prop_assert!(machine.is_settled());
            prop_assert_eq!(machine.live(), 0);
            prop_assert!(world.peak <= slots);
            prop_assert_eq!(world.begun, world.disposed, "each child is disposed, once");

            let words: Vec<_> = world.effects.iter().map(word).collect();
            let count = |prefix: &str| words.iter().filter(|word| word.starts_with(prefix)).count();
            prop_assert_eq!(count("settle "), 1);
            let ends = world.effects.iter()
                .position(|effect| matches!(effect, Effect::Notify(NoticeKind::End { .. })));
            let (mut open, mut known, mut answered) =
                (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
            for (at, effect) in world.effects.iter().enumerate() {
                match effect {
                    Effect::Notify(NoticeKind::AgentStart { seq, .. }) => {
                        prop_assert!((1..=agents).contains(seq) && known.insert(*seq));
                        open.insert(*seq);
                    }
                    Effect::Notify(NoticeKind::AgentEnd { seq, .. }) => {
                        prop_assert!(open.remove(seq), "{words:?}");
                        prop_assert!(Some(at) < ends);
                    }
                    Effect::TellGuest(HostMessage::Settled { call, .. }) => {
                        prop_assert!(answered.insert(*call), "{words:?}");
                    }
                    _ => {}
                }
            }
            prop_assert!(open.is_empty(), "{words:?}");
        }
    }
}
