//! The runtime-context snapshot: facts of the moment that the model is told as a user message, once
//! for as long as they hold.

use serde_json::json;

use crate::{
    candidate::Candidate,
    content::ContentBlock,
    event::{EventBody, Seq},
    id::MessageId,
    message::{Message, Source},
};

/// The source kind of the messages that the loop owns.
pub const RUNTIME_CONTEXT: &str = "runtime-context";

/// What a snapshot's text starts with.
pub const SNAPSHOT_HEAD: &str =
    "Current runtime context. This snapshot supersedes earlier runtime-context snapshots.";

/// What the model is told when no fact holds any more.
pub const CLEARED_TEXT: &str =
    "Current runtime context: none. Earlier runtime-context snapshots no longer apply.";

/// One fact, rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextSection {
    /// Who says so.
    pub name: String,
    /// What it says.
    pub text: String,
}

/// What the model was last told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RuntimeContext {
    /// Nothing, ever.
    #[default]
    Never,
    /// Something that it no longer sees.
    Shadowed,
    /// This, and it still sees it.
    Retained {
        /// The event that says it.
        seq: Seq,
        /// Its text; `None` if it is not one text block, which equals nothing.
        text: Option<String>,
    },
}

impl RuntimeContext {
    /// Before the first event.
    pub fn new() -> Self {
        Self::default()
    }

    /// Folds an event.
    pub fn apply(&mut self, event: Candidate<'_>) {
        match event.body {
            EventBody::UserMessage(message) if message.source.kind() == RUNTIME_CONTEXT => {
                let text = match message.content.as_slice() {
                    [ContentBlock::Text(text)] => Some(text.clone()),
                    _ => None,
                };
                *self = Self::Retained { seq: event.seq, text };
            }
            _ => {
                // A replacement cites what it shadows.
                if let Self::Retained { seq, .. } = self
                    && event.is_replacement()
                    && event.sources.contains(seq)
                {
                    *self = Self::Shadowed;
                }
            }
        }
    }

    /// The message that the model has to be told, if these facts differ from what it was told.
    pub fn candidate(
        &self,
        sections: &[ContextSection],
        id: impl FnOnce() -> MessageId,
    ) -> Option<Message> {
        let text = if sections.is_empty() {
            CLEARED_TEXT.to_owned()
        } else {
            let texts = sections.iter().map(|section| section.text.as_str());
            let parts: Vec<&str> = std::iter::once(SNAPSHOT_HEAD).chain(texts).collect();
            parts.join("\n\n")
        };
        match self {
            Self::Never if sections.is_empty() => return None,
            Self::Retained { text: Some(told), .. } if *told == text => return None,
            _ => {}
        }
        let mut source = Source::of_kind(RUNTIME_CONTEXT);
        if !sections.is_empty() {
            let sections: Vec<_> = sections
                .iter()
                .map(|ContextSection { name, text }| json!({"name": name, "text": text}))
                .collect();
            source = source.with("form", "snapshot").with("sections", sections);
        }
        Some(Message::user_from(id(), vec![ContentBlock::Text(text)], source))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        event::NewEvent,
        testing::{Script, user},
    };

    fn section(text: &str) -> Vec<ContextSection> {
        match text {
            "" => vec![],
            text => vec![ContextSection { name: "clock".into(), text: text.into() }],
        }
    }

    #[derive(Default)]
    struct Session {
        script: Script,
        context: RuntimeContext,
    }

    impl Session {
        fn push(&mut self, event: NewEvent) -> Seq {
            let seq = self.script.push(event.clone());
            self.context.apply(Candidate::new(seq, &event));
            seq
        }

        fn candidate(&self, text: &str) -> Option<String> {
            self.context.candidate(&section(text), || "ctx".into()).map(|message| message.text())
        }

        /// Tells the model if it must be told, and says what.
        fn tell(&mut self, text: &str) -> Option<String> {
            let message = self.context.candidate(&section(text), || "ctx".into())?;
            let told = message.text();
            self.push(NewEvent::append(EventBody::UserMessage(Arc::new(message))));
            Some(told)
        }
    }

    fn snapshot(text: &str) -> String {
        format!("{SNAPSHOT_HEAD}\n\n{text}")
    }

    #[test]
    fn the_sources_name_the_sections() {
        let message = RuntimeContext::Never.candidate(&section("X"), || "c".into()).unwrap();
        assert_eq!(
            serde_json::to_value(&message.source).unwrap(),
            json!({"kind": "runtime-context", "form": "snapshot", "sections": [{"name": "clock", "text": "X"}]})
        );
        let cleared = RuntimeContext::Shadowed.candidate(&[], || "c".into()).unwrap();
        assert_eq!(
            serde_json::to_value(&cleared.source).unwrap(),
            json!({"kind": "runtime-context"})
        );
        let two = [section("X"), section("Y")].concat();
        let message = RuntimeContext::Never.candidate(&two, || "c".into()).unwrap();
        assert_eq!(message.text(), format!("{SNAPSHOT_HEAD}\n\nX\n\nY"));
    }

    mod scenario {
        use super::*;

        #[test]
        fn core_119_told_once_then_on_change_then_cleared_once() {
            let mut session = Session::default();
            assert_eq!(session.tell("X"), Some(snapshot("X")));
            assert_eq!(session.tell("X"), None);
            assert_eq!(session.tell("Y"), Some(snapshot("Y")));
            assert_eq!(session.tell(""), Some(CLEARED_TEXT.to_owned()));
            assert_eq!(session.tell(""), None);
        }

        #[test]
        fn core_120_a_shadowed_snapshot_is_told_again() {
            let mut session = Session::default();
            let user_seq = session.push(user("u", "u"));
            session.tell("X");
            let replace = |seq| NewEvent::replace(user("s", "s").body, seq, seq, vec![seq]);
            session.push(replace(user_seq));
            assert_eq!(session.candidate("X"), None, "an unrelated replacement");
            session.push(replace(1));
            assert_eq!(session.context, RuntimeContext::Shadowed);
            assert_eq!(session.candidate("X"), Some(snapshot("X")));
        }

        #[test]
        fn newest_41_as_core_120_and_equal_facts_tell_nothing() {
            let mut session = Session::default();
            session.tell("X");
            session.push(NewEvent::replace(user("s", "s").body, 0, 0, vec![0]));
            assert_eq!(session.tell("X"), Some(snapshot("X")));
            assert_eq!(session.tell("X"), None);
        }

        #[test]
        fn core_121_malformed_context_is_told_again_and_cleared_once() {
            let mut session = Session::default();
            let blocks = vec![ContentBlock::text(snapshot("X")), ContentBlock::text("")];
            let odd = Message::user_from("o", blocks, Source::of_kind(RUNTIME_CONTEXT));
            session.push(NewEvent::append(EventBody::UserMessage(Arc::new(odd))));
            assert_eq!(session.candidate("X"), Some(snapshot("X")));
            session.push(NewEvent::replace(user("s", "s").body, 0, 0, vec![0]));
            assert_eq!(session.tell(""), Some(CLEARED_TEXT.to_owned()));
            assert_eq!(session.tell(""), None);
        }

        #[test]
        fn newest_42_empty_from_the_start_tells_nothing() {
            assert_eq!(Session::default().tell(""), None);
        }
    }
}
