use std::{collections::BTreeSet, sync::Arc};

use serde_json::json;

use super::*;
use crate::{
    chunk::{FinishReason, StreamChunk, Usage},
    config::HeaderReason,
    content::ContentBlock,
    event::{
        DeveloperMessage, EndSeed, InboxSpliced, InboxTarget, NewEvent, RequestHeader,
        SpliceOutcome, StepAt, ToolErrorInfo, ToolResult, TurnEndReason,
    },
    message::{Message, Role, Source},
    packed::StreamRecord,
    repair::TOOL_NOT_STARTED,
    surface::IMAGE_OFFLOAD,
    testing::{Script, header, user},
};
use InboxTarget::{NextStep, NextTurn};

impl Script {
    /// An event that the surface is not asked about.
    fn raw(&mut self, event: NewEvent) -> &mut Self {
        let seq = self.log.len();
        self.log.push(Arc::new(event.at(seq, 0)));
        self
    }

    fn put(&mut self, target: InboxTarget, start: u32, removed: u32, ids: &[&str]) -> &mut Self {
        self.splice(target, start, removed, ids, None)
    }

    fn splice(
        &mut self,
        target: InboxTarget,
        start: u32,
        removed_count: u32,
        ids: &[&str],
        outcome: Option<SpliceOutcome>,
    ) -> &mut Self {
        let inserted = ids.iter().map(|id| Message::user(*id, *id).into()).collect();
        let splice = InboxSpliced { target, start, removed_count, inserted, outcome };
        self.raw(NewEvent::log_only(EventBody::InboxSpliced(splice)))
    }

    /// A step of turn 1, the first.
    fn in_step(&mut self) -> &mut Self {
        self.turn(1).step(1, 1)
    }

    /// The body of the last event, changed.
    fn last(&mut self) -> EventBody {
        self.log.last().unwrap().body.clone()
    }

    fn says(&mut self, text: &str, stream: &str, interrupted: bool, calls: &[&str]) {
        let mut other = self.clone();
        other.assistant(text, calls);
        let EventBody::AssistantMessage(mut data) = other.last() else { unreachable!() };
        if !stream.is_empty() {
            data.stream = vec![StreamRecord::TextChunks {
                time0: 1,
                index: 0,
                dt: vec![],
                texts: vec![stream.into()],
            }];
        }
        data.interrupted = interrupted;
        data.usage = Some(Usage::default());
        self.push(NewEvent::append(EventBody::AssistantMessage(data)));
    }

    fn tells(&mut self, removed: &str) {
        let content = vec![ContentBlock::ToolRemoval { tool_name: removed.into() }];
        let message = Message {
            role: Role::Developer,
            ..Message::user_from("d", content, Source::tool_registry())
        };
        let data =
            DeveloperMessage { turn: 1, step: 1, message: Arc::new(message), header_seq: None };
        self.raw(NewEvent::append(EventBody::DeveloperMessage(data)));
    }

    fn header_as(&mut self, tools: &[&str], reason: HeaderReason, starts_series: bool) {
        let header = Arc::new(header(tools));
        let data = RequestHeader { header, reason, starts_series };
        self.log_only(EventBody::RequestHeader(data));
    }

    /// The last result again, in its own place, as `change` makes it.
    fn rewrites(&mut self, change: impl FnOnce(&mut ToolResult)) {
        let EventBody::ToolResult(mut data) = self.last() else { unreachable!() };
        change(&mut data);
        let at = self.log.len() - 1;
        self.raw(NewEvent::replace(EventBody::ToolResult(data), at, at, vec![at]));
    }

    fn called(&mut self) -> &mut Self {
        self.in_step();
        self.assistant("", &["c"]);
        self.call("c");
        self.result("c", "out");
        self
    }
}

fn prune(data: &mut ToolResult) {
    let content = vec![ContentBlock::text("pruned")];
    data.message = Arc::new(Message { content, ..(*data.message).clone() });
}

type Case = (u32, fn(&mut Script));

/// What each of them writes is in order up to its last event; 0 is in order to its end.
const CASES: &[Case] = &[
    (0, |s| {
        s.put(NextTurn, 0, 0, &["a"]).turn(1).put(NextTurn, 0, 1, &[]).step(1, 1);
        s.system("P");
        s.push(user("a", "a"));
        s.header(&[]);
        s.context();
        s.attempt();
        s.assistant("x", &["c", "d"]);
        s.call("c");
        s.call("d");
        s.result("c", "");
        s.result("d", "");
        s.end_step(1, 1).end_turn(1, TurnEndReason::Completed);
    }),
    // 9
    (0, |s| {
        let anything = |s: &mut Script| {
            s.log_only(EventBody::EndSeed(EndSeed::default()));
            let id = format!("u{}", s.log.len());
            s.push(user(&id, "hi"));
            s.put(NextStep, 0, 0, &[&format!("i{id}")]);
            s.raw(NewEvent::custom("x/note", json!({})).ignorable());
        };
        anything(s);
        s.turn(1);
        anything(s);
        s.step(1, 1);
        anything(s);
        s.assistant("", &["c"]);
        anything(s);
        s.call("c");
        anything(s);
        s.result("c", "");
        s.end_step(1, 1);
        anything(s);
        s.end_turn(1, TurnEndReason::Completed);
        anything(s);
    }),
    (2, |s| _ = s.turn(2)),
    (2, |s| _ = s.turn(1).turn(2)),
    (3, |s| _ = s.in_step().end_turn(1, TurnEndReason::Completed)),
    (3, |s| _ = s.turn(1).end_turn(2, TurnEndReason::Completed)),
    (4, |s| _ = s.turn(1).step(1, 2)),
    (4, |s| _ = s.in_step().step(1, 2)),
    (4, |s| _ = s.in_step().end_step(1, 2)),
    (5, |s| _ = s.turn(1).system("P")),
    (5, |s| _ = s.in_step().end_step(1, 1).attempt()),
    (6, |s| {
        s.in_step().assistant("", &["c"]);
        s.result("c", "");
    }),
    (6, |s| _ = s.in_step().result("c", "")),
    (0, |s| {
        s.in_step().assistant("", &["c"]);
        s.clone().result("c", "");
        let mut other = s.clone();
        other.result("c", "never");
        let EventBody::ToolResult(mut data) = other.last() else { unreachable!() };
        let (name, code) = ("E".to_owned(), TOOL_NOT_STARTED.to_owned());
        data.error = Some(ToolErrorInfo { name, code, reason: None });
        data.message = Arc::new(Message { is_error: Some(true), ..(*data.message).clone() });
        s.push(NewEvent::append(EventBody::ToolResult(data)));
    }),
    (0, |s| s.called().rewrites(prune)),
    (7, |s| {
        s.called().end_step(1, 1).end_turn(1, TurnEndReason::Completed);
        let result = s.log.iter().find(|event| event.body.kind() == "tool/result").unwrap().clone();
        let EventBody::ToolResult(mut data) = result.body.clone() else { unreachable!() };
        prune(&mut data);
        let (at, body) = (result.seq, EventBody::ToolResult(data));
        s.raw(NewEvent::replace(body, at, at, vec![at]));
    }),
    (8, |s| _ = s.header(&[])),
    (8, |s| _ = s.context()),
    (15, |s| _ = s.raw(NewEvent::log_only(user("a", "a").body))),
    (15, |s| {
        s.push(user("a", "a"));
        s.raw(NewEvent::replace(user("b", "b").body, 0, 0, vec![]));
    }),
    (15, |s| {
        s.push(user("a", "a"));
        s.push(user("b", "b"));
        s.raw(NewEvent::replace(user("c", "c").body, 1, 0, vec![0, 1]));
    }),
    (15, |s| {
        s.push(user("a", "a"));
        s.push(user("b", "b"));
        s.replace(user("c", "c"), 0, 1);
        // What took the place of another stands where that stood; the other is gone.
        s.replace(user("d", "d"), 2, 2);
        s.raw(NewEvent::replace(user("e", "e").body, 2, 2, vec![2]));
    }),
    (16, |s| {
        s.in_step().system("P");
        s.raw(NewEvent::replace(user("a", "a").body, 2, 2, vec![2]));
    }),
    (18, |s| {
        s.in_step().system("P");
        s.system("Q");
        s.header(&[]);
        s.context();
        s.attempt();
    }),
    (0, |s| {
        s.in_step().system("P");
        s.system("Q");
        let emptied = NewEvent::log_only(s.system_event(""));
        s.replace(emptied, 3, 3);
        s.header(&[]);
        s.context();
        s.attempt();
    }),
    (20, |s| {
        s.called().rewrites(|data| {
            data.message = Arc::new(Message { id: "other".into(), ..(*data.message).clone() });
        });
    }),
    (23, |s| {
        s.turn(1).header(&[]);
        s.header(&["x"]);
    }),
    (23, |s| s.turn(1).header_as(&[], HeaderReason::Resume, false)),
    (23, |s| {
        s.turn(1).header(&[]);
        s.header_as(&[], HeaderReason::Change, false);
    }),
    (23, |s| {
        s.turn(1).header(&[]);
        s.header_as(&["x"], HeaderReason::Series, false);
    }),
    (24, |s| {
        s.in_step().push(user("a", "a"));
        s.header(&[]);
        s.attempt();
        s.replace(user("b", "b"), 2, 2);
        s.header_as(&["x"], HeaderReason::Change, false);
    }),
    (24, |s| {
        s.in_step().push(user("a", "a"));
        s.header(&[]);
        s.attempt();
        s.end_step(1, 1);
        s.replace(user("b", "b"), 2, 2);
        s.step(1, 2).attempt();
    }),
    (24, |s| {
        s.in_step().system("P");
        s.header(&[]);
        s.attempt();
        let prompt = NewEvent::log_only(s.system_event("Q"));
        s.replace(prompt, 2, 2);
        s.attempt();
    }),
    (24, |s| {
        s.in_step().header(&[]);
        s.attempt();
        s.end_step(1, 1).raw(NewEvent::custom(IMAGE_OFFLOAD, json!({}))).step(1, 2).attempt();
    }),
    (0, |s| {
        s.in_step().push(user("a", "a"));
        s.header(&[]);
        s.attempt();
        s.replace(user("b", "b"), 2, 2);
        s.header_as(&["x"], HeaderReason::Change, true);
        s.attempt();
        s.replace(user("c", "c"), 5, 5);
        s.header_as(&["x"], HeaderReason::Series, false);
        s.attempt();
    }),
    (25, |s| {
        s.turn(1).context();
        s.context();
    }),
    (26, |s| s.in_step().tells("x")),
    (26, |s| {
        s.in_step().header(&["x"]);
        s.header_as(&["y"], HeaderReason::Change, false);
        s.tells("x");
    }),
    (28, |s| {
        s.in_step().push(user("a", "a"));
        s.attempt();
        s.push(user("a", "a"));
    }),
    (30, |s| {
        s.in_step().assistant("x", &[]);
        s.attempt();
    }),
    (30, |s| {
        s.in_step().assistant("x", &[]);
        s.assistant("x", &[]);
    }),
    (0, |s| s.in_step().says("x", "x", true, &[])),
    (31, |s| s.in_step().says("x", "y", false, &[])),
    (31, |s| s.in_step().says("x", "y", true, &[])),
    (32, |s| s.in_step().says("", "", true, &["c"])),
    (32, |s| {
        s.in_step().says("x", "", true, &[]);
        s.end_step(1, 1).step(1, 2);
    }),
    (32, |s| {
        s.in_step().says("x", "", true, &[]);
        s.end_step(1, 1).end_turn(1, TurnEndReason::Completed);
    }),
    (33, |s| {
        s.in_step().assistant("", &["c", "d"]);
        s.call("d");
        s.result("d", "");
    }),
    (35, |s| {
        s.in_step().assistant("", &["c"]);
        s.end_step(1, 1);
    }),
    (35, |s| _ = s.called().result("c", "again")),
    (36, |s| _ = s.in_step().call("c")),
    (36, |s| {
        s.in_step().assistant("", &["c"]);
        s.call("c");
        s.call("c");
    }),
    (36, |s| {
        let mut other = s.in_step().clone();
        other.assistant("", &["c"]);
        let EventBody::AssistantMessage(mut data) = other.last() else { unreachable!() };
        let chunk = StreamChunk::Finish { reason: FinishReason::MaxTokens, replay_state: None };
        data.stream = vec![StreamRecord::Chunk { time: 1, chunk }];
        s.push(NewEvent::append(EventBody::AssistantMessage(data)));
    }),
    (37, |s| _ = s.put(NextTurn, 1, 0, &["a"])),
    (37, |s| _ = s.put(NextTurn, 0, 0, &["a"]).put(NextStep, 0, 0, &["a"])),
    (37, |s| _ = s.put(NextTurn, 0, 0, &["a", "a"])),
    (0, |s| {
        let canceled = Some(SpliceOutcome::Canceled);
        s.put(NextTurn, 0, 0, &["a", "b"]).splice(NextTurn, 0, 1, &["a"], canceled);
        s.splice(NextTurn, 0, 1, &["c"], canceled).put(NextStep, 0, 0, &["a"]);
    }),
    (38, |s| _ = s.put(NextTurn, 0, 0, &["a"]).put(NextTurn, 0, 1, &[])),
    (38, |s| _ = s.put(NextTurn, 0, 0, &["a", "b"]).turn(1).put(NextTurn, 0, 2, &[])),
    (38, |s| _ = s.put(NextTurn, 0, 0, &["a", "b"]).turn(1).put(NextTurn, 1, 1, &[])),
    (38, |s| {
        s.put(NextTurn, 0, 0, &["a", "b"]).turn(1);
        s.put(NextTurn, 0, 1, &[]).put(NextTurn, 0, 1, &[]);
    }),
    (41, |s| {
        s.put(NextTurn, 0, 0, &["a"]).put(NextStep, 0, 0, &["b"]).turn(1);
        s.put(NextTurn, 0, 1, &[]);
    }),
    (41, |s| _ = s.put(NextStep, 0, 0, &["a", "b"]).turn(1).put(NextStep, 0, 1, &[])),
    (42, |s| {
        s.put(NextTurn, 0, 0, &["a"]).in_step().end_step(1, 1);
        s.put(NextTurn, 0, 1, &[]);
    }),
];

#[test]
fn each_violation_has_its_number() {
    for (row, (number, write)) in CASES.iter().enumerate() {
        let mut script = Script::new();
        write(&mut script);
        let last = script.log.len() - 1;
        let found = check(&script.log).err().map(|violation| (violation.number, violation.seq));
        assert_eq!(found, (*number > 0).then_some((*number, last)), "row {row}");
    }
    let numbers: BTreeSet<_> = CASES.iter().map(|case| case.0).collect();
    let all = (2..=8).chain([0, 15, 16, 18, 20]).chain(23..=26).chain([28]).chain(30..=33);
    assert_eq!(numbers, all.chain(35..=38).chain([41, 42]).collect());
}

#[test]
fn an_event_out_of_its_place_breaks_the_first() {
    let mut invariants = Invariants::new();
    let event = user("a", "a");
    assert_eq!(invariants.observe(Candidate::new(1, &event)).unwrap_err().number, 1);
}

/// What breaks an invariant is taken all the same, so that what follows is judged as it stands.
#[test]
fn a_history_that_breaks_an_invariant_is_followed() {
    let mut script = Script::new();
    script.in_step().assistant("", &["c"]);
    script.end_step(1, 1).step(1, 2).assistant("x", &[]);
    script.end_step(1, 2).end_turn(1, TurnEndReason::Completed);
    let mut invariants = Invariants::new();
    let mut observe = |event: Candidate<'_>| invariants.observe(event).err().map(|it| it.number);
    let broken: Vec<_> = script.log.iter().filter_map(|event| observe((&**event).into())).collect();
    assert_eq!(broken, [35]);
    let start = NewEvent::log_only(EventBody::TurnStart(crate::event::TurnStart { turn: 2 }));
    assert_eq!(observe(Candidate::new(script.log.len(), &start)), None);
    let at = StepAt { turn: 2, step: 2 };
    let step = NewEvent::log_only(EventBody::StepStart(at));
    assert_eq!(observe(Candidate::new(script.log.len() + 1, &step)), Some(4));
}

#[test]
fn a_message_has_one_fate() {
    let mut script = Script::new();
    script.put(NextTurn, 0, 0, &["a", "b", "c"]);
    script.splice(NextTurn, 1, 1, &[], Some(SpliceOutcome::Canceled));
    script.turn(1).put(NextTurn, 0, 1, &[]);
    let fates = Fates::of(&script.log);
    let fates = ["a", "b", "c", "z"].map(|id| fates.get(&id.into()));
    let [claimed, discarded] = [Fate::Claimed { turn: 1 }, Fate::Discarded];
    assert_eq!(fates, [Some(claimed), Some(discarded), Some(Fate::Pending), None]);
}

/// An observed event costs the same at the end of a long log as at its start: a log of rewrites or
/// of a long queue would take minutes otherwise.
#[test]
fn long_logs_do_not_get_slow() {
    let mut script = Script::new();
    script.in_step().header(&[]);
    for n in 0..20_000u64 {
        script.raw(user(&format!("u{n}"), "text"));
    }
    for n in 0..20_000u64 {
        let (at, body) = (3 + n, user(&format!("v{n}"), "less").body);
        script.raw(NewEvent::replace(body, at, at, vec![at]));
    }
    script.end_step(1, 1).end_turn(1, TurnEndReason::Completed);
    for n in 0..20_000u32 {
        script.put(NextTurn, n, 0, &[&format!("m{n}")]);
    }
    for n in 0..20_000 {
        script.turn(n + 2).put(NextTurn, 0, 1, &[]).end_turn(n + 2, TurnEndReason::Completed);
    }
    // As a session asks it, for each event.
    let mut trace: Box<dyn Trace> = InvariantsHold.trace();
    for event in script.log.iter() {
        trace = trace.fork();
        trace.follow((&**event).into()).unwrap();
    }
}
