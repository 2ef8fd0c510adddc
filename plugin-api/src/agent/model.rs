use playhouse_messages::{
    chunk::Failure,
    config::{ModelChoice, Route},
    event::{EventBody, NewEvent, SharedEvent},
};

use super::Agent;
use crate::{budget::BudgetError, session::SessionError};

/// Which model an agent uses: see [`Agent::model`].
#[derive(Debug, Clone, Copy)]
pub struct AgentModel<'a>(&'a Agent);

/// Why a model was not selected.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// A part of the choice is empty.
    #[error("a model selection needs a {field} that is not empty{hint}")]
    Empty {
        /// Which part.
        field: &'static str,
        /// The way out.
        hint: &'static str,
    },
    /// A cost budget counts, and the route has no price.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The log refuses it, or nobody can append any more.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl SelectError {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Empty { .. } => "INVALID_MODEL_SELECTION",
            Self::Budget(error) => error.code(),
            Self::Session(error) => error.code(),
        }
    }
}

impl From<SelectError> for Failure {
    fn from(error: SelectError) -> Self {
        match error {
            SelectError::Session(error) => error.into(),
            error => Self::new(error.code(), error.to_string()),
        }
    }
}

impl Agent {
    /// Which model it uses, and how to select another.
    pub fn model(&self) -> AgentModel<'_> {
        AgentModel(self)
    }
}

impl AgentModel<'_> {
    /// What the next step would use: the session's choice, or that of the agent's options.
    pub fn current(&self) -> Option<ModelChoice> {
        let view = self.0.session().view();
        view.selection.next().or(self.0.options().model.as_ref()).cloned()
    }

    /// What was selected and no request has used yet.
    pub fn pending(&self) -> Option<ModelChoice> {
        self.0.session().view().selection.pending.clone()
    }

    /// What the last request used; an effort only if somebody chose it.
    pub fn last_used(&self) -> Option<ModelChoice> {
        self.0.session().view().selection.last_used.clone()
    }

    /// Records the choice in the log. It holds from the next step on, also of a turn that runs, and
    /// over a resume; a step that has begun keeps its model. A choice without effort takes the
    /// adapter's default.
    ///
    /// Nothing checks that the route is served: that the next request finds out. Resolves once
    /// **accepted**; dropping the future does not take the choice back.
    ///
    /// # Errors
    ///
    /// `INVALID_MODEL_SELECTION` for an empty provider, model or effort; `UNPRICED_ROUTE` if a cost
    /// budget counts; `DISPOSED`.
    pub async fn select(&self, choice: ModelChoice) -> Result<SharedEvent, SelectError> {
        let empty = |field, hint| Err(SelectError::Empty { field, hint });
        if choice.provider.is_empty() {
            return empty("provider", "");
        }
        if choice.model.is_empty() {
            return empty("model", "");
        }
        if choice.reasoning_effort.as_deref() == Some("") {
            return empty("reasoning effort", "; leave it out for the adapter's default");
        }
        if let Some(account) = self.0.account() {
            account.check_route(&Route::new(&choice.provider, &choice.model))?;
        }
        let event = NewEvent::log_only(EventBody::ModelSelection(choice));
        Ok(self.0.session().append(event).await?)
    }
}
