//! What commands and work are called in tests.

use crate::{machine::Effect, session::Command};

pub fn name_of(command: &Command) -> &'static str {
    match command {
        Command::Accept(_) => "Accept",
        Command::Edit(_) => "Edit",
        Command::OpenTurn { .. } => "OpenTurn",
        Command::Claim => "Claim",
        Command::StartStep(_) => "StartStep",
        Command::Admit(_) => "Admit",
        Command::Settle(_) => "Settle",
        Command::EndStep { .. } => "EndStep",
        Command::CloseTurn { .. } => "CloseTurn",
        Command::Repair { .. } => "Repair",
        Command::Append(_) => "Append",
    }
}

pub fn work_name(work: &Effect) -> &'static str {
    match work {
        Effect::Propose { .. } => "Propose",
        Effect::Prepare { .. } => "Prepare",
        Effect::Dispatch { .. } => "Dispatch",
        Effect::Recover { .. } => "Recover",
        Effect::RunTools { .. } => "RunTools",
        Effect::Stopping { .. } => "Stopping",
        Effect::Rest { .. } => "Rest",
        _ => "none",
    }
}
