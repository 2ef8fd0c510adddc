//! `playhouse run` and `playhouse sessions`.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use playhouse::models::{
    mock_server::{MockOptions, MockServer},
    scripted::{Fault, FaultKind, Reply, Script, Stage},
};
use serde_json::Value;

use super::{Ended, House, Running};

#[test]
fn the_default_job_runs_a_team_and_leaves_four_whole_sessions() {
    let house = House::new();
    let ended = house.run(&["run", "Pick a cache"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("Report on \"Pick a cache\""), "{}", ended.out);
    assert!(ended.out.contains("count operation, not construction"), "{}", ended.out);
    assert!(!ended.out.contains("Let me look up"), "a child's words are activity: {}", ended.out);
    let mut children = ended.err.lines().filter(|line| line.starts_with("  [2] "));
    assert!(children.any(|line| line.contains("→ lookup {\"topic\":")), "{}", ended.err);
    assert!(!ended.err.contains("WARN") && !ended.err.contains('\x1b'), "{}", ended.err);

    let tree = house.run(&["sessions", "tree", "--format", "jsonl"]).json();
    let depths: Vec<_> = tree.iter().map(|session| session["depth"].as_u64().unwrap()).collect();
    assert_eq!(depths, [0, 1, 1, 1]);
    for child in &tree[1..] {
        assert_eq!(
            (&child["parentSession"], &child["origin"]),
            (&tree[0]["id"], &"subagent".into())
        );
    }
    let listed = house.run(&["sessions", "list"]);
    assert_eq!(listed.out.lines().count(), 4, "{listed:?}");

    let verified = house.run(&["sessions", "verify"]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    assert!(verified.out.contains("4 sessions") && verified.out.contains("no damage found"));

    let root = tree[0]["id"].as_str().unwrap();
    let shown = house.run(&["sessions", "show", root]);
    assert!(shown.out.contains("user: Pick a cache"), "{shown:?}");
    assert!(shown.out.lines().last().unwrap().starts_with("tokens: "), "{shown:?}");
    let events = house.run(&["sessions", "show", root, "--format", "jsonl"]).json();
    assert_eq!(events.last().unwrap()["data"]["reason"]["kind"], "completed");
    assert_eq!(events.len() as u64, tree[0]["events"].as_u64().unwrap());
}

#[test]
fn jsonl_tells_every_event_as_it_is_stored_and_ends_with_the_outcome() {
    let house = House::new();
    house.write("s.toml", "[[rules]]\nreply = { text = \"Yes.\" }\n");
    house.write("playhouse.toml", "[providers.s]\nkind = \"scripted\"\nscript = \"s.toml\"\n");
    let args = ["run", "--model", "s/any", "--session", "it", "--format", "jsonl", "Well?"];
    let ended = house.run(&args);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines = ended.json();
    assert_eq!(lines.last().unwrap()["kind"], "outcome");
    assert_eq!(lines.last().unwrap()["text"], "Yes.");
    let streamed: String = lines
        .iter()
        .filter(|line| line["kind"] == "stream")
        .flat_map(|line| line["frame"]["chunks"].as_array().into_iter().flatten())
        .filter_map(|chunk| chunk["chunk"]["text"].as_str())
        .collect();
    assert_eq!(streamed, "Yes.");
    let told: Vec<_> = ended
        .out
        .lines()
        .filter_map(|line| line.strip_prefix(r#"{"kind":"event","session":"it","event":"#))
        .map(|event| event.strip_suffix('}').unwrap())
        .collect();
    let shown = house.run(&["sessions", "show", "it", "--format", "jsonl"]);
    assert_eq!(told, shown.out.lines().collect::<Vec<_>>());

    // The exact session is resumed by the second use, and `--resume` finds it too.
    for flag in ["--session", "--resume"] {
        let again = house.run(&["run", "--model", "s/any", flag, "it", "Again?"]);
        assert_eq!((again.code, again.out.as_str()), (Some(0), "Yes.\n"), "{again:?}");
    }
    assert_eq!(house.run(&["sessions", "list"]).out.lines().count(), 1);
    assert_eq!(house.run(&["sessions", "verify"]).code, Some(0));
}

mod scenario {
    use super::*;

    #[test]
    fn core_147_an_agent_of_the_config_gets_the_session_that_its_entry_names() {
        let house = House::new();
        house.write("s.toml", "[[rules]]\nreply = { text = \"Yes.\" }\n");
        let entry = |session: &str| {
            let provider = "[providers.s]\nkind = \"scripted\"\nscript = \"s.toml\"\n";
            let agent = "[[agent]]\nid = \"w\"\nprovider = \"s\"\nmodel = \"any\"\n";
            house.write("playhouse.toml", &format!("{provider}{agent}{session}\n"));
            house.run(&["run", "Go"])
        };
        let ids = || -> Vec<String> {
            let listed = house.run(&["sessions", "list", "--format", "jsonl"]).json();
            listed.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
        };
        // A session that must exist is never made.
        let missing = entry("resumeSessionId = \"the-novel\"");
        assert!(missing.code != Some(0) && missing.err.contains("the-novel"), "{missing:?}");
        assert!(ids().is_empty());
        // An exact one is made at the first use and resumed later.
        for _ in 0..2 {
            assert_eq!(entry("sessionId = \"the-novel\"").code, Some(0));
            assert_eq!(ids(), ["the-novel"]);
        }
        assert_eq!(entry("resumeSessionId = \"the-novel\"").code, Some(0));
        let shown = house.run(&["sessions", "show", "the-novel", "--format", "jsonl"]);
        assert_eq!(shown.out.matches("\"turn/end\"").count(), 3, "{shown:?}");
        // A label alone starts a fresh one each time.
        for _ in 0..2 {
            assert_eq!(entry("").code, Some(0));
        }
        let fresh = ids().iter().filter(|id| id.starts_with("w-session-")).count();
        assert_eq!((fresh, ids().len()), (2, 3));
        for bad in ["sessionId = \"\"", "sessionId = \"a\"\nresumeSessionId = \"b\""] {
            assert_eq!(entry(bad).code, Some(2), "{bad}");
        }
        house.write("playhouse.toml", "");
        assert_eq!(ids().len(), 3);
    }

    #[test]
    fn newest_35_a_declared_route_is_recorded_on_resume_and_a_defaulted_one_is_not() {
        let house = House::new();
        house.write("s.toml", "[[rules]]\nreply = { text = \"Yes.\" }\n");
        house.write("playhouse.toml", "[providers.s]\nkind = \"scripted\"\nscript = \"s.toml\"\n");
        let entry = "[[agent]]\nid = \"w\"\nprovider = \"s\"\nmodel = \"d\"\n";
        let provider = std::fs::read_to_string(house.path().join("playhouse.toml")).unwrap();
        house.write("agents.toml", &format!("{provider}{entry}"));
        for (args, expected) in [
            (&["--model", "s/a", "--session", "it"][..], "a"),
            (&["--model", "s/b", "--resume", "it"], "b"),
            (&["--resume", "it"], "b"),
            (&["--model", "s/c", "--session", "it"], "c"),
            (&["--config", "agents.toml", "--resume", "it"], "d"),
        ] {
            let ended = house.run(&[&["run"], args, &["Go"]].concat());
            assert_eq!((ended.code, ended.out.as_str()), (Some(0), "Yes.\n"), "{ended:?}");
            let log = house.run(&["sessions", "show", "it", "--format", "jsonl"]).json();
            let header = log.iter().rfind(|event| event["type"] == "request/header").unwrap();
            assert_eq!(header["data"]["header"]["config"]["model"], expected, "{args:?}");
        }
        let log = house.run(&["sessions", "show", "it", "--format", "jsonl"]).json();
        let recorded = log.iter().filter(|event| event["type"] == "model/selection");
        let recorded: Vec<_> = recorded.map(|event| event["data"]["model"].clone()).collect();
        assert_eq!(recorded, ["b", "c", "d"]);
    }
}

#[test]
fn the_config_gives_the_agent_and_a_fresh_session_its_label() {
    let house = House::new();
    house.write("s.toml", "[[rules]]\nreply = { text = \"Yes.\", finish = \"length\" }\n");
    house.write(
        "playhouse.toml",
        "store = { dir = \"kept\" }\n[providers.s]\nkind = \"scripted\"\nscript = \"s.toml\"\n\
         [[agent]]\nid = \"writer\"\nprovider = \"s\"\nmodel = \"any\"\n",
    );
    let ended = house.run(&["run", "Go"]);
    assert_eq!(ended.code, Some(4), "the output limit cut the answer: {ended:?}");
    let listed = house.run(&["sessions", "list", "--store", "kept", "--format", "jsonl"]).json();
    assert!(listed[0]["id"].as_str().unwrap().starts_with("writer-session-"), "{listed:?}");
}

#[test]
fn settings_of_a_plugin_hold() {
    let house = House::new();
    house.write(
        "playhouse.toml",
        "[[plugin]]\nname = \"subagents\"\nsettings = { tool_name = \"delegate\" }\n",
    );
    let ended = house.run(&["run", "Pick a cache"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // The script knows the tool by another name, so it works alone.
    assert!(ended.out.contains("working alone"), "{ended:?}");
    let log = house.run(&["sessions", "list", "--format", "jsonl"]).json();
    let id = log[0]["id"].as_str().unwrap();
    let shown = house.run(&["sessions", "show", id, "--format", "jsonl"]);
    assert!(shown.out.contains(r#""name":"delegate""#), "{shown:?}");
}

#[test]
fn a_recorded_run_is_played_again() {
    let house = House::new();
    let recorded = house.run(&["run", "--format", "jsonl", "Pick a cache"]);
    house.write("run.jsonl", &recorded.out);
    let config = "[providers.again]\nkind = \"replay\"\n";
    house.write("playhouse.toml", &format!("{config}script = \"run.jsonl\"\n"));
    let args = ["run", "--model", "again/any", "--format", "jsonl", "Pick a cache"];
    let again = house.run(&args);
    assert_eq!(again.code, Some(0), "{again:?}");
    let text = |lines: Vec<serde_json::Value>| lines.last().unwrap()["text"].clone();
    assert_eq!(text(again.json()), text(recorded.json()));

    // One session's log is enough for an agent that delegates nothing; without it there is nothing.
    house.write("playhouse.toml", config);
    let refused = house.run(&args);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("needs a `script`"), "{refused:?}");
}

#[test]
fn a_reader_of_the_output_that_goes_away_ends_the_run() {
    let house = House::new();
    let mut command = house.command(&["run", "--session", "it", "--format", "jsonl", "Pick"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    drop(output);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(5));
    assert!(!String::from_utf8_lossy(&ended.stderr).contains("panicked"));
    let log = house.run(&["sessions", "show", "it", "--format", "jsonl"]).json();
    assert_eq!(log.last().unwrap()["data"]["reason"]["kind"], "aborted");
}

#[test]
fn a_turn_that_fails_exits_with_6_and_says_why() {
    let house = House::new();
    house.write("s.toml", "[[rules]]\nreply = { fault = { kind = \"error\", status = 500 } }\n");
    let provider = "[providers.s]\nkind = \"scripted\"\nscript = \"s.toml\"\n";
    house.write("playhouse.toml", &format!("{provider}retry = {{ max_retries = 0 }}\n"));
    let ended = house.run(&["run", "--model", "s/any", "Go"]);
    assert_eq!(ended.code, Some(6), "{ended:?}");
    assert!(ended.err.contains("SERVER"), "{ended:?}");
}

#[test]
fn a_route_that_fails_is_retried_and_then_left_for_the_next_as_the_config_says() {
    let house = House::new();
    house.write("s.toml", "[[rules]]\nreply = { fault = { kind = \"error\", status = 500 } }\n");
    house.write(
        "playhouse.toml",
        "plugin = []\nfallback = { routes = [\"nobody/any\", \"scripted/team\"] }\n\
         [providers.s]\nkind = \"scripted\"\nscript = \"s.toml\"\n\
         retry = { max_retries = 2, initial_delay_ms = 1 }\n",
    );
    let ended = house.run(&["run", "--model", "s/any", "--session", "it", "Pick a cache"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let log = house.run(&["sessions", "show", "it", "--format", "jsonl"]).json();
    let kinds = log.iter().filter_map(|event| event["type"].as_str());
    let kinds: Vec<_> = kinds.filter(|kind| kind.starts_with("llm/")).collect();
    let retried = ["llm/retry", "llm/retry-started"];
    assert_eq!(kinds, [&retried[..], &retried, &["llm/fallback"]].concat());
}

#[test]
fn a_prompt_comes_from_standard_input_too() {
    let house = House::new();
    let mut running = house.spawn(&["run", "--config", "none.toml", "-"]);
    running.send("x");
    assert_eq!(running.end().0, Some(2), "a config that is named must be there");
    house.write("playhouse.toml", "plugin = []\n");
    let mut running = house.spawn(&["run", "-"]);
    running.send("Pick a cache");
    running.end_input();
    running.line(|line| line.contains("Pick a cache").then_some(()));
    assert_eq!(running.end().0, Some(0));
}

/// A run whose model stalls after it has said something.
fn stalled(house: &House, server: &MockServer) -> Running {
    let url = server.base_url();
    let model = ["--model", "openai_compatible/any", "--base-url", &url];
    let run = ["run", "--session", "it", "--format", "jsonl", "Go"];
    let mut running = house.spawn(&[&run[..1], &model, &run[1..]].concat());
    running.line(|line| line.contains("text-delta").then_some(()));
    running
}

fn stalling() -> Script {
    let stall = Fault::new(FaultKind::Stall).after(2);
    Script::sequence([Reply::text("One two three four").with_fault(stall)])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_cancels_and_drains_to_a_durable_end() {
    for signal in ["-INT", "-TERM"] {
        let house = House::new();
        let server = MockServer::start(stalling(), 0).await.unwrap();
        let running = stalled(&house, &server);
        running.signal(signal);
        let (code, lines) = running.end();
        assert_eq!(code, Some(5), "{lines:?}");
        let outcome: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
        assert_eq!(outcome["reason"]["reason"]["kind"], "user", "{outcome}");
        assert!(outcome["text"].as_str().unwrap().starts_with("One "), "{outcome}");
        let events = house.run(&["sessions", "show", "it", "--format", "jsonl"]).json();
        assert_eq!(events.last().unwrap()["data"]["reason"]["kind"], "aborted");
        let listed = house.run(&["sessions", "list", "--format", "jsonl"]).json();
        assert_eq!(listed[0]["events"], events.len(), "it is listed whole");
        assert_eq!(house.run(&["sessions", "verify"]).code, Some(0));
        server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_read_beside_a_running_harness_and_the_store_is_not_shared() {
    let house = House::new();
    let server = MockServer::start(stalling(), 0).await.unwrap();
    let running = stalled(&house, &server);
    let events = house.run(&["sessions", "show", "it", "--format", "jsonl"]).json();
    assert!(events.iter().any(|event| event["type"] == "step/start"), "{events:?}");
    assert_eq!(house.run(&["sessions", "verify"]).code, Some(0));
    let refused = house.run(&["run", "Me too"]);
    let error = refused.error(2);
    assert!(error.contains("in use") && error.contains("playhouse sessions"), "{error}");
    running.signal("-INT");
    assert_eq!(running.end().0, Some(5));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_on_this_machine_needs_no_key_and_any_other_does() {
    let house = House::new();
    let server = MockServer::start(Script::new().reply(Reply::text("Here.")), 0).await.unwrap();
    let url = server.base_url();
    let ended =
        house.run(&["run", "--model", "openai_compatible/any", "--base-url", &url, "Where?"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "Here.\n"), "{ended:?}");
    assert!(server.requests()[0].header("authorization").is_none());
    let ended = house.run(&["run", "--model", "deepseek/any", "--base-url", &url, "Where?"]);
    assert!(ended.error(2).contains("DEEPSEEK_API_KEY"), "{ended:?}");
    let ended = house.run(&["run", "--model", "anthropic/any", "--base-url", &url, "Where?"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "Here.\n"), "{ended:?}");
    let ended = house.run(&["run", "--model", "anthropic/any", "Where?"]);
    assert!(ended.error(2).contains("ANTHROPIC_API_KEY"), "{ended:?}");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn anthropics_key_and_base_url_come_from_the_environment() {
    let house = House::new();
    let options = MockOptions::new().api_key("sk-ant-1");
    let stage = Stage::new(Script::new().reply(Reply::text("Here.")));
    let server = MockServer::start_on(stage, options).await.unwrap();
    let mut command = house.command(&["run", "--model", "anthropic/any", "Where?"]);
    command.env("ANTHROPIC_BASE_URL", server.base_url()).env("ANTHROPIC_API_KEY", "sk-ant-1");
    let ended = Ended::of(command.output().unwrap());
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "Here.\n"), "{ended:?}");
    server.shutdown().await;
}

#[test]
fn the_mock_model_tells_its_url_and_ends_at_a_signal() {
    let house = House::new();
    let mut server = house.spawn(&["mock-model"]);
    let url = server.line(|line| line.starts_with("http://").then(|| line.to_owned()));
    for model in ["openai_compatible/any", "anthropic/any"] {
        let ended = house.run(&["run", "--model", model, "--base-url", &url, "A job"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.out.contains("Report on \"A job\""), "{ended:?}");
    }
    server.signal("-TERM");
    assert_eq!(server.end().0, Some(0));
}
