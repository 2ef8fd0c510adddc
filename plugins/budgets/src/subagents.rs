//! Budgets and permits in trees of agents, over a whole harness.

mod ends;
mod fair;
mod lives;
mod never_over;
mod refusals;
mod told;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use playhouse_messages::{
    event::{BudgetSpent, EventBody, TurnEndReason},
    id::SessionId,
};
use playhouse_models::scripted::{Reply, Script, ScriptedAdapter, UsageSpec, When};
use playhouse_plugin_api::{
    agent::Agent,
    clock::CountingIds,
    creation::{AgentHandle, NewAgent},
    options::AgentOptions,
    plugin::Plugin,
    points::Created,
};
use playhouse_stores::MemoryStore;
use playhouse_subagents::Subagents;
use playhouse_supervisor::harness::{Harness, HarnessBuilder};
use serde_json::json;

use crate::{Budget, Budgets, FairRequests, Permits, Price, Prices, Resource};

/// A harness with budgets and sub-agents, its model, and every agent that was ever made in it.
struct House {
    harness: Harness,
    model: Arc<ScriptedAdapter>,
    permits: Permits,
    born: Arc<Mutex<Vec<Agent>>>,
}

impl House {
    async fn new(script: Script) -> Self {
        Self::with(script, |builder| builder, Subagents::new(), 8).await
    }

    async fn with(
        script: Script,
        change: impl FnOnce(HarnessBuilder) -> HarnessBuilder,
        subagents: impl Plugin,
        requests: usize,
    ) -> Self {
        let fair = FairRequests::new(requests);
        let permits = fair.permits().clone();
        let prices = Prices::new().with("scripted", "any", Price::new(1.0, 2.0));
        let builder = Harness::builder()
            .ids(CountingIds::default())
            .plugin(Budgets::new().prices(prices))
            .plugin(fair)
            .plugin(subagents);
        let harness = change(builder).start().await.unwrap();
        let model = Arc::new(ScriptedAdapter::new(script));
        let world = harness.world();
        let _registration = world.models.register(["scripted"], model.clone()).unwrap();
        let born = Arc::new(Mutex::new(Vec::new()));
        let record = born.clone();
        let listener = move |created: Created| {
            record.lock().unwrap().push(created.agent);
            async { Ok(()) }
        };
        world.hooks.created.add(&world.scope, listener).unwrap();
        Self { harness, model, permits, born }
    }

    async fn agent(&self, change: impl FnOnce(AgentOptions) -> AgentOptions) -> AgentHandle {
        self.harness.create(NewAgent::new(change(options()))).await.unwrap()
    }

    fn born(&self) -> Vec<Agent> {
        self.born.lock().unwrap().clone()
    }

    /// Nothing is held when all is over.
    async fn ends_clean(self) {
        self.harness.shutdown().await.unwrap();
        assert_eq!((self.permits.held(), self.permits.waiting()), (0, 0));
        for agent in self.born() {
            for budget in agent.budgets() {
                let held = budget.resources.iter().map(|it| it.reserved).sum::<u64>();
                assert_eq!(held, 0, "{budget:?}");
                let children = budget.resources.iter().find(|it| it.resource == "live-children");
                assert!(children.is_none_or(|children| children.used == 0), "{budget:?}");
            }
        }
    }
}

fn options() -> AgentOptions {
    AgentOptions::new().model("scripted", "any").max_tokens(10)
}

/// The ends of an agent's turns.
fn ends(agent: &Agent) -> Vec<TurnEndReason> {
    let log = agent.session().log();
    let ends = log.iter().filter_map(|event| match &event.body {
        EventBody::TurnEnd(end) => Some(end.reason.clone()),
        _ => None,
    });
    ends.collect()
}

fn out_of(resource: &str, limit: u64, used: u64) -> TurnEndReason {
    TurnEndReason::Budget(BudgetSpent { resource: resource.to_owned(), limit, used })
}

/// How much of a budget's resource is used.
fn used(agent: &Agent, tree: bool, resource: Resource) -> u64 {
    let budgets = agent.budgets();
    let budget = budgets.iter().find(|it| it.tree == tree && it.owner == *agent.id()).unwrap();
    budget.resources.iter().find(|it| it.resource == resource.name()).unwrap().used
}

/// A reply that reports so many tokens.
fn costing(reply: Reply, tokens: u64) -> Reply {
    reply.with_usage(UsageSpec { input_tokens: tokens, ..UsageSpec::default() })
}

/// A call of the delegation tool for each prompt.
fn delegating(prompts: &[&str]) -> Reply {
    prompts.iter().fold(Reply::default(), |reply, prompt| {
        reply.and_call("subagent", json!({"description": format!("Do {prompt}"), "prompt": prompt}))
    })
}

fn asked(prompt: &str) -> When {
    When::default().user_contains(prompt)
}

/// The root delegates these, and repeats what it got.
fn fan_out(prompts: &[&str]) -> Script {
    Script::new()
        .rule(asked("go").after_tool("subagent"), Reply::text("{{results}}"))
        .rule(asked("go"), delegating(prompts))
}
