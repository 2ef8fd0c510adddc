//! JSON-RPC 2.0 messages, one a line.

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    agent::{AgentError, SelectError},
    session::SessionError,
    store::StoreError,
};
use playhouse_supervisor::hibernation::{HibernateError, SendError};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

/// The code of errors that the library or this program tells of; `data.code` says which.
pub(super) const APPLICATION_ERROR: i64 = -32000;

/// An error as a response carries it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RpcError {
    code: i64,
    message: String,
    /// The stable code for programs.
    stable: String,
}

impl RpcError {
    fn standard(code: i64, stable: &str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), stable: stable.to_owned() }
    }

    pub(super) fn not_json(message: impl Into<String>) -> Self {
        Self::standard(-32700, "PARSE_ERROR", message)
    }

    pub(super) fn invalid_request(message: impl Into<String>) -> Self {
        Self::standard(-32600, "INVALID_REQUEST", message)
    }

    pub(super) fn no_method(method: &str) -> Self {
        let text =
            format!("there is no method \"{method}\"; docs/rpc.md lists those that there are");
        Self::standard(-32601, "METHOD_NOT_FOUND", text)
    }

    pub(super) fn invalid_params(message: impl Into<String>) -> Self {
        Self::standard(-32602, "INVALID_PARAMS", message)
    }

    pub(super) fn application(code: &str, message: impl Into<String>) -> Self {
        Self::standard(APPLICATION_ERROR, code, message)
    }
}

impl From<Failure> for RpcError {
    fn from(failure: Failure) -> Self {
        Self::application(&failure.code, failure.message)
    }
}

impl From<AgentError> for RpcError {
    fn from(error: AgentError) -> Self {
        Failure::from(error).into()
    }
}

impl From<SendError> for RpcError {
    fn from(error: SendError) -> Self {
        Failure::from(error).into()
    }
}

impl From<HibernateError> for RpcError {
    fn from(error: HibernateError) -> Self {
        Failure::from(error).into()
    }
}

impl From<SessionError> for RpcError {
    fn from(error: SessionError) -> Self {
        Failure::from(error).into()
    }
}

impl From<SelectError> for RpcError {
    fn from(error: SelectError) -> Self {
        Failure::from(error).into()
    }
}

impl From<StoreError> for RpcError {
    fn from(error: StoreError) -> Self {
        Self::application(error.code(), error.to_string())
    }
}

impl From<crate::cli::exit::CliError> for RpcError {
    fn from(error: crate::cli::exit::CliError) -> Self {
        Self::application(error.code(), error.line())
    }
}

/// What a client sent.
#[derive(Debug, PartialEq)]
pub(super) enum Incoming {
    /// It asks for something; without an id it wants no answer.
    Request { id: Option<Value>, method: String, params: Value },
    /// It answers a request of ours.
    Response { id: Value, answer: Result<Value, Value> },
    /// It is no message; the id to say so under is null if that cannot be told.
    Refused { id: Value, error: RpcError },
}

/// Reads one line.
pub(super) fn parse(line: &[u8]) -> Incoming {
    let refused = |id: Value, error: RpcError| Incoming::Refused { id, error };
    let invalid = |id: Value, text: &str| refused(id, RpcError::invalid_request(text));
    let value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(fault) => {
            let text = format!("not JSON: {fault}; send one object a line");
            return refused(Value::Null, RpcError::not_json(text));
        }
    };
    let mut fields: Map<String, Value> = match value {
        Value::Object(fields) => fields,
        Value::Array(_) => {
            let text = "batches are not supported; send the requests one a line";
            return invalid(Value::Null, text);
        }
        _ => return invalid(Value::Null, "a message is an object"),
    };
    let id = fields.remove("id");
    if !matches!(id, None | Some(Value::Null | Value::String(_) | Value::Number(_))) {
        return invalid(Value::Null, "`id` must be a string or a number");
    }
    let under = id.clone().unwrap_or_default();
    if fields.remove("jsonrpc") != Some(Value::from("2.0")) {
        return invalid(under, "`jsonrpc` must be \"2.0\"");
    }
    match fields.remove("method") {
        Some(Value::String(method)) => match fields.remove("params") {
            None => Incoming::Request { id, method, params: Value::Object(Map::new()) },
            Some(params @ Value::Object(_)) => Incoming::Request { id, method, params },
            Some(_) => refused(under, RpcError::invalid_params("`params` must be an object")),
        },
        Some(_) => invalid(under, "`method` must be a string"),
        None => match (id, fields.remove("result"), fields.remove("error")) {
            (Some(id), Some(result), None) => Incoming::Response { id, answer: Ok(result) },
            (Some(id), None, Some(error)) => Incoming::Response { id, answer: Err(error) },
            _ => invalid(under, "a message needs a `method`, or an `id` and `result` or `error`"),
        },
    }
}

/// How many messages may wait for a client that reads slowly. A full queue makes those wait who
/// fill it: readers of logs stay at their cursors, answers are kept by their requests (which are
/// bounded too), tool calls wait as they would for a slow tool. No agent waits, and nothing is
/// dropped. The memory that a client can hold is this many messages and what a pipe takes.
const QUEUE: usize = 1024;

/// The way to the client. Messages leave in the order in which they enter.
#[derive(Debug, Clone)]
pub(super) struct Outbox(mpsc::Sender<String>);

/// The client no longer reads.
#[derive(Debug)]
pub(super) struct ClientGone;

impl Outbox {
    pub(super) fn new() -> (Self, mpsc::Receiver<String>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self(sender), receiver)
    }

    async fn send(&self, line: String) -> Result<(), ClientGone> {
        self.0.send(line).await.map_err(|_| ClientGone)
    }

    /// Resolves once the client no longer reads.
    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }

    pub(super) async fn notify(
        &self,
        method: &str,
        params: &impl Serialize,
    ) -> Result<(), ClientGone> {
        let params = to_json(params);
        self.send(format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)).await
    }

    pub(super) async fn request(
        &self,
        id: &str,
        method: &str,
        params: &impl Serialize,
    ) -> Result<(), ClientGone> {
        let params = to_json(params);
        let line =
            format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"{method}","params":{params}}}"#);
        self.send(line).await
    }

    /// Answers; `result` is JSON text.
    pub(super) async fn answer(
        &self,
        id: &Value,
        answer: Result<String, RpcError>,
    ) -> Result<(), ClientGone> {
        let line = match answer {
            Ok(result) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
            Err(RpcError { code, message, stable }) => {
                let error = json!({"code": code, "message": message, "data": {"code": stable}});
                format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
            }
        };
        self.send(line).await
    }
}

/// A value as JSON text.
pub(super) fn to_json(value: &impl Serialize) -> String {
    // What is sent holds nothing that JSON cannot: string keys, finite numbers.
    serde_json::to_string(value).unwrap_or_else(|fault| unreachable!("to JSON: {fault}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_message_is_refused_under_its_id() {
        for (line, id, code) in [
            ("{", json!(null), -32700),
            ("[]", json!(null), -32600),
            ("1", json!(null), -32600),
            (r#"{"jsonrpc":"2.0","id":[],"method":"m"}"#, json!(null), -32600),
            (r#"{"id":1,"method":"m"}"#, json!(1), -32600),
            (r#"{"jsonrpc":"2.0","id":"a","method":1}"#, json!("a"), -32600),
            (r#"{"jsonrpc":"2.0","id":1}"#, json!(1), -32600),
            (r#"{"jsonrpc":"2.0","id":1,"result":1,"error":1}"#, json!(1), -32600),
            (r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}"#, json!(1), -32602),
        ] {
            let Incoming::Refused { id: under, error } = parse(line.as_bytes()) else {
                panic!("{line}")
            };
            assert_eq!((under, error.code), (id, code), "{line}");
        }
    }

    #[test]
    fn requests_notifications_and_answers_are_told_apart() {
        let request = parse(br#"{"jsonrpc":"2.0","id":1,"method":"m"}"#);
        let params = json!({});
        assert_eq!(request, Incoming::Request { id: Some(json!(1)), method: "m".into(), params });
        let told = parse(br#"{"jsonrpc":"2.0","method":"m","params":{"a":1}}"#);
        assert!(matches!(told, Incoming::Request { id: None, .. }));
        let answer = parse(br#"{"jsonrpc":"2.0","id":"tool-1","result":null}"#);
        assert_eq!(answer, Incoming::Response { id: json!("tool-1"), answer: Ok(json!(null)) });
    }
}
