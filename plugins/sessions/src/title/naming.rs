//! What a session's log says of its title, and when a provider is to be asked: a machine without time
//! or I/O.

use playhouse_messages::{
    config::Route,
    event::{Event, EventBody, Seq, SurfaceOp},
    log::Log,
    message::SharedMessage,
};

use super::{TitleMode, Titled};

/// A fold of the log.
#[derive(Debug, Default)]
pub(super) struct Naming {
    next: Seq,
    pub(super) title: Option<Titled>,
    pub(super) prompts: Vec<(Seq, SharedMessage)>,
    /// Where the last request goes.
    pub(super) route: Option<Route>,
    /// Prompts up to here, exclusive, ask for no title by themselves any more.
    settled: Seq,
}

impl Naming {
    /// Over a log of which what comes before `from` asks for nothing by itself.
    pub(super) fn new(from: Seq) -> Self {
        Self { settled: from, ..Self::default() }
    }

    pub(super) fn catch_up(&mut self, log: &Log) {
        for event in log.range(self.next..log.len()) {
            self.apply(event);
        }
        self.next = log.len();
    }

    fn apply(&mut self, event: &Event) {
        match &event.body {
            EventBody::UserMessage(message)
                if event.surface == Some(SurfaceOp::Append)
                    && message.source.kind() == "user"
                    && !message.text().trim().is_empty() =>
            {
                self.prompts.push((event.seq, message.clone()));
            }
            EventBody::RequestHeader(data) => self.route = Some(data.header.config.route()),
            body => {
                if let Some(titled) = Titled::read(body) {
                    self.title = Some(titled);
                }
            }
        }
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.title.as_ref().is_some_and(Titled::is_pinned)
    }

    /// The prompts that a provider of this mode gets.
    pub(super) fn prompts(&self, mode: TitleMode) -> &[(Seq, SharedMessage)] {
        match mode {
            TitleMode::FirstPrompt => &self.prompts[..self.prompts.len().min(1)],
            TitleMode::AllPrompts => &self.prompts,
        }
    }

    /// The prompts so far ask for nothing by themselves any more: somebody has decided.
    pub(super) fn settle(&mut self) {
        self.settled = self.prompts.last().map_or(self.settled, |(newest, _)| newest + 1);
    }

    /// Whether a provider of this mode is to be asked now: there is a prompt that asks for it, and the
    /// request that the prompt is for was logged, so that its route is known. Says so once a prompt.
    pub(super) fn ask(&mut self, mode: TitleMode, is_seeded: bool) -> bool {
        let Some((newest, _)) = self.prompts(mode).last() else { return false };
        if *newest < self.settled || self.route.is_none() {
            return false;
        }
        self.settled = *newest + 1;
        let skipped = mode == TitleMode::FirstPrompt && is_seeded;
        !skipped && !self.is_pinned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use playhouse_messages::{
        config::HeaderReason,
        content::ContentBlock,
        event::{NewEvent, RequestHeader},
        message::{Message, Source},
        testing::{header, user},
    };

    use super::*;
    use crate::title::TitleSource;

    fn log(events: Vec<NewEvent>) -> Log {
        (0..).zip(events).map(|(seq, event)| Arc::new(event.at(seq, 0))).collect()
    }

    fn request() -> NewEvent {
        let (header, reason) = (Arc::new(header(&[])), HeaderReason::Initial);
        let data = RequestHeader { header, reason, starts_series: false };
        NewEvent::log_only(EventBody::RequestHeader(data))
    }

    fn titled(source: TitleSource) -> NewEvent {
        Titled { title: "T".into(), message_seqs: vec![], source }.event()
    }

    /// Whether a provider is asked after each of so many events.
    fn asked(events: &[NewEvent], mode: TitleMode, is_seeded: bool) -> Vec<bool> {
        let mut naming = Naming::default();
        let lens = 1..=events.len();
        lens.map(|len| {
            naming.catch_up(&log(events[..len].to_vec()));
            let asked = naming.ask(mode, is_seeded);
            assert!(!naming.ask(mode, is_seeded), "once a prompt");
            asked
        })
        .collect()
    }

    #[test]
    fn a_provider_is_asked_once_the_prompts_request_is_logged() {
        let events = [user("a", "one"), request(), user("b", "two"), user("c", "three")];
        assert_eq!(asked(&events, TitleMode::FirstPrompt, false), [false, true, false, false]);
        assert_eq!(asked(&events, TitleMode::FirstPrompt, true), [false; 4]);
        assert_eq!(asked(&events, TitleMode::AllPrompts, true), [false, true, true, true]);
        // What a session had before is not asked for.
        let mut resumed = Naming::new(2);
        resumed.catch_up(&log(events[..2].to_vec()));
        assert!(!resumed.ask(TitleMode::AllPrompts, false));
        resumed.catch_up(&log(events.to_vec()));
        assert!(!resumed.ask(TitleMode::FirstPrompt, false));
        assert!(resumed.ask(TitleMode::AllPrompts, false));
    }

    #[test]
    fn only_what_a_person_wrote_is_a_prompt() {
        let injected =
            Message::user_from("i", vec![ContentBlock::text("x")], Source::notice("n", "n"));
        let events = vec![
            NewEvent::append(EventBody::UserMessage(Arc::new(injected))),
            user("e", "  "),
            user("p", "hello"),
        ];
        let mut naming = Naming::default();
        naming.catch_up(&log(events));
        let seqs: Vec<_> = naming.prompts.iter().map(|(seq, _)| *seq).collect();
        assert_eq!(seqs, [2]);
    }

    #[test]
    fn a_pinned_title_asks_for_nothing() {
        let mut naming = Naming::default();
        naming.catch_up(&log(vec![user("a", "one"), request(), titled(TitleSource::User)]));
        assert!(!naming.ask(TitleMode::AllPrompts, false));
        let mut naming = Naming::default();
        naming.catch_up(&log(vec![
            user("a", "one"),
            request(),
            titled(TitleSource::User),
            titled(TitleSource::Fallback),
        ]));
        assert!(naming.ask(TitleMode::AllPrompts, false));
    }
}
