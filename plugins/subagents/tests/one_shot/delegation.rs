//! Delegation as a tool.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use playhouse_jobs::{JOBS_SERVICE, JobStatus, Jobs, JobsPlugin};
use playhouse_messages::{content::ContentBlock, event::CancelCause};
use playhouse_models::scripted::{Reply, Rule, When};
use playhouse_plugin_api::{cancel::CancelToken, plugin::PluginContext, tool::ToolFilter};
use playhouse_stores::MemoryStore;
use playhouse_subagents::{
    Background, Capabilities, ChildError, ChildProvider, ChildRequest, ChildResult, DepthLimit,
    Run, StopReason, ToolConfig, mount_tool,
};
use serde_json::{Value, json};

use crate::{House, code, house, house_with, on, results, step};

/// A provider elsewhere, that answers at once.
struct Remote {
    can: Capabilities,
    inherits: bool,
}

impl ChildProvider for Remote {
    fn name(&self) -> &str {
        "remote"
    }

    fn capabilities(&self) -> Capabilities {
        self.can
    }

    fn inherits_parent_context(&self) -> bool {
        self.inherits
    }

    fn start(&self, _: ChildRequest) -> BoxFuture<'static, Result<Run, ChildError>> {
        let mut result = ChildResult::new(StopReason::Completed);
        result.output.push(ContentBlock::text("from afar"));
        let result = futures::future::ready(Ok(result)).boxed();
        let run = Run::new("afar".into(), None, result, futures::future::ready(Ok(())).boxed());
        futures::future::ready(Ok(run)).boxed()
    }
}

fn remote(can: Capabilities, inherits: bool) -> Arc<Remote> {
    Arc::new(Remote { can, inherits })
}

fn unlimited() -> ToolConfig {
    let mut config = ToolConfig::new("remote");
    config.name = "afar".to_owned();
    config.max_depth = DepthLimit::ProviderManaged;
    config
}

/// What a model is told of a tool; `None` if it is not there.
fn told(house: &House, name: &str) -> Option<(String, Value)> {
    let tool = house.world().tools.registry().lookup(house.root.scope(), name)?;
    let schema = tool.tool().schema();
    Some((schema.description.clone(), schema.parameters.clone()))
}

/// The root calls the tool so, and repeats what it got.
fn delegating(arguments: Value) -> [Rule; 2] {
    [
        Rule { when: When::default().after_tool("subagent"), reply: Reply::text("{{results}}") },
        on("delegate", Reply::call("subagent", arguments)),
    ]
}

async fn with_jobs(rules: impl IntoIterator<Item = Rule>) -> (House, Arc<Jobs>) {
    let house = house_with(
        rules,
        |plugin| plugin,
        |builder| builder.store(MemoryStore::new()).plugin(JobsPlugin::default()),
    )
    .await;
    let jobs = house.world().services.require::<Jobs>(JOBS_SERVICE).unwrap();
    (house, jobs)
}

fn background() -> Value {
    json!({"description": "Do work", "prompt": "work", "run_in_background": true})
}

mod subagents {
    use super::*;

    #[tokio::test]
    async fn orchestration_1_8_a_tool_is_there_while_its_provider_is_and_is_worded_by_it() {
        let house = house_with([], |plugin| plugin.with_tool(unlimited()), |b| b).await;
        let (providers, world) = (house.providers(), house.world().clone());
        assert_eq!(told(&house, "afar"), None);
        for inherits in [false, true] {
            let scope = world.scope.child("remote").unwrap();
            providers.register(&scope, remote(Capabilities::default(), inherits)).unwrap();
            let (description, _) = told(&house, "afar").unwrap();
            assert_eq!(description.contains("completed turns"), inherits, "{description}");
            assert_eq!(description.contains("stands alone"), !inherits, "{description}");
            scope.close();
            assert_eq!(told(&house, "afar"), None);
        }
        assert!(told(&house, "subagent").is_some());
        house.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_8_what_cannot_be_is_refused_when_the_tool_is_mounted() {
        let house = house([]).await;
        let (providers, world) = (house.providers(), house.world().clone());
        let scope = world.scope.child("plugin").unwrap();
        providers.register(&scope, remote(Capabilities::default(), false)).unwrap();
        let ctx = PluginContext::new(scope.clone(), world.services.clone());
        let mount = |change: &dyn Fn(&mut ToolConfig)| {
            let mut config = unlimited();
            change(&mut config);
            mount_tool(&ctx, &providers, config).map_err(|failure| failure.code)
        };
        let refused: [&dyn Fn(&mut ToolConfig); 5] = [
            &|config| config.background = Background::Continuable,
            &|config| config.max_depth = DepthLimit::At(3),
            &|config| config.tool_filter = Some(ToolFilter::default()),
            &|config| config.tool_filter = Some(ToolFilter::deny(["x"])),
            &|config| config.persona = Some("Be brief.".to_owned()),
        ];
        for change in refused {
            assert_eq!(mount(change), Err("INVALID_ARGUMENT".to_owned()));
        }
        assert_eq!(
            mount(&|config| config.name = "subagent".to_owned()),
            Err("TOOL_DUPLICATE".into())
        );
        assert_eq!(told(&house, "afar"), None);
        assert_eq!(mount(&|_| ()), Ok(()));
        assert!(told(&house, "afar").is_some());
        scope.close();
        assert_eq!(told(&house, "afar"), None);
        house.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_8_without_jobs_a_model_cannot_ask_for_the_background() {
        let house = house(delegating(background())).await;
        let (_, parameters) = told(&house, "subagent").unwrap();
        assert_eq!(parameters["properties"].get("run_in_background"), None);
        house.root.prompt("delegate").await.unwrap();
        let result = &results(&house.root)[0];
        assert_eq!(code(result), Some("BACKGROUND_UNAVAILABLE"));
        house.ends_clean().await;

        let (house, _) = with_jobs([]).await;
        let (_, parameters) = told(&house, "subagent").unwrap();
        assert_eq!(parameters["properties"]["run_in_background"]["type"], "boolean");
        house.ends_clean().await;

        let off = |plugin: playhouse_subagents::Subagents| plugin.background(Background::Off);
        let house = house_with([], off, |b| b.plugin(JobsPlugin::default())).await;
        let (_, parameters) = told(&house, "subagent").unwrap();
        assert_eq!(parameters["properties"].get("run_in_background"), None);
        house.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_8_a_child_in_the_background_is_a_job_with_its_answer() {
        let [answered, asked] = delegating(background());
        let work = on("work", Reply::text("done").at_gate("work"));
        let (house, jobs) = with_jobs([work, answered, asked]).await;
        house.root.prompt("delegate").await.unwrap();
        let result = &results(&house.root)[0];
        assert_eq!(result.message.text(), "started in the background as job subagent-1");
        assert_eq!(result.meta, Some(json!({"kind": "background", "jobId": "subagent-1"})));
        house.model.gate("work").arrived(1).await;
        let caller = Some(house.root.id());
        assert_eq!(jobs.list(caller)[0].status, JobStatus::Running);
        house.model.gate("work").open();
        let (id, never) = ("subagent-1".into(), CancelToken::new());
        let done = jobs.wait(&id, Duration::from_secs(60), caller, &never).await.unwrap();
        assert_eq!(done.status, JobStatus::Completed);
        assert_eq!(jobs.read(&id, caller).unwrap().text, "done");
        house.root.when_idle().await.unwrap();
        house.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_13_a_killed_job_aborts_its_child_and_a_parents_disposal_kills_its_jobs()
     {
        for by_kill in [true, false] {
            let [answered, asked] = delegating(background());
            let work = on("work", Reply::text("never").at_gate("shut"));
            let (house, jobs) = with_jobs([work, answered, asked]).await;
            house.root.prompt("delegate").await.unwrap();
            house.model.gate("shut").arrived(1).await;
            let child = house.children().remove(0);
            // The turn that started it is over; a cancel of the parent does not reach a job.
            house.root.cancel(CancelCause::User);
            let (id, caller) = ("subagent-1".into(), Some(house.root.id()));
            assert_eq!(jobs.get(&id, caller).unwrap().status, JobStatus::Running);
            if by_kill {
                jobs.kill(&id, caller, None).unwrap();
                let never = CancelToken::new();
                let done = jobs.wait(&id, Duration::from_secs(60), caller, &never).await.unwrap();
                assert_eq!(done.status, JobStatus::Killed);
            } else {
                house.root.dispose().await.unwrap();
                assert_eq!(jobs.get(&id, caller).unwrap_err().code(), "UNKNOWN_JOB");
            }
            crate::assert_whole(&child);
            house.ends_clean().await;
        }
    }

    #[tokio::test]
    async fn orchestration_1_8_a_child_that_is_not_started_in_the_background_is_a_failed_job() {
        let (house, jobs) = with_jobs(delegating(background())).await;
        let full = house.slots.take_all();
        house.root.prompt("delegate").await.unwrap();
        let (id, caller) = ("subagent-1".into(), Some(house.root.id()));
        let never = CancelToken::new();
        let done = jobs.wait(&id, Duration::from_secs(60), caller, &never).await.unwrap();
        assert_eq!(done.status, JobStatus::Failed);
        assert!(done.detail.unwrap().contains("slots are taken"));
        drop(full);
        house.root.when_idle().await.unwrap();
        house.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_8_a_child_that_can_be_continued_goes_on_behind_its_call_by_default() {
        let rules = [
            step(
                "delegate",
                0,
                Reply::call("subagent", json!({"description": "d", "prompt": "work"})),
            ),
            step("delegate", 1, Reply::text("started")),
            step(
                "wait for it",
                0,
                Reply::call(
                    "subagent",
                    json!({"description": "d", "prompt": "work", "run_in_background": false}),
                ),
            ),
            step("wait for it", 1, Reply::text("{{results}}")),
            on("work", Reply::text("done").at_gate("work")),
            on("", Reply::text("thanks")),
        ];
        let continuable =
            |plugin: playhouse_subagents::Subagents| plugin.background(Background::Continuable);
        let house = house_with(rules, continuable, |b| b.store(MemoryStore::new())).await;
        assert_eq!(house.root.prompt("delegate").await.unwrap().text, "started");
        let result = &results(&house.root)[0];
        let meta = result.meta.clone().unwrap();
        assert_eq!(meta["kind"], "continuable");
        house.model.gate("work").arrived(1).await;
        let child = house.children().remove(0);
        assert_eq!(meta["subagentId"], json!(child.id()));
        let system = house.requests()[0].messages[0].text();
        assert!(system.contains("Sub-agents that `subagent` starts"), "{system}");
        house.model.gate("work").open();
        house.until_alone().await;
        house.root.when_idle().await.unwrap();
        let told = house.root.session().view();
        let told = told.history.iter().any(|entry| {
            entry.message.source.kind() == "subagent-settled"
                && entry.message.text().contains("done")
        });
        assert!(told, "{:?}", house.root.session().log());
        assert_eq!(house.root.prompt("wait for it").await.unwrap().text, "done");
        house.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_8_the_fork_tool_tells_that_its_child_knows_the_completed_turns() {
        let rules = [
            on("first", Reply::text("one")),
            step(
                "delegate",
                0,
                Reply::call("explore", json!({"description": "d", "prompt": "further"})),
            ),
            step("delegate", 1, Reply::text("{{results}}")),
            on("further", Reply::text("I know")),
        ];
        let house = house_with(rules, |plugin| plugin.fork_tool("explore"), |b| b).await;
        assert!(told(&house, "explore").unwrap().0.contains("completed turns"));
        house.root.prompt("first").await.unwrap();
        assert_eq!(house.root.prompt("delegate").await.unwrap().text, "I know");
        let childs = house
            .requests()
            .into_iter()
            .find(|request| request.messages.iter().any(|message| message.text() == "further"));
        let texts: Vec<_> = childs.unwrap().messages.iter().map(|m| m.text()).collect();
        assert!(texts.contains(&"one".to_owned()), "{texts:?}");
        assert!(!texts.contains(&"delegate".to_owned()), "{texts:?}");
        house.ends_clean().await;
    }
}

trait TakeAll {
    fn take_all(&self) -> Vec<playhouse_subagents::Slot>;
}

impl TakeAll for playhouse_subagents::Slots {
    fn take_all(&self) -> Vec<playhouse_subagents::Slot> {
        std::iter::from_fn(|| self.take().ok()).collect()
    }
}
