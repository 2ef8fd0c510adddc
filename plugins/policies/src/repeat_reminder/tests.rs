use std::sync::Arc;

use playhouse_messages::message::Message;
use playhouse_plugin_api::tool::{PreVerdict, ToolCallRequest, ToolOutcome, tool_fn};
use serde_json::json;

use super::*;
use crate::guard_rig::{Rig, text};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Any {}

async fn rig(config: RepeatReminderConfig) -> Rig {
    let rig = Rig::new(RepeatReminder::new(config).unwrap()).await;
    for name in ["read", "write", "clock"] {
        rig.tool(tool_fn(name, "", |_: Any, _run| async { Ok("done") }));
    }
    rig
}

fn summaries(outcome: &ToolOutcome) -> Vec<&str> {
    let contexts = outcome.contexts().iter();
    contexts.map(|message| message.source.get("summary").unwrap_or("")).collect()
}

/// The summaries of the reminders of so many identical calls.
async fn repeated(rig: &Rig, name: &str, arguments: &Value, times: usize) -> Vec<String> {
    let mut reminders = Vec::new();
    for _ in 0..times {
        let outcome = rig.call(name, arguments.clone()).await;
        reminders.extend(summaries(&outcome).into_iter().map(str::to_owned));
    }
    reminders
}

#[test]
fn a_config_that_makes_no_sense_is_refused_with_the_way_out() {
    let thresholds = |thresholds: &[u32]| RepeatReminderConfig {
        thresholds: thresholds.into(),
        ..Default::default()
    };
    let no_preview = RepeatReminderConfig { arguments_preview_chars: 0, ..Default::default() };
    for (config, text) in [
        (thresholds(&[]), "`thresholds` is empty; name a count, or leave the plugin out"),
        (thresholds(&[3, 1]), "threshold 1 is too low; the least is 2"),
        (thresholds(&[5, 3, 5]), "threshold 5 stands twice; remove one of them"),
        (no_preview, "`arguments_preview_chars` must be at least 1"),
    ] {
        let error = RepeatReminder::new(config).unwrap_err();
        assert_eq!(error.to_string(), format!("repeat-tool-reminder: {text}"));
        assert_eq!(error.code(), "INVALID_CONFIG");
    }
    assert!(RepeatReminder::new(thresholds(&[8, 3, 5])).is_ok());
    let unknown = serde_json::from_value::<RepeatReminderConfig>(json!({"threshold": [3]}));
    assert!(unknown.unwrap_err().to_string().contains("unknown field `threshold`"));
}

#[test]
fn the_first_reminder_nudges_and_later_ones_show_the_call() {
    let config = RepeatReminderConfig {
        thresholds: vec![2, 3],
        arguments_preview_chars: 9,
        ..Default::default()
    };
    let mut chain = Chain::default();
    let arguments = json!({"b": [{"y": 1, "x": "äöü"}], "a": 1});
    assert_eq!(chain.called("t", &arguments, &config), None);
    let first = chain.called("t", &arguments, &config).unwrap();
    assert_eq!((first.summary.as_str(), first.text.as_str()), ("t × 2", NUDGE));
    let later = chain.called("t", &arguments, &config).unwrap();
    assert_eq!(later.summary, "t × 3");
    let expected = "You have called the tool \"t\" 3 times in a row with the same arguments:\n\
                    {\"a\":1,\"b… (+22 more chars)\nDo not make this call again.";
    assert!(later.text.starts_with(expected), "{}", later.text);
    assert_eq!(chain.called("t", &arguments, &config), None);
}

#[test]
fn a_preview_that_fits_is_whole() {
    assert!(detailed("t", 5, "{\"ä\":1}", 7).contains("arguments:\n{\"ä\":1}\nDo not"));
    assert!(detailed("t", 5, "{\"ä\":1}", 6).contains("arguments:\n{\"ä\":1… (+1 more chars)\n"));
}

#[tokio::test]
async fn a_chain_is_gone_with_its_agent_and_with_the_plugin() {
    let plugin = RepeatReminder::default();
    let rig = Rig::new(plugin.clone()).await;
    rig.call("none", json!({})).await;
    assert_eq!(plugin.0.chains().len(), 1);
    let late = rig.request("none", json!({}));
    rig.agent.dispose().await.unwrap();
    assert!(plugin.0.chains().is_empty());
    rig.world().tools.execute_one(late).await;
    assert!(plugin.0.chains().is_empty());
    rig.harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_the_model_is_told_is_a_message_of_the_next_step() {
    use playhouse_messages::event::EventBody;
    use playhouse_models::scripted::{Reply, Script, ScriptedAdapter};

    let rig = rig(RepeatReminderConfig::default()).await;
    let again = || Reply::call("read", json!({"path": "a"}));
    let script = Script::sequence([again(), again(), again(), Reply::text("I give up.")]);
    let model = Arc::new(ScriptedAdapter::new(script));
    rig.world().models.register(["stubborn"], model).unwrap();
    let options = playhouse_plugin_api::options::AgentOptions::new().model("stubborn", "any");
    let agent = playhouse_plugin_api::creation::NewAgent::new(options);
    let agent = rig.harness.create(agent).await.unwrap();
    assert_eq!(agent.prompt("Read it.").await.unwrap().text, "I give up.");
    let log = agent.session().log();
    let told: Vec<_> = log
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::UserMessage(message) if message.source.kind() != "user" => Some(message),
            _ => None,
        })
        .collect();
    let [reminder] = told.as_slice() else { panic!("{told:?}") };
    let source = json!({"kind": "repeat-tool-reminder", "form": "notice", "summary": "read × 3"});
    assert_eq!(serde_json::to_value(&reminder.source).unwrap(), source);
    rig.harness.shutdown().await.unwrap();
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn llm_109_reminders_come_at_3_5_and_8_calls_and_a_chain_ends_with_another_call_or_a_person()
     {
        let config = RepeatReminderConfig { exclude: ["cl*"].into(), ..Default::default() };
        let rig = rig(config).await;
        let (one, other) =
            (json!({"a": 1, "b": {"c": 2, "d": 3}}), json!({"b": {"d": 3, "c": 2}, "a": 1}));
        let mut told = Vec::new();
        for count in 1..=9 {
            let arguments = if count % 2 == 0 { &one } else { &other };
            if !repeated(&rig, "read", arguments, 1).await.is_empty() {
                told.push(count);
            }
            assert!(repeated(&rig, "clock", &one, 1).await.is_empty(), "it is excluded");
        }
        assert_eq!(told, [3, 5, 8]);
        // Another tool, and other arguments, begin anew.
        assert!(repeated(&rig, "write", &one, 2).await.is_empty());
        assert_eq!(repeated(&rig, "read", &one, 3).await, ["read × 3"]);
        assert!(repeated(&rig, "read", &json!({"a": 2}), 2).await.is_empty());
        // So does a person's message.
        rig.agent.prompt("Go on.").await.unwrap();
        assert!(repeated(&rig, "read", &json!({"a": 2}), 2).await.is_empty());
        // Context of another source does not.
        let note = Message::user_from("n", vec![ContentBlock::text("note")], Source::of_kind("x"));
        rig.agent.prompt(note).await.unwrap();
        assert_eq!(repeated(&rig, "read", &json!({"a": 2}), 1).await, ["read × 3"]);
        // A call without an agent is nobody's.
        for _ in 0..3 {
            let nobody = ToolCallRequest { agent: None, ..rig.request("read", json!({"a": 3})) };
            let outcome = rig.world().tools.execute_one(nobody).await;
            assert!(outcome.contexts().is_empty());
        }
        rig.harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn llm_110_a_blocked_result_shows_feedback_and_reminder_and_denied_calls_count() {
        let rig = rig(RepeatReminderConfig::default()).await;
        let scope = rig.agent.scope();
        let arguments = json!({});
        let deny = rig
            .hooks()
            .pre
            .add(scope, |_, _| async { Ok(PreVerdict::Deny { reason: "no".into() }) })
            .unwrap();
        assert!(repeated(&rig, "read", &arguments, 2).await.is_empty());
        deny.remove();
        let block = |_, _| async {
            let contexts = vec![Arc::new(Message::user("of-the-block", "x"))];
            Ok(PostVerdict::Block { feedback: vec![ContentBlock::text("not this")], contexts })
        };
        rig.hooks().post.add(scope, block).unwrap();
        let outcome = rig.call("read", arguments.clone()).await;
        assert_eq!((text(&outcome).as_str(), outcome.is_error()), ("not this", true));
        assert_eq!(summaries(&outcome), ["read × 3", ""]);
        assert_eq!(outcome.contexts()[0].text(), NUDGE);
        assert_eq!(outcome.contexts()[1].id, "of-the-block");
        // A call whose policy fails never gets as far as being counted.
        let fail =
            rig.hooks().pre.add(scope, |_, _| async { Err(Failure::unknown("down")) }).unwrap();
        assert!(repeated(&rig, "read", &arguments, 3).await.is_empty());
        fail.remove();
        assert!(repeated(&rig, "read", &arguments, 1).await.iter().all(String::is_empty));
        assert!(repeated(&rig, "read", &arguments, 1).await.contains(&"read × 5".to_owned()));
        rig.harness.shutdown().await.unwrap();
    }
}
