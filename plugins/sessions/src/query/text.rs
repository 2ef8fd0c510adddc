//! What of an event can be searched, and where a phrase stands in it.

use playhouse_messages::{
    content::ContentBlock,
    event::{Event, EventBody, TurnEndReason},
};

use super::QueryError;

/// Characters of a snippet.
const SNIPPET_CHARS: usize = 240;

/// The kinds of events that have searchable text.
pub(super) const SEARCHABLE: [&str; 5] =
    ["user/message", "assistant/message", "tool/call", "tool/result", "turn/end"];

/// The text of an event that a search looks at: what people and models wrote, the calls of tools and
/// what came of them, and why a turn did not end well. Empty for everything else, reasoning too.
pub fn searchable(event: &Event) -> String {
    let mut parts: Vec<&str> = Vec::new();
    match &event.body {
        EventBody::UserMessage(message) => texts(&message.content, &mut parts),
        EventBody::AssistantMessage(data) => texts(&data.message.content, &mut parts),
        EventBody::ToolCall(call) => parts.extend([&*call.name, &*call.arguments]),
        EventBody::ToolResult(result) => {
            texts(&result.message.content, &mut parts);
            if let Some(error) = &result.error {
                parts.extend([&*error.name, &*error.code]);
            }
        }
        EventBody::TurnEnd(end) => match &end.reason {
            TurnEndReason::Completed => {}
            TurnEndReason::Error(failure) => parts.push(&failure.message),
            reason => parts.push(reason.kind()),
        },
        _ => {}
    }
    let parts = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("\n")
}

fn texts<'a>(content: &'a [ContentBlock], parts: &mut Vec<&'a str>) {
    parts.extend(content.iter().filter_map(ContentBlock::as_text));
}

/// A phrase to look for: literal, whatever its case, with any whitespace where it has some.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Phrase(String);

/// Where a phrase stands in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// How often, without overlaps.
    pub(super) count: usize,
    /// The text around the first place, on one line.
    pub(super) snippet: String,
}

/// Lower case, character by character: the same wherever in a word a character stands.
fn fold(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).collect()
}

fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Phrase {
    /// A phrase.
    ///
    /// # Errors
    ///
    /// [`QueryError::InvalidQuery`] if it has no word.
    pub fn new(text: &str) -> Result<Self, QueryError> {
        let phrase = fold(&flat(text));
        if phrase.is_empty() { Err(QueryError::InvalidQuery) } else { Ok(Self(phrase)) }
    }

    /// Whether it stands in a text.
    pub fn is_in(&self, text: &str) -> bool {
        fold(&flat(text)).contains(&self.0)
    }

    pub(super) fn find(&self, text: &str) -> Option<Found> {
        let flat = flat(text);
        let folded = fold(&flat);
        let first = folded.find(&self.0)?;
        let count = folded.matches(&self.0).count();
        Some(Found { count, snippet: self.snippet(&flat, first) })
    }

    /// The part of a text around the phrase, which stands at this byte of the folded text.
    fn snippet(&self, flat: &str, at: usize) -> String {
        // Folding may change lengths, so characters are counted along.
        let mut folded = 0;
        let lengths = flat.chars().map(|c| c.to_lowercase().map(char::len_utf8).sum::<usize>());
        let start = lengths
            .take_while(|len| {
                folded += len;
                folded <= at
            })
            .count();
        let (total, found) = (flat.chars().count(), self.0.chars().count());
        let before = SNIPPET_CHARS.saturating_sub(found) / 2;
        let from = start.saturating_sub(before).min(total.saturating_sub(SNIPPET_CHARS));
        flat.chars().skip(from).take(SNIPPET_CHARS).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phrase(text: &str) -> Phrase {
        Phrase::new(text).unwrap()
    }

    #[test]
    fn a_phrase_is_literal_and_takes_any_case_and_any_whitespace() {
        for (text, within, is_in) in [
            ("foo  bar", "say Foo\nBAR!", true),
            (" foo ", "food", true),
            ("a.b", "axb", false),
            ("a OR b", "a", false),
            ("foo bar", "foobar", false),
            ("ΣΑΣ", "σας", false),
            ("σασ", "ΣΑΣ", true),
            ("straße", "STRAßE", true),
        ] {
            assert_eq!(phrase(text).is_in(within), is_in, "{text:?} in {within:?}");
        }
        assert_eq!(Phrase::new(" \n").unwrap_err().code(), "SESSION_QUERY_INVALID_QUERY");
    }

    #[test]
    fn matches_are_counted_without_overlaps() {
        assert_eq!(phrase("aa").find("aaaa a aa").unwrap().count, 3);
        assert_eq!(phrase("b").find("aaaa"), None);
    }

    #[test]
    fn a_snippet_is_240_characters_around_the_first_place() {
        let text = format!("{} Needle\n\n{}", "İ".repeat(500), "y".repeat(500));
        let found = phrase("needle").find(&text).unwrap();
        assert_eq!(found.snippet.chars().count(), 240);
        let before = found.snippet.chars().take_while(|c| *c != 'N').count();
        assert_eq!(before, 117);
        assert!(found.snippet.contains("Needle yyy"), "{}", found.snippet);
        let short = phrase("b").find("a  b\tc").unwrap();
        assert_eq!(short.snippet, "a b c");
        let late = format!("{} end", "x".repeat(500));
        assert!(phrase("end").find(&late).unwrap().snippet.ends_with("x end"));
        assert_eq!(phrase("end").find(&late).unwrap().snippet.chars().count(), 240);
    }
}
