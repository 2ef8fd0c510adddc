//! What a child sees of this process's environment.

use std::{collections::BTreeMap, ffi::OsString};

/// Parts of names that are withheld, whatever their case: what they hold is for this process.
const SECRETS: [&str; 4] = ["KEY", "PASSWORD", "SECRET", "TOKEN"];

/// How the names of our own settings begin.
const OURS: &str = "PLAYHOUSE_";

fn is_withheld(name: &str) -> bool {
    let name = name.to_uppercase();
    name.starts_with(OURS) || SECRETS.iter().any(|part| name.contains(part))
}

/// The ambient variables without those that are withheld, and the explicit ones.
pub(super) fn environment(
    ambient: impl IntoIterator<Item = (OsString, OsString)>,
    explicit: &BTreeMap<String, String>,
) -> BTreeMap<OsString, OsString> {
    let ambient = ambient.into_iter().filter(|(name, _)| !is_withheld(&name.to_string_lossy()));
    let explicit = explicit.iter().map(|(name, value)| (name.into(), value.into()));
    ambient.chain(explicit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_our_own_settings_are_withheld_unless_given_explicitly() {
        let ambient = [
            ("PATH", "/bin"),
            ("OPENAI_API_KEY", "1"),
            ("my_password_file", "2"),
            ("Client_Secret", "3"),
            ("GITHUB_TOKEN", "4"),
            ("PLAYHOUSE_LOG", "5"),
            ("MONKEY", "6"),
        ];
        let ambient = ambient.map(|(name, value)| (name.into(), value.into()));
        let explicit = BTreeMap::from([("AGENT_KEY".to_owned(), "7".to_owned())]);
        let seen = environment(ambient, &explicit);
        let names: Vec<_> = seen.keys().map(|name| name.to_str().unwrap()).collect();
        assert_eq!(names, ["AGENT_KEY", "PATH"]);
    }
}
