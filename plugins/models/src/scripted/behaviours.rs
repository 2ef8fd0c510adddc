//! Named replies: what a provider does on good and bad days.

use super::{Chunking, Fault, FaultKind, Reply, UsageSpec, Wire};

/// The names that [`Reply::behaviour`] knows.
pub(super) const NAMES: &[&str] = &[
    "success",
    "reasoning_success",
    "tool_call_success",
    "max_tokens",
    "slow_success",
    "empty",
    "empty_body",
    "stream_eof",
    "partial_eof",
    "stream_disconnect",
    "partial_disconnect",
    "connection_reset",
    "stall",
    "malformed_json",
    "malformed_event",
    "wrong_content_type",
    "rate_limit",
    "server_error",
    "service_unavailable",
    "auth_error",
    "invalid_request",
    "context_overflow",
    "quota_exceeded",
];

/// As many replies as asked for, drawn from weighted behaviours. The same seed draws the same.
pub(super) fn draw(seed: u64, count: usize, weighted: &[(Reply, u32)]) -> Vec<Reply> {
    let total: u64 = weighted.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let mut state = seed;
    let mut pick = || {
        // SplitMix64: small, and good enough to mix a handful of behaviours.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let mut point = (bits ^ (bits >> 31)).checked_rem(total)?;
        weighted.iter().find_map(|(reply, weight)| {
            let weight = u64::from(*weight);
            if point < weight {
                return Some(reply.clone());
            }
            point -= weight;
            None
        })
    };
    (0..count).map_while(|_| pick()).collect()
}

const TEXT: &str = "mock response recovered";

impl Reply {
    /// A reply that behaves like a provider in this situation, or `None` for an unknown name.
    pub fn behaviour(name: &str) -> Option<Self> {
        let success = || Self::text(TEXT).chunked(Chunking::Chars(8));
        let broken = |kind, after| success().with_fault(Fault::new(kind).after(after));
        let refused = |status, code: &str, message: &str| {
            let error = Self::error(code, message);
            let fault = error.fault.clone().map(|fault| fault.with_status(status));
            Self { fault, ..error }
        };
        Some(match name {
            "success" => success(),
            "reasoning_success" => success().with_reasoning("mock reasoning"),
            "tool_call_success" => {
                let mut reply = Self::call("mock_tool", r#"{"value":"mock"}"#);
                reply.calls[0].id = Some("mock-call-1".into());
                reply
            }
            "max_tokens" => success().with_finish("length"),
            "slow_success" => success().paced(25, 25),
            "empty" => Self::default().with_usage(UsageSpec::default()),
            "empty_body" => success().with_wire(Wire { empty_body: true, ..Wire::default() }),
            "stream_eof" => broken(FaultKind::Cut, 0),
            "partial_eof" => broken(FaultKind::Cut, 2),
            "stream_disconnect" => broken(FaultKind::Disconnect, 0),
            "partial_disconnect" => broken(FaultKind::Disconnect, 2),
            "connection_reset" => broken(FaultKind::Reset, 0),
            "stall" => broken(FaultKind::Stall, 0),
            "malformed_json" => broken(FaultKind::Malformed, 0),
            "malformed_event" => broken(FaultKind::Malformed, 1),
            "wrong_content_type" => {
                let content_type = Some("application/json".to_owned());
                success().with_wire(Wire { content_type, ..Wire::default() })
            }
            "rate_limit" => {
                let mut reply = refused(429, "RATE_LIMIT", "slow down");
                if let Some(fault) = &mut reply.fault {
                    fault.retry_after_ms = Some(1000);
                }
                reply
            }
            "server_error" => refused(500, "SERVER", "internal error"),
            "service_unavailable" => refused(503, "SERVER", "overloaded"),
            "auth_error" => refused(401, "AUTH", "invalid api key"),
            "invalid_request" => refused(400, "INVALID_REQUEST", "invalid request"),
            "context_overflow" => {
                refused(400, "CONTEXT_WINDOW_EXCEEDED", "maximum context length exceeded")
            }
            "quota_exceeded" => refused(429, "QUOTA", "insufficient quota"),
            _ => return None,
        })
    }
}
