//! Which model the session uses next.

use crate::{
    config::{CallConfig, Header, ModelChoice},
    event::EventBody,
};

/// The fold of recorded choices and of what requests used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelSelection {
    /// What the last request used; an effort only if somebody chose it.
    pub last_used: Option<ModelChoice>,
    /// What was chosen and no request used yet.
    pub pending: Option<ModelChoice>,
}

impl ModelSelection {
    /// Nothing chosen, nothing used.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the next step uses, if the session says so; else the agent's options decide.
    pub fn next(&self) -> Option<&ModelChoice> {
        self.pending.as_ref().or(self.last_used.as_ref())
    }

    /// Whether [`ModelSelection::apply`] heeds the event.
    pub fn is_changed_by(body: &EventBody) -> bool {
        matches!(body, EventBody::ModelSelection(_) | EventBody::RequestHeader(_))
    }

    /// Folds an event.
    pub fn apply(&mut self, body: &EventBody) {
        match body {
            EventBody::ModelSelection(choice) => self.pending = Some(choice.clone()),
            EventBody::RequestHeader(data) => {
                let used = explicit_choice(&data.header);
                if self.pending.as_ref() == Some(&used) {
                    self.pending = None;
                }
                self.last_used = Some(used);
            }
            _ => {}
        }
    }
}

/// The choice that a header stands for. An adapter's default effort is nobody's choice: kept, it
/// would be carried over to a route where it means something else.
fn explicit_choice(header: &Header) -> ModelChoice {
    let CallConfig { provider, model, reasoning_effort, .. } = &header.config;
    let explicit = !header.adapter_defaults.reasoning_effort;
    ModelChoice {
        provider: provider.clone(),
        model: model.clone(),
        reasoning_effort: reasoning_effort.clone().filter(|_| explicit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::HeaderReason, testing::Script};

    fn choice(model: &str, effort: Option<&str>) -> ModelChoice {
        ModelChoice {
            provider: "p".into(),
            model: model.into(),
            reasoning_effort: effort.map(Into::into),
        }
    }

    fn header(model: &str, effort: Option<&str>, defaulted: bool) -> EventBody {
        let mut header = crate::testing::header(&[]);
        header.config.model = model.into();
        header.config.reasoning_effort = effort.map(Into::into);
        header.adapter_defaults.reasoning_effort = defaulted;
        let mut script = Script::new();
        script.header_for(header, HeaderReason::Initial);
        script.log.get(0).unwrap().body.clone()
    }

    fn fold(bodies: &[EventBody]) -> ModelSelection {
        let mut selection = ModelSelection::new();
        for body in bodies {
            selection.apply(body);
        }
        selection
    }

    #[test]
    fn another_effort_keeps_the_choice_pending() {
        let selection = fold(&[
            EventBody::ModelSelection(choice("m", Some("high"))),
            header("m", Some("low"), false),
        ]);
        assert_eq!(selection.next(), Some(&choice("m", Some("high"))));
        assert_eq!(selection.last_used, Some(choice("m", Some("low"))));
        assert_eq!(fold(&[]).next(), None);
    }

    mod scenario {
        use super::*;

        #[test]
        fn newest_23_an_adapter_default_effort_is_not_carried_over() {
            let selection = fold(&[header("m", Some("medium"), true)]);
            assert_eq!(selection.next(), Some(&choice("m", None)));
            let selection = fold(&[header("m", Some("medium"), false)]);
            assert_eq!(selection.next(), Some(&choice("m", Some("medium"))));
        }

        #[test]
        fn newest_33_a_choice_recorded_after_the_header_is_next() {
            let selection =
                fold(&[header("a", None, false), EventBody::ModelSelection(choice("b", None))]);
            assert_eq!(selection.next(), Some(&choice("b", None)));
            assert_eq!(selection.last_used, Some(choice("a", None)));
        }

        #[test]
        fn newest_35_the_log_s_last_choice_stands_on_resume() {
            let selection = fold(&[
                header("a", None, false),
                EventBody::ModelSelection(choice("b", None)),
                EventBody::ModelSelection(choice("c", None)),
            ]);
            assert_eq!(selection.next(), Some(&choice("c", None)));
        }

        #[test]
        fn newest_36_a_header_that_serves_the_choice_clears_it() {
            let chosen = EventBody::ModelSelection(choice("b", None));
            let selection = fold(&[chosen.clone(), header("b", None, false)]);
            assert_eq!(
                selection,
                ModelSelection { last_used: Some(choice("b", None)), pending: None }
            );
            // Served with the adapter's default effort, too.
            assert_eq!(fold(&[chosen, header("b", Some("medium"), true)]).pending, None);
        }
    }
}
