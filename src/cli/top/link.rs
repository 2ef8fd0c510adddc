//! The way to the running process: questions out, answers in, and nobody waits for either.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::mpsc,
};

use super::state::{Ask, Heard};
use crate::cli::agent_row::AgentRow;

/// Questions that may wait to be sent. A person asks slowly; a further one waits for its turn.
const QUEUE: usize = 64;

/// What `agents/tree` answers.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
pub(super) struct Tree {
    pub(super) revision: u64,
    /// Whether these are all agents, not those that have changed.
    pub(super) whole: bool,
    pub(super) agents: Vec<AgentRow>,
    pub(super) gone: Vec<playhouse_messages::id::SessionId>,
}

/// A client of the control socket. Its task ends with it.
pub(super) struct Link {
    asks: mpsc::Sender<Ask>,
    heard: mpsc::Receiver<Heard>,
    task: tokio::task::JoinHandle<()>,
}

impl Link {
    /// Talks over this connection from now on.
    pub(super) fn new(stream: UnixStream) -> Self {
        let (from, to) = stream.into_split();
        let (asks, asked) = mpsc::channel(QUEUE);
        let (tell, heard) = mpsc::channel(QUEUE);
        let task = tokio::spawn(async move {
            // Whoever listens learns of the end by a closed channel too.
            let lost = talk(BufReader::new(from), to, asked, &tell).await;
            let _ = tell.send(Heard::Lost(lost)).await;
        });
        Self { asks, heard, task }
    }

    /// Asks something; the answer is heard later. Nothing is asked of a process that is gone.
    pub(super) async fn ask(&self, ask: Ask) {
        let _ = self.asks.send(ask).await;
    }

    /// The next thing that the process says. Cancel safe.
    pub(super) async fn next(&mut self) -> Heard {
        match self.heard.recv().await {
            Some(heard) => heard,
            // Said once already.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Says why the talk is over.
async fn talk(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut asked: mpsc::Receiver<Ask>,
    tell: &mpsc::Sender<Heard>,
) -> String {
    let mut lines = BufReader::new(from).lines();
    let mut open = HashMap::new();
    let mut number = 0_u64;
    let mute = json!({"jsonrpc": "2.0", "id": 0, "method": "client/mute"});
    let mut out = format!("{mute}\n");
    loop {
        if let Err(error) = to.write_all(std::mem::take(&mut out).as_bytes()).await {
            return format!("the process is gone ({error})");
        }
        tokio::select! {
            ask = asked.recv() => {
                let Some(ask) = ask else { return "nobody asks any more".to_owned() };
                number += 1;
                let (method, params) = request(&ask);
                let request =
                    json!({"jsonrpc": "2.0", "id": number, "method": method, "params": params});
                out = format!("{request}\n");
                open.insert(number, ask);
            }
            line = lines.next_line() => {
                let line = match line {
                    Ok(Some(line)) => line,
                    Ok(None) => return "the process has ended".to_owned(),
                    Err(error) => return format!("the process is gone ({error})"),
                };
                let Ok(mut answer) = serde_json::from_str::<Value>(&line) else { continue };
                // Notifications, and the answer to `client/mute`, are asked by nobody.
                let Some(ask) = answer["id"].as_u64().and_then(|id| open.remove(&id)) else {
                    continue;
                };
                let heard = heard(ask, answer["result"].take(), &answer["error"]);
                if tell.send(heard).await.is_err() {
                    return "nobody listens any more".to_owned();
                }
            }
        }
    }
}

fn request(ask: &Ask) -> (&'static str, Value) {
    match ask {
        Ask::Tree { after } => ("agents/tree", json!({"after": after})),
        Ask::Cancel { agent } => ("agent/cancel", json!({"agent": agent})),
        Ask::CancelTree { agent } => ("agent/cancel", json!({"agent": agent, "tree": true})),
        Ask::Interrupt { agent } => ("agent/cancel", json!({"agent": agent, "keepInbox": true})),
        Ask::Steer { agent, text } => ("agent/steer", json!({"agent": agent, "text": text})),
        Ask::Log { agent, from } => ("session/log", json!({"session": agent, "from": from})),
    }
}

fn heard(ask: Ask, result: Value, error: &Value) -> Heard {
    if !error.is_null() {
        let text = error["message"].as_str().unwrap_or("the process refused").to_owned();
        return Heard::Refused { ask, text };
    }
    match ask {
        Ask::Tree { .. } => match serde_json::from_value(result) {
            Ok(tree) => Heard::Tree(tree),
            Err(fault) => {
                Heard::Refused { ask, text: format!("an answer makes no sense: {fault}") }
            }
        },
        Ask::Log { agent, .. } => {
            let events = result["events"].as_array().cloned().unwrap_or_default();
            let events = events.iter().filter_map(|event| {
                playhouse_messages::event::Event::from_json(&event.to_string()).ok()
            });
            Heard::Log { agent, events: events.collect(), next: result["next"].as_u64() }
        }
        ask => Heard::Done(ask),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_find_their_questions_and_a_process_that_ends_is_told() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut link = Link::new(ours);
        link.ask(Ask::Steer { agent: "a".into(), text: "left".to_owned() }).await;
        link.ask(Ask::Tree { after: None }).await;
        let (from, mut to) = theirs.into_split();
        let mut lines = BufReader::new(from).lines();
        let mut asked = Vec::new();
        for _ in 0..3 {
            let line = lines.next_line().await.unwrap().unwrap();
            asked.push(serde_json::from_str::<Value>(&line).unwrap());
        }
        let methods: Vec<_> = asked.iter().map(|ask| ask["method"].as_str().unwrap()).collect();
        assert_eq!(methods, ["client/mute", "agent/steer", "agents/tree"]);
        let answers = [
            json!({"jsonrpc": "2.0", "method": "agent/status", "params": {}}),
            json!({"jsonrpc": "2.0", "id": 2,
                "result": {"revision": 7, "whole": true, "agents": [], "gone": ["b"]}}),
            json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no agent"}}),
        ];
        for answer in answers {
            to.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
        }
        let gone = vec!["b".into()];
        let tree = Tree { revision: 7, whole: true, agents: vec![], gone };
        assert_eq!(link.next().await, Heard::Tree(tree));
        let ask = Ask::Steer { agent: "a".into(), text: "left".to_owned() };
        assert_eq!(link.next().await, Heard::Refused { ask, text: "no agent".to_owned() });
        drop((lines, to));
        assert_eq!(link.next().await, Heard::Lost("the process has ended".to_owned()));
    }
}
