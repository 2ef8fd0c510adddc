//! The `Retry-After` header.

use std::time::{Duration, SystemTime};

/// Its value in milliseconds: seconds, or a date after `now`.
pub(super) fn retry_after_ms(text: &str, now: SystemTime) -> Option<u64> {
    let text = text.trim();
    let ms = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse::<u64>().ok()?.checked_mul(1000)?
    } else {
        let date = httpdate::parse_http_date(text).ok()?;
        let wait: Duration = date.duration_since(now).ok()?;
        u64::try_from(wait.as_millis()).ok()?
    };
    Some(ms).filter(|&ms| ms > 0 && ms <= playhouse_messages::json::INTEGER_MAX)
}

#[cfg(test)]
mod scenario {
    use super::*;

    #[test]
    fn llm_46_retry_after_is_seconds_or_a_date_to_come() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let ms = |text| retry_after_ms(text, now);
        assert_eq!(ms("2"), Some(2000));
        assert_eq!(ms("Sun, 06 Nov 1994 08:49:47 GMT"), Some(10_000));
        assert_eq!(ms("Sun, 06 Nov 1994 08:49:27 GMT"), None);
        for text in ["0", "abc", "-1", "", "99999999999999999999"] {
            assert_eq!(ms(text), None, "{text}");
        }
    }
}
