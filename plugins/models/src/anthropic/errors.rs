//! What a refusal means, over HTTP and within a stream alike.

use playhouse_messages::chunk::Failure;
use serde_json::Value;

use crate::http::ResponseFacts;

/// The failure that a non-2xx response stands for. A body that is not JSON contributes nothing.
pub(super) fn http(facts: &ResponseFacts<'_>, body: &[u8], provider: &str) -> Failure {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let error = body.get("error").unwrap_or(&Value::Null);
    let status = facts.status;
    let message =
        message_of(error).unwrap_or_else(|| format!("{provider} API error (HTTP {status})"));
    let code = by_type(error).map_or_else(|| by_status(status), str::to_owned);
    // The body says it too, should a proxy drop the header.
    let request_id = facts.request_id.or_else(|| body.get("request_id")?.as_str());
    Failure {
        status: Some(status),
        provider_retry_after_ms: facts.retry_after_ms,
        request_id: request_id.filter(|id| !id.is_empty()).map(str::to_owned),
        ..Failure::new(code, message)
    }
}

/// The failure that an `error` event stands for. What nothing classifies is the server's failure,
/// since it had accepted the request.
pub(super) fn in_stream(error: &Value) -> Failure {
    let message = message_of(error).unwrap_or_else(|| "the provider reported an error".to_owned());
    Failure::new(by_type(error).unwrap_or("SERVER"), message)
}

fn message_of(error: &Value) -> Option<String> {
    let text = error.get("message")?.as_str()?;
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

fn by_type(error: &Value) -> Option<&'static str> {
    let message = error.get("message").and_then(Value::as_str).unwrap_or_default().to_lowercase();
    let says = |phrases: &[&str]| phrases.iter().any(|phrase| message.contains(phrase));
    Some(match error.get("type")?.as_str()? {
        "authentication_error" | "permission_error" => "AUTH",
        "billing_error" => "QUOTA",
        "rate_limit_error" | "invalid_request_error" if says(EXHAUSTED) => "QUOTA",
        "rate_limit_error" => "RATE_LIMIT",
        "invalid_request_error" if says(TOO_LONG) => "CONTEXT_WINDOW_EXCEEDED",
        "invalid_request_error" | "request_too_large" => "INVALID_REQUEST",
        "not_found_error" => "HTTP_404",
        "timeout_error" => "TIMEOUT",
        "api_error" | "overloaded_error" => "SERVER",
        _ => return None,
    })
}

/// How the wire says that credit or a spend limit is used up.
const EXHAUSTED: &[&str] = &["credit balance is too low", "api usage limits"];

/// How it says that a conversation does not fit.
const TOO_LONG: &[&str] = &["prompt is too long", "exceed context limit"];

fn by_status(status: u16) -> String {
    match status {
        401 | 403 => "AUTH".to_owned(),
        402 => "QUOTA".to_owned(),
        400 | 413 => "INVALID_REQUEST".to_owned(),
        429 => "RATE_LIMIT".to_owned(),
        504 => "TIMEOUT".to_owned(),
        500.. => "SERVER".to_owned(),
        other => format!("HTTP_{other}"),
    }
}

#[cfg(test)]
mod scenario {
    use serde_json::json;

    use super::*;

    fn body(kind: &str, message: &str) -> Value {
        json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_b"})
    }

    const TABLE: [(u16, &str, &str, &str); 14] = [
        (400, "invalid_request_error", "max_tokens: required", "INVALID_REQUEST"),
        (400, "invalid_request_error", "prompt is too long: 9 > 8", "CONTEXT_WINDOW_EXCEEDED"),
        (
            400,
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 9 + 1 > 8",
            "CONTEXT_WINDOW_EXCEEDED",
        ),
        (400, "invalid_request_error", "Your credit balance is too low to go on", "QUOTA"),
        (
            400,
            "invalid_request_error",
            "You have reached your specified API usage limits.",
            "QUOTA",
        ),
        (401, "authentication_error", "invalid x-api-key", "AUTH"),
        (402, "billing_error", "pay", "QUOTA"),
        (403, "permission_error", "not yours", "AUTH"),
        (404, "not_found_error", "model: nope", "HTTP_404"),
        (413, "request_too_large", "too large", "INVALID_REQUEST"),
        (429, "rate_limit_error", "slow down", "RATE_LIMIT"),
        (500, "api_error", "oops", "SERVER"),
        (504, "timeout_error", "took too long", "TIMEOUT"),
        (529, "overloaded_error", "Overloaded", "SERVER"),
    ];

    #[test]
    fn every_error_type_has_its_code_over_http_and_within_a_stream() {
        for (status, kind, message, code) in TABLE {
            let facts = ResponseFacts { status, ..ResponseFacts::default() };
            let body = body(kind, message);
            let failure = http(&facts, body.to_string().as_bytes(), "Anthropic");
            let expected = Failure {
                status: Some(status),
                request_id: Some("req_b".into()),
                ..Failure::new(code, message)
            };
            assert_eq!(failure, expected);
            assert_eq!(in_stream(&body["error"]), Failure::new(code, message));
        }
        assert_eq!(in_stream(&json!({"type": "new_error", "message": "x"})).code, "SERVER");
        assert_eq!(in_stream(&Value::Null).code, "SERVER");
    }

    #[test]
    fn without_a_type_the_status_decides() {
        for (status, code) in [
            (400, "INVALID_REQUEST"),
            (401, "AUTH"),
            (402, "QUOTA"),
            (403, "AUTH"),
            (404, "HTTP_404"),
            (413, "INVALID_REQUEST"),
            (418, "HTTP_418"),
            (429, "RATE_LIMIT"),
            (500, "SERVER"),
            (503, "SERVER"),
            (504, "TIMEOUT"),
            (529, "SERVER"),
        ] {
            let facts =
                ResponseFacts { status, retry_after_ms: Some(2000), request_id: Some("req_h") };
            let failure = http(&facts, b"<html>prompt is too long", "Anthropic");
            assert_eq!(failure.code, code, "{status}");
            assert_eq!(failure.message, format!("Anthropic API error (HTTP {status})"));
            assert_eq!(failure.provider_retry_after_ms, Some(2000));
            assert_eq!(failure.request_id.as_deref(), Some("req_h"));
        }
    }
}
