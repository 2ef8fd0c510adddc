//! What agents and trees of agents may spend, and a fair share of model requests.
//!
//! - [`Budgets`]: enforces the budgets of agents and of trees ([`Budget`]), and knows what models cost.
//! - [`FairRequests`]: caps how many model requests run at once, fairly among trees.
//!
//! ```
//! use std::sync::Arc;
//! use playhouse_budgets::{Budget, Budgets};
//! use playhouse_messages::event::TurnEndReason;
//! use playhouse_models::scripted::{Reply, Script, ScriptedAdapter};
//! use playhouse_plugin_api::{creation::NewAgent, options::AgentOptions};
//! use playhouse_supervisor::harness::Harness;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let harness = Harness::builder().plugin(Budgets::new()).start().await?;
//! let model = Arc::new(ScriptedAdapter::new(Script::new().reply(Reply::text("Yes."))));
//! harness.world().models.register(["scripted"], model)?;
//! let options = AgentOptions::new().model("scripted", "any").tree_budget(Budget::new().turns(1));
//! let agent = harness.create(NewAgent::new(options)).await?;
//! assert_eq!(agent.prompt("Is it?").await?.text, "Yes.");
//! let TurnEndReason::Budget(spent) = agent.prompt("Really?").await?.reason else { panic!() };
//! assert_eq!((&*spent.resource, spent.limit, spent.used), ("turns", 1, 1));
//! # harness.shutdown().await?;
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```

mod enforce;
pub mod fair;
mod metered;

pub use playhouse_plugin_api::budget::{
    BUDGETS_SERVICE, Budget, BudgetStatus, Price, Prices, Resource,
};

pub use self::{
    enforce::Budgets,
    fair::{FairRequests, Permit, Permits},
};

#[cfg(test)]
mod subagents;
