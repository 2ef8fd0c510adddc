//! Events that a validator refuses, over the real actors: what is left of the turn, and who is told.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use playhouse::{
    AgentHandle, ContentBlock, EventBody, Failure, Harness, Message, NewAgent, NewEvent, Status,
    messages::{
        candidate::Candidate,
        event::{AssistantMessage, StepAt},
        frame::{Frame, FrameOutcome},
        message::{Role, Source},
        validator::{Trace, Validator},
    },
    models::scripted::Reply,
    plugin_api::{tool::tool_fn, validators::ValidatorFilter},
    testing::trace,
};
use playhouse_stores::MemoryStore;

use super::rig::{self, Nothing, soon};

/// Refuses events of one kind while it is set.
#[derive(Clone, Default)]
struct Refuse {
    kind: Arc<Mutex<Option<&'static str>>>,
    /// Events that its traces followed.
    followed: Arc<AtomicUsize>,
}

impl Refuse {
    fn set(&self, kind: impl Into<Option<&'static str>>) {
        *self.kind.lock().unwrap() = kind.into();
    }
}

impl Validator for Refuse {
    fn name(&self) -> &str {
        "refuse"
    }

    fn trace(&self) -> Box<dyn Trace> {
        Box::new(self.clone())
    }
}

impl Trace for Refuse {
    fn follow(&mut self, event: Candidate<'_>) -> Result<(), String> {
        self.followed.fetch_add(1, Ordering::SeqCst);
        let kind = *self.kind.lock().unwrap();
        if kind == Some("panic") {
            panic!("as asked");
        }
        if kind == Some(event.body.kind()) { Err("not today".into()) } else { Ok(()) }
    }

    fn fork(&self) -> Box<dyn Trace> {
        Box::new(self.clone())
    }
}

struct Rig {
    harness: Harness,
    agent: AgentHandle,
    refuse: Refuse,
    told: Arc<Mutex<Vec<Failure>>>,
}

impl Rig {
    async fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::with(Harness::builder().store(MemoryStore::new()), replies).await
    }

    async fn with(
        builder: playhouse::HarnessBuilder,
        replies: impl IntoIterator<Item = Reply>,
    ) -> Self {
        let (harness, _) = rig::with(builder, replies).await;
        let (refuse, told) = (Refuse::default(), Arc::default());
        let world = harness.world();
        world.validators.register(&world.scope, refuse.clone()).unwrap();
        let tell: Arc<Mutex<Vec<Failure>>> = Arc::clone(&told);
        let listener = move |fault: &playhouse::plugin_api::agent::AgentFault| {
            tell.lock().unwrap().push(fault.failure.clone());
        };
        world.hooks.error.add(&world.scope, listener).unwrap();
        let agent = harness.create(NewAgent::new(rig::options())).await.unwrap();
        Self { harness, agent, refuse, told }
    }

    /// A prompt while events of this kind are refused; what the log gained.
    async fn refused(&self, kind: &'static str) -> String {
        self.refuse.set(kind);
        let news = self.gains(self.agent.followup("go")).await;
        self.refuse.set(None);
        assert_eq!(self.agent.status(), Status::Idle);
        news
    }

    async fn gains<T: std::fmt::Debug, E: std::fmt::Debug>(
        &self,
        act: impl Future<Output = Result<T, E>>,
    ) -> String {
        let before = trace(&self.agent.session().log());
        soon(act).await.unwrap();
        soon(self.agent.when_idle()).await.unwrap();
        let after = trace(&self.agent.session().log());
        after.strip_prefix(&before).unwrap().trim().to_owned()
    }

    /// The codes of what was told since the last call.
    fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.told.lock().unwrap()).into_iter().map(|f| f.code).collect()
    }

    /// The agent disposed, and resumed from its store.
    async fn reload(self) -> Self {
        let id = self.agent.id().clone();
        soon(self.agent.dispose()).await.unwrap();
        let new = NewAgent::new(rig::options());
        let agent = soon(self.harness.resume(id, new)).await.unwrap();
        Self { agent, ..self }
    }

    async fn end(self) {
        soon(self.harness.shutdown()).await.unwrap();
    }
}

fn echo(harness: &Harness) {
    let echo = tool_fn("echo", "Says so.", |_: Nothing, _| async { Ok("so") });
    let world = harness.world();
    world.tools.registry().register(&world.scope, Arc::new(echo)).unwrap();
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn core_145_a_veto_of_turn_start_leaves_the_inbox_and_no_turn() {
        let rig = Rig::new([Reply::text("one"), Reply::text("two")]).await;
        assert_eq!(rig.refused("turn/start").await, "IN+");
        assert_eq!(rig.told(), ["INVARIANT"]);
        assert_eq!(rig.agent.inbox().len(), 1);
        let news = rig.gains(rig.agent.followup("more")).await;
        let first = "TS1 IN- SS1.1 SYS+ U H C A SE1.1 TE1(completed)";
        assert_eq!(news, format!("IN+ {first} TS2 IN- SS2.1 U A SE2.1 TE2(completed)"));
        assert_eq!(rig.told(), [""; 0]);
        rig.end().await;
    }

    #[tokio::test]
    async fn core_145_a_veto_of_step_start_ends_the_turn_without_a_step() {
        let rig = Rig::new([Reply::text("one")]).await;
        assert_eq!(rig.refused("step/start").await, "IN+ TS1 IN- TE1(error:INVARIANT)");
        assert_eq!(rig.told(), ["INVARIANT"]);
        let news = rig.gains(rig.agent.followup("more")).await;
        assert_eq!(news, "IN+ TS2 IN- SS2.1 SYS+ U H C A SE2.1 TE2(completed)");
        rig.end().await;
    }

    #[tokio::test]
    async fn core_145_a_veto_of_step_end_leaves_step_and_turn_open_until_a_reload() {
        let rig = Rig::new([Reply::text("one"), Reply::text("two")]).await;
        assert_eq!(rig.refused("step/end").await, "IN+ TS1 IN- SS1.1 SYS+ U H C A");
        assert_eq!(rig.told(), ["INVARIANT", "STEP_OPEN"]);
        assert_eq!(rig.gains(rig.agent.followup("more")).await, "IN+");
        assert_eq!(rig.told(), ["TURN_OPEN"]);
        let rig = rig.reload().await;
        let log = trace(&rig.agent.session().log());
        assert!(log.ends_with("C A IN+ INx SE1.1 TE1(interrupted) ES"), "{log}");
        let news = rig.gains(rig.agent.followup("again")).await;
        assert_eq!(news, "IN+ TS2 IN- SS2.1 U H A SE2.1 TE2(completed)");
        rig.end().await;
    }

    #[tokio::test]
    async fn core_145_a_veto_of_turn_end_leaves_the_turn_open_until_a_reload() {
        let rig = Rig::new([Reply::text("one"), Reply::text("two")]).await;
        assert_eq!(rig.refused("turn/end").await, "IN+ TS1 IN- SS1.1 SYS+ U H C A SE1.1");
        assert_eq!(rig.told(), ["INVARIANT"]);
        assert_eq!(rig.gains(rig.agent.followup("more")).await, "IN+");
        assert_eq!(rig.told(), ["TURN_OPEN"]);
        let rig = rig.reload().await;
        let log = trace(&rig.agent.session().log());
        assert!(log.ends_with("SE1.1 IN+ INx TE1(interrupted) ES"), "{log}");
        let news = rig.gains(rig.agent.followup("again")).await;
        assert_eq!(news, "IN+ TS2 IN- SS2.1 U H A SE2.1 TE2(completed)");
        rig.end().await;
    }

    #[tokio::test]
    async fn core_55_newest_48_a_veto_of_the_settlement_abandons_the_attempt() {
        let rig = Rig::new([Reply::text("lost"), Reply::text("kept")]).await;
        let mut frames = rig.agent.session().frames();
        let news = rig.refused("assistant/message").await;
        assert_eq!(news, "IN+ TS1 IN- SS1.1 SYS+ U H C SE1.1 TE1(error:INVARIANT)");
        assert_eq!(rig.told(), ["INVARIANT"]);
        loop {
            if let Frame::End { outcome, .. } = soon(frames.next()).await.unwrap() {
                assert_eq!(outcome, FrameOutcome::Abandoned);
                break;
            }
        }
        let news = rig.gains(rig.agent.followup("more")).await;
        assert_eq!(news, "IN+ TS2 IN- SS2.1 U A SE2.1 TE2(completed)");
        rig.end().await;
    }

    /// The executor fails, since its result is refused; so is the one that recovery makes of it.
    #[tokio::test]
    async fn newest_53_a_veto_of_the_recovery_is_told_once_with_its_cause() {
        let builder = Harness::builder().store(MemoryStore::new());
        // That a call stays without a result is one of the invariants.
        let builder = builder.validators(ValidatorFilter::block(["invariants"]));
        let rig = Rig::with(builder, [Reply::call("echo", "{}")]).await;
        echo(&rig.harness);
        let news = rig.refused("tool/result").await;
        assert!(news.ends_with("C A(echo) TC(echo) SE1.1 TE1(error:UNKNOWN)"), "{news}");
        let told = std::mem::take(&mut *rig.told.lock().unwrap());
        let [failure] = told.as_slice() else { panic!("{told:?}") };
        let text = "Step failed and its pending tool results could not be recorded: [";
        assert!(failure.message.starts_with(text), "{failure}");
        assert_eq!(failure.message.matches("not today").count(), 2, "{failure}");
        rig.end().await;
    }
}

/// What the admission appends is one batch: its last event is refused, so none of it stays.
#[tokio::test]
async fn who_waits_for_a_turn_that_cannot_end_is_told() {
    for kind in ["step/end", "turn/end"] {
        let rig = Rig::new([Reply::text("one")]).await;
        rig.refuse.set(kind);
        let error = soon(rig.agent.prompt("go")).await.unwrap_err();
        assert_eq!(error.code(), "TURN_LEFT_OPEN", "{kind}");
        rig.end().await;
    }
    // A rule that refuses a call's result refuses what recovery would say of it, too.
    let rig = Rig::new([Reply::call("echo", "{}"), Reply::text("two")]).await;
    echo(&rig.harness);
    rig.refuse.set("tool/result");
    let error = soon(rig.agent.prompt("go")).await.unwrap_err();
    assert_eq!(error.code(), "TURN_LEFT_OPEN");
    rig.refuse.set(None);
    let rig = rig.reload().await;
    assert_eq!(soon(rig.agent.prompt("again")).await.unwrap().text, "two");
    rig.end().await;
}

#[tokio::test]
async fn a_veto_leaves_no_residue() {
    let rig = Rig::new([Reply::text("one")]).await;
    let news = rig.refused("request/context").await;
    assert_eq!(news, "IN+ TS1 IN- SS1.1 SE1.1 TE1(error:INVARIANT)");
    // The invariants, which were asked first, would miss the first header now.
    let news = rig.gains(rig.agent.followup("more")).await;
    assert_eq!(news, "IN+ TS2 IN- SS2.1 SYS+ U H C A SE2.1 TE2(completed)");
    rig.end().await;
}

/// Both of a turn's first claims belong to its opening.
#[tokio::test]
async fn a_veto_of_the_claim_opens_no_turn() {
    #[derive(Clone)]
    struct NoClaim(Arc<Mutex<bool>>);
    impl Validator for NoClaim {
        fn name(&self) -> &str {
            "no-claim"
        }
        fn trace(&self) -> Box<dyn Trace> {
            Box::new(self.clone())
        }
    }
    impl Trace for NoClaim {
        fn follow(&mut self, event: Candidate<'_>) -> Result<(), String> {
            let claim = matches!(event.body, EventBody::InboxSpliced(splice) if splice.is_claim());
            if claim && *self.0.lock().unwrap() { Err("no claim".into()) } else { Ok(()) }
        }
        fn fork(&self) -> Box<dyn Trace> {
            Box::new(self.clone())
        }
    }
    let rig = Rig::new([Reply::text("one"), Reply::text("two")]).await;
    let shut = Arc::new(Mutex::new(true));
    let world = rig.harness.world();
    world.validators.register(&world.scope, NoClaim(shut.clone())).unwrap();
    assert_eq!(rig.gains(rig.agent.followup("go")).await, "IN+");
    assert_eq!(rig.told(), ["INVARIANT"]);
    *shut.lock().unwrap() = false;
    let news = rig.gains(rig.agent.followup("more")).await;
    assert!(news.ends_with("TE2(completed)"), "{news}");
    rig.end().await;
}

#[tokio::test]
async fn a_panic_of_a_validator_is_a_refusal() {
    let rig = Rig::new([Reply::text("one")]).await;
    rig.refuse.set("panic");
    let error = rig.agent.followup("go").await.unwrap_err();
    assert_eq!(error.code(), "INVARIANT");
    assert!(error.to_string().contains("as asked"), "{error}");
    rig.refuse.set(None);
    let outcome = soon(rig.agent.prompt("more")).await.unwrap();
    assert_eq!(outcome.text, "one");
    rig.end().await;
}

#[tokio::test]
async fn a_validator_that_comes_late_follows_the_history_and_goes_with_its_scope() {
    let rig = Rig::new([Reply::text("one"), Reply::text("two")]).await;
    soon(rig.agent.prompt("go")).await.unwrap();
    soon(rig.agent.when_idle()).await.unwrap();
    let (late, world) = (Refuse::default(), rig.harness.world());
    let plugin = world.scope.child("plugin").unwrap();
    world.validators.register(&plugin, late.clone()).unwrap();
    let history = rig.agent.session().log().len() as usize;
    late.set("agent/inbox/spliced");
    let error = rig.agent.followup("more").await.unwrap_err();
    assert_eq!(error.code(), "INVARIANT");
    assert_eq!(late.followed.load(Ordering::SeqCst), history + 1);
    plugin.close();
    assert_eq!(soon(rig.agent.prompt("more")).await.unwrap().text, "two");
    rig.end().await;
}

/// An answer that the loop did not ask for.
#[tokio::test]
async fn the_invariants_hold_unless_they_are_blocked() {
    let at = StepAt { turn: 1, step: 1 };
    let message = Message {
        role: Role::Assistant,
        source: Source::model("p", "m", None),
        ..Message::user_from("a", vec![ContentBlock::text("x")], Source::user())
    };
    let data = AssistantMessage {
        turn: at.turn,
        step: at.step,
        message: Arc::new(message),
        stream: Vec::new(),
        usage: None,
        // The turn may not complete after it.
        interrupted: true,
    };
    let events = || {
        use playhouse::{
            TurnEndReason::Completed,
            messages::event::{TurnEnd, TurnStart},
        };
        vec![
            NewEvent::log_only(EventBody::TurnStart(TurnStart { turn: 1 })),
            NewEvent::log_only(EventBody::StepStart(at)),
            NewEvent::append(EventBody::AssistantMessage(data.clone())),
            NewEvent::log_only(EventBody::StepEnd(at)),
            NewEvent::log_only(EventBody::TurnEnd(TurnEnd { turn: 1, reason: Completed })),
        ]
    };
    let none = Vec::<Reply>::new;
    let rig = Rig::new(none()).await;
    let error = rig.agent.session().append_all(events()).await.unwrap_err();
    assert_eq!(error.code(), "INVARIANT");
    assert!(error.to_string().contains("breaks invariant 32"), "{error}");
    assert!(rig.agent.session().log().is_empty());
    rig.end().await;
    for builder in [
        Harness::builder().invariants(false),
        Harness::builder().validators(ValidatorFilter::allow(["other"])),
    ] {
        let rig = Rig::with(builder, none()).await;
        rig.agent.session().append_all(events()).await.unwrap();
        rig.end().await;
    }
}
