//! The roster: who may become a member, and what a member is at. Pure.

use playhouse_messages::{content::ContentBlock, id::SessionId};
use playhouse_subagents::ChildOptions;

use crate::{
    board::checked,
    error::TeamError,
    record::{Member, Phase, TeamContext},
    team::{LEAD_NAME, Team},
};

/// The longest name, in characters.
pub const NAME_CHARS_MAX: usize = 64;

/// The longest description of a member, in characters.
pub const MEMBER_DESCRIPTION_CHARS_MAX: usize = 200;

/// A member to start.
#[derive(Debug, Clone, PartialEq)]
pub struct NewMember {
    /// How the team is to call it: lower-case letters, digits and single dashes, beginning with a
    /// letter, at most [`NAME_CHARS_MAX`]; not `lead`.
    pub name: String,
    /// What it is for; at most [`MEMBER_DESCRIPTION_CHARS_MAX`] characters.
    pub description: String,
    /// What it is to do first.
    pub prompt: Vec<ContentBlock>,
    /// How it begins.
    pub context: TeamContext,
    /// What it does otherwise than its Lead.
    pub options: ChildOptions,
    /// Who it is to be.
    pub persona: Option<String>,
}

impl NewMember {
    /// A member that begins with this prompt alone.
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        prompt: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            prompt: vec![ContentBlock::text(prompt)],
            context: TeamContext::Fresh,
            options: ChildOptions::default(),
            persona: None,
        }
    }

    /// The same, beginning otherwise.
    #[must_use]
    pub fn context(mut self, context: TeamContext) -> Self {
        self.context = context;
        self
    }
}

/// What a member, or the Lead, is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberStatus {
    /// It is being started.
    Provisioning,
    /// It never came to be.
    Failed,
    /// It works.
    Running,
    /// It is there, and does nothing.
    Idle,
    /// It is stored; a message that wakes starts it again.
    Inactive,
}

impl MemberStatus {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provisioning => "provisioning",
            Self::Failed => "failed",
            Self::Running => "running",
            Self::Idle => "idle",
            Self::Inactive => "inactive",
        }
    }

    /// Whether something may come of it without anybody's doing.
    pub fn is_at_work(self) -> bool {
        matches!(self, Self::Provisioning | Self::Running)
    }
}

fn name_fault(name: &str) -> Option<&'static str> {
    let is_kebab = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.split('-').all(|part| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
        });
    match () {
        () if name == LEAD_NAME => Some("\"lead\" is the Lead's"),
        () if name.len() > NAME_CHARS_MAX => Some("it is longer than 64 characters"),
        () if !is_kebab => Some("use lower-case letters, digits and single dashes, a letter first"),
        () => None,
    }
}

impl Team {
    /// The record of a member that is about to be started by this provider of sub-agents.
    ///
    /// # Errors
    ///
    /// `TEAM_INVALID_ARGUMENT`, `TEAM_MEMBER_NAME_TAKEN`, `TEAM_MEMBER_LIMIT`.
    pub fn new_member(
        &self,
        id: SessionId,
        new: &NewMember,
        provider: &str,
        max_members: usize,
    ) -> Result<Member, TeamError> {
        if let Some(problem) = name_fault(&new.name) {
            let problem = format!("\"{}\": {problem}", new.name);
            return Err(TeamError::InvalidArgument { argument: "name", problem });
        }
        let description = new.description.clone();
        let description = checked("description", description, MEMBER_DESCRIPTION_CHARS_MAX)?;
        if new.prompt.iter().all(|block| block.as_text().is_some_and(|text| text.trim().is_empty()))
        {
            let problem = "must not be empty".to_owned();
            return Err(TeamError::InvalidArgument { argument: "prompt", problem });
        }
        if self.named(&new.name).is_some() {
            return Err(TeamError::NameTaken { name: new.name.clone() });
        }
        if self.members().len() >= max_members {
            return Err(TeamError::MemberLimit { limit: max_members });
        }
        let (name, provider, context) = (new.name.clone(), provider.to_owned(), new.context);
        let phase = Phase::Provisioning;
        Ok(Member { id, name, description, provider, context, phase, error: None })
    }

    /// The record of what became of a member: active, or failed for this reason.
    ///
    /// # Errors
    ///
    /// `TEAM_PROVISIONING_CONFLICT` if that is settled already.
    pub fn settled_member(
        &self,
        id: &SessionId,
        failed: Option<String>,
    ) -> Result<Member, TeamError> {
        let known =
            self.member(id).ok_or_else(|| TeamError::NoSuchMember { name: id.to_string() })?;
        if known.phase != Phase::Provisioning {
            return Err(TeamError::ProvisioningConflict { name: known.name.clone() });
        }
        let phase = if failed.is_some() { Phase::Failed } else { Phase::Active };
        Ok(Member { phase, error: failed, ..known.clone() })
    }

    /// The session that the team calls so.
    ///
    /// # Errors
    ///
    /// `TEAM_MEMBER_NOT_FOUND`.
    pub fn resolve(&self, name: &str) -> Result<SessionId, TeamError> {
        if name == LEAD_NAME {
            return Ok(self.id().clone());
        }
        let known = self.named(name).map(|member| member.id.clone());
        known.ok_or_else(|| TeamError::NoSuchMember { name: name.to_owned() })
    }

    /// Whether this session can be asked for something: the Lead, or a member that is active.
    ///
    /// # Errors
    ///
    /// `TEAM_MEMBER_NOT_FOUND`, `TEAM_MEMBER_NOT_ACTIVE`.
    pub fn active(&self, id: &SessionId, what: &'static str) -> Result<(), TeamError> {
        if id == self.id() {
            return Ok(());
        }
        match self.member(id) {
            None => Err(TeamError::NoSuchMember { name: id.to_string() }),
            Some(member) if member.phase != Phase::Active => {
                Err(TeamError::NotActive { name: member.name.clone(), what })
            }
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lower_kebab() {
        for good in ["a", "rev", "rev-2", "a1-b2", &"x".repeat(64)] {
            assert_eq!(name_fault(good), None, "{good}");
        }
        for bad in ["", "lead", "Rev", "1st", "-a", "a-", "a--b", "a_b", "ä", &"x".repeat(65)] {
            assert!(name_fault(bad).is_some(), "{bad}");
        }
    }
}
