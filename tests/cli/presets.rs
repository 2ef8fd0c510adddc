//! Agents composed from presets, and `playhouse presets`.

use super::House;

const CONFIG: &str = r#"
[store]
dir = "store"

[presets]
roots = ["mine"]
system_roots = ["shipped"]

[providers.play]
kind = "scripted"
script = "play.toml"
"#;

const PLAY: &str = r#"
[[rules]]
when.system_contains = "You answer in verse."
reply.text = "A line, a rhyme."

[[rules]]
reply.text = "Prose."
"#;

const POET: &str = r#"
[[row]]
kind = "persona"
text = "You answer in verse."

[[row]]
kind = "tools"
deny = ["subagent"]

[[row]]
kind = "model"
provider = "play"
model = "any"
"#;

fn house() -> House {
    let house = House::new();
    house.write("playhouse.toml", CONFIG);
    house.write("play.toml", PLAY);
    std::fs::create_dir_all(house.path().join("shipped/poet")).unwrap();
    house.write("shipped/poet/composition.toml", POET);
    house
}

#[test]
fn presets_are_listed_copied_and_removed() {
    let house = house();
    let copied = house.run(&["presets", "copy", "poet", "bard", "--name", "The bard"]);
    assert_eq!(copied.code, Some(0), "{copied:?}");
    assert!(copied.out.trim_end().ends_with("mine/bard"), "{copied:?}");
    std::fs::create_dir_all(house.path().join("mine/broken")).unwrap();
    let listed = house.run(&["presets", "list"]);
    let lines: Vec<_> = listed.out.lines().collect();
    assert_eq!(
        (lines.len(), lines[0], lines[2]),
        (3, "bard  user  The bard", "poet  system  poet")
    );
    assert!(lines[1].starts_with("broken  user  broken (broken: `composition.toml`"), "{listed:?}");
    let listed = house.run(&["presets", "list", "--format", "jsonl"]);
    let first: serde_json::Value =
        serde_json::from_str(listed.out.lines().next().unwrap()).unwrap();
    assert_eq!((&first["id"], &first["trust"]), (&"bard".into(), &"user".into()));
    for (args, text) in [
        (&["presets", "copy", "poet", "bard"][..], "already exists"),
        (&["presets", "remove", "poet"], "belongs to the system"),
        (&["presets", "remove", "nobody"], "there are: bard, broken, poet"),
    ] {
        let refused = house.run(args);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.err.contains(text), "{refused:?}");
    }
    assert_eq!(house.run(&["presets", "remove", "bard"]).code, Some(0));
    assert!(!house.path().join("mine/bard").exists());
}

#[test]
fn a_run_is_composed_from_its_preset_and_so_is_what_resumes_it() {
    let house = house();
    let verse = house.run(&["run", "--preset", "poet", "--session", "s", "Good morning"]);
    assert_eq!((verse.code, verse.out.trim_end()), (Some(0), "A line, a rhyme."), "{verse:?}");
    let again = house.run(&["run", "--resume", "s", "Good evening"]);
    assert_eq!((again.code, again.out.trim_end()), (Some(0), "A line, a rhyme."), "{again:?}");
    let prose = house.run(&["run", "--model", "play/any", "Good morning"]);
    assert_eq!((prose.code, prose.out.trim_end()), (Some(0), "Prose."), "{prose:?}");
    for (args, text) in [
        (&["run", "--preset", "bard", "Hi"][..], "no agent preset \"bard\"; there are: poet"),
        (&["run", "--preset", "bard", "--session", "s", "Hi"], "has preset \"poet\", not \"bard\""),
        (&["run", "--preset", "poet", "--reasoning-effort", "high", "Hi"], "is for a --model"),
    ] {
        let refused = house.run(args);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.err.contains(text), "{refused:?}");
    }
    // Without the roots nobody is somebody else than before.
    house.write(
        "playhouse.toml",
        &CONFIG.replace("[presets]\nroots = [\"mine\"]\nsystem_roots = [\"shipped\"]\n", ""),
    );
    let refused = house.run(&["run", "--resume", "s", "Good night"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("add [presets] with `roots`"), "{refused:?}");
}
