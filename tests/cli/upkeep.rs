//! `sessions delete`, `gc`, `salvage` and `verify`.

use std::{fs, sync::Arc};

use futures::TryStreamExt as _;
use playhouse::plugin_api::store::{Store, all_values};
use playhouse_stores::{StoreConfig, StoreKind};

use super::House;

const GIF: &[u8] = b"GIF89a\x03\0\x02\0\0\0\0;";

/// A house with two agents' configs over one store; their model tells how many images it got.
fn house() -> House {
    let house = House::new();
    house.write("s.toml", "[[rules]]\nreply = { text = \"{{images}} of {{prompt}}\" }\n");
    for id in ["one", "two"] {
        house.write(
            &format!("{id}.toml"),
            &format!(
                "[providers.s]\nkind = \"scripted\"\nscript = \"s.toml\"\n\
                 input_modalities = [\"text\", \"image\"]\n\
                 [[agent]]\nid = \"a\"\nprovider = \"s\"\nmodel = \"any\"\nsessionId = \"{id}\"\n"
            ),
        );
        let image = house.path().join(format!("{id}.gif"));
        fs::write(image, [GIF, id.as_bytes()].concat()).unwrap();
        let (config, image) = (format!("{id}.toml"), format!("{id}.gif"));
        let ended = house.run(&["run", "--config", &config, "--image", &image, "cats"]);
        assert_eq!(ended.out, "1 of cats\n", "{ended:?}");
    }
    for (session, text) in [("one", "a"), ("two", "b"), ("gone", "c")] {
        let dir = house.path().join(".playhouse/spills").join(session);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("call.txt"), text).unwrap();
    }
    house
}

/// Flips a bit in the last event of session `one`: the first process wrote that into the first segment,
/// the second `two` into another. Returns the segment's bytes.
fn damage_an_event_of_one(house: &House) -> Vec<u8> {
    let path = house.path().join(".playhouse/journal/0000000000000001.segment");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(10).rposition(|text| text == b"\"turn/end\"").unwrap();
    bytes[at + 1] ^= 1;
    fs::write(path, &bytes).unwrap();
    bytes
}

fn names(house: &House, dir: &str) -> Vec<String> {
    let entries = fs::read_dir(house.path().join(dir)).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Does something with the store of the house.
fn values<F: Future<Output = Vec<String>>>(
    house: &House,
    work: impl FnOnce(Arc<dyn Store>) -> F,
) -> Vec<String> {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let config = StoreConfig::new(StoreKind::Journal);
        let store = config.open(&house.path().join(".playhouse")).await.unwrap();
        let found = work(Arc::clone(&store)).await;
        store.close().await.unwrap();
        found
    })
}

async fn keys(store: Arc<dyn Store>) -> Vec<String> {
    all_values(&*store).try_collect().await.unwrap()
}

#[test]
fn what_is_deleted_is_gone_and_gc_gives_its_space_back() {
    let house = house();
    values(&house, |store| async move {
        for id in ["one", "two", "gone"] {
            store.put_value(&format!("projcache/{id}"), "cached".into()).await.unwrap();
        }
        store.put_value("something/else", "kept".into()).await.unwrap();
        Vec::new()
    });
    let refused = house.run(&["sessions", "delete", "one", "nobody"]);
    assert!(refused.error(2).contains("no session `nobody`"), "{refused:?}");
    let deleted = house.run(&["sessions", "delete", "one", "one", "--format", "jsonl"]);
    assert_eq!(deleted.json()[0]["session"], "one", "{deleted:?}");
    assert_eq!(house.run(&["sessions", "show", "one"]).code, Some(2));
    assert_eq!(names(&house, ".playhouse/spills"), ["gone", "two"]);
    assert_eq!(names(&house, ".playhouse/attachments").len(), 2);

    assert_eq!(values(&house, keys), ["projcache/gone", "projcache/two", "something/else"]);

    let swept = house.run(&["sessions", "gc", "--format", "jsonl"]);
    let report = &swept.json()[0];
    assert_eq!((&report["spills"], &report["images"]), (&1.into(), &1.into()), "{swept:?}");
    assert_eq!((&report["projections"], &report["compacted"]), (&1.into(), &true.into()));
    assert_eq!(values(&house, keys), ["projcache/two", "something/else"]);
    let bytes = |key: &str| report[key].as_u64().unwrap();
    assert!(bytes("bytesAfter") < bytes("bytesBefore"), "{report}");
    assert_eq!(names(&house, ".playhouse/spills"), ["two"]);
    assert_eq!(names(&house, ".playhouse/attachments").len(), 1);

    // The other one goes on, image and all; the id of the deleted one is free.
    let again = house.run(&["run", "--config", "two.toml", "dogs"]);
    assert_eq!(again.out, "1 of dogs\n", "{again:?}");
    assert_eq!(house.run(&["run", "--config", "one.toml", "dogs"]).out, "0 of dogs\n");
    let verified = house.run(&["sessions", "verify"]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    assert!(verified.out.contains("2 sessions, "), "{verified:?}");
    let text = house.run(&["sessions", "gc"]);
    assert!(
        text.out.contains(
            "spilled outputs of 0 sessions, cached projections of 0 sessions, and 0 images"
        ),
        "{text:?}"
    );
}

#[test]
fn beside_a_live_harness_the_store_is_read_and_not_changed() {
    let house = house();
    let mut running = house.spawn(&["rpc", "--config", "two.toml"]);
    running.send(r#"{"jsonrpc":"2.0","id":1,"method":"agent/list"}"#);
    running.line(|line| line.contains("\"id\":1").then_some(()));
    for args in [&["list"][..], &["show", "one"], &["tree"], &["verify"]] {
        let ended = house.run(&[&["sessions"][..], args].concat());
        assert_eq!(ended.code, Some(0), "{args:?}: {ended:?}");
    }
    let salvaged = house.run(&["sessions", "salvage", "--into", "copy"]);
    assert_eq!(salvaged.code, Some(0), "{salvaged:?}");
    for args in [&["delete", "one"][..], &["gc"]] {
        let refused = house.run(&[&["sessions"][..], args].concat());
        assert!(refused.error(2).contains("is in use by process"), "{args:?}: {refused:?}");
    }
    let (code, _) = running.end();
    assert_eq!(code, Some(0));
    assert_eq!(names(&house, ".playhouse/spills"), ["gone", "one", "two"]);
}

#[test]
fn a_damaged_store_is_told_from_a_whole_one_and_salvaged() {
    let house = house();
    let salvaged = house.run(&["sessions", "salvage", "--into", "whole", "--format", "jsonl"]);
    assert_eq!(salvaged.code, Some(0), "{salvaged:?}");
    assert_eq!(salvaged.json()[0]["whole"], 2, "{salvaged:?}");
    let refused = house.run(&["sessions", "salvage", "--into", "whole"]);
    assert!(refused.error(2).contains("whole is not empty"), "{refused:?}");

    let path = house.path().join(".playhouse/journal/0000000000000001.segment");
    let bytes = damage_an_event_of_one(&house);
    let verified = house.run(&["sessions", "verify"]);
    assert_eq!(verified.code, Some(6), "{verified:?}");
    assert!(verified.out.contains("session one: "), "{verified:?}");
    assert!(verified.out.contains("the store is damaged"), "{verified:?}");
    let refused = house.run(&["sessions", "gc"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert_eq!(names(&house, ".playhouse/spills").len(), 3, "nothing was removed");

    let salvaged = house.run(&["sessions", "salvage", "--into", "rest", "--format", "jsonl"]);
    assert_eq!(salvaged.code, Some(6), "{salvaged:?}");
    let lines = salvaged.json();
    let report = lines.last().unwrap();
    assert_eq!((&report["whole"], &report["partial"]), (&1.into(), &1.into()), "{salvaged:?}");
    let partial = lines.iter().find(|line| line["kind"] == "partial").unwrap();
    assert_eq!((&partial["session"], &partial["code"]), (&"one".into(), &"STORE_CORRUPT".into()));
    let shown = |store: &str, id: &str| {
        house.run(&["sessions", "show", id, "--format", "jsonl", "--store", store]).out
    };
    assert_eq!(shown("rest", "two"), shown(".playhouse", "two"));
    let prefix = shown("rest", "one");
    assert!(shown("whole", "one").starts_with(&prefix));
    assert_eq!(prefix.lines().count() as u64, partial["events"].as_u64().unwrap());
    assert_eq!(house.run(&["sessions", "verify", "--store", "rest"]).code, Some(0));
    assert_eq!(fs::read(&path).unwrap(), bytes, "the damaged store is as it was");
    let text = house.run(&["sessions", "salvage", "--into", "rest again"]);
    assert!(text.out.contains("1 session whole, 1 in part, 0 lost"), "{text:?}");
}

#[test]
fn an_export_of_all_says_that_a_session_is_missing() {
    let house = house();
    assert_eq!(house.run(&["sessions", "export", "--all"]).code, Some(0));
    let path = house.path().join(".playhouse/journal/0000000000000001.segment");
    let mut bytes = fs::read(&path).unwrap();
    // In the header of session `one`, which no list shows any more.
    let at = bytes.windows(5).position(|text| text == b"\"one\"").unwrap();
    bytes[at + 1] ^= 1;
    fs::write(&path, &bytes).unwrap();
    for looks in ["list", "tree"] {
        let listed = house.run(&["sessions", looks]);
        assert!(listed.err.contains("a list leaves out a session"), "{listed:?}");
        assert!(listed.out.starts_with("two "), "{listed:?}");
    }
    let exported = house.run(&["sessions", "export", "--all"]);
    assert_eq!(exported.code, Some(6), "{exported:?}");
    assert!(exported.err.contains("sessions may be missing from the export"), "{exported:?}");
    assert!(exported.out.contains("\"id\":\"two\""), "{exported:?}");
    assert_eq!(house.run(&["sessions", "export", "two"]).code, Some(0));
}

#[test]
fn a_damaged_session_is_left_out_of_an_export_of_all_and_refused_by_its_id() {
    let house = house();
    damage_an_event_of_one(&house);
    let two = house.run(&["sessions", "export", "two"]).out;
    let exported = house.run(&["sessions", "export", "--all"]);
    assert_eq!((exported.code, &exported.out), (Some(6), &two), "{exported:?}");
    assert!(exported.err.contains("left out: session `one` is damaged"), "{exported:?}");
    let exported = house.run(&["sessions", "export", "--all", "--out", "each/"]);
    assert_eq!(exported.code, Some(6), "{exported:?}");
    assert_eq!(names(&house, "each"), ["two.jsonl"]);
    let refused = house.run(&["sessions", "export", "one", "two"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
}
