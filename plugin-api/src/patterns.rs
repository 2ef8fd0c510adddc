//! Names by pattern.

use serde::Deserialize;

/// Patterns of names: `*` stands for any text, also for none, everything else for itself, and the
/// whole name must fit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Patterns(Vec<String>);

impl Patterns {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the name fits one of them.
    pub fn fit(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| fits(pattern, name))
    }
}

impl<S: Into<String>> FromIterator<S> for Patterns {
    fn from_iter<I: IntoIterator<Item = S>>(patterns: I) -> Self {
        Self(patterns.into_iter().map(Into::into).collect())
    }
}

impl<S: Into<String>, const N: usize> From<[S; N]> for Patterns {
    fn from(patterns: [S; N]) -> Self {
        patterns.into_iter().collect()
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    let inner = name.strip_prefix(head).and_then(|name| name.strip_suffix(tail));
    // The leftmost place of each piece leaves the most to those after it.
    let take = |left: &'_ str, piece: &str| left.find(piece).map(|at| at + piece.len());
    let fitted = inner.and_then(|inner| {
        middle.split('*').try_fold(inner, |left, piece| take(left, piece).map(|at| &left[at..]))
    });
    fitted.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_text_and_the_whole_name_must_fit() {
        for (pattern, name, fit) in [
            ("read", "read", true),
            ("read", "read_image", false),
            ("read*", "read_image", true),
            ("*read", "reread", true),
            ("*", "", true),
            ("a*a", "a", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("*ab*ba*", "aba", false),
            ("r.ad", "read", false),
            ("ä*ß", "äöß", true),
        ] {
            assert_eq!(Patterns::from([pattern]).fit(name), fit, "{pattern} {name}");
        }
        assert!(!Patterns::default().fit("read"));
    }
}
