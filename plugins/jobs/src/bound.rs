//! Texts that fit a job's output limit.

/// Stands where a text was cut.
pub(crate) const CUT: &str = "[… cut]";

/// The body's end and all of the suffix, in at most `limit` bytes; a suffix that alone is longer is
/// cut itself.
pub(crate) fn keeping_end(body: &str, suffix: &str, limit: Option<usize>) -> String {
    let whole = format!("{body}{suffix}");
    let Some(limit) = limit.filter(|limit| whole.len() > *limit) else { return whole };
    match limit.checked_sub(suffix.len() + CUT.len()) {
        Some(room) => {
            let mut from = body.len().saturating_sub(room);
            while !body.is_char_boundary(from) {
                from += 1;
            }
            format!("{CUT}{}{suffix}", &body[from..])
        }
        None => keeping_start(suffix.trim_start(), Some(limit)),
    }
}

/// The text's beginning, in at most `limit` bytes.
pub(crate) fn keeping_start(text: &str, limit: Option<usize>) -> String {
    let Some(limit) = limit.filter(|limit| text.len() > *limit) else { return text.to_owned() };
    // A limit without room for the mark cuts without one.
    let (room, mark) = match limit.checked_sub(CUT.len()) {
        Some(room) => (room, CUT),
        None => (limit, ""),
    };
    let mut to = room;
    while !text.is_char_boundary(to) {
        to -= 1;
    }
    format!("{}{mark}", &text[..to])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_limit_a_text_fits_it_and_the_status_goes_last() {
        let (body, status) = ("ä1ö2ü3".repeat(20), "\n[status: completed]");
        for limit in 1..200 {
            let text = keeping_end(&body, status, Some(limit));
            assert!(text.len() <= limit, "{limit}: {text}");
            let room = limit >= status.len() + CUT.len();
            assert_eq!(text.ends_with(status), room, "{limit}: {text}");
            let whole = text == format!("{body}{status}");
            assert_eq!(whole, limit >= body.len() + status.len());
            assert!(!room || text.starts_with(CUT) != whole, "{limit}: {text}");
            let start = keeping_start(&body, Some(limit));
            assert!(start.len() <= limit);
            assert_eq!(start.ends_with(CUT), start != body && limit >= CUT.len());
        }
        assert_eq!(keeping_end("a", "b", None), "ab");
        assert_eq!(keeping_start("a", None), "a");
        assert_eq!(keeping_end(&"x".repeat(40), "[s]", Some(15)), format!("{CUT}xxx[s]"));
    }
}
