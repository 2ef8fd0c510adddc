use std::{sync::Arc, time::Duration};

use playhouse_messages::{
    candidate::Candidate,
    event::{EventBody, InboxTarget},
    id::SessionId,
    log::Log,
    validator::{Trace, Validator},
};
use playhouse_models::scripted::{Reply, Rule, Script, ScriptedAdapter, When};
use playhouse_plugin_api::{
    agent::Agent,
    cancel::CancelToken,
    creation::{AgentHandle, NewAgent},
    options::AgentOptions,
    store::StoreReader,
    tool::ToolCallRequest,
    world::World,
};
use playhouse_stores::MemoryStore;
use playhouse_subagents::{CONTINUATIONS_SERVICE, Continuations, Subagents};
use playhouse_supervisor::{
    harness::Harness,
    plugin_host::{PluginHandle, PluginStatus},
};
use playhouse_teams::{
    EVENT_KINDS, MemberStatus, NewMember, NewMessage, Seat, Sent, TEAMS_SERVICE, TeamError, Teams,
    TeamsPlugin,
};
use serde_json::Value;

/// A harness with teams, and a Lead.
pub struct Rig {
    pub harness: Harness,
    pub plugin: PluginHandle,
    pub store: MemoryStore,
    pub model: Arc<ScriptedAdapter>,
    pub lead: AgentHandle,
    pub teams: Teams,
    pub seat: Seat,
}

impl Rig {
    pub async fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self::over(MemoryStore::new(), rules).await
    }

    /// Another life over the store of one before.
    pub async fn over(store: MemoryStore, rules: impl IntoIterator<Item = Rule>) -> Self {
        Self::dying(store, rules, None).await
    }

    /// A life in which no record of a team that holds this word is written any more: as if the process
    /// died right before it, wherever that is.
    pub async fn dying(
        store: MemoryStore,
        rules: impl IntoIterator<Item = Rule>,
        before: Option<&'static str>,
    ) -> Self {
        let builder = Harness::builder().store(store.clone()).plugin(Subagents::new());
        let builder =
            EVENT_KINDS.into_iter().fold(builder, |builder, kind| builder.event_kind(kind));
        let harness = builder.start().await.unwrap();
        if let Some(word) = before {
            let world = harness.world();
            drop(world.validators.register(&world.scope, Dead(word)).unwrap());
        }
        let plugin = harness.host(TeamsPlugin::default()).await.unwrap();
        let is_active = |status: &PluginStatus| matches!(status, PluginStatus::Active);
        drop(plugin.watch().wait_for(is_active).await.unwrap());
        let script = rules
            .into_iter()
            .chain([Rule { when: When::default(), reply: Reply::text("ok") }])
            .fold(Script::new(), |script, rule| script.rule(rule.when, rule.reply));
        let model = Arc::new(ScriptedAdapter::new(script));
        model.stage().record(true);
        let world = harness.world();
        drop(world.models.register(["scripted"], model.clone()).unwrap());
        let teams = world.services.require::<Teams>(TEAMS_SERVICE).unwrap();
        let teams = Teams::clone(&teams);
        let new = NewAgent::new(AgentOptions::new().model("scripted", "any"));
        let lead = match store.stat(&"lead-session".into()).await.unwrap() {
            Some(_) => harness.resume("lead-session", new).await.unwrap(),
            None => harness.create(new.id("lead-session")).await.unwrap(),
        };
        let seat = teams.team(&lead).unwrap();
        Self { harness, plugin, store, model, lead, teams, seat }
    }

    pub fn world(&self) -> &Arc<World> {
        self.harness.world()
    }

    /// Ends this life in order.
    pub async fn ends(self) -> MemoryStore {
        self.lead.when_idle().await.unwrap();
        self.shuts_down().await
    }

    /// Ends this life as it stands.
    pub async fn shuts_down(self) -> MemoryStore {
        self.harness.shutdown().await.unwrap();
        self.store.reopen()
    }

    pub async fn spawn(&self, name: &str, prompt: &str) -> SessionId {
        let new = NewMember::new(name, format!("The {name}"), prompt);
        self.seat.spawn(new, &CancelToken::new()).await.unwrap().id
    }

    pub async fn send(&self, new: NewMessage) -> Result<Sent, TeamError> {
        self.seat.send(new, &CancelToken::new()).await
    }

    pub fn member(&self, name: &str) -> Agent {
        let id = self.seat.team().unwrap().named(name).unwrap().id.clone();
        self.world().agents.get(&id).unwrap_or_else(|| panic!("{name} is not live"))
    }

    pub fn seat_of(&self, name: &str) -> Seat {
        self.teams.seat(&self.member(name)).unwrap()
    }

    pub fn status(&self, name: &str) -> MemberStatus {
        let roster = self.seat.roster().unwrap();
        roster.iter().find(|row| row.name == name).unwrap().status
    }

    pub fn continuations(&self) -> Arc<Continuations> {
        self.world().services.require::<Continuations>(CONTINUATIONS_SERVICE).unwrap()
    }

    /// Looks again whenever the team, a child or the set of agents has changed; fails if nothing does
    /// any more.
    pub async fn until(&self, what: &str, is_it: impl Fn() -> bool) {
        let (mut team, mut agents) = (self.seat.watch(), self.world().agents.watch());
        let mut children = self.continuations().watch();
        let look = async {
            while !is_it() {
                tokio::select! {
                    changed = team.changed() => changed.unwrap(),
                    changed = agents.changed() => changed.unwrap(),
                    changed = children.changed() => changed.unwrap(),
                }
            }
        };
        let looked = tokio::time::timeout(Duration::from_secs(3_600), look).await;
        assert!(looked.is_ok(), "not in time: {what}; {:?}", self.seat.roster());
    }

    pub async fn until_inactive(&self, name: &str) {
        let continuations = self.continuations();
        let id = self.seat.team().unwrap().named(name).unwrap().id.clone();
        let gone = || continuations.activation(&id).is_none();
        self.until(&format!("{name} is inactive"), gone).await;
        assert_eq!(self.status(name), MemberStatus::Inactive);
    }

    pub async fn stored_log(&self, id: &SessionId) -> Log {
        self.store.read(id).await.unwrap().log().unwrap()
    }

    /// Calls a tool as this agent's model would; the code of a refusal.
    pub async fn call(&self, agent: &Agent, tool: &str, arguments: Value) -> Result<Value, String> {
        let ids = self.world().ids.clone();
        let request = ToolCallRequest {
            call_id: "call".into(),
            root_call_id: None,
            name: tool.to_owned(),
            arguments,
            agent: Some(agent.clone()),
            scope: agent.scope().clone(),
            at: None,
            cancel: CancelToken::new(),
            ids: Arc::new(move || ids.message()),
            checkpoint: None,
        };
        let outcome = self.world().tools.execute_one(request).await;
        match (outcome.value(), outcome.error()) {
            (_, Some(error)) => Err(error.code().unwrap_or("none").to_owned()),
            (value, None) => Ok(value.map(|value| Value::clone(value)).unwrap_or_default()),
        }
    }
}

/// Refuses records of teams that hold a word.
struct Dead(&'static str);

impl Validator for Dead {
    fn name(&self) -> &str {
        "dead"
    }

    fn trace(&self) -> Box<dyn Trace> {
        self.fork()
    }
}

impl Trace for Dead {
    fn follow(&mut self, event: Candidate<'_>) -> Result<(), String> {
        match event.body {
            EventBody::Custom { kind, data }
                if kind.starts_with("team/") && format!("{kind} {data}").contains(self.0) =>
            {
                Err("the process is dead".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn fork(&self) -> Box<dyn Trace> {
        Box::new(Self(self.0))
    }
}

pub fn on(prompt: &str, reply: Reply) -> Rule {
    Rule { when: When::default().user_contains(prompt), reply }
}

/// Answers with `done`, once the gate of this name is open.
pub fn held(prompt: &str, gate: &str) -> Rule {
    on(prompt, Reply::text("done").at_gate(gate))
}

/// The texts of the team's messages that came into this log, in order.
pub fn came(log: &Log) -> Vec<String> {
    let inserted = log.iter().filter_map(|event| match &event.body {
        EventBody::InboxSpliced(splice) => Some(splice.inserted.clone()),
        _ => None,
    });
    let team = inserted.flatten().filter(|message| message.source.kind() == "team-message");
    team.map(|message| message.text()).collect()
}

/// Those of them that its model was shown.
pub fn read(log: &Log) -> Vec<String> {
    let read = log.iter().filter_map(|event| match &event.body {
        EventBody::UserMessage(message) if message.source.kind() == "team-message" => {
            Some(message.text())
        }
        _ => None,
    });
    read.collect()
}

pub fn turns(log: &Log) -> usize {
    log.iter().filter(|event| matches!(event.body, EventBody::TurnStart(_))).count()
}

/// In which list of its target's inbox a message came.
pub fn lists(log: &Log) -> Vec<InboxTarget> {
    let lists = log.iter().filter_map(|event| match &event.body {
        EventBody::InboxSpliced(splice) => {
            let is_team = |message: &playhouse_messages::message::SharedMessage| {
                message.source.kind() == "team-message"
            };
            splice.inserted.iter().any(is_team).then_some(splice.target)
        }
        _ => None,
    });
    lists.collect()
}

/// What the tools of an agent answered, in order.
pub fn results(log: &Log) -> Vec<String> {
    let results = log.iter().filter_map(|event| match &event.body {
        EventBody::ToolResult(result) => Some(result.message.text()),
        _ => None,
    });
    results.collect()
}
