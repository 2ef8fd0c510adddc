//! Export and import: what leaves a store comes back the same, and what another harness logged goes on
//! here.

use std::{
    path::Path,
    process::{Command, Output},
    sync::Arc,
};

use bytes::Bytes;
use futures::TryStreamExt as _;
use playhouse::{
    AgentOptions, ContentBlock, Harness, NewAgent, SessionId, TurnEndReason,
    messages::{
        attachment::AttachmentId, event::SharedEvent, frame::Frame, header::SessionHeader,
        log::Log, repair::fork_seed, testing::Grower,
    },
    models::scripted::{Call, Chunking, Fault, FaultKind, Reply, Script, ScriptedAdapter},
    plugin_api::{
        attachment::{AttachmentStore, MemoryAttachments},
        store::{EventBatch, Store, StoreReader, all_sessions},
        tool::tool_fn,
    },
    stores::{MemoryStore, StoreConfig, StoreKind, open_reader},
    transfer::{Sessions, SourceFormat, export, import, store},
};
use serde_json::Value;

const KILLED_V4: &str = include_str!("data/reference-sessions/killed-mid-stream.v4.jsonl");
const TWO_TURNS_V4: &str = include_str!("data/reference-sessions/two-turns.v4.jsonl");
const KILLED_V0: &str = include_str!("../plugins/transfer/tests-data/killed-mid-stream.v0.jsonl");
const FORK_V0: &str = include_str!("../plugins/transfer/tests-data/fork.v0.jsonl");
const FORK_V5: &str = include_str!("../plugins/transfer/tests-data/fork.v5.jsonl");

/// An imported snapshot is known for what it is: these harnesses have nothing to put in its place.
const NO_CONTEXT: &str =
    "Current runtime context: none. Earlier runtime-context snapshots no longer apply.";

fn options() -> AgentOptions {
    AgentOptions::new().model("scripted", "any")
}

async fn harness(
    store: Arc<dyn Store>,
    images: MemoryAttachments,
    replies: impl IntoIterator<Item = Reply>,
) -> (Harness, Arc<ScriptedAdapter>) {
    let builder = Harness::builder().shared_store(store).attachments(images);
    let harness = builder.start().await.unwrap();
    let model = ScriptedAdapter::new(Script::sequence(replies)).with_modalities(["text", "image"]);
    let model = Arc::new(model);
    let routes = ["scripted", "deepseek-official"];
    let _ = harness.world().models.register(routes, model.clone()).unwrap();
    (harness, model)
}

fn gif(number: u8) -> Bytes {
    [b"GIF89a\x03\0\x02\0\0\0\0;", &[number][..]].concat().into()
}

fn adds(id: String) -> Reply {
    let arguments = playhouse::models::scripted::Arguments::Raw(r#"{"a": 2, "b": 3}"#.to_owned());
    let call = Call { name: "add".to_owned(), arguments, id: Some(id) };
    Reply { calls: vec![call], ..Reply::text("Let me see. ") }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Add {
    a: i64,
    b: i64,
}

/// Puts a log into a store.
async fn put(store: &dyn Store, header: SessionHeader, inherited: u64, log: &Log) {
    let writer = store.create(&Arc::new(header), inherited).await.unwrap();
    let events: Vec<SharedEvent> = log.iter().cloned().collect();
    writer.append(EventBatch::encode(&events)).await.unwrap();
    writer.flush().await.unwrap();
    writer.close().await.unwrap();
}

/// Twenty-five random logs, from a seed that a failure prints.
async fn grow(to: &dyn Store) {
    let seed = std::env::var("PLAYHOUSE_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut state: u64 = seed.unwrap_or(0x5EED);
    println!("PLAYHOUSE_SEED={state}");
    let mut next = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()
    };
    for number in 0..25 {
        let choices: Vec<_> = (0..number * 12).map(|_| next()).map(|it| (it[0], it[1])).collect();
        let header = SessionHeader::new(format!("grown-{number:02}").as_str().into(), number);
        put(to, header, 0, &Grower::grown(&choices).log).await;
    }
}

/// Twelve conversations with tools and images, five that still stream, and eight forks of them.
async fn converse(live: &Arc<MemoryStore>, images: &MemoryAttachments) -> Harness {
    let mut replies = Vec::new();
    for number in 0..12 {
        replies.extend([adds(format!("call-{number}")), Reply::text("Five.")]);
    }
    let stall = || Fault::new(FaultKind::Stall).after(3);
    replies.extend((0..5).map(|number| {
        let text = format!("One two three four {number} and so on");
        Reply::text(&*text).chunked(Chunking::Words).with_fault(stall())
    }));
    let (harness, _) = harness(live.clone(), images.clone(), replies).await;
    let add = |args: Add, _run| async move {
        Ok::<_, playhouse::ToolError>((args.a + args.b).to_string())
    };
    harness.register_tool(Arc::new(tool_fn("add", "Adds", add))).unwrap();
    for number in 0..12_u8 {
        let agent = NewAgent::new(options()).id(format!("spoken-{number:02}").as_str());
        let agent = harness.create(agent).await.unwrap();
        // Every third image is the one before: images are kept once.
        let image = images.put(gif(number / 3), Some("dot.gif".into())).await.unwrap();
        let prompt = vec![ContentBlock::text("add 2 and 3"), ContentBlock::image(&image)];
        assert_eq!(agent.prompt(prompt).await.unwrap().text, "Five.");
        agent.when_idle().await.unwrap();
        agent.dispose().await.unwrap();
    }
    for number in 0..5 {
        let agent = NewAgent::new(options()).id(format!("streams-{number}").as_str());
        let agent = harness.create(agent).await.unwrap();
        let mut frames = agent.session().frames();
        agent.followup("go on").await.unwrap();
        let mut shown = 0;
        while shown < 3 {
            let Some(Frame::Chunks { chunks, .. }) = frames.next().await else { continue };
            shown += chunks.iter().filter(|timed| timed.chunk.is_token()).count();
        }
    }
    for number in 0..8_u64 {
        let parent = SessionId::from(format!("spoken-{number:02}").as_str());
        let log = live.read(&parent).await.unwrap().log().unwrap();
        let seed = fork_seed(&log, Some(log.len() - 1 - number), 0).unwrap();
        let mut header = SessionHeader::new(format!("forked-{number}").as_str().into(), number);
        header.is_seeded = true;
        header.parent_session = Some(parent);
        put(&**live, header, seed.inherited, &seed.log).await;
    }
    harness
}

async fn export_all(reader: &dyn StoreReader, images: &dyn AttachmentStore) -> Vec<u8> {
    let mut file = Vec::new();
    for stat in all_sessions(reader).try_collect::<Vec<_>>().await.unwrap() {
        let exported = export(reader, Some(images), &stat.header.id, &mut file).await.unwrap();
        assert_eq!(exported.missing, Vec::<AttachmentId>::new());
    }
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_sessions_come_back_the_same_from_every_kind_of_store() {
    let (live, images) = (Arc::new(MemoryStore::new()), MemoryAttachments::new());
    grow(&*live).await;
    let running = converse(&live, &images).await;
    // Beside the running harness: five answers are still streaming.
    let first = export_all(&*live, &images).await;
    running.shutdown().await.unwrap();

    for kind in StoreKind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let into = StoreConfig::new(*kind).open(dir.path()).await.unwrap();
        let kept = MemoryAttachments::new();
        let (mut sessions, mut events, mut pictures, mut tails) = (0, 0, 0, 0);
        for lines in Sessions::new(&first[..]) {
            let imported = import(&lines.unwrap()).unwrap();
            tails += u64::from(imported.tail.is_some());
            let stored = store(&*into, Some(&kept), imported).await.unwrap();
            assert_eq!(stored.report.source, SourceFormat::Playhouse(1));
            assert!(stored.report.notes.is_empty() && stored.left_out == 0);
            (sessions, events) = (sessions + 1, events + stored.events);
            pictures += stored.attachments;
        }
        let second = export_all(&*into, &kept).await;
        assert!(first == second, "the second export from the store of kind {kind} differs");
        into.close().await.unwrap();
        if *kind != StoreKind::Memory {
            // As another process finds it.
            let reader = open_reader(dir.path()).await.unwrap();
            assert!(export_all(&*reader, &kept).await == first, "{kind}, read again");
        }
        println!(
            "{kind}: {sessions} sessions, {events} events, {pictures} images, {tails} tails, {} bytes: \
             identical",
            first.len()
        );
        assert_eq!(
            (sessions, pictures),
            (50, 20),
            "twelve conversations and eight forks show images"
        );
        assert!(tails >= 5, "{tails}");
    }
}

#[tokio::test]
async fn a_session_is_stored_whole_or_not_at_all() {
    let (into, images) = (MemoryStore::new(), MemoryAttachments::new());
    let read = |file: &str| import(&Sessions::new(file.as_bytes()).next().unwrap().unwrap());
    store(&into, None, read(KILLED_V4).unwrap()).await.unwrap();
    let error = store(&into, None, read(KILLED_V4).unwrap()).await.unwrap_err();
    assert_eq!(error.code(), "SESSION_ALREADY_EXISTS");
    store(&into, None, read(KILLED_V4).unwrap().renamed("another".into())).await.unwrap();
    // An image that the store refuses leaves no session.
    let (live, bytes) = (MemoryStore::new(), MemoryAttachments::new());
    let image = bytes.put(gif(1), None).await.unwrap();
    let body = playhouse::EventBody::UserMessage(Arc::new(playhouse::Message::user_from(
        "u",
        vec![ContentBlock::image(&image)],
        playhouse::Source::user(),
    )));
    let log = Log::from_iter([Arc::new(playhouse::NewEvent::append(body).at(0, 1))]);
    put(&live, SessionHeader::new("shows".into(), 1), 0, &log).await;
    let file = String::from_utf8(export_all(&live, &bytes).await).unwrap();
    let strict = images.image_bytes_max(4);
    let error = store(&into, Some(&strict), read(&file).unwrap()).await.unwrap_err();
    assert_eq!(error.code(), "ATTACHMENT_TOO_LARGE");
    let ids: Vec<_> = all_sessions(&into).try_collect().await.unwrap();
    let ids: Vec<_> = ids.iter().map(|stat| stat.header.id.as_str()).collect();
    assert_eq!(ids, ["another", "killed-mid-stream"]);
    // Without a place for images the session comes alone, and says so.
    let stored = store(&into, None, read(&file).unwrap()).await.unwrap();
    assert_eq!((stored.attachments, stored.left_out), (0, 1));
    // An image that is gone is named.
    let nothing = MemoryAttachments::new();
    let exported = export(&live, Some(&nothing), &"shows".into(), &mut Vec::new()).await.unwrap();
    assert_eq!(exported.missing, [image.attachment_id]);
}

/// Imports a log, resumes it, and prompts: what the store holds then, and what the model was shown.
async fn resumed(file: &str) -> (Vec<String>, Vec<(String, String)>) {
    let into = Arc::new(MemoryStore::new());
    let imported = import(&Sessions::new(file.as_bytes()).next().unwrap().unwrap()).unwrap();
    let stored = store(&*into, None, imported).await.unwrap();
    let (harness, model) = harness(into, MemoryAttachments::new(), [Reply::text("Yes.")]).await;
    let agent = harness.resume(stored.id.clone(), NewAgent::new(options())).await.unwrap();
    let log = agent.session().log();
    let added: Vec<_> =
        log.range(stored.events..log.len()).map(|event| event.body.kind().to_owned()).collect();
    let outcome = agent.prompt("Still there?").await.unwrap();
    assert_eq!((outcome.text.as_str(), outcome.reason), ("Yes.", TurnEndReason::Completed));
    let role = |role| serde_json::to_value(role).unwrap().as_str().unwrap().to_owned();
    let shown = model.captured()[0].messages.iter().map(|it| (role(it.role), it.text())).collect();
    harness.shutdown().await.unwrap();
    (added, shown)
}

fn told(shown: &[(String, String)]) -> Vec<(&str, &str)> {
    shown.iter().map(|(role, text)| (role.as_str(), text.as_str())).collect()
}

#[test]
fn logs_of_version_4_are_taken_as_they_are_but_for_the_marks() {
    for (file, marked) in [(KILLED_V4, 10), (TWO_TURNS_V4, 18)] {
        let imported = import(&Sessions::new(file.as_bytes()).next().unwrap().unwrap()).unwrap();
        assert_eq!(imported.report.source, SourceFormat::Reference(4));
        assert_eq!(imported.report.violation, None);
        assert!(imported.report.renumbered.is_empty());
        assert_eq!(
            imported.report.notes.values().sum::<u64>(),
            marked,
            "{:?}",
            imported.report.notes
        );
        let mut marks = 0;
        for (line, event) in file.lines().skip(1).zip(&imported.events) {
            let (mut old, new): (Value, Value) =
                (serde_json::from_str(line).unwrap(), serde_json::from_slice(event).unwrap());
            if new["ignorable"] == true {
                marks += 1;
                old["ignorable"] = true.into();
            }
            assert_eq!(old, new);
        }
        assert_eq!(marks, marked);
    }
}

#[tokio::test]
async fn a_log_of_version_4_that_was_cut_is_closed_and_goes_on() {
    let (added, shown) = resumed(KILLED_V4).await;
    assert_eq!(added, ["step/end", "turn/end", "session/end-seed"]);
    let failed = "Error: tool failed in this recording";
    let expected = [
        ("user", "add 2 and 3"),
        ("user", "context snapshot"),
        ("assistant", ""),
        ("tool", failed),
        ("assistant", ""),
        ("tool", failed),
        ("user", "Still there?"),
        // The imported snapshot is known for what it is: this harness has nothing to put in its place.
        (
            "user",
            "Current runtime context: none. Earlier runtime-context snapshots no longer apply.",
        ),
    ];
    let conversation: Vec<_> = told(&shown).into_iter().filter(|it| it.0 != "system").collect();
    assert_eq!(conversation, expected);

    let (added, shown) = resumed(TWO_TURNS_V4).await;
    assert_eq!(added, ["session/end-seed"]);
    let roles: Vec<_> = shown.iter().map(|it| it.0.chars().next().unwrap()).collect();
    assert_eq!(roles.iter().filter(|role| **role == 't').count(), 4, "{roles:?}");
}

#[tokio::test]
async fn a_log_of_version_0_that_was_cut_amid_a_stream_keeps_what_it_had_shown() {
    let (added, shown) = resumed(KILLED_V0).await;
    assert_eq!(added, ["assistant/message", "step/end", "turn/end", "session/end-seed"]);
    let conversation: Vec<_> = told(&shown).into_iter().filter(|it| it.0 != "system").collect();
    let expected = [
        ("user", "they looked"),
        ("assistant", "Done."),
        ("user", "and now?"),
        ("assistant", "Half an answer"),
        ("user", "Still there?"),
        ("user", NO_CONTEXT),
    ];
    assert_eq!(conversation, expected);
}

#[tokio::test]
async fn forks_of_versions_0_and_5_go_on() {
    let (added, shown) = resumed(FORK_V0).await;
    assert_eq!(added, ["session/end-seed"]);
    let conversation: Vec<_> = told(&shown).into_iter().filter(|it| it.0 != "system").collect();
    let expected =
        [("user", "begin"), ("assistant", "Begun."), ("user", "fail"), ("user", "Still there?")];
    assert_eq!(conversation, expected);
    let (added, shown) = resumed(FORK_V5).await;
    assert_eq!(added, ["session/end-seed"]);
    assert!(told(&shown).contains(&("user", "held deep")), "{shown:?}");
}

/// The command, in a directory.
fn playhouse(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_playhouse")).args(args).current_dir(dir).output().unwrap()
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_command_moves_sessions_and_their_images_between_stores() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    let run = |args: &[&str]| said(&playhouse(dir, args));
    std::fs::write(dir.join("s.toml"), "[[rules]]\nreply = { text = \"{{images}} seen\" }\n")
        .unwrap();
    std::fs::write(
        dir.join("playhouse.toml"),
        "[providers.s]\nkind = \"scripted\"\nscript = \"s.toml\"\n\
         input_modalities = [\"text\", \"image\"]\n\
         [[agent]]\nid = \"a\"\nprovider = \"s\"\nmodel = \"any\"\nsessionId = \"it\"\n",
    )
    .unwrap();
    std::fs::write(dir.join("dot.gif"), gif(1)).unwrap();
    assert_eq!(run(&["run", "--image", "dot.gif", "look"]).0, Some(0));
    std::fs::write(dir.join("old.jsonl"), KILLED_V0).unwrap();
    let (code, out, _) = run(&["sessions", "import", "old.jsonl", "--format", "jsonl"]);
    let line: Value = serde_json::from_str(out.trim()).unwrap();
    assert_eq!(
        (code, &line["kind"], &line["id"]),
        (Some(0), &"session".into(), &"old-killed".into())
    );
    assert_eq!(line["source"], serde_json::json!({"format": "reference", "version": 0}));
    let (code, out, err) = run(&["sessions", "import", "old.jsonl", "--id", "renamed"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("the reference's format version 0"), "{out}");
    assert!(out.contains("  kept `session/title`, marked ignorable: 1\n"), "{out}");

    let (code, out, _) = run(&["sessions", "export", "--all", "--out", "all.jsonl"]);
    assert_eq!((code, out.lines().count()), (Some(0), 3), "{out}");
    let (code, _, err) = run(&["sessions", "export", "--all", "--out", "all.jsonl"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("all.jsonl is already there; name another"), "{err}");
    let (code, _, err) = run(&["sessions", "import", "all.jsonl", "--store", "other"]);
    assert_eq!(code, Some(0), "{err}");
    let first = std::fs::read_to_string(dir.join("all.jsonl")).unwrap();
    let (code, second, _) = run(&["sessions", "export", "--all", "--store", "other"]);
    assert_eq!(code, Some(0));
    assert_eq!(first, second);
    assert_eq!(run(&["sessions", "verify", "--store", "other"]).0, Some(0));
    let image = std::fs::read_dir(dir.join("other/attachments")).unwrap().next().unwrap().unwrap();
    assert_eq!(std::fs::read(image.path()).unwrap(), gif(1));
    // A file a session.
    let (code, ..) = run(&["sessions", "export", "it", "renamed", "--tree", "--out", "each/"]);
    assert_eq!(code, Some(0));
    let each = |name: &str| std::fs::read_to_string(dir.join("each").join(name)).unwrap();
    assert_eq!(each("it.jsonl") + &each("renamed.jsonl"), {
        let (_, both, _) = run(&["sessions", "export", "it", "renamed"]);
        both
    });

    // Nothing is overwritten, and what can be stored is.
    let (code, _, err) = run(&["sessions", "import", "all.jsonl", "--store", "other"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("error: all.jsonl: session `it` already exists"), "{err}");
    let cut =
        first.replacen("\"type\":\"turn/start\",\"seq\":1", "\"type\":\"turn/start\",\"seq\":9", 1);
    std::fs::write(dir.join("cut.jsonl"), cut).unwrap();
    let (code, _, err) = run(&["sessions", "import", "cut.jsonl", "--store", "third"]);
    assert_eq!(code, Some(6), "{err}");
    assert!(
        err.contains("error: cut.jsonl: line 3, event 9: the event says seq 9, and 1"),
        "{err}"
    );
    let (_, listed, _) = run(&["sessions", "list", "--store", "third"]);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    // Mistakes are told before a store is made.
    for args in [
        &["sessions", "import", "gone.jsonl", "--store", "fourth"][..],
        &["sessions", "import", "all.jsonl", "old.jsonl", "--id", "x", "--store", "fourth"],
        &["sessions", "export", "it", "--store", "fourth"],
        &["sessions", "export"],
        &["sessions", "export", "nobody"],
    ] {
        let (code, _, err) = run(args);
        assert_eq!(code, Some(2), "{args:?}: {err}");
    }
    assert!(!dir.join("fourth").exists());
}
