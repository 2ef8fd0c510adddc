//! Holds a log against what was promised and done. Pure.

use std::collections::HashMap;

use playhouse_messages::{
    event::{EventBody, Seq},
    id::{CallId, MessageId, SessionId},
    invariants::{self, Fates},
    log::Log,
};
use playhouse_plugin_api::store::StoredSession;

use super::{ledger::Account, report::Fault};
use crate::testing::checks;

/// How an agent ends that nobody may expect anything of any more.
pub(super) const GIVEN_UP: &str = "agent/failed";

/// Whether the log says that its agent was given up.
pub(super) fn given_up(log: &Log) -> bool {
    let says =
        |body: &EventBody| matches!(body, EventBody::Custom { kind, .. } if **kind == *GIVEN_UP);
    log.iter().rev().any(|event| says(&event.body))
}

/// What is wrong with a session whose agent has come to rest.
pub(super) fn session(id: &SessionId, log: &Log, account: &Account) -> Vec<Fault> {
    let mut faults = Vec::new();
    if let Err(violation) = invariants::check(log) {
        faults.push(Fault::of(id, violation.to_string()).at(Some(violation.seq)));
    } else if !checks::balanced(log) {
        faults.push(Fault::of(id, "its last turn has no end").at(log.last().map(|last| last.seq)));
    }
    inputs(id, log, account, &mut faults);
    calls(id, log, account, &mut faults);
    faults
}

/// Every acknowledged input entered once, was run at most once, and waits, was cancelled or was
/// claimed. A splice that removes without a claim says that it cancels: that is an invariant.
fn inputs(id: &SessionId, log: &Log, account: &Account, faults: &mut Vec<Fault>) {
    let mut entered: HashMap<&MessageId, (u32, Seq)> = HashMap::new();
    let mut shown: HashMap<&MessageId, (u32, Seq)> = HashMap::new();
    let count = |map: &mut HashMap<_, (u32, Seq)>, message, seq| {
        let (times, last) = map.entry(message).or_default();
        (*times, *last) = (*times + 1, seq);
    };
    for event in log.iter() {
        match &event.body {
            EventBody::InboxSpliced(splice) => {
                for message in &splice.inserted {
                    count(&mut entered, &message.id, event.seq);
                }
            }
            EventBody::UserMessage(message) => count(&mut shown, &message.id, event.seq),
            _ => {}
        }
    }
    let mut twice = |map: &HashMap<&MessageId, (u32, Seq)>, what: &str| {
        for (message, (times, seq)) in map.iter().filter(|(_, (times, _))| *times > 1) {
            let text = format!("input {message} {what} {times} times");
            faults.push(Fault::of(id, text).at(Some(*seq)));
        }
    };
    twice(&entered, "entered");
    twice(&shown, "was run");
    let fates = Fates::of(log);
    for message in &account.acknowledged {
        if fates.get(message).is_none() {
            faults.push(Fault::of(id, format!("acknowledged input {message} is lost")));
        }
    }
}

/// Every body that ran stands in the log as a call, and ran once.
fn calls(id: &SessionId, log: &Log, account: &Account, faults: &mut Vec<Fault>) {
    let recorded: HashMap<&CallId, Seq> = log
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::ToolCall(call) => Some((&call.call_id, event.seq)),
            _ => None,
        })
        .collect();
    for (call, runs) in &account.runs {
        let seq = recorded.get(call).copied();
        if seq.is_none() {
            faults.push(Fault::of(id, format!("call {call} was run, and is not in the log")));
        }
        if *runs > 1 {
            faults.push(Fault::of(id, format!("call {call} was run {runs} times")).at(seq));
        }
    }
}

/// What is stored is the log, byte for byte.
pub(super) fn stored(id: &SessionId, log: &Log, stored: Option<&StoredSession>) -> Option<Fault> {
    let events = stored.map_or(&[][..], |stored| &stored.events);
    let mut pairs = log.iter().zip(events);
    if let Some((event, _)) = pairs.find(|(event, bytes)| event.to_json().as_bytes() != &bytes[..])
    {
        return Some(Fault::of(id, "it is stored otherwise").at(Some(event.seq)));
    }
    let (live, kept) = (log.len(), events.len() as u64);
    (live != kept).then(|| {
        Fault::of(id, format!("{kept} of {live} events are stored")).at(Some(live.min(kept)))
    })
}

#[cfg(test)]
mod tests;
