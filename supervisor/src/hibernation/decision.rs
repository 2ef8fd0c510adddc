//! Whether an agent may hibernate: a pure function of what is known of it.

use playhouse_messages::id::SessionId;

/// What is known of an agent at one moment, with senders held back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The blueprint that it was made from.
    pub blueprint: Option<String>,
    /// Whether that is registered, so that it could be made again.
    pub registered: bool,
    /// Whether a store keeps its session.
    pub stored: bool,
    /// How many events at the end of its log are not durable.
    pub undurable: u64,
    /// Whether nothing runs and nobody else has it for themselves: no turn, no maintenance.
    pub idle: bool,
    /// Whether it is being disposed.
    pub disposing: bool,
    /// Prompts that wait for a turn, and with them whoever waits for their results.
    pub prompts: usize,
    /// Live agents that it delegated to or owns.
    pub children: Vec<SessionId>,
    /// Those that are being made and that it will own.
    pub making: usize,
    /// What it was told to stay awake for.
    pub held: Vec<String>,
    /// Registrations in its scope that its set-up does not make again.
    pub registrations: usize,
    /// Tasks in its scope beyond those of its set-up.
    pub tasks: usize,
}

/// What keeps an agent awake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Awake {
    /// It was made without a blueprint, so nobody could make it again.
    #[error("it was not made from a blueprint; make it with `NewAgent::blueprint`")]
    NoBlueprint,
    /// Its blueprint is not registered any more.
    #[error("its blueprint \"{name}\" is not registered any more")]
    BlueprintGone {
        /// The blueprint.
        name: String,
    },
    /// Its session is in memory only.
    #[error("its session is kept in memory only; give the harness a store")]
    NoStore,
    /// The end of its log is not durable.
    #[error("{events} events of its log are not durable yet")]
    Undurable {
        /// How many.
        events: u64,
    },
    /// A turn or a maintenance runs, or its actor is just being restarted.
    #[error("it is at work; wait with `when_idle`")]
    Busy,
    /// It is being disposed.
    #[error("it is being disposed")]
    Disposing,
    /// Prompts wait for a turn.
    #[error("{prompts} prompts wait for a turn; wake it with another one, or cancel them")]
    Prompts {
        /// How many.
        prompts: usize,
    },
    /// Agents live below it.
    #[error("agents live below it ({}); wait for them, or dispose them", named(.children, *.making))]
    Children {
        /// Those that live.
        children: Vec<SessionId>,
        /// How many are being made.
        making: usize,
    },
    /// Somebody said so, as a job that runs for it.
    #[error("it is kept awake for {reason}")]
    Held {
        /// For what.
        reason: String,
    },
    /// Its scope holds what its set-up would not bring back.
    #[error(
        "{registrations} registrations and {tasks} tasks of its scope came after its set-up, and would \
         not be there when it wakes; make them in the blueprint's set-up"
    )]
    Tied {
        /// Registrations.
        registrations: usize,
        /// Tasks.
        tasks: usize,
    },
}

impl Awake {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoBlueprint => "NO_BLUEPRINT",
            Self::BlueprintGone { .. } => "UNKNOWN_BLUEPRINT",
            Self::NoStore => "NO_STORE",
            Self::Undurable { .. } => "UNDURABLE",
            Self::Busy => "AGENT_BUSY",
            Self::Disposing => "DISPOSING",
            Self::Prompts { .. } => "PROMPTS_WAIT",
            Self::Children { .. } => "CHILDREN_LIVE",
            Self::Held { .. } => "HELD_AWAKE",
            Self::Tied { .. } => "TIED",
        }
    }
}

/// All that keeps an agent awake; it may hibernate if nothing does.
pub fn awake(facts: Facts) -> Vec<Awake> {
    let Facts {
        registered, stored, undurable, idle, disposing, prompts, registrations, tasks, ..
    } = facts;
    let mut reasons = Vec::new();
    match facts.blueprint {
        None => reasons.push(Awake::NoBlueprint),
        Some(name) if !registered => reasons.push(Awake::BlueprintGone { name }),
        Some(_) => {}
    }
    let (children, making) = (facts.children, facts.making);
    reasons.extend((!stored).then_some(Awake::NoStore));
    reasons.extend((stored && undurable > 0).then_some(Awake::Undurable { events: undurable }));
    reasons.extend(disposing.then_some(Awake::Disposing));
    reasons.extend((!idle && !disposing).then_some(Awake::Busy));
    reasons.extend((prompts > 0).then_some(Awake::Prompts { prompts }));
    if !children.is_empty() || making > 0 {
        reasons.push(Awake::Children { children, making });
    }
    reasons.extend(facts.held.into_iter().map(|reason| Awake::Held { reason }));
    if registrations > 0 || tasks > 0 {
        reasons.push(Awake::Tied { registrations, tasks });
    }
    reasons
}

/// Reasons in one line.
pub(super) fn listed(reasons: &[Awake]) -> String {
    reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn named(children: &[SessionId], making: usize) -> String {
    let mut names: Vec<_> = children.iter().map(|id| format!("\"{id}\"")).collect();
    names.extend((making > 0).then(|| format!("{making} being made")));
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of an agent that may.
    fn asleep() -> Facts {
        let blueprint = Some("clerk".to_owned());
        Facts { blueprint, registered: true, stored: true, idle: true, ..Facts::default() }
    }

    fn codes(facts: Facts) -> Vec<&'static str> {
        awake(facts).iter().map(Awake::code).collect()
    }

    #[test]
    fn each_fact_alone_keeps_it_awake() {
        assert_eq!(codes(asleep()), [""; 0]);
        type Change = fn(&mut Facts);
        let table: [(Change, &str); 13] = [
            (|facts| facts.blueprint = None, "NO_BLUEPRINT"),
            (|facts| facts.registered = false, "UNKNOWN_BLUEPRINT"),
            (|facts| facts.stored = false, "NO_STORE"),
            (|facts| facts.undurable = 1, "UNDURABLE"),
            (|facts| facts.idle = false, "AGENT_BUSY"),
            (|facts| facts.disposing = true, "DISPOSING"),
            (|facts| (facts.idle, facts.disposing) = (false, true), "DISPOSING"),
            (|facts| facts.prompts = 1, "PROMPTS_WAIT"),
            (|facts| facts.children = vec!["c".into()], "CHILDREN_LIVE"),
            (|facts| facts.making = 1, "CHILDREN_LIVE"),
            (|facts| facts.held = vec!["job 7".into()], "HELD_AWAKE"),
            (|facts| facts.registrations = 1, "TIED"),
            (|facts| facts.tasks = 1, "TIED"),
        ];
        for (change, code) in table {
            let mut facts = asleep();
            change(&mut facts);
            assert_eq!(codes(facts.clone()), [code], "{facts:?}");
        }
    }

    #[test]
    fn a_refusal_lists_all_reasons() {
        let facts = Facts {
            children: vec!["a".into(), "b".into()],
            making: 2,
            held: vec!["job 1".into(), "job 2".into()],
            ..Facts::default()
        };
        let reasons = awake(facts);
        let codes: Vec<_> = reasons.iter().map(Awake::code).collect();
        let all = ["NO_BLUEPRINT", "NO_STORE", "AGENT_BUSY", "CHILDREN_LIVE"];
        assert_eq!(codes, [&all[..], &["HELD_AWAKE"; 2]].concat());
        let line = listed(&reasons);
        assert!(line.contains("\"a\", \"b\", 2 being made") && line.contains("job 2"), "{line}");
    }
}
