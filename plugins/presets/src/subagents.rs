//! Agents composed from presets, with a scripted model.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use playhouse_messages::{config::ModelChoice, event::EventBody};
use playhouse_models::scripted::{Reply, Script, ScriptedAdapter};
use playhouse_plugin_api::{
    agent::Agent,
    creation::{AgentHandle, NewAgent},
    fork::ForkPoint,
    llm::{ModelInfo, Reasoning},
    options::AgentOptions,
    tool::{ToolRun, tool_fn},
};
use playhouse_stores::MemoryStore;
use playhouse_subagents::{ChildRequest, Subagents, spawn};
use playhouse_supervisor::harness::Harness;

use crate::{
    PRESETS_SERVICE, PresetError, Presets, PresetsPlugin, Root, RowContext, SELECTED_KIND, State,
    discovery::COMPOSITION_FILE,
};

struct Bench {
    harness: Harness,
    presets: Arc<Presets>,
    model: Arc<ScriptedAdapter>,
    dir: tempfile::TempDir,
    /// How often the row `counted` was mounted.
    mounted: Arc<AtomicUsize>,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct NoArgs {}

impl Bench {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Arc::new(AtomicUsize::new(0));
        let count = mounted.clone();
        let plugin = PresetsPlugin::new([
            Root::system(dir.path().join("system")),
            Root::user(dir.path().join("user")),
        ])
        .row("counted", move |row: RowContext| {
            count.fetch_add(1, Ordering::Relaxed);
            let name = row.config["tool"].as_str().unwrap_or("counted").to_owned();
            let tool = tool_fn(name, "Counts.", |_: NoArgs, _: ToolRun| async { Ok("1") });
            async move {
                row.world.tools.registry().register(&row.scope, Arc::new(tool))?;
                Ok(())
            }
        })
        .row("publisher", |row: RowContext| async move {
            row.world.services.provide(&row.scope, "clock-of-ours", Arc::new(1_u32))?;
            Ok(())
        });
        let harness = Harness::builder()
            .store(MemoryStore::new())
            .plugin(plugin)
            .plugin(Subagents::new())
            .start()
            .await
            .unwrap();
        let presets = harness.world().services.require::<Presets>(PRESETS_SERVICE).unwrap();
        let model = ScriptedAdapter::new(Script::new().reply(Reply::text("Yes.")));
        let reasoning = Reasoning { efforts: vec!["high".to_owned()], ..Reasoning::default() };
        let thinks = ModelInfo { reasoning: Some(reasoning), ..ModelInfo::default() };
        let model = Arc::new(model.with_model(thinks));
        model.stage().record(true);
        harness.world().models.register(["scripted"], model.clone()).unwrap();
        for name in ["hammer", "saw"] {
            let tool = tool_fn(name, "A tool.", |_: NoArgs, _: ToolRun| async { Ok("done") });
            harness.register_tool(Arc::new(tool)).unwrap();
        }
        Self { harness, presets, model, dir, mounted }
    }

    fn write(&self, root: &str, id: &str, composition: &str) {
        let dir = self.dir.path().join(root).join(id);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(COMPOSITION_FILE), composition).unwrap();
    }

    async fn agent(&self, preset: &str) -> AgentHandle {
        let new = self.presets.compose(preset, new()).await.unwrap();
        self.harness.create(new).await.unwrap()
    }

    /// What the model would be offered now.
    fn tools(&self, agent: &Agent) -> Vec<String> {
        let visible = self.harness.world().tools.registry().visible(agent.scope());
        visible.iter().map(|tool| tool.schema().name.clone()).collect()
    }

    /// The system prompt of the last request.
    fn prompt(&self) -> String {
        self.model.captured().last().unwrap().messages[0].text()
    }

    async fn ends_clean(self) {
        self.harness.shutdown().await.unwrap();
        let metrics = tokio::runtime::Handle::current().metrics();
        for _ in 0..1_000 {
            if metrics.num_alive_tasks() == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{} tasks outlive the harness", metrics.num_alive_tasks());
    }
}

fn new() -> NewAgent {
    NewAgent::new(AgentOptions::new().model("scripted", "any"))
}

fn choice(model: &str) -> ModelChoice {
    let (provider, model) = ("scripted".to_owned(), model.to_owned());
    ModelChoice { provider, model, reasoning_effort: None }
}

fn persona(text: &str) -> String {
    format!("[[row]]\nkind = \"persona\"\ntext = \"{text}\"\n")
}

fn deny(tool: &str) -> String {
    format!("[[row]]\nkind = \"tools\"\ndeny = [\"{tool}\"]\n")
}

fn refusal<T>(result: Result<T, PresetError>) -> (String, String) {
    let error = result.err().unwrap();
    (error.code().to_owned(), error.to_string())
}

#[tokio::test]
async fn orchestration_17_1_1_an_unknown_preset_is_refused_with_those_there_are() {
    let bench = Bench::new().await;
    let refused = bench.presets.compose("poet", new()).await;
    assert_eq!(refusal(refused).1, "no agent preset \"poet\"; there are: (none)");
    bench.write("system", "critic", &persona("You criticise."));
    bench.write("user", "tutor", &persona("You teach."));
    for id in ["poet", "../critic", "", "Critic"] {
        let (code, text) = refusal(bench.presets.compose(id, new()).await);
        assert_eq!(code, "UNKNOWN_PRESET");
        assert!(text.ends_with("there are: critic, tutor"), "{text}");
    }
    assert!(bench.harness.agents().is_empty());
    bench.ends_clean().await;
}

#[tokio::test]
async fn orchestration_17_1_2_an_edit_counts_for_agents_to_come() {
    let bench = Bench::new().await;
    bench.write("user", "smith", &(persona("You hammer.") + &deny("saw")));
    let (old, same) = (bench.agent("smith").await, bench.agent("smith").await);
    bench.write("user", "smith", &(persona("You saw.") + &deny("hammer")));
    let young = bench.agent("smith").await;
    assert_eq!(bench.tools(&old), ["hammer", "subagent"]);
    assert_eq!(bench.tools(&young), ["saw", "subagent"]);
    old.prompt("Who are you?").await.unwrap();
    assert_eq!(bench.prompt(), "You hammer.");
    young.prompt("And you?").await.unwrap();
    assert_eq!(bench.prompt(), "You saw.");
    let generation = |agent| bench.presets.composed_preset(agent).unwrap().generation;
    assert_eq!(generation(&old), generation(&same));
    assert!(generation(&young) > generation(&old));
    // The old one goes with the last agent that has it.
    let scope = old.scope().parent().unwrap().clone();
    old.dispose().await.unwrap();
    assert!(scope.is_open());
    same.dispose().await.unwrap();
    assert!(!scope.is_open());
    // One that agents to come get stays, though nobody has it.
    let scope = young.scope().parent().unwrap().clone();
    young.dispose().await.unwrap();
    assert!(scope.is_open());
    bench.ends_clean().await;
}

#[tokio::test]
async fn orchestration_17_1_3_a_child_has_its_parents_generation_and_keeps_it() {
    let bench = Bench::new().await;
    bench.write("user", "smith", &(persona("You hammer.") + &deny("saw")));
    let parent = bench.agent("smith").await;
    bench.write("user", "smith", &persona("You saw."));
    bench.agent("smith").await;
    let world = bench.harness.world();
    let request = ChildRequest::new(&parent, "Help").owned_by(world.scope.clone());
    let run = spawn(world, request).await.unwrap();
    run.result().await.unwrap();
    assert_eq!(bench.prompt(), "You hammer.");
    let child = run.agent().unwrap().clone();
    assert_eq!(bench.tools(&child), ["hammer", "subagent"]);
    assert_eq!(bench.presets.composed_preset(&child), bench.presets.composed_preset(&parent));
    let bound = bench.presets.compose_from(&parent, new());
    let bound = bench.harness.create(bound).await.unwrap();
    assert_eq!(bench.presets.composed_preset(&bound), bench.presets.composed_preset(&parent));
    assert_eq!(bound.session().header().agent_preset.as_deref(), Some("smith"));
    // Not its parent's end, its own is the end of what it has.
    let scope = parent.scope().parent().unwrap().clone();
    bound.dispose().await.unwrap();
    parent.dispose().await.unwrap();
    assert!(scope.is_open() && bench.presets.composed_preset(&child).is_some());
    run.dispose().await.unwrap();
    assert!(!scope.is_open());
    bench.ends_clean().await;
}

#[tokio::test]
async fn orchestration_17_1_4_a_removed_preset_is_kept_by_those_who_have_it() {
    let bench = Bench::new().await;
    bench.write("user", "smith", &persona("You hammer."));
    let agent = bench.agent("smith").await;
    bench.presets.remove("smith").await.unwrap();
    agent.prompt("Who are you?").await.unwrap();
    assert_eq!(bench.prompt(), "You hammer.");
    assert_eq!(refusal(bench.presets.compose("smith", new()).await).0, "UNKNOWN_PRESET");
    let id = agent.id().clone();
    agent.dispose().await.unwrap();
    let resumed = bench.presets.compose_resumed(&id, new()).await;
    assert_eq!(refusal(resumed).0, "UNKNOWN_PRESET");
    bench.ends_clean().await;
}

#[tokio::test]
async fn orchestration_17_1_5_a_broken_preset_is_listed_and_refused_before_any_row() {
    let bench = Bench::new().await;
    let counted = "[[row]]\nkind = \"plugin\"\nname = \"counted\"\n";
    bench.write("user", "fine", counted);
    bench.write("user", "broken", &format!("{counted}[[row]]\nkind = \"wizard\"\n"));
    bench.write("user", "strange", "[[row]]\nkind = \"plugin\"\nname = \"nobodys\"\n");
    std::fs::create_dir_all(bench.dir.path().join("user/empty")).unwrap();
    std::fs::create_dir_all(bench.dir.path().join("user/Not an id")).unwrap();
    let listed = bench.presets.list().await.unwrap();
    let reasons = listed.iter().map(|preset| match &preset.state {
        State::Ready(_) => (preset.id.as_str(), "ready"),
        State::Broken { reason } => (preset.id.as_str(), reason.as_str()),
    });
    let reasons: Vec<_> = reasons.collect();
    let expected = [
        ("broken", "unknown variant `wizard`"),
        ("empty", "`composition.toml` cannot be read"),
        ("fine", "ready"),
        ("strange", "no row factory \"nobodys\"; there are: counted, publisher"),
    ];
    assert_eq!(reasons.len(), expected.len());
    for ((id, reason), (expected_id, part)) in reasons.into_iter().zip(expected) {
        assert!(id == expected_id && reason.contains(part), "{id}: {reason}");
    }
    for id in ["broken", "empty", "strange"] {
        assert_eq!(refusal(bench.presets.compose(id, new()).await).0, "PRESET_BROKEN");
    }
    assert_eq!(bench.mounted.load(Ordering::Relaxed), 0);
    bench.agent("fine").await;
    bench.agent("fine").await;
    assert_eq!(bench.mounted.load(Ordering::Relaxed), 1, "mounted once for both");
    bench.ends_clean().await;
}

#[tokio::test]
async fn orchestration_17_1_6_a_preset_is_changed_while_blank_and_no_later() {
    let bench = Bench::new().await;
    bench.write("user", "smith", &persona("You hammer."));
    bench.write("user", "tutor", &persona("You teach."));
    let agent = bench.agent("smith").await;
    let id = agent.id().clone();
    // A change that fails changes nothing.
    assert_eq!(refusal(bench.presets.recompose(&agent, "poet", new()).await).0, "UNKNOWN_PRESET");
    // What the session holds beside turns is kept; one that holds nothing is not stored yet.
    let unstored = bench.agent("smith").await;
    let unstored = bench.presets.recompose(&unstored, "tutor", new()).await.unwrap();
    assert_eq!(unstored.session().header().agent_preset.as_deref(), Some("tutor"));
    agent.model().select(choice("other")).await.unwrap();
    let agent = bench.presets.recompose(&agent, "tutor", new()).await.unwrap();
    assert_eq!((agent.id(), agent.model().current()), (&id, Some(choice("other"))));
    let log = agent.session().log();
    let selected = log.iter().filter_map(|event| match &event.body {
        EventBody::Custom { kind, data } if &**kind == SELECTED_KIND => Some(data.clone()),
        _ => None,
    });
    let selected: Vec<_> = selected.collect();
    assert_eq!(selected, [serde_json::json!({"agentPreset": "tutor"})]);
    agent.prompt("Who are you?").await.unwrap();
    assert_eq!(bench.prompt(), "You teach.");
    let refused = bench.presets.recompose(&agent, "smith", new()).await;
    assert_eq!(refusal(refused).0, "PRESET_NOT_BLANK");
    assert_eq!(bench.harness.agent(&id).as_ref(), Some(agent.agent()), "it lives on");

    // The log says what it has, to a resume and to a fork; before that, the header.
    agent.dispose().await.unwrap();
    let new_one = bench.presets.compose_resumed(&id, new()).await.unwrap();
    let resumed = bench.harness.resume(id.clone(), new_one).await.unwrap();
    let preset = |agent: &Agent| bench.presets.composed_preset(agent).unwrap().preset;
    assert_eq!(preset(&resumed), "tutor");
    assert_eq!(resumed.session().header().agent_preset.as_deref(), Some("smith"));
    for (point, expected) in
        [(ForkPoint::from(id.clone()), "tutor"), (ForkPoint::at(id.clone(), 0), "smith")]
    {
        let new_one = bench.presets.compose_fork(&point, new()).await.unwrap();
        let fork = bench.harness.fork(point, new_one).await.unwrap();
        assert_eq!(preset(&fork), expected);
        assert_eq!(fork.session().header().agent_preset.as_deref(), Some(expected));
    }
    bench.ends_clean().await;
}

#[tokio::test]
async fn orchestration_17_1_7_a_row_cannot_publish_a_service() {
    let bench = Bench::new().await;
    let rows = persona("You publish.") + "[[row]]\nkind = \"plugin\"\nname = \"publisher\"\n";
    bench.write("user", "publisher", &rows);
    let (code, text) = refusal(bench.presets.compose("publisher", new()).await);
    assert_eq!(code, "PRESET_MOUNT");
    assert!(text.contains("service `clock-of-ours` cannot be provided from scope"), "{text}");
    assert!(bench.harness.world().services.get::<u32>("clock-of-ours").is_none());
    // So cannot one that names a tool that is not there; nothing of either stays.
    bench.write("user", "publisher", &(persona("You publish.") + &deny("nothing")));
    assert_eq!(refusal(bench.presets.compose("publisher", new()).await).0, "PRESET_MOUNT");
    bench.write("user", "publisher", &persona("You write."));
    bench.agent("publisher").await.prompt("Hi").await.unwrap();
    assert_eq!(bench.prompt(), "You write.");
    bench.ends_clean().await;
}

#[tokio::test]
async fn the_model_of_a_preset_fills_what_the_options_leave_open() {
    let bench = Bench::new().await;
    let model = "[[row]]\nkind = \"model\"\nprovider = \"scripted\"\nmodel = \"slow\"\n\
                 effort = \"high\"\nmax_tokens = 77\n";
    bench.write("user", "thinker", model);
    let open = bench.presets.compose("thinker", NewAgent::new(AgentOptions::new())).await.unwrap();
    let open = bench.harness.create(open).await.unwrap();
    let outcome = open.prompt("Hi").await.unwrap();
    assert!(outcome.is_completed(), "{outcome:?}");
    let request = bench.model.captured().pop().unwrap();
    assert_eq!((request.config.model.as_str(), request.config.max_tokens), ("slow", Some(77)));
    let slow = ModelChoice { reasoning_effort: Some("high".to_owned()), ..choice("slow") };
    assert_eq!(open.model().current(), Some(slow));
    let told = bench.agent("thinker").await;
    let told = told.model().current().unwrap();
    assert_eq!((told.model.as_str(), told.reasoning_effort), ("any", None));
    bench.ends_clean().await;
}

#[tokio::test]
async fn a_complete_persona_is_the_whole_prompt_and_variables_are_strict() {
    let bench = Bench::new().await;
    let world = bench.harness.world();
    for (id, rows) in
        [("alone", "complete = true\ninclude_runtime_context = false\n"), ("among-others", "")]
    {
        let rows = persona("You run on {{model}}.")
            + rows
            + "[[row]]\nkind = \"section\"\nname = \"house\"\norder = 5\ntext = \"Be brief.\"\n\
               [[row]]\nkind = \"context\"\nname = \"day\"\norder = 5\ntext = \"Monday\"\n";
        bench.write("user", id, &rows);
    }
    let says = |text: &str| {
        let request = bench.model.captured().pop().unwrap();
        request.messages.iter().any(|message| message.text().contains(text))
    };
    bench.agent("alone").await.prompt("Hi").await.unwrap();
    assert_eq!(bench.prompt(), "You run on any.");
    assert!(!says("Monday"));
    bench.agent("among-others").await.prompt("Hi").await.unwrap();
    assert_eq!(bench.prompt(), "You run on any.\n\nBe brief.");
    assert!(says("Monday"));
    bench.write("user", "typo", &persona("You run on {{modle}}."));
    let failed = bench.agent("typo").await.prompt("Hi").await.unwrap();
    assert!(format!("{:?}", failed.reason).contains("modle"), "{failed:?}");
    assert!(world.scope.is_open());
    bench.ends_clean().await;
}

#[tokio::test]
async fn a_copy_overwrites_nothing_and_only_the_users_own_is_removed() {
    let bench = Bench::new().await;
    let file = "[[row]]\nkind = \"persona\"\nfile = \"texts/persona.md\"\n";
    bench.write("system", "critic", file);
    let dir = |path: &str| bench.dir.path().join(path);
    std::fs::create_dir(dir("system/critic/texts")).unwrap();
    std::fs::write(dir("system/critic/texts/persona.md"), "You criticise.\n").unwrap();
    let copied = bench.presets.copy("critic", "mine", Some("My critic".to_owned())).await.unwrap();
    assert_eq!((copied.name.as_str(), copied.dir), ("My critic", dir("user/mine")));
    assert!(matches!(copied.state, State::Ready(_)));
    #[cfg(unix)]
    for (path, mode) in [("user/mine", 0o700), ("user/mine/texts/persona.md", 0o600)] {
        use std::os::unix::fs::PermissionsExt;
        let found = std::fs::metadata(dir(path)).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "{path}");
    }
    bench.agent("mine").await.prompt("Hi").await.unwrap();
    assert_eq!(bench.prompt(), "You criticise.");
    for (from, id, code) in [
        ("critic", "mine", "PRESET_EXISTS"),
        ("mine", "critic", "PRESET_EXISTS"),
        ("critic", "Not an id", "INVALID_ARGUMENT"),
        ("poet", "other", "UNKNOWN_PRESET"),
    ] {
        assert_eq!(refusal(bench.presets.copy(from, id, None).await).0, code);
    }
    assert_eq!(refusal(bench.presets.remove("critic").await).0, "PRESET_NOT_YOURS");
    bench.presets.remove("mine").await.unwrap();
    assert!(!dir("user/mine").exists() && Path::new(&dir("system/critic")).exists());
    bench.ends_clean().await;
}

#[tokio::test]
async fn a_preset_reads_no_file_of_anybody_else() {
    let bench = Bench::new().await;
    std::fs::write(bench.dir.path().join("secret"), "key").unwrap();
    for file in ["../../secret", "/etc/hostname"] {
        bench.write("user", "thief", &format!("[[row]]\nkind = \"persona\"\nfile = \"{file}\"\n"));
        let (code, text) = refusal(bench.presets.compose("thief", new()).await);
        assert_eq!(code, "PRESET_BROKEN");
        assert!(text.contains("is not a file below the preset's directory"), "{text}");
    }
    bench.ends_clean().await;
}
