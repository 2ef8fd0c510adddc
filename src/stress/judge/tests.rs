//! What was planted is found, and nothing else.

use std::sync::Arc;

use bytes::Bytes;
use playhouse_messages::event::{Event, InboxSpliced, InboxTarget};
use playhouse_models::scripted::{Reply, Script};
use playhouse_plugin_api::tool::{ToolRun, tool_fn};

use super::*;
use crate::testing::Stage;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

/// A log in which a prompt was answered with the help of a tool, a second one waits, and what was
/// promised and done meanwhile.
async fn honest() -> (SessionId, Log, Account) {
    let script = Script::sequence([Reply::call("look", "{}"), Reply::text("There.")]);
    let stage = Stage::new(script).await.unwrap();
    let look = tool_fn("look", "Looks.", |_: Nothing, _: ToolRun| async { Ok("seen") });
    stage.harness().register_tool(Arc::new(look)).unwrap();
    let agent = stage.agent();
    stage.agent().prompt("Look!").await.unwrap();
    agent.when_idle().await.unwrap();
    agent.send("Wait.", InboxTarget::NextTurn, false).await.unwrap();
    let log = agent.session().log();
    let inserted = log.iter().filter_map(|event| match &event.body {
        EventBody::InboxSpliced(splice) => Some(&splice.inserted),
        _ => None,
    });
    let acknowledged = inserted.flatten().map(|message| message.id.clone()).collect();
    let calls = log.iter().filter_map(|event| match &event.body {
        EventBody::ToolCall(call) => Some((call.call_id.clone(), 1)),
        _ => None,
    });
    let account = Account { acknowledged, runs: calls.collect(), parked: false };
    assert_eq!((account.acknowledged.len(), account.runs.len()), (2, 1));
    stage.shutdown().await.unwrap();
    (agent.id().clone(), log, account)
}

/// The log with one of its events once more at the end.
fn repeated(log: &Log, which: impl Fn(&EventBody) -> bool) -> Log {
    let mut again = Event::clone(log.iter().find(|event| which(&event.body)).unwrap());
    again.seq = log.len();
    let mut log = log.clone();
    log.push(Arc::new(again));
    log
}

fn told(faults: &[Fault]) -> Vec<&str> {
    faults.iter().map(|fault| fault.what.as_str()).collect()
}

#[tokio::test]
async fn an_honest_log_is_without_fault() {
    let (id, log, account) = honest().await;
    assert_eq!(session(&id, &log, &account), []);
    assert!(!given_up(&log));
}

#[tokio::test]
async fn a_planted_lost_input_is_found() {
    let (id, log, mut account) = honest().await;
    account.acknowledged.push("planted".into());
    assert_eq!(told(&session(&id, &log, &account)), ["acknowledged input planted is lost"]);
}

#[tokio::test]
async fn an_input_that_enters_or_runs_twice_is_found() {
    let (id, log, account) = honest().await;
    let is_prompt = |body: &EventBody| matches!(body, EventBody::InboxSpliced(InboxSpliced { inserted, .. }) if !inserted.is_empty());
    let entered = repeated(&log, is_prompt);
    let faults = session(&id, &entered, &account);
    assert!(told(&faults).iter().any(|what| what.contains("entered 2 times")), "{faults:?}");
    assert_eq!(faults.last().and_then(|fault| fault.seq), Some(log.len()));
    let run = repeated(&log, |body| matches!(body, EventBody::UserMessage(_)));
    let faults = session(&id, &run, &account);
    assert!(told(&faults).iter().any(|what| what.contains("was run 2 times")), "{faults:?}");
}

#[tokio::test]
async fn a_body_that_ran_twice_or_without_a_record_is_found() {
    let (id, log, mut account) = honest().await;
    account.runs.values_mut().for_each(|runs| *runs += 1);
    account.runs.insert("planted".into(), 1);
    let faults = session(&id, &log, &account);
    assert_eq!(
        told(&faults),
        ["call call-1 was run 2 times", "call planted was run, and is not in the log"]
    );
    assert!(faults[0].seq.is_some() && faults[1].seq.is_none());
}

#[tokio::test]
async fn a_turn_without_an_end_and_a_broken_invariant_are_found() {
    let (id, log, account) = honest().await;
    let end = log.iter().find(|event| matches!(event.body, EventBody::TurnEnd(_))).unwrap().seq;
    let open: Log = log.range(0..end).cloned().collect();
    let account = Account { acknowledged: account.acknowledged[..1].to_vec(), ..account };
    assert_eq!(told(&session(&id, &open, &account)), ["its last turn has no end"]);
    let broken = repeated(&log, |body| matches!(body, EventBody::TurnEnd(_)));
    let faults = session(&id, &broken, &account);
    assert!(faults.iter().any(|fault| fault.seq == Some(log.len())), "{faults:?}");
}

#[tokio::test]
async fn what_is_stored_otherwise_short_or_beyond_is_found() {
    let (id, log, _) = honest().await;
    let bytes = |event: &Arc<Event>| Bytes::from(event.to_json());
    let header = Arc::new(playhouse_messages::header::SessionHeader::new(id.clone(), 0));
    let whole = StoredSession {
        header,
        inherited_event_count: 0,
        events: log.iter().map(bytes).collect(),
        tail: None,
    };
    assert_eq!(stored(&id, &log, Some(&whole)), None);
    let mut short = whole.clone();
    short.events.pop();
    let fault = stored(&id, &log, Some(&short)).unwrap();
    assert_eq!(fault.seq, Some(log.len() - 1));
    assert!(stored(&id, &log, None).is_some());
    let mut other = whole.clone();
    other.events[3] = other.events[2].clone();
    assert_eq!(stored(&id, &log, Some(&other)).unwrap().seq, Some(3));
    let mut beyond = whole;
    beyond.events.push(beyond.events[0].clone());
    assert_eq!(stored(&id, &log, Some(&beyond)).unwrap().seq, Some(log.len()));
}
