//! Connections and requests.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Frame, Incoming},
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use playhouse_messages::chunk::Failure;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinSet,
};

use super::{
    Outcome, Shared,
    answer::{Answer, error_object, status_of},
    history,
};
use crate::scripted::{FaultKind, Step};

/// The largest request that is read.
const BODY_MAX: usize = 64 * 1024 * 1024;

type Body = StreamBody<BoxStream<'static, io::Result<Frame<Bytes>>>>;

/// Accepts until told to stop; then every connection is broken and every task has ended.
pub(super) async fn accept(
    listener: TcpListener,
    shared: Arc<Shared>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = &mut stopped => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => {
                    shared.connections.fetch_add(1, Ordering::Relaxed);
                    connections.spawn(connection(socket, shared.clone()));
                }
                // Out of file handles, say: connections that end give some back.
                Err(error) => {
                    tracing::warn!(%error, "the mock server cannot accept");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            },
        }
    }
    connections.shutdown().await;
}

async fn connection(socket: TcpStream, shared: Arc<Shared>) {
    // Deltas are small and should arrive as they are sent.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let service = service_fn(move |request| respond(request, shared.clone()));
    let served = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
    if let Err(error) = served {
        // Broken connections are what scripts ask for.
        tracing::debug!(%error, "a mock connection ended early");
    }
}

async fn respond(request: Request<Incoming>, shared: Arc<Shared>) -> io::Result<Response<Body>> {
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, BODY_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
    };
    let json: Value = serde_json::from_slice(&body).unwrap_or_default();
    let index = shared.record(recorded(&head.headers), body, json.clone());
    let reject = |status: u16, message: &str| {
        shared.update(index, |request| request.outcome = Outcome::Rejected(status));
        let kind = "invalid_request_error";
        Ok(refusal(status, &json!({ "message": message, "type": kind }), None))
    };

    if !head.uri.path().ends_with("/chat/completions") {
        return reject(404, "no such path; there is /chat/completions");
    }
    if head.method != Method::POST {
        return reject(405, "only POST is served");
    }
    if let Some(key) = &shared.api_key {
        let given = head.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        if given != Some(format!("Bearer {key}").as_bytes()) {
            return reject(401, "wrong API key");
        }
    }
    let compaction = head.headers.contains_key("x-playhouse-compact");
    let conversation = match history::read(&json, compaction) {
        Ok(conversation) => conversation,
        Err(fault) => return reject(400, &fault),
    };

    let (steps, wire) = match shared.stage.answer(&conversation) {
        Ok((steps, reply)) => (steps, reply.wire.clone()),
        Err(failure) => return Ok(fail(&shared, index, &failure)),
    };
    // A fault before anything was sent decides the response itself.
    let waits = |step: &Step| matches!(step, Step::Wait(_) | Step::Gate(_));
    if let Some(Step::Fault(kind @ (FaultKind::Error | FaultKind::Reset), failure)) =
        steps.iter().find(|step| !waits(step))
    {
        for step in steps.iter().take_while(|step| waits(step)) {
            match step {
                Step::Wait(duration) => tokio::time::sleep(*duration).await,
                Step::Gate(name) => shared.stage.gate(name).pass().await,
                _ => {}
            }
        }
        if *kind == FaultKind::Error {
            return Ok(fail(&shared, index, failure));
        }
        shared.update(index, |request| request.outcome = Outcome::Reset);
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    let content_type = wire.content_type.as_deref().unwrap_or("text/event-stream");
    let content_type = HeaderValue::try_from(content_type);
    let answer = Answer::new(shared, index, steps, wire);
    let mut response = Response::new(StreamBody::new(answer.into_stream().boxed()));
    if let Ok(content_type) = content_type {
        response.headers_mut().insert(CONTENT_TYPE, content_type);
    }
    Ok(response)
}

/// Headers as they are recorded: a key must not end up in a test's output.
fn recorded(headers: &HeaderMap) -> Vec<(String, String)> {
    let value = |name: &str, value: &HeaderValue| {
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        if name == AUTHORIZATION.as_str() {
            let scheme = text.split(' ').next().unwrap_or_default();
            return format!("{scheme} [redacted]");
        }
        text
    };
    headers.iter().map(|(name, v)| (name.to_string(), value(name.as_str(), v))).collect()
}

fn fail(shared: &Shared, index: usize, failure: &Failure) -> Response<Body> {
    let status = status_of(failure);
    shared.update(index, |request| request.outcome = Outcome::Failed(status));
    let mut error = error_object(failure);
    if failure.code == "MOCK_SCRIPT_EXHAUSTED" {
        error["code"] = failure.code.clone().into();
    }
    // The header has whole seconds; asking for too little would be worse than too much.
    let seconds = failure.provider_retry_after_ms.map(|ms| ms.div_ceil(1000));
    refusal(status, &error, seconds)
}

fn refusal(status: u16, error: &Value, retry_after: Option<u64>) -> Response<Body> {
    let body = Bytes::from(json!({ "error": error }).to_string());
    let frames = futures::stream::iter([Ok(Frame::data(body))]);
    let mut response = Response::new(StreamBody::new(frames.boxed()));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("x-request-id", HeaderValue::from_static("mock-request"));
    if let Some(seconds) = retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
