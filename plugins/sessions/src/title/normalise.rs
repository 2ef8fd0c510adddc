//! Titles fit to show: one line, no more than its bytes, and nothing that steers a terminal or hides.

use unicode_general_category::{GeneralCategory, get_general_category};

use super::TitleError;

/// Limits of titles. All are positive, and a fallback is no longer than a title.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TitleConfig {
    max_title_bytes: usize,
    fallback_max_words: usize,
    fallback_max_bytes: usize,
}

impl TitleConfig {
    /// These limits: the bytes of any title, and the words and bytes of one made from a prompt.
    ///
    /// # Errors
    ///
    /// [`TitleError::Config`] if one is 0, or the fallback's bytes are more than a title's.
    pub fn new(
        max_title_bytes: usize,
        fallback_max_words: usize,
        fallback_max_bytes: usize,
    ) -> Result<Self, TitleError> {
        if [max_title_bytes, fallback_max_words, fallback_max_bytes].contains(&0) {
            return Err(TitleError::Config { reason: "every limit must be positive" });
        }
        if fallback_max_bytes > max_title_bytes {
            return Err(TitleError::Config { reason: "a fallback may not be longer than a title" });
        }
        Ok(Self { max_title_bytes, fallback_max_words, fallback_max_bytes })
    }

    /// A title, if anything is left of it.
    pub(super) fn title(&self, text: &str) -> Option<String> {
        normalise(text, self.max_title_bytes)
    }

    /// The beginning of a prompt as a title, if there is any.
    pub(super) fn fallback(&self, prompt: &str) -> Option<String> {
        let text = normalise(prompt, usize::MAX)?;
        let words: Vec<_> = text.split(' ').take(self.fallback_max_words).collect();
        cut(&words.join(" "), self.fallback_max_bytes)
    }
}

impl Default for TitleConfig {
    /// 200 bytes; a fallback of 10 words and 80 bytes.
    fn default() -> Self {
        Self { max_title_bytes: 200, fallback_max_words: 10, fallback_max_bytes: 80 }
    }
}

/// A text as a title of at most `max_bytes`: without escape sequences, control, bidirectional and
/// zero-width characters, whitespace collapsed. `None` if nothing is left.
pub fn normalise(text: &str, max_bytes: usize) -> Option<String> {
    let plain = |c: char| match c {
        c if c.is_whitespace() => ' ',
        c => c,
    };
    let text: String = text.chars().map(plain).collect();
    // Introducers have a form of one character too, which the parser does not take for one.
    let text = text
        .replace('\u{9b}', "\x1b[")
        .replace('\u{9d}', "\x1b]")
        .replace('\u{90}', "\x1bP")
        .replace('\u{9c}', "\x1b\\");
    let text = strip_ansi_escapes::strip_str(text);
    let shown = |c: &char| {
        !matches!(get_general_category(*c), GeneralCategory::Control | GeneralCategory::Format)
    };
    let text: String = text.chars().filter(shown).collect();
    cut(&text.split_whitespace().collect::<Vec<_>>().join(" "), max_bytes)
}

/// The first `max_bytes` or less, whole characters; `None` for none.
fn cut(text: &str, max_bytes: usize) -> Option<String> {
    let mut end = text.len().min(max_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = text[..end].trim_end();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_must_hold() {
        assert!(TitleConfig::new(1, 1, 1).is_ok());
        for (title, words, bytes) in [(0, 1, 1), (1, 0, 1), (1, 1, 0), (5, 1, 6)] {
            let error = TitleConfig::new(title, words, bytes).unwrap_err();
            assert_eq!(error.code(), "TITLE_INVALID_CONFIG");
        }
        let default = TitleConfig::default();
        assert!(
            TitleConfig::new(
                default.max_title_bytes,
                default.fallback_max_words,
                default.fallback_max_bytes
            )
            .is_ok()
        );
    }

    #[test]
    fn what_steers_or_hides_is_gone() {
        for (text, title) in [
            ("plain", Some("plain")),
            (" two\n\tlines\u{2028}here ", Some("two lines here")),
            ("\x1b]0;evil\x07shown", Some("shown")),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", Some("link")),
            ("\u{9b}31mred\u{9b}0m", Some("red")),
            ("a\u{200b}b\u{feff}c\u{2066}d\u{ad}e", Some("abcde")),
            ("bell\x07 and null\0", Some("bell and null")),
            ("Grüße 世界", Some("Grüße 世界")),
            ("\u{202e}\u{200d}\n", None),
            ("", None),
        ] {
            assert_eq!(normalise(text, 100).as_deref(), title, "{text:?}");
        }
        assert_eq!(normalise("ab cd", 3).as_deref(), Some("ab"));
        assert_eq!(normalise("aä", 2).as_deref(), Some("a"));
    }

    #[test]
    fn a_fallback_is_the_first_words_that_fit() {
        let config = TitleConfig::new(100, 3, 9).unwrap();
        assert_eq!(config.fallback("one  two\nthree four").as_deref(), Some("one two t"));
        assert_eq!(config.fallback("a b c d").as_deref(), Some("a b c"));
        assert_eq!(config.fallback(" \x1b[0m "), None);
    }

    mod scenario {
        use super::*;

        #[test]
        fn persistence_92_escapes_and_bidi_go_and_no_character_is_split() {
            assert_eq!(normalise("\x1b[31m  A\u{202E} B \n", 80).as_deref(), Some("A B"));
            assert_eq!(normalise("世", 1), None);
        }
    }
}
