//! Where in which turn a session stands, and the whole legality of turn and step events.

use crate::{
    candidate::Candidate,
    event::{EventBody, Seq, StepAt},
};

/// Why an event is out of place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BoundaryError {
    /// A turn starts while one is open.
    #[error("turn {open} is still open")]
    TurnOpen {
        /// The open turn.
        open: u32,
    },
    /// Turns are numbered without gaps, across resumes and forks.
    #[error("turn {found} cannot start: turn {last} was the last")]
    TurnNumber {
        /// The last turn that started.
        last: u32,
        /// The number found.
        found: u32,
    },
    /// The event belongs into a turn, and none is open.
    #[error("`{kind}` belongs into a turn, and no turn is open")]
    NoTurn {
        /// The event's type.
        kind: String,
    },
    /// The event names another turn than the open one.
    #[error("`{kind}` names turn {found}, but turn {open} is open")]
    OtherTurn {
        /// The event's type.
        kind: String,
        /// The open turn.
        open: u32,
        /// The turn that it names.
        found: u32,
    },
    /// A step starts, or the turn ends, while a step is open.
    #[error("step {open} is still open")]
    StepOpen {
        /// The open step.
        open: u32,
    },
    /// The steps of a turn are numbered without gaps.
    #[error("step {found} cannot start: step {last} was the turn's last")]
    StepNumber {
        /// The last step of the turn, 0 if none.
        last: u32,
        /// The number found.
        found: u32,
    },
    /// The event belongs into a step, and none is open.
    #[error("`{kind}` belongs into a step, and no step is open")]
    NoStep {
        /// The event's type.
        kind: String,
    },
    /// The event names another step than the open one.
    #[error("`{kind}` names step {found}, but step {open} is open")]
    OtherStep {
        /// The event's type.
        kind: String,
        /// The open step.
        open: u32,
        /// The step that it names.
        found: u32,
    },
    /// A step has one assistant message, and the model says nothing after it.
    #[error("`{kind}` after the assistant message of step {step}")]
    Settled {
        /// The event's type.
        kind: String,
        /// The step.
        step: u32,
    },
}

impl BoundaryError {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TurnOpen { .. } => "TURN_OPEN",
            Self::TurnNumber { .. } => "TURN_NUMBER",
            Self::NoTurn { .. } => "NO_OPEN_TURN",
            Self::OtherTurn { .. } => "NOT_THE_OPEN_TURN",
            Self::StepOpen { .. } => "STEP_OPEN",
            Self::StepNumber { .. } => "STEP_NUMBER",
            Self::NoStep { .. } => "NO_OPEN_STEP",
            Self::OtherStep { .. } => "NOT_THE_OPEN_STEP",
            Self::Settled { .. } => "STEP_SETTLED",
        }
    }
}

/// The turn that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenTurn {
    /// Its number.
    pub turn: u32,
    /// Its `turn/start`.
    pub start_seq: Seq,
    /// The last step that started in it, 0 if none.
    pub last_step: u32,
    /// The step that is open in it.
    pub step: Option<OpenStep>,
}

/// The step that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenStep {
    /// Its number.
    pub step: u32,
    /// Its `step/start`.
    pub start_seq: Seq,
    /// Its `assistant/message`, once there is one.
    pub settled: Option<Seq>,
    /// How many attempts ended without a message.
    pub attempts: u32,
}

/// The fold of turn and step events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Boundary {
    open: Option<OpenTurn>,
    last_turn: u32,
}

impl Boundary {
    /// Before the first turn.
    pub fn new() -> Self {
        Self::default()
    }

    /// The open turn.
    pub fn open_turn(&self) -> Option<&OpenTurn> {
        self.open.as_ref()
    }

    /// The open step.
    pub fn open_step(&self) -> Option<&OpenStep> {
        self.open.as_ref()?.step.as_ref()
    }

    /// The position of the open step.
    pub fn at(&self) -> Option<StepAt> {
        let open = self.open?;
        Some(StepAt { turn: open.turn, step: open.step?.step })
    }

    /// The number of the last turn that started, 0 if none; the next one is one more.
    pub fn last_turn(&self) -> u32 {
        self.last_turn
    }

    /// The boundary after an event, if the event is in place.
    pub fn next(&self, event: Candidate<'_>) -> Result<Self, BoundaryError> {
        let mut next = *self;
        let kind = event.body.kind();
        match event.body {
            EventBody::TurnStart(data) => {
                if let Some(open) = self.open {
                    return Err(BoundaryError::TurnOpen { open: open.turn });
                }
                if self.last_turn.checked_add(1) != Some(data.turn) {
                    return Err(BoundaryError::TurnNumber {
                        last: self.last_turn,
                        found: data.turn,
                    });
                }
                next.last_turn = data.turn;
                next.open = Some(OpenTurn {
                    turn: data.turn,
                    start_seq: event.seq,
                    last_step: 0,
                    step: None,
                });
            }
            EventBody::TurnEnd(data) => {
                let open = self.turn(kind, Some(data.turn))?;
                if let Some(step) = open.step {
                    return Err(BoundaryError::StepOpen { open: step.step });
                }
                next.open = None;
            }
            EventBody::StepStart(at) => {
                let open = self.turn(kind, Some(at.turn))?;
                if let Some(step) = open.step {
                    return Err(BoundaryError::StepOpen { open: step.step });
                }
                if open.last_step.checked_add(1) != Some(at.step) {
                    return Err(BoundaryError::StepNumber { last: open.last_step, found: at.step });
                }
                let step =
                    OpenStep { step: at.step, start_seq: event.seq, settled: None, attempts: 0 };
                next.open = Some(OpenTurn { last_step: at.step, step: Some(step), ..open });
            }
            EventBody::StepEnd(at) => {
                let (open, _) = self.step(kind, at.turn, at.step)?;
                next.open = Some(OpenTurn { step: None, ..open });
            }
            EventBody::SystemMessage(data) => {
                self.step(kind, data.turn, data.step)?;
            }
            EventBody::DeveloperMessage(data) => {
                self.step(kind, data.turn, data.step)?;
            }
            EventBody::ToolCall(data) => {
                self.step(kind, data.turn, data.step)?;
            }
            EventBody::ToolResult(data) => {
                // A rewrite keeps the position of the original, which may be in an older turn.
                if event.is_replacement() {
                    self.turn(kind, None)?;
                } else {
                    self.step(kind, data.turn, data.step)?;
                }
            }
            EventBody::AssistantMessage(data) => {
                let (open, step) = self.step(kind, data.turn, data.step)?;
                if !event.is_replacement() {
                    unsettled(kind, &step)?;
                    let step = OpenStep { settled: Some(event.seq), ..step };
                    next.open = Some(OpenTurn { step: Some(step), ..open });
                }
            }
            EventBody::AssistantAttempt(data) => {
                let (open, step) = self.step(kind, data.turn, data.step)?;
                unsettled(kind, &step)?;
                let step = OpenStep { attempts: step.attempts.saturating_add(1), ..step };
                next.open = Some(OpenTurn { step: Some(step), ..open });
            }
            EventBody::RequestHeader(_) | EventBody::RequestContext(_) => {
                self.turn(kind, None)?;
            }
            EventBody::InboxSpliced(splice) if splice.is_claim() => {
                self.turn(kind, None)?;
            }
            EventBody::InboxSpliced(_)
            | EventBody::UserMessage(_)
            | EventBody::ModelSelection(_)
            | EventBody::EndSeed(_)
            | EventBody::Custom { .. } => {}
        }
        Ok(next)
    }

    fn turn(&self, kind: &str, named: Option<u32>) -> Result<OpenTurn, BoundaryError> {
        let open = self.open.ok_or_else(|| BoundaryError::NoTurn { kind: kind.to_owned() })?;
        match named {
            Some(found) if found != open.turn => {
                Err(BoundaryError::OtherTurn { kind: kind.to_owned(), open: open.turn, found })
            }
            _ => Ok(open),
        }
    }

    fn step(
        &self,
        kind: &str,
        turn: u32,
        found: u32,
    ) -> Result<(OpenTurn, OpenStep), BoundaryError> {
        let open = self.turn(kind, Some(turn))?;
        let step = open.step.ok_or_else(|| BoundaryError::NoStep { kind: kind.to_owned() })?;
        if step.step != found {
            return Err(BoundaryError::OtherStep { kind: kind.to_owned(), open: step.step, found });
        }
        Ok((open, step))
    }
}

fn unsettled(kind: &str, step: &OpenStep) -> Result<(), BoundaryError> {
    match step.settled {
        Some(_) => Err(BoundaryError::Settled { kind: kind.to_owned(), step: step.step }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
