//! Map and reduce over files: a child summarises each file of a directory, never more than four at
//! once; one that fails is tried again; one agent makes a digest of all notes, which are in order.
//!
//! `cargo run --example map_reduce`, with a directory if you like. It is offline unless
//! `DEEPSEEK_API_KEY` or `ANTHROPIC_API_KEY` is set.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use futures::{StreamExt, stream};
use playhouse::{
    NewAgent,
    models::{
        EnvModel,
        scripted::{Reply, Script, When},
    },
    subagents::{
        ChildGroup, ChildProviders, ChildRequest, ChildRetries, RunStarted, SUBAGENTS_SERVICE,
    },
};

/// Children at once.
const CAP: usize = 4;

/// Characters of a file that its child gets.
const CHARS_MAX: usize = 20_000;

/// A file's name, and what is in it.
type File = (String, String);

fn read(dir: &Path) -> std::io::Result<Vec<File>> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.retain(|path| path.is_file());
    paths.sort();
    let named = paths.iter().map(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = String::from_utf8_lossy(&fs::read(path)?).chars().take(CHARS_MAX).collect();
        Ok((name, text))
    });
    named.collect()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let recipes = || Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cookbook");
    let files = read(&std::env::args().nth(1).map_or_else(recipes, PathBuf::from))?;

    let harness = playhouse::base().start().await?;
    let model = EnvModel::or_script(script())?;
    let options = model.register(harness.world())?.max_tokens(8_000);
    let editor = harness.create(NewAgent::new(options)).await?;
    let group = ChildGroup::new(harness.world());

    // Whoever wants to know is told of each child that begins and ends.
    let busiest = Arc::new(AtomicUsize::new(0));
    let (world, seen) = (harness.world().clone(), busiest.clone());
    let children = harness.world().services.require::<ChildProviders>(SUBAGENTS_SERVICE)?;
    let started = move |run: &RunStarted| {
        seen.fetch_max(world.agents.children(run.parent.id()).len(), Relaxed);
    };
    children.lifecycle().started.add(&harness.world().scope, started)?;

    // Map. Each try is a child of its own; a request may say what the one before did not.
    let began = Instant::now();
    let notes = stream::iter(&files).map(async |(name, text)| {
        let tries = AtomicU32::new(0);
        let summary = group.retry(ChildRetries::default(), || {
            let attempt = tries.fetch_add(1, Relaxed) + 1;
            if attempt > 1 {
                println!("{name}: once more");
            }
            let task =
                format!("Try {attempt}: say in one sentence what {name} is about.\n\n{text}");
            ChildRequest::new(&editor, task).label(name)
        });
        (name, summary.await)
    });
    let notes: Vec<_> = notes.buffered(CAP).collect().await;

    // Reduce. What could not be read is left out, and said.
    let mut digest = "Make a digest of these notes:".to_owned();
    for (name, note) in &notes {
        match note {
            Ok(note) => digest += &format!("\n- {name}: {}", note.text()),
            Err(failed) => eprintln!("{name} is left out: {failed}"),
        }
    }
    let outcome = editor.prompt(digest).await?;
    println!("{}", outcome.text);

    let busiest = busiest.load(Relaxed);
    println!("{} files, at most {busiest} children at once", files.len());
    eprintln!("in {:.1?}", began.elapsed());
    assert!((1..=CAP).contains(&busiest), "{busiest} children at once");
    assert!(notes.iter().map(|(name, _)| *name).eq(files.iter().map(|(name, _)| name)));
    assert!(harness.children(editor.id()).is_empty());
    if model.is_scripted() {
        assert!(outcome.text.starts_with("Digest:\n- "), "{}", outcome.text);
        let noted = |(name, _): &File| outcome.text.contains(&format!("\n- {name}: It is about"));
        assert!(files.iter().all(noted), "{}", outcome.text);
    }
    harness.shutdown().await?;
    Ok(())
}

/// What a model would say. It is unwell at the first try of each file that begins with a `j` or a `t`.
fn script() -> Script {
    let when = |pattern: &str| When::default().user_matches(pattern);
    let unwell = || Reply::error("BAD_REQUEST", "the model is unwell");
    Script::new()
        .rule(when("Try 1: say in one sentence what j* is about.*"), unwell())
        .rule(when("Try 1: say in one sentence what t* is about.*"), unwell())
        .rule(
            when("Try *: say in one sentence what *.* is about.*"),
            Reply::text("It is about {{2}}."),
        )
        .rule(when("Make a digest of these notes:*"), Reply::text("Digest:{{1}}"))
}
