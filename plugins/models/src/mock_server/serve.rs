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
    header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use playhouse_messages::chunk::Failure;
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinSet,
};

use super::{
    Outcome, Shared,
    answer::Answer,
    wire::{Api, status_of},
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
    let api = Api::of(head.uri.path());
    let reject = |status: u16, code: &str, message: &str| {
        shared.update(index, |request| request.outcome = Outcome::Rejected(status));
        let failure = Failure { status: Some(status), ..Failure::new(code, message) };
        Ok(refusal(api.unwrap_or(Api::ChatCompletions), &failure))
    };

    let Some(api) = api else {
        let message = "no such path; there are /chat/completions and /v1/messages";
        return reject(404, "INVALID_REQUEST", message);
    };
    if head.method != Method::POST {
        return reject(405, "INVALID_REQUEST", "only POST is served");
    }
    if shared.api_key.as_ref().is_some_and(|key| !api.admits(&head.headers, key)) {
        return reject(401, "AUTH", "wrong API key");
    }
    let conversation = match api.read(&head.headers, &json) {
        Ok(conversation) => conversation,
        Err(fault) => return reject(400, "INVALID_REQUEST", &fault),
    };

    let (steps, wire) = match shared.stage.answer(&conversation) {
        Ok((steps, reply)) => (steps, reply.wire.clone()),
        Err(failure) => return Ok(fail(api, &shared, index, &failure)),
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
            return Ok(fail(api, &shared, index, failure));
        }
        shared.update(index, |request| request.outcome = Outcome::Reset);
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    let content_type = wire.content_type.as_deref().unwrap_or("text/event-stream");
    let content_type = HeaderValue::try_from(content_type);
    let answer = Answer::new(shared, index, steps, wire, api.encoder());
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
        match name {
            "authorization" => {
                let scheme = text.split(' ').next().unwrap_or_default();
                format!("{scheme} [redacted]")
            }
            "x-api-key" => "[redacted]".to_owned(),
            _ => text,
        }
    };
    headers.iter().map(|(name, v)| (name.to_string(), value(name.as_str(), v))).collect()
}

fn fail(api: Api, shared: &Shared, index: usize, failure: &Failure) -> Response<Body> {
    let status = status_of(failure);
    shared.update(index, |request| request.outcome = Outcome::Failed(status));
    refusal(api, failure)
}

fn refusal(api: Api, failure: &Failure) -> Response<Body> {
    let body = Bytes::from(api.refusal(failure).to_string());
    let frames = futures::stream::iter([Ok(Frame::data(body))]);
    let mut response = Response::new(StreamBody::new(frames.boxed()));
    *response.status_mut() =
        StatusCode::from_u16(status_of(failure)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(api.request_id(), HeaderValue::from_static("mock-request"));
    // The header has whole seconds; asking for too little would be worse than too much.
    if let Some(ms) = failure.provider_retry_after_ms {
        headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
    }
    response
}
