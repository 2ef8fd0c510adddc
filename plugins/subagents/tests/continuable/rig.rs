use std::sync::{Arc, Mutex};

use playhouse_messages::{
    content::ContentBlock,
    event::{Event, EventBody, InboxTarget, SpliceOutcome},
    id::{MessageId, SessionId},
    message::Source,
};
use playhouse_models::scripted::{Reply, Rule, Script, ScriptedAdapter, When};
use playhouse_plugin_api::{
    agent::Agent,
    cancel::CancelToken,
    creation::{AgentHandle, NewAgent},
    options::AgentOptions,
    world::World,
};
use playhouse_stores::MemoryStore;
use playhouse_subagents::{
    Background, CONTINUATIONS_SERVICE, ChildProviders, ChildRequest, ContinuationError,
    Continuations, SUBAGENTS_SERVICE, Slots, StartContinuable, Started, Subagents,
    descriptor::DESCRIPTOR_KIND,
};
use playhouse_supervisor::{
    harness::{Harness, HarnessBuilder},
    plugin_host::{PluginHandle, PluginStatus},
};

/// A harness with continuable children, and a root for them.
pub struct Rig {
    pub harness: Harness,
    pub model: Arc<ScriptedAdapter>,
    pub root: AgentHandle,
    pub plugin: PluginHandle,
    pub service: Continuations,
    pub slots: Slots,
    /// What listeners were told: `+run-1 spawn a`, `-run-1 completed: done`.
    pub told: Arc<Mutex<Vec<String>>>,
}

impl Rig {
    pub async fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self::over(MemoryStore::new(), rules, |harness| harness).await
    }

    pub async fn over(
        store: MemoryStore,
        rules: impl IntoIterator<Item = Rule>,
        change: impl FnOnce(HarnessBuilder) -> HarnessBuilder,
    ) -> Self {
        let plugin = Subagents::new().background(Background::Continuable);
        let slots = plugin.slots().clone();
        let builder = Harness::builder().store(store.clone()).event_kind(DESCRIPTOR_KIND);
        let harness = change(builder).start().await.unwrap();
        let plugin = harness.host(plugin).await.unwrap();
        let mut status = plugin.watch();
        status.wait_for(|status| *status == PluginStatus::Active).await.unwrap();
        drop(status);
        let script = rules
            .into_iter()
            .chain([Rule { when: When::default(), reply: Reply::text("ok") }])
            .fold(Script::new(), |script, rule| script.rule(rule.when, rule.reply));
        let model = Arc::new(ScriptedAdapter::new(script));
        model.stage().record(true);
        let world = harness.world();
        drop(world.models.register(["scripted"], model.clone()).unwrap());
        let options = AgentOptions::new().model("scripted", "any").max_depth(9);
        let service = world.services.require::<Continuations>(CONTINUATIONS_SERVICE).unwrap();
        let service = Continuations::clone(&service);
        let told = listen(world);
        let new = NewAgent::new(options);
        let root = match store_has(&store, "root").await {
            true => harness.resume("root", new).await.unwrap(),
            false => harness.create(new.id("root")).await.unwrap(),
        };
        Self { harness, model, root, plugin, service, slots, told }
    }

    pub fn world(&self) -> &Arc<World> {
        self.harness.world()
    }

    pub async fn start(&self, parent: &Agent, child: &str, prompt: &str) -> Started {
        self.try_start(child, ChildRequest::new(parent, prompt)).await.unwrap()
    }

    pub async fn try_start(
        &self,
        child: &str,
        request: ChildRequest,
    ) -> Result<Started, ContinuationError> {
        let (label, child_id) = (format!("Child {child}"), Some(child.into()));
        self.service.start("spawn", StartContinuable { label, child_id, request }).await
    }

    pub async fn send(
        &self,
        parent: &Agent,
        child: &str,
        text: &str,
    ) -> Result<MessageId, ContinuationError> {
        let content = vec![ContentBlock::text(text)];
        let (source, cancel) = (Source::delegation(parent.id().as_str()), CancelToken::new());
        self.service.followup(parent, &child.into(), content, source, &cancel).await
    }

    pub fn agent(&self, id: &str) -> Agent {
        self.harness.agent(&id.into()).unwrap_or_else(|| panic!("\"{id}\" is not live"))
    }

    pub fn is_live(&self, id: &str) -> bool {
        self.harness.agent(&id.into()).is_some()
    }

    /// `id state` of each activation.
    pub fn states(&self) -> Vec<String> {
        let all = self.service.activations();
        all.iter().map(|child| format!("{} {}", child.child, child.state)).collect()
    }

    /// Lets the runtime run until it is so; the paused clock moves meanwhile.
    pub async fn until(&self, what: &str, is_it: impl Fn() -> bool) {
        for _ in 0..60_000 {
            if is_it() {
                return;
            }
            tokio::time::advance(std::time::Duration::from_millis(1)).await;
        }
        panic!("not in time: {what}; {:?}; {}", self.states(), trace(&self.root));
    }

    /// Until this child is gone, and its parent told.
    pub async fn until_settled(&self, child: &str) {
        let id = SessionId::from(child);
        self.until(&format!("{child} settles"), || self.service.activation(&id).is_none()).await;
    }

    pub fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }

    /// Nothing is left of any child, nor of the harness.
    pub async fn ends_clean(self) {
        self.harness.shutdown().await.unwrap();
        assert_eq!(self.states(), [""; 0]);
        assert_eq!(self.slots.taken(), 0);
        assert!(self.harness.agents().is_empty());
        let metrics = tokio::runtime::Handle::current().metrics();
        for _ in 0..10_000 {
            if metrics.num_alive_tasks() == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{} tasks outlive the harness", metrics.num_alive_tasks());
    }
}

async fn store_has(store: &MemoryStore, id: &str) -> bool {
    use playhouse_plugin_api::store::StoreReader;
    store.stat(&id.into()).await.unwrap().is_some()
}

fn listen(world: &Arc<World>) -> Arc<Mutex<Vec<String>>> {
    let providers = world.services.require::<ChildProviders>(SUBAGENTS_SERVICE).unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let (starts, agents) = (told.clone(), world.agents.clone());
    let started = move |run: &playhouse_subagents::RunStarted| {
        assert!(agents.get(&run.id).is_some(), "a run is told of before its child is live");
        starts.lock().unwrap().push(format!("+{} {} {}", run.run, run.provider, run.id));
    };
    drop(providers.lifecycle().started.add(&world.scope, started).unwrap());
    let ends = told.clone();
    let ended = move |end: &playhouse_subagents::RunEnded| {
        let last = end.last_message.as_deref().unwrap_or("");
        let line = format!("-{} {}: {last}", end.run.run, end.stop_reason.as_str());
        ends.lock().unwrap().push(line);
    };
    drop(providers.lifecycle().ended.add(&world.scope, ended).unwrap());
    told
}

pub fn on(prompt: &str, reply: Reply) -> Rule {
    Rule { when: When::default().user_contains(prompt), reply }
}

/// Answers with `done`, once the gate of this name is open.
pub fn held(prompt: &str, gate: &str) -> Rule {
    on(prompt, Reply::text("done").at_gate(gate))
}

/// Who told the agent what, in the order in which it was accepted: `subagent-settled a`.
pub fn told_by_children(agent: &Agent) -> Vec<String> {
    let log = agent.session().log();
    let inserted = log.iter().filter_map(|event| match &event.body {
        EventBody::InboxSpliced(splice) => Some(splice.inserted.clone()),
        _ => None,
    });
    let told = inserted.flatten().filter_map(|message| {
        let from = message.source.get("senderSessionId")?;
        let kind = message.source.kind();
        kind.starts_with("subagent-").then(|| format!("{kind} {from}"))
    });
    told.collect()
}

/// The text of the last message of this kind that the agent was sent.
pub fn last_told(agent: &Agent, kind: &str) -> String {
    let log = agent.session().log();
    let mut texts = log.iter().filter_map(|event| match &event.body {
        EventBody::InboxSpliced(splice) => splice
            .inserted
            .iter()
            .find_map(|message| (message.source.kind() == kind).then(|| message.text())),
        _ => None,
    });
    texts.next_back().unwrap_or_default()
}

pub fn results_of(agent: &Agent) -> Vec<String> {
    let log = agent.session().log();
    let results = log.iter().filter_map(|event| match &event.body {
        EventBody::ToolResult(result) => Some(result.message.text()),
        _ => None,
    });
    results.collect()
}

/// What matters of a log here, in one line.
pub fn trace(agent: &Agent) -> String {
    let log = agent.session().log();
    log.iter().filter_map(|event| word(event)).collect::<Vec<_>>().join(" ")
}

fn word(event: &Event) -> Option<String> {
    Some(match &event.body {
        EventBody::InboxSpliced(splice) => {
            let list = match splice.target {
                InboxTarget::NextTurn => "turn",
                InboxTarget::NextStep => "step",
            };
            match (splice.inserted.first(), splice.outcome) {
                (Some(message), _) => format!("+{list}({})", message.source.kind()),
                (None, Some(SpliceOutcome::Canceled)) => format!("x{list}"),
                (None, None) => format!("-{list}"),
            }
        }
        EventBody::TurnStart(turn) => format!("TS{}", turn.turn),
        EventBody::TurnEnd(end) => {
            let reason = serde_json::to_value(&end.reason).unwrap();
            let cause = reason["reason"]["kind"].as_str().map(|cause| format!(":{cause}"));
            format!("TE{}({}{})", end.turn, end.reason.kind(), cause.unwrap_or_default())
        }
        EventBody::UserMessage(message) if message.source.kind() != "runtime-context" => {
            format!("U({})", message.source.kind())
        }
        EventBody::AssistantMessage(data) if data.interrupted => "A!".to_owned(),
        EventBody::AssistantMessage(_) => "A".to_owned(),
        EventBody::EndSeed(_) => "ES".to_owned(),
        EventBody::Custom { kind, .. } => kind.to_string(),
        _ => return None,
    })
}
