//! What is logged of retries.

use playhouse_messages::{
    chunk::Failure,
    event::{EventBody, NewEvent, StepAt},
    log::Log,
    retry::RetryPolicy,
};
use serde::{Deserialize, Serialize, Serializer};

use crate::step_log;

/// A retry is decided, and its wait begins.
pub const RETRY_KIND: &str = "llm/retry";

/// A retry's wait is over, and the request is sent again.
pub const RETRY_STARTED_KIND: &str = "llm/retry-started";

/// The data of [`RETRY_KIND`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scheduled {
    /// One for each chain: the retries of a step under one provider and policy.
    pub retry_id: String,
    /// The open step.
    #[serde(flatten)]
    pub at: StepAt,
    /// The provider that failed.
    pub provider: String,
    /// The policy's mode.
    pub mode: Mode,
    /// Equal for equal policies.
    pub policy_key: String,
    /// Which retry of its chain this is, from 1.
    pub retry: u32,
    /// The policy's limit; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// How long is waited, in milliseconds; 0 or more.
    #[serde(serialize_with = "plain")]
    pub delay_ms: f64,
    /// What is retried.
    pub failure: Failure,
}

/// How far a policy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Listed codes, a limited number of times.
    Normal,
    /// Everything, without end.
    Always,
}

/// The data of [`RETRY_STARTED_KIND`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Started {
    /// As scheduled.
    pub retry_id: String,
    /// The open step.
    #[serde(flatten)]
    pub at: StepAt,
    /// As scheduled.
    pub retry: u32,
}

impl Scheduled {
    /// The last retry of the open step under this provider and policy: where a chain goes on.
    pub fn last(log: &Log, at: StepAt, provider: &str, policy_key: &str) -> Option<Self> {
        step_log::newest_first(log, at)
            .filter_map(|event| Self::read(&event.body))
            .find(|last| last.provider == provider && last.policy_key == policy_key)
    }

    /// Reads one; `None` for an event of another kind or shape.
    pub fn read(body: &EventBody) -> Option<Self> {
        step_log::read(RETRY_KIND, body)
    }

    /// The event.
    pub fn event(&self) -> NewEvent {
        step_log::write(RETRY_KIND, self)
    }

    /// What follows it once the wait is over.
    pub fn started(&self) -> Started {
        Started { retry_id: self.retry_id.clone(), at: self.at, retry: self.retry }
    }
}

impl Started {
    /// Reads one; `None` for an event of another kind or shape.
    pub fn read(body: &EventBody) -> Option<Self> {
        step_log::read(RETRY_STARTED_KIND, body)
    }

    /// The event.
    pub fn event(&self) -> NewEvent {
        step_log::write(RETRY_STARTED_KIND, self)
    }
}

/// Equal for equal policies, whatever the order of their codes.
pub fn policy_key(policy: &RetryPolicy) -> String {
    let key = match policy {
        RetryPolicy::Normal { max_retries, retryable_codes, backoff: b } => {
            let mut codes = retryable_codes.clone();
            codes.sort_unstable();
            let delays = (b.initial_delay_ms, b.max_delay_ms, b.jitter_ratio);
            serde_json::json!(["normal", max_retries, codes, delays.0, delays.1, delays.2])
        }
        RetryPolicy::Always { backoff: b } => {
            serde_json::json!(["always", b.initial_delay_ms, b.max_delay_ms, b.jitter_ratio])
        }
    };
    key.to_string()
}

/// Whole milliseconds are written without a fraction.
fn plain<S: Serializer>(ms: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if ms.fract() == 0.0 {
        serializer.serialize_u64(*ms as u64)
    } else {
        serializer.serialize_f64(*ms)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn data(event: &NewEvent) -> Value {
        match &event.body {
            EventBody::Custom { data, .. } => data.clone(),
            body => panic!("{body:?}"),
        }
    }

    #[test]
    fn events_have_their_shape_and_are_read_back() {
        let policy_key = policy_key(&RetryPolicy::default());
        let codes = r#"["EMPTY_RESPONSE","RATE_LIMIT","SERVER","TIMEOUT","TRANSPORT"]"#;
        assert_eq!(policy_key, format!(r#"["normal",5,{codes},500,10000,0.1]"#));
        let scheduled = Scheduled {
            retry_id: "r".into(),
            at: StepAt { turn: 1, step: 2 },
            provider: "p".into(),
            mode: Mode::Normal,
            policy_key: policy_key.clone(),
            retry: 1,
            max_retries: Some(5),
            delay_ms: 512.5,
            failure: Failure::new("SERVER", "busy"),
        };
        let event = scheduled.event();
        let mut expected = json!({
            "retryId": "r", "turn": 1, "step": 2, "provider": "p", "mode": "normal",
            "policyKey": policy_key, "retry": 1, "maxRetries": 5, "delayMs": 512.5,
            "failure": {"message": "busy", "code": "SERVER"},
        });
        assert_eq!((event.body.kind(), data(&event)), ("llm/retry", expected.clone()));
        assert_eq!(Scheduled::read(&event.body).as_ref(), Some(&scheduled));
        let started = scheduled.started();
        assert_eq!(Started::read(&started.event().body).as_ref(), Some(&started));
        assert_eq!(Scheduled::read(&started.event().body), None);
        expected["delayMs"] = json!(1000);
        let whole = Scheduled { delay_ms: 1_000.0, ..scheduled }.event();
        assert_eq!(data(&whole), expected);
        assert!(event.ignorable);
    }

    #[test]
    fn the_order_of_codes_makes_no_other_policy() {
        let policy = |codes: &[&str], max_retries| {
            let retryable_codes = codes.iter().map(|code| (*code).to_owned()).collect();
            policy_key(&RetryPolicy::Normal {
                max_retries,
                retryable_codes,
                backoff: Default::default(),
            })
        };
        assert_eq!(policy(&["A", "B"], 1), policy(&["B", "A"], 1));
        assert_ne!(policy(&["A", "B"], 1), policy(&["A", "B"], 2));
        assert_ne!(policy(&["A", "B"], 1), policy(&["A"], 1));
    }
}
