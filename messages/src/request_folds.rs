//! The latest `request/header` and `request/context` of a log.

use std::sync::Arc;

use crate::{
    config::{Header, RequestContext, ToolList},
    event::{EventBody, Seq},
};

/// What the log says of the last request. Folded over the whole log, inherited events included.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestFolds {
    header: Option<(Seq, Arc<Header>)>,
    context: Option<Arc<RequestContext>>,
}

impl RequestFolds {
    /// Before the first request.
    pub fn new() -> Self {
        Self::default()
    }

    /// The last header: the baseline that the next one is compared with.
    pub fn header(&self) -> Option<&Arc<Header>> {
        self.header.as_ref().map(|(_, header)| header)
    }

    /// The event of the last header.
    pub fn header_seq(&self) -> Option<Seq> {
        self.header.as_ref().map(|(seq, _)| *seq)
    }

    /// The last context.
    pub fn context(&self) -> Option<&Arc<RequestContext>> {
        self.context.as_ref()
    }

    /// Whether these tools differ from the last header's, in order or definition. Before the first
    /// header nothing has changed.
    pub fn tools_changed(&self, tools: &ToolList) -> bool {
        self.header().is_some_and(|header| header.tools != *tools)
    }

    /// Whether a context would have to be logged: some field differs, absence counting as a value.
    pub fn context_changed(&self, context: &RequestContext) -> bool {
        self.context.as_deref() != Some(context)
    }

    /// Folds the event at `seq`.
    pub fn apply(&mut self, seq: Seq, body: &EventBody) {
        match body {
            EventBody::RequestHeader(data) => self.header = Some((seq, data.header.clone())),
            EventBody::RequestContext(data) => self.context = Some(Arc::new(data.clone())),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, header, schema};

    fn fold(script: &Script) -> RequestFolds {
        let mut folds = RequestFolds::new();
        for event in script.log.iter() {
            folds.apply(event.seq, &event.body);
        }
        folds
    }

    #[test]
    fn the_last_header_counts_and_order_matters() {
        let mut script = Script::new();
        let tools: ToolList = Arc::new([schema("b"), schema("a")]);
        assert!(!fold(&script).tools_changed(&tools));
        script.header(&["x"]);
        script.header(&["a", "b"]);
        let folds = fold(&script);
        assert_eq!(folds.header_seq(), Some(1));
        assert_eq!(**folds.header().unwrap(), header(&["a", "b"]));
        assert!(folds.tools_changed(&tools));
        assert!(!folds.tools_changed(&header(&["a", "b"]).tools));
    }

    mod scenario {
        use super::*;

        #[test]
        fn newest_21_a_lost_context_window_is_a_change() {
            let mut script = Script::new();
            let mut context = RequestContext {
                provider: "p".into(),
                model: "m".into(),
                context_window: Some(1000),
                system_prompt_update: None,
            };
            assert!(fold(&script).context_changed(&context));
            script.log_only(EventBody::RequestContext(context.clone()));
            assert!(!fold(&script).context_changed(&context));
            context.context_window = None;
            assert!(fold(&script).context_changed(&context));
        }

        #[test]
        fn core_118_each_of_the_four_fields_is_compared() {
            let mut script = Script::new();
            script.context();
            let same = (*fold(&script).context().unwrap().clone()).clone();
            assert!(!fold(&script).context_changed(&same));
            let edits: [fn(&mut RequestContext); 4] = [
                |c| c.provider = "q".into(),
                |c| c.model = "n".into(),
                |c| c.context_window = Some(1),
                |c| c.system_prompt_update = Some(crate::config::SystemPromptUpdate::InHistory),
            ];
            for edit in edits {
                let mut other = same.clone();
                edit(&mut other);
                assert!(fold(&script).context_changed(&other));
            }
        }
    }
}
