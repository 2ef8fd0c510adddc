//! API keys that do not leak.

use std::{fmt, sync::Arc};

/// An API key. Its `Debug` shows nothing of it, and it is fit for a header.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

/// Why a key is refused. Never says what the key is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// Nothing but blanks.
    #[error("the API key is blank")]
    Blank,
    /// A character that a header cannot carry.
    #[error("the API key has a character outside printable ASCII; was it copied whole?")]
    Unprintable,
}

impl SecretError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        "INVALID_CREDENTIAL"
    }
}

impl Secret {
    /// Takes a key; blanks around it are dropped.
    ///
    /// # Errors
    ///
    /// If nothing is left, or a character is outside `!` to `~`.
    pub fn new(key: &str) -> Result<Self, SecretError> {
        let key = key.trim();
        if key.is_empty() {
            return Err(SecretError::Blank);
        }
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(SecretError::Unprintable);
        }
        Ok(Self(key.into()))
    }

    /// The key itself. The name is long so that uses stand out.
    pub(crate) fn expose_secret(&self) -> &str {
        &self.0
    }

    /// The text without the key, should a provider quote it. What is too short to be a key would
    /// only garble the text.
    pub(crate) fn redact(&self, text: &str) -> String {
        if self.0.len() < 8 { text.to_owned() } else { text.replace(&*self.0, "[redacted]") }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod scenario {
    use super::*;

    #[test]
    fn llm_37_a_key_is_trimmed_checked_and_never_shown() {
        let secret = Secret::new("  sk-12345 \n").unwrap();
        assert_eq!(secret.expose_secret(), "sk-12345");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert_eq!(secret.redact("bad key sk-12345!"), "bad key [redacted]!");
        for key in ["", " \t", "sk-1\nsk-2", "sk 1", "schlüssel"] {
            let error = Secret::new(key).unwrap_err();
            assert_eq!(error.code(), "INVALID_CREDENTIAL");
            assert!(!error.to_string().contains("sk"), "{error}");
        }
    }
}
