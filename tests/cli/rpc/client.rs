//! A client of `playhouse rpc`.

use serde_json::{Value, json};

use super::refusal;
use crate::cli::{House, Running};

/// A client.
pub struct Client {
    pub running: Running,
    next: u64,
}

impl Client {
    pub fn start(house: &House) -> Self {
        Self { running: house.spawn(&["rpc"]), next: 1 }
    }

    /// One that talks to the process that has the house's store.
    pub fn attach(house: &House) -> Self {
        Self { running: house.spawn(&["rpc", "--attach"]), next: 1 }
    }

    /// Asks, without waiting for the answer.
    pub fn ask(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next;
        self.next += 1;
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.running.send(&request.to_string());
        id
    }

    /// The first message that fits.
    #[track_caller]
    pub fn message(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        self.running.line(|line| {
            let message: Value = serde_json::from_str(line).unwrap();
            fits(&message).then_some(message)
        })
    }

    #[track_caller]
    pub fn answer(&mut self, id: u64) -> Value {
        self.message(|message| message["id"] == id && message["method"].is_null())
    }

    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params);
        let answer = self.answer(id);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// The stable code of a refusal.
    #[track_caller]
    pub fn refusal(&mut self, method: &str, params: Value) -> (i64, String) {
        let id = self.ask(method, params);
        refusal(&self.answer(id))
    }

    #[track_caller]
    pub fn told(&mut self, method: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let message = self.message(|m| m["method"] == method && fits(&m["params"]));
        message["params"].clone()
    }

    #[track_caller]
    pub fn event(&mut self, kind: &str) -> Value {
        let params = self.told("session/event", |params| params["event"]["type"] == kind);
        params["event"].clone()
    }

    #[track_caller]
    pub fn make(&mut self, id: &str) {
        let made = self.call("agent/create", json!({"id": id, "provider": "p", "model": "m"}));
        assert_eq!(made, json!({"agent": id, "events": 0}));
    }

    #[track_caller]
    pub fn log(&mut self, id: &str) -> Vec<Value> {
        let log = self.call("session/log", json!({"session": id}));
        assert_eq!(log["next"], Value::Null);
        log["events"].as_array().unwrap().clone()
    }

    #[track_caller]
    pub fn end(self) -> Vec<String> {
        let (code, lines) = self.running.end();
        assert_eq!(code, Some(0), "{lines:?}");
        lines
    }
}
