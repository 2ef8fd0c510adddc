//! The tools, as a scripted model uses them.

use playhouse_models::scripted::{Reply, Rule, When};
use playhouse_plugin_api::agent::Agent;
use serde_json::{Value, json};

use crate::rig::{Rig, held, last_told, on, results_of, told_by_children, trace};

/// The root calls this once when it is asked to; then it is done.
fn calls(prompt: &str, tool: &str, args: Value) -> [Rule; 2] {
    let asked = When::default().user_contains(prompt);
    [
        Rule { when: asked.clone().after_tool(tool), reply: Reply::text("so be it") },
        Rule { when: asked.assistant_messages(0), reply: Reply::call(tool, args) },
    ]
}

async fn ask(rig: &Rig, prompt: &str) -> String {
    rig.root.prompt(prompt).await.unwrap();
    results_of(&rig.root).pop().unwrap_or_default()
}

fn results(agent: &Agent) -> usize {
    results_of(agent).len()
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_8_a_model_sends_lists_and_interrupts() {
    let rules = [
        calls("send it", "send_message", json!({"subagent_id": "a", "message": "more of it"})),
        calls("send down", "send_message", json!({"subagent_id": "b", "message": "x"})),
        calls("list all", "list_agents", json!({"scope": "descendants"})),
        calls("list mine", "list_agents", json!({})),
        calls("stop b", "interrupt_agent", json!({"agent_id": "b"})),
    ];
    let rules =
        rules.into_iter().flatten().chain([held("work", "work"), held("more of it", "more")]);
    let rig = Rig::new(rules).await;
    assert_eq!(ask(&rig, "list mine").await, "(no subagents)");
    rig.start(&rig.root, "a", "work").await;
    let a = rig.agent("a");
    rig.start(&a, "b", "work").await;
    rig.model.gate("work").arrived(2).await;
    assert_eq!(ask(&rig, "list mine").await, "a [running] — Child a");
    assert_eq!(
        ask(&rig, "list all").await,
        "a [running] — Child a parent=root depth=1\nb [running] — Child b parent=a depth=2"
    );
    // Deeper ones are only interrupted.
    assert!(ask(&rig, "send down").await.contains("it is not its parent"));
    assert_eq!(ask(&rig, "stop b").await, "The interrupt of b is accepted.");
    rig.until_settled("b").await;
    rig.model.gate("work").open();
    rig.until_settled("a").await;
    rig.root.when_idle().await.unwrap();
    assert_eq!(ask(&rig, "list mine").await, "a [ready] — Child a");
    assert_eq!(ask(&rig, "send it").await, "Queued as the next turn of sub-agent a.");
    rig.model.gate("more").arrived(1).await;
    let a = rig.agent("a");
    assert!(trace(&a).contains("+turn(coordinator)"), "{}", trace(&a));
    rig.model.gate("more").open();
    rig.until_settled("a").await;
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_8_a_child_reports_by_a_tool_of_its_own() {
    let asked = When::default().user_contains("work");
    let rules = [
        Rule { when: asked.clone().after_tool("report"), reply: Reply::text("closing words") },
        Rule { when: asked, reply: Reply::call("report", json!({"output": "42"})) },
    ];
    let rig = Rig::new(rules).await;
    rig.root.prompt("hello").await.unwrap();
    let tools = |at: usize| {
        let request = rig.model.captured()[at].clone();
        request.tools.iter().any(|tool| tool.name == "report")
    };
    assert!(!tools(0), "only a continuable child has it");
    rig.start(&rig.root, "a", "work").await;
    let a = rig.agent("a");
    rig.until_settled("a").await;
    rig.root.when_idle().await.unwrap();
    let of_a = rig
        .model
        .captured()
        .into_iter()
        .find(|request| request.tools.iter().any(|tool| tool.name == "report"));
    assert!(of_a.unwrap().messages[0].text().contains("call `report` once"));
    assert_eq!(results_of(&a), ["Your delegator has the report."]);
    assert_eq!(told_by_children(&rig.root), ["subagent-report a", "subagent-settled a"]);
    assert_eq!(last_told(&rig.root, "subagent-report"), "Report of sub-agent a:\n42");
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_model_waits_for_a_child_and_not_for_ever() {
    let rules = [
        calls("wait for a", "wait_agent", json!({"agent_id": "a", "timeout_ms": 600_000})),
        calls("wait a little", "wait_agent", json!({"timeout_ms": 5})),
        calls("wait for none", "wait_agent", json!({"agent_id": "none"})),
    ];
    let rules = rules.into_iter().flatten();
    let rig =
        Rig::new(rules.chain([held("work", "work"), on("Sub-agent", Reply::text("ok"))])).await;
    assert_eq!(ask(&rig, "wait for none").await, "No such sub-agent is at work.");
    rig.start(&rig.root, "a", "work").await;
    rig.model.gate("work").arrived(1).await;
    let little = ask(&rig, "wait a little").await;
    assert_eq!(little, "Nothing happened in that time; it still works.");
    let before = results(&rig.root);
    rig.root.followup("wait for a").await.unwrap();
    rig.until("it waits", || trace(&rig.root).ends_with("U(user) A")).await;
    rig.model.gate("work").open();
    rig.until("it was told", || results(&rig.root) > before).await;
    assert_eq!(results_of(&rig.root).pop().unwrap(), "Sub-agent a has settled.");
    rig.root.when_idle().await.unwrap();
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_when_something_else_comes_and_when_it_is_cancelled() {
    let rules = calls("wait", "wait_agent", json!({}));
    let rig = Rig::new(rules.into_iter().chain([held("work", "work")])).await;
    rig.start(&rig.root, "a", "work").await;
    rig.model.gate("work").arrived(1).await;
    for round in 0..3 {
        rig.root.followup("wait").await.unwrap();
        rig.until("it waits", || trace(&rig.root).ends_with("U(user) A")).await;
        let said = match round {
            0 => {
                rig.root.steer("look here").await.unwrap();
                "Something else was sent to you: it is in your next step."
            }
            1 => {
                rig.root.followup("look here").await.unwrap();
                "A new prompt waits for you: end this turn to get it."
            }
            _ => {
                rig.root.cancel(playhouse_messages::event::CancelCause::User);
                ""
            }
        };
        rig.root.when_idle().await.unwrap();
        assert!(results_of(&rig.root).pop().unwrap().starts_with(said), "{round}");
    }
    assert!(rig.is_live("a"), "a cancelled parent leaves its continuable child alone");
    rig.ends_clean().await;
}
