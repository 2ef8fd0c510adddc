//! Patterns that take text apart, and placeholders that put it together.

/// What each `*` of the pattern took of the whole text, as little as fits, from the left.
pub(super) fn captures(pattern: &str, text: &str) -> Option<Vec<String>> {
    let mut parts = pattern.split('*');
    let mut rest = text.strip_prefix(parts.next()?)?;
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty().then(Vec::new);
    }
    let mut taken = Vec::new();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            taken.push(rest.strip_suffix(part)?.to_owned());
        } else {
            let (before, after) = rest.split_once(part)?;
            taken.push(before.to_owned());
            rest = after;
        }
    }
    Some(taken)
}

/// Fills in `{{name}}` placeholders, once: what is filled in is not looked at again. Names that
/// `value` does not know stay as they are.
pub(super) fn fill(template: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        match after.split_once("}}").and_then(|(name, tail)| Some((value(name.trim())?, tail))) {
            Some((filled, tail)) => {
                out.push_str(&filled);
                rest = tail;
            }
            None => {
                out.push_str("{{");
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_take_as_little_as_fits() {
        let take = |pattern, text| captures(pattern, text);
        assert_eq!(
            take("Compare * and *.", "Compare a and b and c."),
            Some(vec!["a".into(), "b and c".into()])
        );
        assert_eq!(take("*x*", "x"), Some(vec![String::new(), String::new()]));
        assert_eq!(take("exact", "exact"), Some(vec![]));
        assert_eq!(take("exact", "exactly"), None);
        assert_eq!(take("a*a", "a"), None);
        assert_eq!(take("*", "any\nthing"), Some(vec!["any\nthing".into()]));
    }

    #[test]
    fn placeholders_are_filled_once_and_unknown_ones_stay() {
        let value = |name: &str| (name == "a").then(|| "{{a}}".to_owned());
        assert_eq!(fill("x {{ a }} {{b}} {{a}", value), "x {{a}} {{b}} {{a}");
    }
}
