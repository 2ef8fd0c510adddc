//! The session header: what stands beside the log, immutable for life.

use serde::{Deserialize, Serialize};

use crate::id::SessionId;

/// The log format that this build writes.
pub const FORMAT_VERSION: u32 = 1;

/// Identity and lineage of a session. Never an event, never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionHeader {
    /// Must equal [`FORMAT_VERSION`] to be read.
    pub version: u32,
    /// The session's id, which is also its agent's.
    pub id: SessionId,
    /// Epoch milliseconds.
    pub created_at: u64,
    /// The working directory; absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The session that this one was forked or delegated from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_session: Option<SessionId>,
    /// True only for fork children; replaying history does not make a session seeded.
    pub is_seeded: bool,
    /// How the session came to be, for navigation only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// How deep in a tree of delegations it stands; a floor that resume never lowers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegation_depth: Option<u32>,
    /// The preset that the agent was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_preset: Option<String>,
    /// The blueprint that the agent was made from, and is made from again when it wakes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blueprint: Option<String>,
}

/// How a session came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// An agent delegated work to it.
    Subagent,
}

/// Why a header is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// A newer build wrote it.
    #[error(
        "session `{id}` has log format {found}, this build reads {FORMAT_VERSION}: a newer Playhouse \
         wrote it, upgrade to open it"
    )]
    Newer {
        /// The session.
        id: SessionId,
        /// Its format.
        found: u32,
    },
    /// An older format without an upgrade path.
    #[error("session `{id}` has log format {found}, this build reads only {FORMAT_VERSION}")]
    Older {
        /// The session.
        id: SessionId,
        /// Its format.
        found: u32,
    },
    /// A field is out of range.
    #[error("session header field `{field}`: {reason}")]
    Field {
        /// The field's JSON name.
        field: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl SessionHeader {
    /// A header of the current version for a session without lineage.
    pub fn new(id: SessionId, created_at: u64) -> Self {
        Self {
            version: FORMAT_VERSION,
            id,
            created_at,
            cwd: None,
            parent_session: None,
            is_seeded: false,
            origin: None,
            delegation_depth: None,
            agent_preset: None,
            blueprint: None,
        }
    }

    /// The header of a session that is forked off this one: its child, in the same place and as deep.
    pub fn fork(&self, id: SessionId, created_at: u64) -> Self {
        Self {
            cwd: self.cwd.clone(),
            parent_session: Some(self.id.clone()),
            is_seeded: true,
            delegation_depth: self.delegation_depth,
            ..Self::new(id, created_at)
        }
    }

    /// The session whose agent delegated to this one's. A fork is nobody's work: it has a parent in
    /// the log alone.
    pub fn delegated_by(&self) -> Option<&SessionId> {
        let delegated = !self.is_seeded || self.origin == Some(Origin::Subagent);
        self.parent_session.as_ref().filter(|_| delegated)
    }

    /// Checks version and fields; what a store does before anything is written or used.
    pub fn check(&self) -> Result<(), HeaderError> {
        let id = || self.id.clone();
        if self.version > FORMAT_VERSION {
            return Err(HeaderError::Newer { id: id(), found: self.version });
        }
        if self.version < FORMAT_VERSION {
            return Err(HeaderError::Older { id: id(), found: self.version });
        }
        let field = |field, reason| Err(HeaderError::Field { field, reason });
        if self.id.as_str().is_empty() {
            return field("id", "must not be empty");
        }
        if self.created_at > crate::json::INTEGER_MAX {
            return field("createdAt", "must be epoch milliseconds below 2^53");
        }
        if self.cwd.as_deref().is_some_and(|cwd| !std::path::Path::new(cwd).is_absolute()) {
            return field("cwd", "must be an absolute path");
        }
        if self.blueprint.as_deref() == Some("") {
            return field("blueprint", "must not be empty");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_header_asks_for_an_upgrade() {
        let mut header = SessionHeader::new("s".into(), 1);
        assert_eq!(header.check(), Ok(()));
        header.version = FORMAT_VERSION + 1;
        assert!(header.check().unwrap_err().to_string().contains("upgrade"));
        header.version = FORMAT_VERSION;
        header.cwd = Some("relative".into());
        assert!(header.check().unwrap_err().to_string().contains("`cwd`"));
    }

    #[test]
    fn a_fork_descends_and_is_not_delegated() {
        let mut parent = SessionHeader::new("p".into(), 1);
        parent.cwd = Some("/w".into());
        parent.delegation_depth = Some(2);
        let mut fork = parent.fork("c".into(), 7);
        assert_eq!((fork.created_at, fork.cwd.as_deref()), (7, Some("/w")));
        assert_eq!((fork.is_seeded, fork.delegation_depth), (true, Some(2)));
        assert_eq!((fork.parent_session.as_ref(), fork.delegated_by()), (Some(&parent.id), None));
        fork.origin = Some(Origin::Subagent);
        assert_eq!(fork.delegated_by(), Some(&parent.id));
    }

    #[test]
    fn a_blueprint_is_optional_and_no_part_of_older_headers() {
        let mut header = SessionHeader::new("s".into(), 1);
        let old = r#"{"version":1,"id":"s","createdAt":1,"isSeeded":false}"#;
        assert_eq!(serde_json::to_string(&header).unwrap(), old);
        assert_eq!(serde_json::from_str::<SessionHeader>(old).unwrap(), header);
        header.blueprint = Some("clerk".into());
        let text = serde_json::to_string(&header).unwrap();
        assert!(text.ends_with(r#""blueprint":"clerk"}"#), "{text}");
        assert_eq!(serde_json::from_str::<SessionHeader>(&text).unwrap(), header);
        // Who forks says what the fork is made from.
        assert_eq!(header.fork("c".into(), 2).blueprint, None);
        header.blueprint = Some(String::new());
        assert!(header.check().is_err());
    }

    #[test]
    fn retired_keys_are_refused() {
        let text = r#"{"version":1,"id":"s","createdAt":1,"isSeeded":false,"seedLength":3}"#;
        assert!(serde_json::from_str::<SessionHeader>(text).is_err());
    }
}
