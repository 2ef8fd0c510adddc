//! The local history gate: what a strict provider would refuse, found before the request, with the
//! event that is at fault.

use std::{collections::HashSet, sync::Arc};

use crate::{
    content::ContentBlock,
    event::Seq,
    history::{History, HistoryEntry},
    id::{CallId, MessageId},
    message::{Message, Role},
};

/// Why a strict provider would refuse a history.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GateFault {
    /// A call of an assistant message has no result before the conversation goes on.
    #[error("event {seq}: tool call \"{call}\" has no result right after it")]
    Unanswered {
        /// The assistant message.
        seq: Seq,
        /// The call.
        call: CallId,
    },
    /// A result answers no open call.
    #[error("event {seq}: tool result answers no open call \"{call}\"")]
    Orphan {
        /// The result.
        seq: Seq,
        /// What it claims to answer.
        call: CallId,
    },
    /// A message asks for two calls of one id, or of none.
    #[error("event {seq}: tool call id \"{call}\" is empty or used twice in one message")]
    CallId {
        /// The assistant message.
        seq: Seq,
        /// The id.
        call: CallId,
    },
    /// Two messages have one id, or one has none.
    #[error("event {seq}: message id \"{id}\" is empty or used twice")]
    MessageId {
        /// The later message.
        seq: Seq,
        /// The id.
        id: MessageId,
    },
    /// A user message says nothing.
    #[error("event {seq}: user message without content")]
    EmptyUser {
        /// The message.
        seq: Seq,
    },
    /// A block stands in a message of a role that cannot carry it.
    #[error("event {seq}: a `{block}` block in a message of another role")]
    Role {
        /// The message.
        seq: Seq,
        /// The block's type.
        block: String,
    },
}

impl GateFault {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unanswered { .. } => "HISTORY_UNANSWERED_CALL",
            Self::Orphan { .. } => "HISTORY_ORPHAN_RESULT",
            Self::CallId { .. } => "HISTORY_CALL_ID",
            Self::MessageId { .. } => "HISTORY_MESSAGE_ID",
            Self::EmptyUser { .. } => "HISTORY_EMPTY_USER",
            Self::Role { .. } => "HISTORY_ROLE",
        }
    }

    /// The event at fault.
    pub fn seq(&self) -> Seq {
        match self {
            Self::Unanswered { seq, .. }
            | Self::Orphan { seq, .. }
            | Self::CallId { seq, .. }
            | Self::MessageId { seq, .. }
            | Self::EmptyUser { seq }
            | Self::Role { seq, .. } => *seq,
        }
    }
}

/// A verdict on a prefix of a history, extended as the history grows.
#[derive(Debug, Clone, Default)]
pub struct HistoryGate {
    /// The content generation that the verdict is of; a prefix is stable only within one.
    generation: u64,
    checked: usize,
    open: Vec<CallId>,
    asked_by: Seq,
    ids: HashSet<MessageId>,
    /// The last entry checked, to notice a history of another session or of the past.
    last: Option<Arc<Message>>,
}

impl HistoryGate {
    /// A gate that has checked nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks a history at a content generation of its surface. Only what came since the last check
    /// of that generation is looked at.
    pub fn check(&mut self, history: &History, generation: u64) -> Result<(), GateFault> {
        let is_prefix = match &self.last {
            None => true,
            Some(last) => {
                history.get(self.checked - 1).is_some_and(|entry| Arc::ptr_eq(&entry.message, last))
            }
        };
        if generation != self.generation || !is_prefix {
            *self = Self { generation, ..Self::default() };
        }
        for entry in history.range(self.checked..history.len()) {
            // After a fault the verdict stands at the entry at fault: asking again fails again.
            self.entry(entry)?;
            self.checked += 1;
            self.last = Some(entry.message.clone());
        }
        self.closed()
    }

    /// No call is open.
    fn closed(&self) -> Result<(), GateFault> {
        match self.open.first() {
            Some(call) => Err(GateFault::Unanswered { seq: self.asked_by, call: call.clone() }),
            None => Ok(()),
        }
    }

    fn entry(&mut self, entry: &HistoryEntry) -> Result<(), GateFault> {
        let HistoryEntry { seq, message, .. } = entry;
        let seq = *seq;
        if message.id.as_str().is_empty() || self.ids.contains(&message.id) {
            return Err(GateFault::MessageId { seq, id: message.id.clone() });
        }
        for block in &message.content {
            let fits = match block.kind() {
                "tool-call" | "reasoning" => message.role == Role::Assistant,
                "tool-addition" | "tool-removal" => message.role == Role::Developer,
                _ => true,
            };
            if !fits {
                return Err(GateFault::Role { seq, block: block.kind().to_owned() });
            }
        }
        if message.role == Role::Tool {
            let call = message.tool_call_id.clone().unwrap_or_else(|| "".into());
            let Some(position) = self.open.iter().position(|open| *open == call) else {
                return Err(GateFault::Orphan { seq, call });
            };
            self.open.remove(position);
        } else {
            self.closed()?;
        }
        match message.role {
            Role::User if says_nothing(message) => return Err(GateFault::EmptyUser { seq }),
            Role::Assistant => {
                let mut open: Vec<CallId> = Vec::new();
                for call in message.tool_calls() {
                    if call.id.as_str().is_empty() || open.contains(&call.id) {
                        return Err(GateFault::CallId { seq, call: call.id.clone() });
                    }
                    open.push(call.id.clone());
                }
                self.open = open;
                self.asked_by = seq;
            }
            _ => {}
        }
        self.ids.insert(message.id.clone());
        Ok(())
    }
}

/// No block at all, or none but empty text: providers refuse both.
fn says_nothing(message: &Message) -> bool {
    message.content.iter().all(|block| matches!(block, ContentBlock::Text(text) if text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, user};

    fn verdict(script: &Script) -> Result<(), (&'static str, Seq)> {
        HistoryGate::new()
            .check(&script.history, script.surface.content_generation())
            .map_err(|fault| (fault.code(), fault.seq()))
    }

    fn script(write: impl FnOnce(&mut Script)) -> Script {
        let mut script = Script::new();
        script.turn(1).step(1, 1);
        script.push(user("u", "u"));
        write(&mut script);
        script
    }

    #[test]
    fn the_table_of_faults() {
        for (expected, write) in [
            (Ok(()), (|_| {}) as fn(&mut Script)),
            (Ok(()), |s| {
                s.assistant("x", &["c1", "c2"]);
                s.result("c2", "");
                s.result("c1", "");
                s.push(user("v", "v"));
            }),
            (Err(("HISTORY_UNANSWERED_CALL", 3)), |s| {
                s.assistant("x", &["c1"]);
            }),
            (Err(("HISTORY_UNANSWERED_CALL", 3)), |s| {
                s.assistant("x", &["c1", "c2"]);
                s.result("c1", "");
                s.push(user("v", "v"));
                s.result("c2", "");
            }),
            (Err(("HISTORY_ORPHAN_RESULT", 3)), |s| {
                s.result("c1", "");
            }),
            (Err(("HISTORY_ORPHAN_RESULT", 5)), |s| {
                s.assistant("x", &["c1"]);
                s.result("c1", "");
                s.result("c1", "");
            }),
            (Err(("HISTORY_CALL_ID", 3)), |s| {
                s.assistant("x", &["c1", "c1"]);
            }),
            (Err(("HISTORY_CALL_ID", 3)), |s| {
                s.assistant("x", &[""]);
            }),
            (Err(("HISTORY_MESSAGE_ID", 3)), |s| {
                s.push(user("u", "again"));
            }),
            (Err(("HISTORY_MESSAGE_ID", 3)), |s| {
                s.push(user("", "x"));
            }),
            (Err(("HISTORY_EMPTY_USER", 3)), |s| {
                s.push_empty_user("e");
            }),
            (Err(("HISTORY_EMPTY_USER", 3)), |s| {
                s.push(user("e", ""));
            }),
        ] {
            assert_eq!(verdict(&script(write)), expected);
        }
    }

    #[test]
    fn blocks_stand_in_messages_of_their_role() {
        let mut message = Message::user("x", "x");
        message.content.push(ContentBlock::Reasoning("hm".into()));
        let mut script = Script::new();
        let body = crate::event::EventBody::UserMessage(Arc::new(message));
        script.push(crate::event::NewEvent::append(body));
        assert_eq!(verdict(&script), Err(("HISTORY_ROLE", 0)));
    }

    #[test]
    fn a_step_costs_its_own_content() {
        let mut script = script(|_| {});
        let mut gate = HistoryGate::new();
        for n in 0..100 {
            gate.check(&script.history, 0).unwrap();
            assert_eq!(gate.checked, script.history.len());
            script.push(user(&format!("u{n}"), "x"));
        }
        // Proof that the prefix is not looked at: a fault put there goes unseen in its generation,
        // and is seen in the next one.
        gate.checked = 0;
        gate.last = None;
        assert!(gate.check(&script.history, 0).is_err(), "ids are known already");
        assert_eq!(gate.check(&script.history, 1), Ok(()));
    }

    #[test]
    fn a_fault_stays_until_it_is_repaired() {
        let mut script = script(|s| {
            s.assistant("x", &["c1"]);
        });
        let mut gate = HistoryGate::new();
        for _ in 0..2 {
            assert_eq!(gate.check(&script.history, 0).unwrap_err().seq(), 3);
        }
        script.result("c1", "late");
        assert_eq!(gate.check(&script.history, 0), Ok(()));
        let empty = script.push_empty_user("e");
        script.push(user("v", "v"));
        for _ in 0..2 {
            assert_eq!(gate.check(&script.history, 0), Err(GateFault::EmptyUser { seq: empty }));
        }
        script.replace(user("f", "filled"), empty, empty);
        let generation = script.surface.content_generation();
        assert_eq!(gate.check(&script.history, generation), Ok(()));
    }

    #[test]
    fn another_history_starts_over() {
        let a = script(|s| {
            s.push(user("a", "a"));
        });
        let b = script(|s| {
            s.push_empty_user("b");
            s.push(user("c", "c"));
        });
        let mut gate = HistoryGate::new();
        gate.check(&a.history, 0).unwrap();
        assert_eq!(gate.check(&b.history, 0), Err(GateFault::EmptyUser { seq: 3 }));
        assert_eq!(gate.check(&History::new(), 0), Ok(()));
    }
}
