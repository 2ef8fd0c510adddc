//! The work that the machine asks for, done as the script says.

use super::{
    rig::Rig,
    world::{Answer, says},
};
use crate::{
    machine::{Completion, Effect, Input, Recovery, Streamed},
    packed::TimedChunk,
    session::{Command, Mint},
    settlement::AttemptStream,
};

impl Rig {
    /// The work that is due gets done.
    pub fn complete(&mut self) -> bool {
        let Some(work) = self.work.take() else { return false };
        let (task, completion) = match work {
            Effect::Propose { task, claimed, .. } => {
                let told = self.core.state().runtime_context().clone();
                let id = self.mint.message_id();
                let proposal = self.world.propose(claimed, &told, id.as_str());
                (task, Completion::Proposed(proposal))
            }
            Effect::Prepare { task, seed, .. } => {
                (task, Completion::Prepared(self.world.prepare(seed)))
            }
            Effect::Dispatch { task, at, prepared, .. } => {
                let answer = self.world.answers.pop_front();
                let answer = answer.unwrap_or_else(|| says("hi"));
                let streamed = match answer {
                    Answer::NotStarted(failure) => Streamed::NotStarted(failure),
                    Answer::Stream(chunks, end) => {
                        self.attempt_open = true;
                        let config = &prepared.config;
                        let (provider, model) = (config.provider.clone(), config.model.clone());
                        let mut stream = AttemptStream::new(at, provider, model);
                        for chunk in chunks {
                            stream.push(TimedChunk { time: self.mint.now(), chunk });
                        }
                        let message_id = self.mint.message_id();
                        Streamed::Stream { stream: Box::new(stream), end, message_id }
                    }
                };
                (task, Completion::Streamed(streamed))
            }
            Effect::Recover { task, .. } => {
                let verdict = self.world.verdicts.pop_front().unwrap_or(Ok(Recovery::Fail));
                (task, Completion::Recovered(verdict))
            }
            Effect::RunTools { task, .. } => {
                let run = match self.world.executor.pop_front() {
                    Some(failure) => {
                        self.run_some_tools();
                        Err(failure)
                    }
                    None => Ok(self.run_tools()),
                };
                (task, Completion::ToolsRun(run))
            }
            Effect::Stopping { task, .. } => {
                let told = self.world.stopping.pop_front().map_or(Ok(()), Err);
                (task, Completion::Stopping(told))
            }
            Effect::Rest { task } => (task, Completion::Rested),
            work => panic!("not work: {work:?}"),
        };
        self.input(Input::Done(task, completion));
        true
    }
}

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
