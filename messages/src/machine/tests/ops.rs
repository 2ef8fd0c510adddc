//! What can happen to an agent, and how random lives are drawn from it.

use proptest::{prelude::*, sample::Index};

use super::world::{
    Answer, call_delta, calls, chunks, cut, delta, fails, finish, says, throws, usage,
};
use crate::{
    chunk::{Failure, FinishReason, StreamChunk},
    event::{BudgetSpent, CancelCause, InboxTarget},
    settlement::StreamEnd,
};

#[derive(Debug, Clone)]
pub enum Op {
    Send(InboxTarget, bool),
    /// An id that may have been sent before, by a sender that knows so or does not.
    Again(u8, bool),
    Edit(Edit),
    Announce(CancelCause, bool),
    Deliver,
    Session,
    Reply,
    Complete,
    /// Several moves of whatever can move.
    Move(u8),
    /// A call starts, or gets its result, while the batch runs.
    Call(bool),
    Maintain,
    Maintained,
    World(World),
    Plugin(Plugin),
    /// All is lost but so much of the log. Its agent is resumed, or its actor has a successor.
    Crash(Index, bool),
}

/// What is asked of the inbox.
#[derive(Debug, Clone)]
pub enum Edit {
    Remove(u8),
    Replace(u8),
    Prepend(InboxTarget),
    Clear,
    /// At such a place, so many out, so many new in.
    Splice(InboxTarget, i64, i64, u8),
    /// One that was there before is put back.
    PutBack(u8),
}

/// What the world will answer.
#[derive(Debug, Clone)]
pub enum World {
    Answer(Answer),
    Reject,
    /// Enter with so many others instead.
    Rewrite(u8),
    Extra,
    Series,
    PreFails,
    Unprepared,
    Retry,
    RetryOn(bool),
    NoRetry,
    BadVerdict,
    /// The executor fails after so many calls and results.
    Executor(u8, u8),
    Stopping,
    Concludes(bool),
    /// 0 for none, 4 for one that cannot be rendered.
    Prompt(u8),
    InHistory(bool),
    ToolUpdate(u8),
    Tools(u8),
    Redefine(bool),
    Temperature(bool),
    HookedModel(bool),
    Window(bool),
    Defaults(bool),
    Fact(u8),
}

/// What plugins append.
#[derive(Debug, Clone)]
pub enum Plugin {
    Choose(bool),
    Compact(Index, Index),
    /// A tool result loses its content.
    Prune(Index),
    Note,
    User,
    Image,
    Offload(Index),
    EndSeed,
    /// A validator refuses the next event of this kind.
    Refuse(&'static str),
}

/// What the loop does with a refusal of these is to end the step or the turn.
pub const REFUSED: [&str; 6] = [
    "step/start",
    "user/message",
    "request/header",
    "request/context",
    "assistant/message",
    "assistant/attempt",
];

/// An answer as providers give it, or a piece of one.
pub fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        4 => Just(says("hi")),
        4 => Just(calls(&["c1", "c2"])),
        1 => Just(cut("par", &["c1"])),
        2 => Just(fails("X")),
        1 => Just(throws("Y")),
        1 => Just(chunks(vec![delta("open")])),
        1 => Just(chunks(vec![])),
        1 => Just(Answer::NotStarted(Failure::unknown("z"))),
        6 => stream(),
    ]
}

/// Any stream, cut anywhere. A block's index says its type, so that each has one.
fn stream() -> impl Strategy<Value = Answer> {
    let text = prop_oneof![Just("a"), Just("b c"), Just(" "), Just("")];
    let chunk = prop_oneof![
        3 => text.clone().prop_map(delta),
        2 => text.prop_map(|text| StreamChunk::ReasoningDelta { index: 1, text: text.into() }),
        3 => (2u32..5).prop_map(|index| call_delta(&format!("c{index}"), index)),
        1 => (2u32..5).prop_map(|index| call_delta("", index)),
        1 => Just(usage()),
    ];
    let failure = || Failure { status: Some(503), ..Failure::new("X", "it broke") };
    let reason = prop_oneof![
        4 => Just(FinishReason::Stop),
        3 => Just(FinishReason::ToolCalls),
        2 => Just(FinishReason::MaxTokens),
        1 => Just(FinishReason::Error { failure: failure() }),
        1 => Just(FinishReason::Aborted { failure: failure() }),
    ];
    let end = prop_oneof![
        6 => Just(StreamEnd::Ended),
        1 => Just(StreamEnd::Thrown(Failure::new("Y", "thrown"))),
    ];
    let whole = (prop::collection::vec(chunk, 0..8), reason, any::<Index>(), any::<bool>(), end);
    whole.prop_map(|(mut chunks, reason, at, is_whole, end)| {
        chunks.push(finish(reason));
        if !is_whole {
            chunks.truncate(at.index(chunks.len()));
        }
        Answer::Stream(chunks, end)
    })
}

fn world() -> impl Strategy<Value = World> {
    let flag = any::<bool>;
    prop_oneof![
        12 => answer().prop_map(World::Answer),
        1 => Just(World::Reject),
        1 => (0u8..3).prop_map(World::Rewrite),
        1 => Just(World::Extra),
        1 => Just(World::Series),
        1 => Just(World::PreFails),
        1 => Just(World::Unprepared),
        3 => Just(World::Retry),
        1 => flag().prop_map(World::RetryOn),
        1 => Just(World::NoRetry),
        1 => Just(World::BadVerdict),
        2 => (0u8..4, 0u8..3).prop_map(|(calls, results)| World::Executor(calls, results)),
        1 => Just(World::Stopping),
        1 => flag().prop_map(World::Concludes),
        5 => (0u8..5).prop_map(World::Prompt),
        3 => flag().prop_map(World::InHistory),
        2 => (0u8..3).prop_map(World::ToolUpdate),
        4 => (0u8..8).prop_map(World::Tools),
        1 => flag().prop_map(World::Redefine),
        1 => flag().prop_map(World::Temperature),
        1 => flag().prop_map(World::HookedModel),
        1 => flag().prop_map(World::Window),
        1 => flag().prop_map(World::Defaults),
        2 => (0u8..3).prop_map(World::Fact),
    ]
}

fn plugin() -> impl Strategy<Value = Plugin> {
    let index = any::<Index>;
    prop_oneof![
        2 => any::<bool>().prop_map(Plugin::Choose),
        4 => (index(), index()).prop_map(|(a, b)| Plugin::Compact(a, b)),
        2 => index().prop_map(Plugin::Prune),
        1 => Just(Plugin::Note),
        1 => Just(Plugin::User),
        1 => Just(Plugin::Image),
        1 => index().prop_map(Plugin::Offload),
        1 => Just(Plugin::EndSeed),
        2 => prop::sample::select(&REFUSED[..]).prop_map(Plugin::Refuse),
    ]
}

/// A budget of tokens that ran out.
pub fn tokens(used: u64) -> BudgetSpent {
    BudgetSpent { resource: "tokens".into(), limit: 5, used }
}

fn cause() -> impl Strategy<Value = CancelCause> {
    prop_oneof![
        6 => Just(CancelCause::User),
        3 => Just(CancelCause::Parent),
        3 => Just(CancelCause::Hook { reason: "h".into() }),
        2 => Just(CancelCause::Budget(tokens(7))),
        1 => Just(CancelCause::Disposed),
    ]
}

fn edit() -> impl Strategy<Value = Edit> {
    let target = || prop_oneof![Just(InboxTarget::NextTurn), Just(InboxTarget::NextStep)];
    prop_oneof![
        2 => any::<u8>().prop_map(Edit::Remove),
        2 => any::<u8>().prop_map(Edit::Replace),
        1 => target().prop_map(Edit::Prepend),
        1 => Just(Edit::Clear),
        2 => (target(), -4i64..8, -2i64..4, 0u8..3)
            .prop_map(|(target, at, out, new)| Edit::Splice(target, at, out, new)),
        1 => any::<u8>().prop_map(Edit::PutBack),
    ]
}

pub fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => Just(Op::Send(InboxTarget::NextTurn, true)),
        4 => Just(Op::Send(InboxTarget::NextStep, true)),
        4 => Just(Op::Send(InboxTarget::NextStep, false)),
        2 => any::<(u8, bool)>().prop_map(|(n, retry)| Op::Again(n, retry)),
        2 => edit().prop_map(Op::Edit),
        3 => (cause(), any::<bool>()).prop_map(|(cause, keep)| Op::Announce(cause, keep)),
        4 => Just(Op::Deliver),
        10 => Just(Op::Session),
        10 => Just(Op::Reply),
        8 => Just(Op::Complete),
        14 => any::<u8>().prop_map(Op::Move),
        4 => any::<bool>().prop_map(Op::Call),
        1 => Just(Op::Maintain),
        1 => Just(Op::Maintained),
        14 => world().prop_map(Op::World),
        5 => plugin().prop_map(Op::Plugin),
        1 => any::<(Index, bool)>().prop_map(|(at, resumes)| Op::Crash(at, resumes)),
    ]
}

/// A life without a crash.
pub fn life(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Op>> {
    let survives = |op: &Op| !matches!(op, Op::Crash(..));
    prop::collection::vec(op().prop_filter("a crash", survives), len)
}

/// Several lives of one session.
pub fn lives(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), len)
}
