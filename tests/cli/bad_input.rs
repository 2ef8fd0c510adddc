//! What goes wrong is told on one line, with the way out, and costs nothing that was written.

use super::{Ended, House};

#[test]
fn bad_arguments_are_told_with_the_way_out() {
    let house = House::new();
    for (args, parts) in [
        (&["run", "--model", "scripted", "x"][..], &["PROVIDER/MODEL"][..]),
        (&["run", "--model", "nobody/x", "x"], &["\"nobody\"", "scripted"]),
        (&["run", "--model", "deepseek/x", "x"], &["DEEPSEEK_API_KEY"]),
        (&["run", "--base-url", "http://localhost", "x"], &["scripted", "--model"]),
        (
            &["run", "--model", "openai_compatible/x", "--base-url", "http://me:pw@h", "x"],
            &["base URL", "credentials"],
        ),
        (&["run", "--model", "openai_compatible/x", "--base-url", "h", "x"], &["base URL"]),
        (&["run", ""], &["prompt is empty"]),
        (&["run", "--cwd", "nowhere", "x"], &["nowhere", "existing directory"]),
        (&["run", "--config", "nowhere.toml", "x"], &["nowhere.toml", "--config"]),
        (&["run", "--agent", "a", "x"], &["--agent a", "[[agent]]"]),
        (&["run", "--session", "", "x"], &["must not be empty"]),
        (&["run", "--resume", "gone", "x"], &["`gone`", "sessions list"]),
        // The resume that was refused has left no store behind.
        (&["sessions", "show", "gone"], &["no store", "--store"]),
        (&["sessions", "list", "--store", "nowhere"], &["nowhere", "--store"]),
        (&["mock-model", "--script", "nowhere.toml"], &["nowhere.toml", "existing file"]),
    ] {
        let ended = house.run(args);
        let error = ended.error(2);
        assert!(ended.out.is_empty(), "{ended:?}");
        for part in parts {
            assert!(error.contains(part), "{args:?}: {error}");
        }
        assert!(!error.contains("pw"), "{error}");
    }
    let ended = house.run(&["run", "--session", "a", "--resume", "a", "x"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert_eq!(house.run(&["run", "--max-tokens", "0", "x"]).code, Some(2));
}

#[test]
fn a_key_that_cannot_be_one_is_refused_before_anything_runs_and_is_not_repeated() {
    let house = House::new();
    for (key, hint) in
        [("  ", "no API key"), ("secret-\u{e9}", "unusable"), ("secret\tkey", "unusable")]
    {
        let mut command = house.command(&["run", "--model", "deepseek/x", "x"]);
        let ended = Ended::of(command.env("DEEPSEEK_API_KEY", key).output().unwrap());
        let error = ended.error(2);
        assert!(error.contains("DEEPSEEK_API_KEY") && error.contains(hint), "{error}");
        assert!(!ended.err.contains("secret"), "{ended:?}");
    }
    assert!(!house.path().join(".playhouse").exists(), "the store was touched");
}

#[test]
fn a_bad_config_is_told_with_file_line_and_key() {
    let house = House::new();
    for (text, parts) in [
        (
            "[[agent]]\nid = \"a\"\ncolour = 1\n",
            &["playhouse.toml:3: `colour`", "unknown field"][..],
        ),
        (
            "[store]\ndurability = \"lax\"\n",
            &["playhouse.toml:2: `store.durability`", "strict, relaxed and none"],
        ),
        ("x = = 1\n", &["playhouse.toml:1: `x`"]),
        (
            "[[agent]]\nid = \"a\"\nprovider = \"nobody\"\nmodel = \"m\"\n",
            &["playhouse.toml:3: `provider`", "\"nobody\""],
        ),
        (
            "[providers.p]\nkind = \"openai_compatible\"\nbase_url = \"ftp://h\"\n",
            &["playhouse.toml:3: `providers.p.base_url`", "http"],
        ),
        (
            "[[plugin]]\nname = \"lookup\"\nsettings = { depth = 1 }\n",
            &["playhouse.toml:2: `name`", "`depth`"],
        ),
        (
            "[providers.p]\nkind = \"scripted\"\nscript = \"no.toml\"\n",
            &["no.toml", "existing file"],
        ),
    ] {
        house.write("playhouse.toml", text);
        let ended = house.run(&["run", "x"]);
        for part in parts {
            assert!(ended.error(2).contains(part), "{text}: {ended:?}");
        }
        assert!(!house.path().join(".playhouse").exists(), "the store was touched: {text}");
    }
}

#[test]
fn a_newer_store_and_a_corrupt_one_are_told_and_left_alone() {
    let house = House::new();
    house.write("playhouse.toml", "plugin = []\n");
    assert_eq!(house.run(&["run", "--session", "it", "x"]).code, Some(0));
    let store = house.path().join(".playhouse");

    let segment = std::fs::read_dir(store.join("journal")).unwrap();
    let segment = segment.map(|entry| entry.unwrap().path()).min().unwrap();
    let whole = std::fs::read(&segment).unwrap();
    let mut damaged = whole.clone();
    let event = whole.windows(12).position(|bytes| bytes == b"\"turn/start\"").unwrap();
    damaged[event] ^= 1;
    std::fs::write(&segment, &damaged).unwrap();
    let verified = house.run(&["sessions", "verify"]);
    assert_eq!(verified.code, Some(6), "{verified:?}");
    assert!(verified.out.contains("damaged: ") && verified.out.contains("segment"), "{verified:?}");
    let ended = house.run(&["run", "--session", "it", "y"]);
    assert!(ended.error(2).contains("`it`") && ended.err.contains("damaged"), "{ended:?}");
    assert_eq!(std::fs::read(&segment).unwrap(), damaged);
    std::fs::write(&segment, &whole).unwrap();
    assert_eq!(house.run(&["run", "--session", "it", "y"]).code, Some(0));

    std::fs::write(store.join("format"), "playhouse-store 99 of another shape\n").unwrap();
    for args in [&["run", "x"][..], &["sessions", "list"]] {
        let ended = house.run(args);
        assert!(ended.error(2).contains("upgrade"), "{ended:?}");
    }
}
