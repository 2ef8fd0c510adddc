//! Budgets and permits as users of the command see them.

use serde_json::json;

use crate::cli::{House, rpc::client::Client};

const CONFIG: &str = r#"
[providers.s]
kind = "scripted"
script = "s.toml"
requests = 3
[limits]
requests = 8
[[price]]
provider = "s"
model = "any"
input = 1.0
output = 2.0
"#;

/// Looks for ever, a thousand tokens each time.
const SCRIPT: &str = r#"
[[rules]]
reply = { calls = [{ name = "lookup", arguments = { topic = "caches" } }], usage = { input_tokens = 1000 } }
"#;

fn house() -> House {
    let house = House::new();
    house.write("s.toml", SCRIPT);
    house.write("playhouse.toml", CONFIG);
    house
}

#[test]
fn a_run_that_a_budget_ended_exits_with_7_and_says_which() {
    for (flags, told) in [
        (["--budget-tokens", "2500"], "out of tokens: 3000 of 2500"),
        (["--budget-cost", "0.0015"], "out of cost: 0.002 of 0.0015"),
        (["--budget-tool-calls", "1"], "out of tool-calls: 1 of 1"),
    ] {
        let ended = house().run(&[&["run", "--model", "s/any", "go"], &flags[..]].concat());
        assert_eq!(ended.code, Some(7), "{ended:?}");
        assert!(ended.err.contains(told) || ended.out.contains(told), "{ended:?}");
    }
}

#[test]
fn a_config_has_a_budget_and_a_flag_overrules_it() {
    let house = house();
    house.write("playhouse.toml", &format!("{CONFIG}\n[budget]\ntokens = 1\nsteps = 3\n"));
    let run = |flags: &[&str]| {
        let args = [&["run", "--model", "s/any", "--format", "jsonl", "go"], flags].concat();
        house.run(&args).out
    };
    assert!(run(&[]).contains(r#""resource":"tokens","limit":1,"used":1000"#));
    assert!(run(&["--budget-tokens", "9999"]).contains(r#""resource":"steps","limit":3"#));
}

#[test]
fn the_agents_of_a_workflow_spend_from_the_config_s_budget() {
    let house = house();
    house.write(
        "s.toml",
        "[[rules]]\nreply = { text = \"yes\", usage = { input_tokens = 1000 } }\n",
    );
    let meta = r#"/* workflow {"name": "two", "description": "Asks twice"} */"#;
    house.write("two.js", &format!("{meta} return [await agent('a'), await agent('b')];"));
    let last = |house: &House| {
        let ended = house.run(&["workflow", "run", "two.js", "--model", "s/any"]);
        let value: Vec<Option<String>> = serde_json::from_str(&ended.out).unwrap();
        value.into_iter().next_back().unwrap()
    };
    assert_eq!(last(&house).as_deref(), Some("yes"));
    house.write("playhouse.toml", &format!("{CONFIG}\n[budget]\ntokens = 1000\n"));
    assert_eq!(last(&house), None);
}

#[test]
fn an_unpriced_route_is_refused_under_a_cost_budget() {
    let refused = house().run(&["run", "--budget-cost", "1", "--model", "s/other", "go"]);
    assert!(refused.code != Some(0) && refused.err.contains("s/other has no price"), "{refused:?}");
    let refused = house().run(&["run", "--budget-cost", "-1", "go"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
}

#[test]
fn a_client_sees_what_is_left() {
    let house = house();
    let mut client = Client::start(&house);
    let budgets = json!({"tokens": 1500, "toolCalls": 9});
    let agent = json!({"id": "a", "provider": "s", "model": "any", "treeBudget": budgets});
    client.call("agent/create", agent);
    let shown = client.call("budget/get", json!({"agent": "a"}));
    assert_eq!(shown["budgets"][0]["resources"][0]["used"], 0);
    let turn = client.call("agent/prompt", json!({"agent": "a", "text": "go"}));
    assert_eq!(turn["reason"]["kind"], "budget", "{turn}");
    let shown = client.call("budget/get", json!({"agent": "a"}));
    let budget = &shown["budgets"][0];
    assert_eq!((&budget["owner"], &budget["tree"]), (&json!("a"), &json!(true)));
    let tokens = json!({"resource": "tokens", "limit": 1500, "used": 2000, "reserved": 0});
    assert_eq!(budget["resources"][0], tokens, "{shown}");
    assert_eq!(shown["maxSteps"], 100);
}

#[cfg(feature = "stress")]
mod subagents {
    use super::*;

    #[test]
    fn a_lone_agent_has_its_share_beside_a_tree_and_no_permit_is_left() {
        let args = ["stress", "--fair", "40", "--requests", "4", "--first-token", "20ms"];
        let house = House::new();
        let ended = house.run(&[&args[..], &["--lone-turns", "3", "--format", "jsonl"]].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let report = &ended.json()[0];
        assert_eq!((&report["held"], &report["heldAfter"]), (&json!(4), &json!(0)), "{report}");
        assert!(report["waiting"].as_u64().unwrap() > 0 && report["ratio"].as_f64().unwrap() > 0.0);
        let few = house.run(&["stress", "--fair", "4"]);
        assert!(few.error(2).contains("nobody would wait"), "{few:?}");
    }
}
