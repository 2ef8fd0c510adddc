//! Which paths a task will write to: advice, so that two members do not edit the same files.

use crate::{
    error::TeamError,
    record::{Task, TaskStatus},
    team::Team,
};

/// The whole workspace, as a scope.
const ALL: &str = ".";

/// The scopes as prefixes of paths: relative, without `.`, `..`, doubled or trailing slashes, each once.
///
/// # Errors
///
/// `TEAM_INVALID_ARGUMENT` for one that is empty, absolute or leaves the workspace.
pub(crate) fn normalise(scopes: &[String]) -> Result<Vec<String>, TeamError> {
    let mut normal = Vec::new();
    for scope in scopes {
        let fault = |problem: &str| TeamError::InvalidArgument {
            argument: "write_scopes",
            problem: format!("\"{scope}\" {problem}; name a path below the workspace"),
        };
        let path = scope.trim().replace('\\', "/");
        if path.is_empty() {
            return Err(fault("is empty"));
        }
        if path.starts_with('/') || path.chars().nth(1) == Some(':') {
            return Err(fault("is absolute"));
        }
        let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if parts.contains(&"..") {
            return Err(fault("goes up"));
        }
        let path = if parts.is_empty() { ALL.to_owned() } else { parts.join("/") };
        if !normal.contains(&path) {
            normal.push(path);
        }
    }
    Ok(normal)
}

fn overlap(one: &str, other: &str) -> bool {
    let within = |inner: &str, outer: &str| {
        outer == ALL
            || inner
                .strip_prefix(outer)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    within(one, other) || within(other, one)
}

/// What is to be said of a task's scopes: where others are at work already.
pub(crate) fn warnings(team: &Team, task: &Task) -> Vec<String> {
    let at_work = |other: &&Task| other.id != task.id && other.status == TaskStatus::InProgress;
    let mut warnings = Vec::new();
    for other in team.tasks().iter().filter(at_work) {
        let shared = task.write_scopes.iter().find_map(|one| {
            other.write_scopes.iter().find(|two| overlap(one, two)).map(|two| (one, two))
        });
        if let Some((one, two)) = shared {
            let owner = other.owner_id.as_ref().and_then(|id| team.name_of(id)).unwrap_or("nobody");
            warnings.push(format!("{one} overlaps {two} of {}, which {owner} works on", other.id));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_relative_prefixes_each_once() {
        let normal = |scopes: &[&str]| {
            let scopes: Vec<_> = scopes.iter().map(|scope| (*scope).to_owned()).collect();
            normalise(&scopes).map_err(|error| error.code().to_owned())
        };
        let case = |scopes: &[&str], expected: &[&str]| {
            assert_eq!(normal(scopes).unwrap(), expected, "{scopes:?}");
        };
        case(&["./src//a/", "src/a", "src\\b"], &["src/a", "src/b"]);
        case(&[".", "./", " docs "], &[".", "docs"]);
        for refused in ["", "  ", "/etc", "C:/x", "src/../..", ".."] {
            assert_eq!(normal(&[refused]), Err("TEAM_INVALID_ARGUMENT".to_owned()), "{refused}");
        }
    }

    #[test]
    fn prefixes_overlap_by_whole_names() {
        for (one, other, expected) in [
            ("src", "src/a.rs", true),
            ("src", "src", true),
            (".", "src", true),
            ("src", "srcs", false),
            ("src/a", "src/b", false),
        ] {
            assert_eq!((overlap(one, other), overlap(other, one)), (expected, expected));
        }
    }
}
