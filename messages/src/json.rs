//! What counts as a lossless JSON value, in every store alike.

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

/// Nesting beyond this many levels is refused on append.
pub const DEPTH_MAX: usize = 128;

/// Integers beyond ±(2^53 − 1) do not survive a reader that keeps numbers as doubles.
pub const INTEGER_MAX: u64 = (1 << 53) - 1;

/// Why a value cannot be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("value at `{path}` is not lossless JSON: {reason}")]
pub struct NotLossless {
    /// Where the offending value sits, as `a.b[2]`; empty for the root.
    pub path: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// Refuses values that would not read back as they were written: integers beyond 2^53 − 1,
/// negative zero, and nesting deeper than [`DEPTH_MAX`].
///
/// NaN and infinities cannot occur in a [`Value`].
pub fn check_lossless(value: &Value) -> Result<(), NotLossless> {
    check_lossless_nested(value, 0)
}

/// The same for a value that will stand `outer` levels deep in a larger one.
pub fn check_lossless_nested(root: &Value, outer: usize) -> Result<(), NotLossless> {
    // An explicit stack, so that hostile nesting cannot overflow ours. Paths cost an allocation a
    // node, so only a value that is at fault pays for them.
    let mut stack = vec![(root, outer + 1)];
    while let Some((value, depth)) = stack.pop() {
        if fault(value, depth).is_some() {
            return locate(root, outer);
        }
        match value {
            Value::Array(items) => stack.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => stack.extend(fields.values().map(|item| (item, depth + 1))),
            _ => {}
        }
    }
    Ok(())
}

fn fault(value: &Value, depth: usize) -> Option<&'static str> {
    // A container counts for what it may hold: a parser's own limit is on containers.
    let is_container = value.is_array() || value.is_object();
    if depth + usize::from(is_container) > DEPTH_MAX {
        return Some("nested deeper than 128 levels");
    }
    let number = value.as_number()?;
    let out_of_range = match (number.as_u64(), number.as_i64()) {
        (Some(n), _) => n > INTEGER_MAX,
        (None, Some(n)) => n.unsigned_abs() > INTEGER_MAX,
        (None, None) => false,
    };
    if out_of_range {
        return Some("an integer beyond 2^53 - 1");
    }
    let negative_zero = number.as_f64().is_some_and(|n| n == 0.0 && n.is_sign_negative());
    negative_zero.then_some("negative zero")
}

/// Names the place of the fault that is known to be there.
fn locate(root: &Value, outer: usize) -> Result<(), NotLossless> {
    let mut stack = vec![(root, String::new(), outer + 1)];
    while let Some((value, path, depth)) = stack.pop() {
        if let Some(reason) = fault(value, depth) {
            return Err(NotLossless { path, reason });
        }
        match value {
            Value::Array(items) => {
                let items = items.iter().enumerate();
                stack.extend(items.map(|(i, item)| (item, format!("{path}[{i}]"), depth + 1)));
            }
            Value::Object(fields) => stack.extend(fields.iter().map(|(key, item)| {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                (item, path, depth + 1)
            })),
            _ => {}
        }
    }
    Ok(())
}

/// Reads a field that is `true` or absent.
pub(crate) fn marker<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    if bool::deserialize(deserializer)? {
        Ok(true)
    } else {
        Err(D::Error::custom("true or absent"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plain_values_pass() {
        let value = json!({"a": [1, -2.5, "x", null, true], "b": INTEGER_MAX});
        assert_eq!(check_lossless(&value), Ok(()));
    }

    #[test]
    fn the_offending_place_is_named() {
        let fault = check_lossless(&json!({"a": [0, {"b": INTEGER_MAX + 1}]})).unwrap_err();
        assert_eq!(fault.path, "a[1].b");
        let fault = check_lossless(&json!([-0.0])).unwrap_err();
        assert_eq!(fault.path, "[0]");
    }

    #[test]
    fn nesting_has_a_limit() {
        let mut value = json!(1);
        for _ in 0..DEPTH_MAX {
            value = json!([value]);
        }
        assert!(check_lossless(&value).is_err());
        assert_eq!(check_lossless(&value[0]), Ok(()));
        assert!(check_lossless_nested(&value[0], 1).is_err());
    }
}
