//! The mailbox: what may be sent, how its target reads it, and what a delivery does next. Pure.

use playhouse_messages::{
    content::ContentBlock,
    event::EventBody,
    id::{MessageId, SessionId},
    inbox::Inbox,
    log::Log,
    message::{Message, Source},
};

use crate::{
    config::TeamsConfig,
    error::TeamError,
    record::{Delivery, TeamMessage},
    team::Team,
};

/// The source kind of what members send each other.
pub const TEAM_MESSAGE_KIND: &str = "team-message";

impl TeamMessage {
    /// As its target gets it. Its id in the target's log is the message's own, so that a log takes it
    /// once, however often it is tried.
    pub fn framed(&self, team: &SessionId) -> Message {
        let Self { id, sender_id, sender_name, content, .. } = self;
        let line = format!("Message {id} from {sender_name}:");
        let content = std::iter::once(ContentBlock::text(line)).chain(content.iter().cloned());
        let source = Source::of_kind(TEAM_MESSAGE_KIND)
            .with("teamId", team.as_str())
            .with("messageId", id.as_str())
            .with("senderId", sender_id.as_str())
            .with("senderName", sender_name.as_str());
        Message::user_from(id.clone(), content.collect(), source)
    }
}

/// A message to send.
#[derive(Debug, Clone, PartialEq)]
pub struct NewMessage {
    /// To whom: a member's name, or `lead`.
    pub target: String,
    /// What it says.
    pub content: Vec<ContentBlock>,
    /// Whether it wakes the target.
    pub delivery: Delivery,
}

impl NewMessage {
    /// A text that the target reads with its next step, whenever that comes.
    pub fn quiet(target: impl Into<String>, text: impl Into<String>) -> Self {
        let (target, content) = (target.into(), vec![ContentBlock::text(text)]);
        Self { target, content, delivery: Delivery::Quiet }
    }

    /// A text that gives the target a turn.
    pub fn wakeup(target: impl Into<String>, text: impl Into<String>) -> Self {
        Self { delivery: Delivery::Wakeup, ..Self::quiet(target, text) }
    }
}

impl Team {
    /// The record of a message.
    ///
    /// # Errors
    ///
    /// `TEAM_MEMBER_NOT_FOUND`, `TEAM_MEMBER_NOT_ACTIVE`, `TEAM_SELF_MESSAGE`, `TEAM_MAILBOX_FULL`,
    /// `TEAM_MESSAGE_TOO_LARGE`, `TEAM_INVALID_ARGUMENT`.
    pub fn new_message(
        &self,
        id: MessageId,
        sender: &SessionId,
        new: NewMessage,
        config: &TeamsConfig,
    ) -> Result<TeamMessage, TeamError> {
        let NewMessage { target, content, delivery } = new;
        let target_id = self.resolve(&target)?;
        self.active(&target_id, "sent to")?;
        if target_id == *sender {
            return Err(TeamError::SelfMessage);
        }
        if content.iter().all(|block| block.as_text().is_some_and(|text| text.trim().is_empty())) {
            let problem = "must not be empty".to_owned();
            return Err(TeamError::InvalidArgument { argument: "message", problem });
        }
        let limit = config.max_pending_messages;
        if self.pending_for(&target_id).count() >= limit {
            return Err(TeamError::MailboxFull { target, limit });
        }
        let sender_name = self.name_of(sender).unwrap_or(sender.as_str()).to_owned();
        let sender_id = sender.clone();
        let message = TeamMessage { id, sender_id, sender_name, target_id, delivery, content };
        let framed = serde_json::to_vec(&message.framed(self.id()));
        let bytes = framed.map_or(usize::MAX, |framed| framed.len());
        match bytes > config.max_message_bytes {
            true => Err(TeamError::MessageTooLarge { bytes, limit: config.max_message_bytes }),
            false => Ok(message),
        }
    }
}

/// What the target's log says of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// Nothing can be said: it cannot be read now.
    Unknown,
    /// It never came.
    Absent,
    /// It waits in the inbox.
    Waits,
    /// It has left the inbox: a turn has taken it, or it was cancelled.
    Taken,
}

impl Recorded {
    /// What a log says, whose inbox holds this now.
    pub fn of(log: &Log, inbox: &Inbox, id: &MessageId) -> Self {
        let came = |body: &EventBody| match body {
            EventBody::UserMessage(message) => message.id == *id,
            EventBody::InboxSpliced(splice) => {
                splice.inserted.iter().any(|message| message.id == *id)
            }
            _ => false,
        };
        match log.iter().rev().any(|event| came(&event.body)) {
            _ if inbox.contains(id) => Self::Waits,
            true => Self::Taken,
            false => Self::Absent,
        }
    }

    /// What a log says that nobody drives.
    pub fn stored(log: &Log, id: &MessageId) -> Self {
        let mut inbox = Inbox::new();
        for event in log.iter() {
            if let EventBody::InboxSpliced(splice) = &event.body
                && inbox.apply(event.seq, splice).is_err()
            {
                // Such a log does not load; who tries to resume it is told.
                return Self::Unknown;
            }
        }
        Self::of(log, &inbox, id)
    }

    /// Whether it stands there.
    pub fn came(self) -> bool {
        matches!(self, Self::Waits | Self::Taken)
    }
}

/// What a delivery does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Records that it is delivered.
    Acknowledge,
    /// Puts it into the target's inbox, waking nobody.
    Inject,
    /// Gives the target a turn over it, starting the target if it is not live.
    Wake,
    /// Waits for a change.
    Stay,
}

/// What to do about a message, by what is known of its target. A log that takes an id once makes a
/// repetition harmless; what must not happen is an acknowledgement without a message.
pub(crate) fn next(delivery: Delivery, live: bool, recorded: Recorded) -> Next {
    match (delivery, recorded) {
        (_, Recorded::Taken) | (Delivery::Quiet, Recorded::Waits) => Next::Acknowledge,
        // A target that is live was woken for it. One that died in between has it in its inbox, and
        // nobody else would wake it.
        (Delivery::Wakeup, Recorded::Waits) if live => Next::Acknowledge,
        (Delivery::Wakeup, Recorded::Waits | Recorded::Absent) => Next::Wake,
        (Delivery::Wakeup, Recorded::Unknown) if live => Next::Wake,
        (Delivery::Quiet, Recorded::Absent | Recorded::Unknown) if live => Next::Inject,
        (Delivery::Quiet, Recorded::Absent | Recorded::Unknown) => Next::Stay,
        (Delivery::Wakeup, Recorded::Unknown) => Next::Stay,
    }
}
