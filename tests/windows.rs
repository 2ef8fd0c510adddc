//! The windows in which a cancel can meet a turn, over the real actors: window by cause by whether
//! pending input is kept.
//!
//! A window is a place in code that a turn runs: a hook, a model's stream, a tool's body, or the
//! commit of an event. A probe there cancels the agent, synchronously, so nothing is left to chance.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use playhouse::{
    Agent, AgentHandle, AgentOptions, CancelCause, CancelToken, ContentBlock, Failure, Harness,
    NewAgent, Recovery, TurnEndReason,
    messages::{
        candidate::Candidate,
        chunk::{FinishReason, StreamChunk},
        config::Route,
        content::ToolCallBlock,
        event::InboxTarget,
        frame::Frame as LiveFrame,
        validator::{Trace, Validator},
    },
    plugin_api::{
        hook::Next,
        llm::{EncodeInput, Frame, FrameInput, LlmAdapter, LlmRequest, ModelInfo},
        prompt::Section,
    },
    testing::word,
    tool_fn,
};

use crate::lifecycle::rig::{Nothing, soon};

/// Cancels an agent at one place, once.
struct Probe {
    place: &'static str,
    agent: Mutex<Option<Agent>>,
    cause: CancelCause,
    keep: bool,
    fired: AtomicBool,
}

impl Probe {
    /// Called at every place.
    fn at(&self, place: &str) {
        let agent = self.agent.lock().unwrap().clone();
        if let (true, Some(agent)) = (self.place == place, agent)
            && !self.fired.swap(true, Ordering::SeqCst)
        {
            agent.cancel_with(self.cause.clone(), self.keep);
        }
    }

    /// As [`Probe::at`], for a place whose code fails right after it was cancelled.
    fn fails_at(&self, place: &str) -> Result<(), Failure> {
        let before = self.fired.load(Ordering::SeqCst);
        self.at(place);
        let fired = self.fired.load(Ordering::SeqCst) && !before;
        if fired { Err(Failure::new("X", "after the cancel")) } else { Ok(()) }
    }
}

/// What the model says in the first turn.
#[derive(Clone, Copy)]
enum Says {
    /// One word.
    Text,
    /// It thinks, and is never done.
    Reasoning,
    /// Blanks, and is never done.
    Blank,
    /// Half a tool call, and is never done.
    HalfCall,
    /// Two calls.
    Calls,
    /// A failure.
    Fails,
}

struct Model {
    probe: Arc<Probe>,
    says: Mutex<Option<Says>>,
}

fn start(index: u32, kind: &str) -> StreamChunk {
    StreamChunk::BlockStart { index, block_type: kind.into() }
}

fn text(text: &str) -> StreamChunk {
    StreamChunk::TextDelta { index: 0, text: text.into() }
}

fn call(index: u32, id: &str) -> [StreamChunk; 2] {
    let block = ToolCallBlock { id: id.into(), name: "work".into(), arguments: "{}".into() };
    [
        start(index, "tool-call"),
        StreamChunk::BlockEnd { index, block: ContentBlock::ToolCall(block) },
    ]
}

fn finish(reason: FinishReason) -> StreamChunk {
    StreamChunk::Finish { reason, replay_state: None }
}

impl Model {
    /// The chunks before the middle of the answer, those after it, and whether it ever ends.
    fn script(says: Says) -> (Vec<StreamChunk>, Vec<StreamChunk>, bool) {
        let end = |text: &str| StreamChunk::BlockEnd { index: 0, block: ContentBlock::text(text) };
        match says {
            Says::Text => {
                let after = vec![end("He"), finish(FinishReason::Stop)];
                (vec![start(0, "text"), text("He")], after, true)
            }
            Says::Reasoning => {
                let thought = StreamChunk::ReasoningDelta { index: 0, text: "hm".into() };
                (vec![start(0, "reasoning"), thought], vec![], false)
            }
            Says::Blank => (vec![start(0, "text"), text(" \n")], vec![], false),
            Says::HalfCall => {
                let half = StreamChunk::ToolCallDelta {
                    index: 0,
                    id: "c1".into(),
                    name: Some("work".into()),
                    arguments_delta: "{".into(),
                };
                (vec![start(0, "tool-call"), half], vec![], false)
            }
            Says::Calls => {
                let calls = [call(0, "c1"), call(1, "c2")].concat();
                (calls, vec![finish(FinishReason::ToolCalls)], true)
            }
            Says::Fails => {
                let failure = Failure::new("SERVER", "down");
                (vec![], vec![finish(FinishReason::Error { failure })], true)
            }
        }
    }
}

impl LlmAdapter for Model {
    fn resolve<'a>(
        &'a self,
        route: &'a Route,
        _: &'a CancelToken,
    ) -> BoxFuture<'a, Result<ModelInfo, Failure>> {
        self.probe.at("resolve");
        let (provider, id) = (route.provider.clone(), route.model.clone());
        let info = ModelInfo { provider, name: id.clone(), id, ..ModelInfo::default() };
        async { Ok(info) }.boxed()
    }

    fn encode(&self, _: &EncodeInput<'_>) -> Result<bytes::Bytes, Failure> {
        Ok(bytes::Bytes::new())
    }

    fn frame(&self, _: &FrameInput<'_>) -> Result<Frame, Failure> {
        Ok(Frame::default())
    }

    fn stream(&self, _: LlmRequest) -> BoxStream<'static, Result<StreamChunk, Failure>> {
        let says = self.says.lock().unwrap().take().unwrap_or(Says::Text);
        let (before, after, ends) = Self::script(says);
        self.probe.at("dispatch");
        let agent = self.probe.agent.lock().unwrap().clone();
        let mut frames = agent.map(|agent| agent.session().frames());
        let (probe, middle) = (self.probe.clone(), before.len());
        let head = futures::stream::iter(before);
        let tail = async move {
            // The middle is when all that came before has been shown.
            let mut shown = 0;
            while let (true, Some(frames)) = (shown < middle, &mut frames) {
                if let Some(LiveFrame::Chunks { chunks, .. }) = frames.next().await {
                    shown += chunks.len();
                }
            }
            probe.at("middle");
            let end = async move {
                if !ends {
                    futures::future::pending::<()>().await;
                }
            };
            futures::stream::once(end).flat_map(move |()| futures::stream::iter(after.clone()))
        };
        head.chain(tail.flatten_stream()).map(Ok).boxed()
    }
}

/// Sees every event just before it is committed.
struct Commits(Arc<Probe>);

impl Validator for Commits {
    fn name(&self) -> &str {
        "probe"
    }

    fn trace(&self) -> Box<dyn Trace> {
        Box::new(Commits(self.0.clone()))
    }
}

impl Trace for Commits {
    fn follow(&mut self, event: Candidate<'_>) -> Result<(), String> {
        self.0.at(event.body.kind());
        Ok(())
    }

    fn fork(&self) -> Box<dyn Trace> {
        Box::new(Self(self.0.clone()))
    }
}

/// A harness in which every place asks the probe.
async fn stage(probe: &Arc<Probe>, says: Says) -> (Harness, AgentHandle) {
    let harness = playhouse::minimal().start().await.unwrap();
    let world = harness.world().clone();
    let model = Model { probe: probe.clone(), says: Mutex::new(Some(says)) };
    world.models.register(["p"], Arc::new(model)).unwrap();
    let tool = probe.clone();
    let work = tool_fn("work", "Works.", move |_: Nothing, _| {
        tool.at("tool");
        async { Ok("done") }
    });
    harness.register_tool(Arc::new(work)).unwrap();
    let (hooks, scope) = (&world.hooks, &world.scope);
    let place = |place: &'static str| {
        let probe = probe.clone();
        move || {
            probe.at(place);
            probe.fails_at(match place {
                "pre-step" => "pre-step, then throws",
                "request" => "request, then throws",
                "request-error" => "request-error, then throws",
                _ => "turn-stopping, then throws",
            })
        }
    };
    let at = place("pre-step");
    hooks
        .pre_step
        .add(scope, move |input, next: Next<_, _>| {
            let failed = at();
            async move { failed.and(Ok(())).map(|()| next.run(input))?.await }
        })
        .unwrap();
    let at = place("request");
    hooks
        .request
        .add(scope, move |input, next: Next<_, _>| {
            let failed = at();
            async move { failed.map(|()| next.run(input))?.await }
        })
        .unwrap();
    let at = place("request-error");
    hooks
        .request_error
        .add(scope, move |_, _: Next<_, _>| {
            let failed = at();
            async move { failed.map(|()| Recovery::Retry) }
        })
        .unwrap();
    let at = place("turn-stopping");
    hooks
        .turn_stopping
        .add(scope, move |_| {
            let failed = at();
            async move { failed }
        })
        .unwrap();
    for stage in ["tool-pre", "tool-post"] {
        let probe = probe.clone();
        let tools = world.tools.hooks();
        if stage == "tool-pre" {
            tools.pre.add(scope, move |input, next: Next<_, _>| {
                probe.at(stage);
                next.run(input)
            })
        } else {
            tools.post.add(scope, move |input, next: Next<_, _>| {
                probe.at(stage);
                next.run(input)
            })
        }
        .unwrap();
    }
    let told = probe.clone();
    hooks.status.add(scope, move |_| told.at("status")).unwrap();
    let asked = probe.clone();
    let section = Section::computed("probe", 0.0, move |_| {
        asked.at("assemble");
        async { Ok::<_, Failure>(Some("P".to_owned())) }
    });
    world.prompts.section(scope, section).unwrap();
    world.validators.register(scope, Commits(probe.clone())).unwrap();
    let options = AgentOptions::new().model("p", "m");
    let agent = harness.create(NewAgent::new(options)).await.unwrap();
    (harness, agent)
}

/// A place, what the model says, and what the log holds in the end but for the inbox. `[]` is a
/// whole admission, `#` the turn's end by the cancel.
type Window = (&'static str, Says, &'static str);

const EMPTY_STEP: &str = "TS1 SS1.1 SE1.1 #";
const ADMITTED: &str = "[] SE1.1 #";
const ATTEMPT: &str = "[] AT SE1.1 #";
const ABORTED: &str = "[] A(work,work) TC(work) TR!(ABORTED_BEFORE_DISPATCH) TC(work) \
                       TR!(ABORTED_BEFORE_DISPATCH) SE1.1 #";
const WITHHELD: &str = "[] A(work,work) TC(work) TR!(ABORTED) TC(work) \
                        TR!(ABORTED_BEFORE_DISPATCH) SE1.1 #";
const DRAINED: &str = "[] A(work,work) TC(work) TR TC(work) TR!(ABORTED_BEFORE_DISPATCH) SE1.1 #";

const WINDOWS: &[Window] = &[
    ("status", Says::Text, "TS1 #"),
    ("turn/start", Says::Text, "TS1 #"),
    ("assemble", Says::Text, "TS1 #"),
    ("pre-step", Says::Text, "TS1 #"),
    ("pre-step, then throws", Says::Text, "TS1 #"),
    ("step/start", Says::Text, EMPTY_STEP),
    ("request", Says::Text, EMPTY_STEP),
    ("request, then throws", Says::Text, EMPTY_STEP),
    ("resolve", Says::Text, EMPTY_STEP),
    ("system/message", Says::Text, ADMITTED),
    ("user/message", Says::Text, ADMITTED),
    ("request/header", Says::Text, ADMITTED),
    ("request/context", Says::Text, ADMITTED),
    ("dispatch", Says::Text, ATTEMPT),
    ("middle", Says::Text, "[] A! SE1.1 #"),
    ("middle", Says::Reasoning, "[] A! SE1.1 #"),
    ("middle", Says::Blank, ATTEMPT),
    ("middle", Says::HalfCall, ATTEMPT),
    ("middle", Says::Calls, ATTEMPT),
    ("assistant/attempt", Says::Fails, ATTEMPT),
    ("request-error", Says::Fails, ATTEMPT),
    ("request-error, then throws", Says::Fails, ATTEMPT),
    ("assistant/message", Says::Calls, ABORTED),
    ("tool/call", Says::Calls, ABORTED),
    ("tool-pre", Says::Calls, ABORTED),
    // A success that a cancel has overtaken is withheld.
    ("tool", Says::Calls, WITHHELD),
    ("tool-post", Says::Calls, WITHHELD),
    ("tool/result", Says::Calls, DRAINED),
    ("step/end", Says::Text, "[] A SE1.1 #"),
    ("turn-stopping", Says::Text, "[] A SE1.1 #"),
    ("turn-stopping, then throws", Says::Text, "[] A SE1.1 #"),
    // The turn was closed ahead of the cancel, which takes what waits behind it.
    ("turn/end", Says::Text, "[] A SE1.1 TE1(completed)"),
];

const CAUSES: [(CancelCause, &str); 4] = [
    (CancelCause::User, "user"),
    (CancelCause::Parent, "parent"),
    (CancelCause::Hook { reason: String::new() }, "hook"),
    (CancelCause::Disposed, "disposed"),
];

mod scenario {
    use super::*;

    #[tokio::test]
    async fn core_5_2_every_window_by_every_cause_over_the_actors() {
        for (place, says, expected) in WINDOWS {
            for (cause, reason) in CAUSES {
                for keep in [false, true] {
                    window(place, *says, expected, (cause.clone(), reason), keep).await;
                }
            }
        }
    }
}

async fn window(
    place: &'static str,
    says: Says,
    expected: &str,
    (cause, reason): (CancelCause, &str),
    keep: bool,
) {
    let what = format!("{place}, {reason}, keep={keep}");
    let fired = AtomicBool::new(false);
    let probe = Probe { place, agent: Mutex::default(), cause: cause.clone(), keep, fired };
    let probe = Arc::new(probe);
    let (harness, agent) = stage(&probe, says).await;
    // A asks for nothing; B, whose wake claims A, stays behind it.
    agent.send("A", InboxTarget::NextTurn, false).await.unwrap();
    let mut errors = agent.errors();
    *probe.agent.lock().unwrap() = Some(agent.agent().clone());
    agent.followup("B").await.unwrap();
    soon(agent.when_idle()).await.unwrap();
    assert!(probe.fired.load(Ordering::SeqCst), "{what}: the place was not reached");

    let log = agent.session().log();
    let words = log.iter().map(|event| word(event)).filter(|word| !word.starts_with("IN"));
    let admitted = "TS1 SS1.1 SYS+ U H C";
    let due = expected.replace("[]", admitted).replace('#', &format!("TE1(aborted:{reason})"));
    let due: Vec<_> = due.split_whitespace().map(str::to_owned).collect();
    assert_eq!(words.collect::<Vec<_>>(), due, "{what}");
    assert!(errors.try_recv().is_err(), "{what}: a cancel is no error");
    let inbox = agent.inbox();
    let texts = inbox.list(InboxTarget::NextTurn).iter().map(|message| message.text());
    let pending: Vec<_> = texts.collect();
    assert_eq!(pending, if keep { vec!["B"] } else { vec![] }, "{what}");

    // The next prompt runs as if nothing had been, behind what was kept; after a disposal none does.
    if cause != CancelCause::Disposed {
        let next = soon(agent.prompt("Z")).await.unwrap();
        assert_eq!((next.reason, &*next.text), (TurnEndReason::Completed, "He"), "{what}");
        assert!(agent.inbox().is_empty(), "{what}");
    }
    harness.shutdown().await.unwrap();
}
