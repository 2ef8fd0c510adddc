//! What a Lead finds out when it starts: which members came to be before the last life ended.

use std::sync::Arc;

use playhouse_messages::{event::EventBody, id::SessionId};
use playhouse_plugin_api::store::StoredSession;
use playhouse_subagents::descriptor::Descriptor;

use crate::{
    error::TeamError,
    lead::Lead,
    record::{Member, Phase},
};

impl Lead {
    /// Settles each member that is still provisioning and that nobody is starting now.
    pub async fn recover(self: &Arc<Self>) {
        let members = self.team().map(|team| team.members().to_vec()).unwrap_or_default();
        for member in members.iter().filter(|member| member.phase == Phase::Provisioning) {
            let outcome = match self.world.agents.is_taken(&member.id) {
                true => continue,
                false => self.came_to_be(member).await,
            };
            let settled = match outcome {
                Some(outcome) => self.settle(&member.id, outcome.err()).await,
                // It cannot be told now; the next start may.
                None => continue,
            };
            match settled {
                // Who started it has settled it meanwhile.
                Ok(_) | Err(TeamError::ProvisioningConflict { .. }) => {}
                Err(error) => {
                    tracing::warn!(team = %self.id(), member = member.name, %error, "recovery");
                }
            }
        }
    }

    /// Whether a member came to be, or why not; `None` if its session cannot be read.
    async fn came_to_be(&self, member: &Member) -> Option<Result<(), String>> {
        let store = self.world.store.as_ref()?;
        match store.read(&member.id).await {
            Ok(stored) => Some(is_member(&stored, self.id(), &member.provider)),
            Err(error) if error.code() == "SESSION_NOT_FOUND" => {
                Some(Err("it was never stored".to_owned()))
            }
            Err(error) => {
                tracing::warn!(team = %self.id(), member = member.name, %error, "recovery");
                None
            }
        }
    }
}

/// Whether this is the session of a member that this Lead started by this provider.
fn is_member(stored: &StoredSession, lead: &SessionId, provider: &str) -> Result<(), String> {
    if stored.header.parent_session.as_ref() != Some(lead) {
        return Err("its session is somebody else's".to_owned());
    }
    let log = stored.log().map_err(|error| error.to_string())?;
    let from = stored.inherited_event_count;
    let descriptor = Descriptor::of(&log, from).map_err(|error| error.to_string())?;
    match descriptor {
        Some(said) if said.recipe().is_some() && said.provider == provider => {}
        _ => return Err("its session is that of no continuable sub-agent of this kind".to_owned()),
    }
    let has_prompt = log.range(from..log.len()).any(|event| match &event.body {
        EventBody::InboxSpliced(splice) => !splice.inserted.is_empty(),
        EventBody::UserMessage(_) => true,
        _ => false,
    });
    match has_prompt {
        true => Ok(()),
        false => Err("its session does not hold its prompt".to_owned()),
    }
}
