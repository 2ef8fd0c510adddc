//! What happens in a simulated world: a pure function of the seed.

use std::{fmt, time::Duration};

use fastrand::Rng;
use playhouse_messages::event::CancelCause;
use playhouse_models::scripted::{Arguments, Call, Chunking, Fault, FaultKind, Reply};
use serde_json::json;

use crate::{Durability, testing::StoreOp};

/// The routes that models are served under.
pub(super) const ROUTES: [&str; 2] = ["north", "south"];

/// Everything that is decided before the world starts.
#[derive(Debug)]
pub struct Plan {
    /// What it was made of.
    pub seed: u64,
    pub(super) agents: Vec<AgentPlan>,
    /// Each client does one thing after the other.
    pub(super) clients: Vec<Vec<Beat<Deed>>>,
    pub(super) mischief: Vec<Beat<Mischief>>,
    /// What the model of each route answers, in order; then only texts.
    pub(super) replies: [Vec<Reply>; 2],
    /// How each life of the harness ends; the last one in order.
    pub(super) lives: Vec<Ending>,
    pub(super) odds: Odds,
    pub(super) grace: Duration,
}

#[derive(Debug, Clone)]
pub(super) struct AgentPlan {
    pub(super) durability: Durability,
    pub(super) max_steps: u32,
}

/// Something that is done after a wait.
#[derive(Debug, Clone)]
pub(super) struct Beat<T> {
    pub(super) after: Duration,
    pub(super) what: T,
}

/// What a client may do to an agent.
#[derive(Debug, Clone)]
pub(super) struct Deed {
    pub(super) agent: usize,
    pub(super) kind: DeedKind,
}

#[derive(Debug, Clone)]
pub(super) enum DeedKind {
    Followup,
    /// Sends and waits for the outcome.
    Prompt,
    Steer,
    Inject,
    /// Sends a message that was acknowledged before.
    SendAgain,
    /// Sends, and does not wait for the answer.
    SendAndGo,
    Edit(Edit),
    Cancel {
        cause: CancelCause,
        keep_inbox: bool,
    },
    CancelTree,
    WhenIdle,
    Select {
        route: usize,
    },
    Maintain {
        hold: Duration,
    },
    Flush,
    Append,
    Dispose {
        keep_inbox: bool,
    },
    Resume,
}

#[derive(Debug, Clone)]
pub(super) enum Edit {
    Prepend,
    Replace,
    Remove,
    Clear,
    Splice,
}

/// What is done to the world behind everybody's back.
#[derive(Debug, Clone)]
pub(super) enum Mischief {
    /// Kills an actor that the agent of this index, among those alive, depends on.
    Kill {
        victim: Prey,
        agent: usize,
    },
    KillRoot,
    FailStore {
        op: StoreOp,
        times: usize,
        full: bool,
    },
    HealStore,
    SetParallel(usize),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Prey {
    Agent,
    Session,
    Writer,
    Supervisor,
    Provider,
    ToolExecutor,
}

/// How a life of the harness ends.
#[derive(Debug, Clone)]
pub(super) enum Ending {
    /// It is gone at once; with the power, what was not durable may be gone too.
    Crash { after: Duration, power: bool },
    /// It is shut down, while clients still work.
    Shutdown { after: Duration },
    /// Everybody finishes first.
    Rest,
}

/// How often things that are decided on the way go wrong, in a thousand.
#[derive(Debug, Clone, Default)]
pub(super) struct Odds {
    pub(super) hooks: u32,
    pub(super) retry: u32,
    pub(super) messages: u32,
    pub(super) store_slow: u32,
    pub(super) store_late: u32,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let rng = &mut rng;
        let agents: Vec<_> = (0..rng.usize(1..=3)).map(|_| agent(rng)).collect();
        let clients = (0..rng.usize(1..=3)).map(|_| {
            let deeds = rng.usize(2..=7);
            (0..deeds).map(|_| beat(rng, 400, |rng| deed(rng, agents.len()))).collect()
        });
        let clients = clients.collect();
        let troubled = rng.u8(0..10) < 8;
        let mischief = if troubled { rng.usize(0..=5) } else { 0 };
        let mischief = (0..mischief).map(|_| beat(rng, 300, mischievous)).collect();
        let replies = [(); 2].map(|()| {
            let count = rng.usize(2..=14);
            (0..count).map(|_| reply(rng)).collect()
        });
        let mut lives: Vec<_> = (0..rng.usize(0..=2)).map(|_| ending(rng)).collect();
        lives.push(Ending::Rest);
        let often = |rng: &mut Rng, most| if rng.bool() { rng.u32(0..=most) } else { 0 };
        let odds = Odds {
            hooks: often(rng, 120),
            retry: often(rng, 900),
            messages: often(rng, 250),
            store_slow: often(rng, 400),
            store_late: if rng.u8(0..4) == 0 { rng.u32(0..=60) } else { 0 },
        };
        let grace = Duration::from_millis(*pick(rng, &[50, 1_000, 10_000]));
        Self { seed, agents, clients, mischief, replies, lives, odds, grace }
    }
}

/// For a report: what a reader needs to see why something happened.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} agents: {:?}", self.agents.len(), self.agents)?;
        writeln!(f, "grace {:?}, {:?}", self.grace, self.odds)?;
        writeln!(f, "lives: {:?}", self.lives)?;
        for (number, deeds) in self.clients.iter().enumerate() {
            for Beat { after, what } in deeds {
                writeln!(
                    f,
                    "client {number}: after {after:?}, agent {}: {:?}",
                    what.agent, what.kind
                )?;
            }
        }
        for Beat { after, what } in &self.mischief {
            writeln!(f, "mischief: after {after:?}: {what:?}")?;
        }
        Ok(())
    }
}

pub(super) fn pick<'a, T>(rng: &mut Rng, of: &'a [T]) -> &'a T {
    &of[rng.usize(..of.len())]
}

/// Picks by weight.
fn weighted<'a, T>(rng: &mut Rng, of: &'a [(u32, T)]) -> &'a T {
    let all: u32 = of.iter().map(|(weight, _)| weight).sum();
    let mut at = rng.u32(..all);
    for (weight, what) in of {
        if at < *weight {
            return what;
        }
        at -= weight;
    }
    unreachable!("the draw is below the sum of the weights")
}

/// A wait of mostly little, so that things meet.
fn wait(rng: &mut Rng, most: u64) -> Duration {
    let most = *pick(rng, &[0, 3, 40, most]);
    Duration::from_millis(rng.u64(0..=most))
}

fn beat<T>(rng: &mut Rng, most: u64, what: impl FnOnce(&mut Rng) -> T) -> Beat<T> {
    Beat { after: wait(rng, most), what: what(rng) }
}

fn agent(rng: &mut Rng) -> AgentPlan {
    let durability =
        *weighted(rng, &[(6, Durability::Strict), (2, Durability::Relaxed), (1, Durability::None)]);
    AgentPlan { durability, max_steps: *pick(rng, &[2, 5, 100]) }
}

fn deed(rng: &mut Rng, agents: usize) -> Deed {
    let keep_inbox = rng.bool();
    let kinds = [
        (22, DeedKind::Followup),
        (10, DeedKind::Prompt),
        (9, DeedKind::Steer),
        (6, DeedKind::Inject),
        (4, DeedKind::SendAgain),
        (4, DeedKind::SendAndGo),
        (8, DeedKind::Edit(edit(rng))),
        (10, DeedKind::Cancel { cause: cause(rng), keep_inbox }),
        (4, DeedKind::CancelTree),
        (6, DeedKind::WhenIdle),
        (4, DeedKind::Select { route: rng.usize(..ROUTES.len()) }),
        (4, DeedKind::Maintain { hold: wait(rng, 200) }),
        (4, DeedKind::Flush),
        (3, DeedKind::Append),
        (4, DeedKind::Dispose { keep_inbox }),
        (6, DeedKind::Resume),
    ];
    Deed { agent: rng.usize(..agents), kind: weighted(rng, &kinds).clone() }
}

fn edit(rng: &mut Rng) -> Edit {
    pick(rng, &[Edit::Prepend, Edit::Replace, Edit::Remove, Edit::Clear, Edit::Splice]).clone()
}

fn cause(rng: &mut Rng) -> CancelCause {
    let hook = CancelCause::Hook { reason: "simulated".to_owned() };
    pick(rng, &[CancelCause::User, CancelCause::User, CancelCause::Parent, hook]).clone()
}

fn mischievous(rng: &mut Rng) -> Mischief {
    let prey = [
        (4, Prey::Agent),
        (4, Prey::Session),
        (4, Prey::Writer),
        (3, Prey::Supervisor),
        (3, Prey::Provider),
        (3, Prey::ToolExecutor),
    ];
    let ops = [
        (5, StoreOp::Append),
        (5, StoreOp::Flush),
        (4, StoreOp::Tail),
        (1, StoreOp::Close),
        (1, StoreOp::Create),
        (1, StoreOp::OpenWrite),
    ];
    match rng.u32(0..100) {
        0..55 => Mischief::Kill { victim: *weighted(rng, &prey), agent: rng.usize(0..8) },
        55..57 => Mischief::KillRoot,
        57..87 => Mischief::FailStore {
            op: *weighted(rng, &ops),
            times: *pick(rng, &[1, 1, 2, 5, 1_000]),
            full: rng.bool(),
        },
        87..96 => Mischief::HealStore,
        _ => Mischief::SetParallel(rng.usize(1..=3)),
    }
}

fn ending(rng: &mut Rng) -> Ending {
    let after = Duration::from_millis(rng.u64(0..=900));
    match rng.u8(0..10) {
        0..4 => Ending::Crash { after, power: false },
        4..7 => Ending::Crash { after, power: true },
        7..9 => Ending::Shutdown { after },
        _ => Ending::Rest,
    }
}

fn reply(rng: &mut Rng) -> Reply {
    let fault =
        |rng: &mut Rng, kind| words(rng).with_fault(Fault::new(kind).after(rng.usize(0..=4)));
    let reply = match rng.u32(0..100) {
        0..30 => words(rng),
        30..34 => words(rng).with_reasoning("Let me think about it."),
        34..62 => calls(rng, 3),
        62..66 => calls(rng, 9),
        66..72 => delegation(rng),
        72..75 => words(rng).with_finish("length"),
        75..78 => Reply::default(),
        78..80 => words(rng).with_finish("content_filter"),
        80..87 => {
            let code = *pick(rng, &["RATE_LIMIT", "SERVER", "TRANSPORT", "AUTHENTICATION"]);
            Reply::error(code, "simulated")
        }
        87..91 => fault(rng, FaultKind::Stall),
        91..94 => fault(rng, FaultKind::Cut),
        94..97 => fault(rng, FaultKind::Disconnect),
        97..98 => fault(rng, FaultKind::Malformed),
        _ => calls(rng, 2).with_fault(Fault::new(FaultKind::Disconnect).after(rng.usize(0..=3))),
    };
    let chunking = if rng.bool() { Chunking::Words } else { Chunking::Chars(7) };
    reply.chunked(chunking).paced(*pick(rng, &[0, 0, 5, 60]), *pick(rng, &[0, 0, 2, 20]))
}

fn words(rng: &mut Rng) -> Reply {
    let all = ["one", "answer", "of", "a", "few", "words", "or", "more"];
    Reply::text((0..rng.usize(1..=8)).map(|at| all[at]).collect::<Vec<_>>().join(" "))
}

fn calls(rng: &mut Rng, most: usize) -> Reply {
    let calls = (0..rng.usize(1..=most)).map(|_| call(rng)).collect();
    let text = rng.bool().then(|| "Calling.".to_owned());
    Reply { calls, text, ..Reply::default() }
}

fn call(rng: &mut Rng) -> Call {
    let how = [
        (20, "succeed"),
        (8, "fail"),
        (4, "panic"),
        (3, "ignore"),
        (6, "steer"),
        (4, "inject"),
        (3, "append"),
        (4, "note"),
        (3, "conclude"),
        (4, "delegate"),
        (2, "cancel"),
        (2, "select"),
        (2, "restrict"),
        (5, "kill"),
    ];
    let (how, ms) = (*weighted(rng, &how), wait(rng, 300).as_millis() as u64);
    let (name, arguments) = match rng.u32(0..100) {
        0..48 => ("look", Arguments::Json(json!({"how": how, "ms": ms}))),
        48..92 => ("act", Arguments::Json(json!({"how": how, "ms": ms}))),
        92..95 => ("missing", Arguments::Json(json!({}))),
        95..98 => ("look", Arguments::Json(json!({"how": 1}))),
        _ => ("act", Arguments::Raw("{\"how\":".to_owned())),
    };
    Call { name: name.to_owned(), arguments, id: None }
}

fn delegation(rng: &mut Rng) -> Reply {
    let calls = (0..rng.usize(1..=2)).map(|_| Call {
        name: "subagent".to_owned(),
        arguments: Arguments::Json(json!({"description": "look", "prompt": "Look around."})),
        id: None,
    });
    Reply { calls: calls.collect(), ..Reply::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_one_plan() {
        for seed in 0..50 {
            assert_eq!(format!("{:?}", Plan::of(seed)), format!("{:?}", Plan::of(seed)));
        }
        assert_ne!(format!("{:?}", Plan::of(1)), format!("{:?}", Plan::of(2)));
    }
}
