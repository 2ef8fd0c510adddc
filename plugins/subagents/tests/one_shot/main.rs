//! Children for one prompt, over a harness with a scripted model.
#![expect(clippy::unwrap_used, reason = "a test that unwraps fails with the right line")]

mod deaths;
mod delegation;
mod fork;
mod group;
mod hostile;
mod listing;
mod notices;
mod structured;

use std::sync::Arc;

use playhouse_messages::{
    event::{EventBody, ToolResult},
    invariants::Invariants,
};
use playhouse_models::scripted::{Reply, Rule, Script, ScriptedAdapter, When};
use playhouse_plugin_api::{
    agent::Agent,
    creation::{AgentHandle, NewAgent},
    llm::LlmRequest,
    options::AgentOptions,
    world::World,
};
use playhouse_stores::MemoryStore;
use playhouse_subagents::{
    ChildProviders, ChildRequest, Run, SUBAGENTS_SERVICE, Slots, Subagents, spawn,
};
use playhouse_supervisor::harness::{Harness, HarnessBuilder};

/// A harness with sub-agents and one agent.
struct House {
    harness: Harness,
    model: Arc<ScriptedAdapter>,
    root: AgentHandle,
    slots: Slots,
}

async fn house(rules: impl IntoIterator<Item = Rule>) -> House {
    house_with(rules, |plugin| plugin, |builder| builder.store(MemoryStore::new())).await
}

async fn house_with(
    rules: impl IntoIterator<Item = Rule>,
    change: impl FnOnce(Subagents) -> Subagents,
    build: impl FnOnce(HarnessBuilder) -> HarnessBuilder,
) -> House {
    let plugin = change(Subagents::new());
    let slots = plugin.slots().clone();
    let harness = build(Harness::builder()).plugin(plugin).start().await.unwrap();
    let script =
        rules.into_iter().fold(Script::new(), |script, rule| script.rule(rule.when, rule.reply));
    let model = Arc::new(ScriptedAdapter::new(script));
    model.stage().record(true);
    harness.world().models.register(["scripted"], model.clone()).unwrap();
    let root = harness.create(NewAgent::new(options())).await.unwrap();
    House { harness, model, root, slots }
}

fn options() -> AgentOptions {
    AgentOptions::new().model("scripted", "any")
}

impl House {
    fn world(&self) -> &Arc<World> {
        self.harness.world()
    }

    fn providers(&self) -> Arc<ChildProviders> {
        self.world().services.require(SUBAGENTS_SERVICE).unwrap()
    }

    fn ask(&self, prompt: &str) -> ChildRequest {
        ChildRequest::new(&self.root, prompt)
    }

    async fn spawn(&self, prompt: &str) -> Run {
        spawn(self.world(), self.ask(prompt)).await.unwrap()
    }

    fn children(&self) -> Vec<Agent> {
        self.harness.children(self.root.id())
    }

    fn requests(&self) -> Vec<LlmRequest> {
        self.model.captured()
    }

    /// Nothing is left of any child, and after the shutdown of anybody.
    async fn ends_clean(self) {
        self.until_alone().await;
        self.harness.shutdown().await.unwrap();
        assert!(self.harness.agents().is_empty());
        let metrics = tokio::runtime::Handle::current().metrics();
        for _ in 0..1_000 {
            if metrics.num_alive_tasks() == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{} tasks outlive the harness", metrics.num_alive_tasks());
    }

    /// Waits until no child is left.
    async fn until_alone(&self) {
        let mut changes = self.world().agents.watch();
        while !self.children().is_empty() {
            changes.changed().await.unwrap();
        }
        for _ in 0..1_000 {
            if self.slots.taken() == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{} slots are taken", self.slots.taken());
    }
}

fn on(prompt: &str, reply: Reply) -> Rule {
    Rule { when: When::default().user_contains(prompt), reply }
}

/// The reply of the `nth` step over such a prompt.
fn step(prompt: &str, nth: usize, reply: Reply) -> Rule {
    Rule { when: When::default().user_contains(prompt).assistant_messages(nth), reply }
}

fn results(agent: &Agent) -> Vec<ToolResult> {
    let log = agent.session().log();
    let results = log.iter().filter_map(|event| match &event.body {
        EventBody::ToolResult(result) => Some(result.clone()),
        _ => None,
    });
    results.collect()
}

fn code(result: &ToolResult) -> Option<&str> {
    result.error.as_ref().map(|error| &*error.code)
}

fn assert_whole(agent: &Agent) {
    let log = agent.session().log();
    let kept = Invariants::of(&log).unwrap_or_else(|broken| panic!("{broken}: {log:?}"));
    assert!(kept.is_balanced(), "{log:?}");
}
