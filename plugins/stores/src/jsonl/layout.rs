//! Where everything lies in the directory of a JSONL store.

use std::path::{Path, PathBuf};

use playhouse_messages::id::SessionId;
use sha2::{Digest as _, Sha256};

/// The longest encoded text that a file name holds whole; the rest of a name has room up to 255.
const NAME_MAX: usize = 180;
/// How much of a longer one is kept, for people.
const NAME_KEPT: usize = 100;

/// The paths of one store.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    dir: PathBuf,
}

impl Layout {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf() }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn format(&self) -> PathBuf {
        self.dir.join("format")
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }

    pub(super) fn sessions(&self) -> PathBuf {
        self.dir.join("sessions")
    }

    pub(super) fn values(&self) -> PathBuf {
        self.dir.join("values")
    }

    pub(super) fn session(&self, id: &SessionId) -> PathBuf {
        self.sessions().join(format!("{}.jsonl", encode(id.as_str())))
    }

    pub(super) fn tail(&self, id: &SessionId) -> PathBuf {
        self.sessions().join(format!("{}.tail.jsonl", encode(id.as_str())))
    }

    pub(super) fn value(&self, key: &str) -> PathBuf {
        self.values().join(format!("{}.value", encode(key)))
    }
}

/// Where a file is written before it gets its name.
pub(super) fn draft(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Whether a name is that of a draft, which means nothing.
pub(super) fn is_draft(name: &str) -> bool {
    name.ends_with(".new")
}

/// Whether a name in the directory of values is that of one.
pub(super) fn is_value(name: &str) -> bool {
    name.ends_with(".value")
}

/// What a name in the directory of sessions stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// The log of this session.
    Session(SessionId),
    /// The log of a session whose id is too long for a name; its header says which.
    Long,
    /// Something else: a tail, a draft, or not ours.
    Other,
}

pub(super) fn named(name: &str) -> Named {
    match name.strip_suffix(".jsonl") {
        Some(stem) if stem.contains('.') => Named::Other,
        Some(stem) if stem.contains("~~") => Named::Long,
        Some(stem) => decode(stem).map_or(Named::Other, |id| Named::Session(id.into())),
        None => Named::Other,
    }
}

/// What a name in the directory of values stands for.
pub(super) enum NamedValue {
    /// The value of this key.
    Key(String),
    /// The value of a key that is too long for a name; the file says which.
    Long,
    /// A draft, or not ours.
    Other,
}

pub(super) fn named_value(name: &str) -> NamedValue {
    match name.strip_suffix(".value") {
        Some(stem) if stem.contains("~~") => NamedValue::Long,
        Some(stem) => decode(stem).map_or(NamedValue::Other, NamedValue::Key),
        None => NamedValue::Other,
    }
}

/// A text as a part of a file name: lower-case letters, digits, `-` and `_` stand for themselves,
/// any other byte is `~` and two hex digits. So a name has no dots or separators, and two names
/// differ on file systems that take `A` for `a` as well. A long one is cut, and its hash added.
pub(super) fn encode(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            _ => name.push_str(&format!("~{byte:02x}")),
        }
    }
    if name.len() > NAME_MAX {
        name.truncate(NAME_KEPT);
        name.push_str("~~");
        for byte in &Sha256::digest(text.as_bytes())[..16] {
            name.push_str(&format!("{byte:02x}"));
        }
    }
    name
}

/// The way back from [`encode`], for what is not cut.
fn decode(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.bytes().next() {
        let length = if first == b'~' { 3 } else { 1 };
        let (taken, behind) = rest.split_at_checked(length)?;
        bytes.push(match taken.strip_prefix('~') {
            Some(digits) => u8::from_str_radix(digits, 16).ok()?,
            None => first,
        });
        rest = behind;
    }
    let text = String::from_utf8(bytes).ok().filter(|text| !text.is_empty())?;
    // A name that we would not have given is somebody else's.
    (encode(&text) == name).then_some(text)
}

#[cfg(test)]
mod scenario {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn persistence_35_odd_ids_are_distinct_safe_names() {
        let long = "x".repeat(300);
        let longer = "x".repeat(301);
        let upper = "X".repeat(300);
        let odd = [
            "a/b",
            "a~002Fb",
            "a~2fb",
            "..",
            ".",
            "A",
            "a",
            "a.tail",
            "a.jsonl",
            "a.new",
            " ",
            "\u{0}",
            "a\\b",
            "C:",
            "\u{1f3ad}",
            "ä",
            "..~~",
            "../../etc/passwd",
            &long,
            &longer,
            &upper,
        ];
        let names: Vec<String> = odd.iter().map(|id| encode(id)).collect();
        for (id, name) in odd.iter().zip(&names) {
            assert!(
                name.bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_~".contains(&b)),
                "{id:?}: {name}"
            );
            assert!(name.len() + ".tail.jsonl".len() <= 255);
            let expected =
                if id.len() >= 300 { Named::Long } else { Named::Session(SessionId::from(*id)) };
            assert_eq!(named(&format!("{name}.jsonl")), expected, "{id:?}");
        }
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), odd.len());
    }

    #[test]
    fn names_that_we_do_not_give_are_not_ours() {
        for name in ["A.jsonl", "a~2.jsonl", "~61.jsonl", "a~2F.jsonl", ".jsonl", "~ff.jsonl", "a"]
        {
            assert_eq!(named(name), Named::Other, "{name}");
        }
        assert_eq!(named("a.tail.jsonl"), Named::Other);
        assert_eq!(named("a~~00.tail.jsonl"), Named::Other);
    }
}
