//! What a provider's refusal means.

use std::sync::LazyLock;

use playhouse_messages::chunk::Failure;
use regex_lite::Regex;
use serde_json::Value;

use crate::http::ResponseFacts;

/// The failure that a non-2xx response stands for. A body that is not JSON contributes nothing.
pub(super) fn http(facts: &ResponseFacts<'_>, body: &[u8], provider: &str) -> Failure {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let error = body.get("error").unwrap_or(&Value::Null);
    let status = facts.status;
    let text = classifier_text(error);
    let code = match status {
        401 | 403 => "AUTH".to_owned(),
        413 => "INVALID_REQUEST".to_owned(),
        _ if is_quota(&text) => "QUOTA".to_owned(),
        429 => "RATE_LIMIT".to_owned(),
        400 if is_overflow(&text) => "CONTEXT_WINDOW_EXCEEDED".to_owned(),
        400 => "INVALID_REQUEST".to_owned(),
        500.. => "SERVER".to_owned(),
        other => format!("HTTP_{other}"),
    };
    let message =
        message_of(error).unwrap_or_else(|| format!("{provider} API error (HTTP {status})"));
    Failure {
        status: Some(status),
        provider_retry_after_ms: facts.retry_after_ms,
        request_id: facts.request_id.map(str::to_owned),
        ..Failure::new(code, message)
    }
}

/// The failure that an `error` object within a stream stands for: as over HTTP, with the status that
/// the object names, if any. What nothing classifies is the server's failure, since it had accepted
/// the request.
pub(super) fn in_stream(error: &Value) -> Failure {
    let number = |key: &str| {
        let value = error.get(key)?;
        value.as_u64().or_else(|| value.as_str()?.parse().ok())
    };
    let status = number("status").or_else(|| number("code"));
    let status = status.and_then(|status| u16::try_from(status).ok());
    if let Some(status) = status.filter(|status| (400..=599).contains(status)) {
        let facts = ResponseFacts { status, ..ResponseFacts::default() };
        let body = serde_json::json!({ "error": error }).to_string();
        return http(&facts, body.as_bytes(), "provider");
    }
    let text = classifier_text(error);
    let lower = text.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let code = if is_quota(&text) {
        "QUOTA"
    } else if is_overflow(&text) {
        "CONTEXT_WINDOW_EXCEEDED"
    } else if says(&["rate_limit", "rate limit", "too many requests"]) {
        "RATE_LIMIT"
    } else if says(&["authentication", "invalid_api_key", "permission_denied"]) {
        "AUTH"
    } else if says(&["invalid_request"]) {
        "INVALID_REQUEST"
    } else {
        "SERVER"
    };
    let message = message_of(error).unwrap_or_else(|| "the provider reported an error".to_owned());
    Failure::new(code, message)
}

fn message_of(error: &Value) -> Option<String> {
    let text = error.as_str().or_else(|| error.get("message")?.as_str())?;
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

fn classifier_text(error: &Value) -> String {
    if let Some(text) = error.as_str() {
        return text.to_owned();
    }
    let parts = ["code", "type", "message"].map(|key| error.get(key).and_then(Value::as_str));
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn is_overflow(text: &str) -> bool {
    OVERFLOW.is_match(text) && !NOT_OVERFLOW.is_match(text)
}

fn is_quota(text: &str) -> bool {
    QUOTA.is_match(text)
}

fn regex(pattern: &str) -> Regex {
    #[expect(clippy::unwrap_used, reason = "constant patterns, compiled by a test")]
    Regex::new(pattern).unwrap()
}

static OVERFLOW: LazyLock<Regex> = LazyLock::new(|| {
    regex(concat!(
        r"(?i)\bcontext[ _-](length|window)[ _-](exceeded|overflow|limit[ _-]exceeded)",
        r"|\bmax(imum)? ((allowed|supported) )?context[ _-](length|window)",
        r"|\b(request|prompt|input|messages?)\b.{0,40}\btoo (large|long) for ((this|the) )?(model'?s? )?context",
        r"|\b(input|prompt|request) (is )?too (long|large) for (this|the) model",
        r"|\b(input|prompt|request|messages)\b.{0,40}(exceed|overflow|is larger than)",
        r".{0,40}\b(the )?(model'?s? )?(context|model)",
    ))
});

static NOT_OVERFLOW: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"(?i)context window size must be positive|input exceeds (the )?maximum allowed value")
});

static QUOTA: LazyLock<Regex> = LazyLock::new(|| {
    regex(concat!(
        r"(?i)\binsufficient[ _-](quota|balance|credits?)",
        r"|\b(quota|usage limit)( is| has been| was)?[ _-](exceeded|exhausted|reached)",
        r"|\bexceed(ed)? (your|the)( current)? quota",
        r"|\b(balance|credits?)( is| are| has been| have been)? (exhausted|depleted)",
        r"|\bout of (credits?|budget)",
    ))
});

#[cfg(test)]
mod scenario {
    use serde_json::json;

    use super::*;

    fn code(status: u16, body: &str) -> String {
        let facts = ResponseFacts { status, ..ResponseFacts::default() };
        http(&facts, body.as_bytes(), "DeepSeek").code
    }

    fn error(message: &str) -> String {
        json!({"error": {"message": message}}).to_string()
    }

    #[test]
    fn llm_45_a_quota_is_told_from_a_rate_limit() {
        assert_eq!(code(429, &error("You exceeded your current quota")), "QUOTA");
        assert_eq!(code(402, &error("Insufficient Balance")), "QUOTA");
        assert_eq!(code(429, r#"{"error":{"code":"insufficient_quota"}}"#), "QUOTA");
        let facts =
            ResponseFacts { status: 429, retry_after_ms: Some(2000), request_id: Some("req-1") };
        let body = error("slow down");
        let failure = http(&facts, body.as_bytes(), "DeepSeek");
        let expected = Failure {
            status: Some(429),
            provider_retry_after_ms: Some(2000),
            request_id: Some("req-1".into()),
            ..Failure::new("RATE_LIMIT", "slow down")
        };
        assert_eq!(failure, expected);
    }

    #[test]
    fn llm_47_the_status_decides_where_the_text_does_not() {
        assert_eq!(code(429, "quota exceeded, said the proxy"), "RATE_LIMIT");
        assert_eq!(code(400, &error("maximum context length is 4096")), "CONTEXT_WINDOW_EXCEEDED");
        for (status, expected) in [
            (400, "INVALID_REQUEST"),
            (401, "AUTH"),
            (403, "AUTH"),
            (413, "INVALID_REQUEST"),
            (418, "HTTP_418"),
            (429, "RATE_LIMIT"),
            (500, "SERVER"),
            (503, "SERVER"),
        ] {
            assert_eq!(code(status, ""), expected);
        }
        let facts = ResponseFacts { status: 418, ..ResponseFacts::default() };
        let failure = http(&facts, b"<html>", "DeepSeek");
        assert_eq!(failure.message, "DeepSeek API error (HTTP 418)");
    }

    #[test]
    fn texts_about_context_are_recognised() {
        for text in [
            "context_length_exceeded",
            "Context window overflow",
            "context length limit exceeded",
            "max allowed context window is 8",
            "This model's maximum context length is 65536 tokens",
            "Prompt is too long for the model's context",
            "messages are too large for this context",
            "input too long for this model",
            "The input exceeds the model's context size",
            "prompt (5000 tokens) is larger than the context",
        ] {
            assert!(is_overflow(text), "{text}");
        }
        for text in [
            "context window size must be positive",
            "input exceeds maximum allowed value",
            "invalid temperature",
        ] {
            assert!(!is_overflow(text), "{text}");
        }
    }

    #[test]
    fn texts_about_quota_are_recognised() {
        for text in [
            "quota exhausted",
            "usage limit reached",
            "exceeded the quota",
            "credits depleted",
            "You are out of credits",
            "insufficient credits",
        ] {
            assert!(is_quota(text), "{text}");
        }
        assert!(!is_quota("rate limit exceeded"));
    }

    #[test]
    fn an_error_within_a_stream_is_classified_like_a_response() {
        let code = |error: Value| in_stream(&error).code;
        assert_eq!(code(json!({"code": 429, "message": "slow"})), "RATE_LIMIT");
        assert_eq!(code(json!({"code": "429", "message": "slow"})), "RATE_LIMIT");
        assert_eq!(code(json!({"type": "rate_limit_error", "message": "slow"})), "RATE_LIMIT");
        assert_eq!(code(json!({"code": "context_length_exceeded"})), "CONTEXT_WINDOW_EXCEEDED");
        assert_eq!(code(json!({"type": "insufficient_quota"})), "QUOTA");
        assert_eq!(code(json!({"type": "invalid_request_error"})), "INVALID_REQUEST");
        assert_eq!(code(json!({"type": "authentication_error"})), "AUTH");
        assert_eq!(in_stream(&json!("overloaded")), Failure::new("SERVER", "overloaded"));
        assert_eq!(code(json!({})), "SERVER");
    }
}
