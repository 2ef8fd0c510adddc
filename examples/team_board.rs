//! A long-lived team: a Lead puts tasks on a board, two members claim and complete them, and tell it so.
//! In the next life of the process the team is there as it was, and a member that slept takes another.
//!
//! `cargo run --example team_board`. It is offline unless `DEEPSEEK_API_KEY` or `ANTHROPIC_API_KEY` is set.

use std::path::Path;

use playhouse::{
    AgentHandle, CancelToken, Harness, NewAgent,
    models::{
        EnvModel,
        scripted::{Reply, Script, When},
    },
    stores::{JournalStore, JournalStoreConfig},
    teams::{
        MemberStatus, NewMember, NewMessage, NewTask, Seat, TEAMS_SERVICE, Teams, TeamsPlugin,
    },
};
use serde_json::json;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// One life of the process, with its Lead at its place in the team.
struct Life {
    harness: Harness,
    _lead: AgentHandle,
    seat: Seat,
}

impl Life {
    async fn begin(dir: &Path, resume: bool) -> Result<Self> {
        let store = JournalStore::open(dir, JournalStoreConfig::default()).await?;
        let harness = playhouse::base().plugin(TeamsPlugin::default()).store(store).start().await?;
        let options = EnvModel::or_script(script())?.register(harness.world())?;
        let new = NewAgent::new(options);
        let lead = match resume {
            true => harness.resume("lead", new).await?,
            false => harness.create(new.id("lead")).await?,
        };
        let teams = harness.world().services.require::<Teams>(TEAMS_SERVICE)?;
        let seat = teams.team(&lead)?;
        Ok(Self { harness, _lead: lead, seat })
    }

    /// Until every task is completed, and nobody works any more.
    async fn until_done(&self) -> Result<()> {
        let mut changes = self.seat.watch();
        loop {
            changes.borrow_and_update();
            let open =
                self.seat.team()?.tasks().iter().any(|task| task.status.as_str() != "completed");
            let at_work = self.seat.roster()?.iter().any(|row| row.status.is_at_work());
            if !open && !at_work {
                return Ok(());
            }
            changes.changed().await?;
        }
    }

    fn show(&self) -> Result<()> {
        let team = self.seat.team()?;
        for task in team.tasks() {
            let owner = task.owner_id.as_ref().and_then(|id| team.name_of(id)).unwrap_or("nobody");
            println!("{} {} [{}] {owner}", task.id, task.subject, task.status.as_str());
        }
        for row in self.seat.roster()? {
            println!("  {}: {}", row.name, row.status.as_str());
        }
        Ok(())
    }
}

/// What a model would do: take the task that it is told to take, complete it, tell the Lead. Later
/// turns of a member go on where its first one ended.
fn script() -> Script {
    let step = |n| When::default().user_matches("Take * off the board*").assistant_messages(n);
    let update = |task: &str, revision: u64, action: &str| {
        let args = json!({"task_id": task, "expected_revision": revision, "action": action});
        Reply::call("team_task_update", args)
    };
    let report = |task: &str| {
        let message =
            format!("{task} is done: what is never asked for again is not worth keeping.");
        Reply::call("send_message", json!({"target": "lead", "message": message}))
    };
    let turns = ["{{1}}", "task-3"].into_iter().zip([0, 4]);
    let script = turns.fold(Script::new(), |script, (task, first)| {
        script
            .rule(step(first), update(task, 1, "claim"))
            .rule(step(first + 1), update(task, 2, "complete"))
            .rule(step(first + 2), report(task))
            .rule(step(first + 3), Reply::text("Done."))
    });
    script.reply(Reply::text("Noted."))
}

fn take(task: &str) -> String {
    format!(
        "Take {task} off the board: claim it, do it in one sentence, complete it, and send what you \
         found to the Lead."
    )
}

fn task(subject: &str) -> NewTask {
    let description = "From what you know, in one sentence.".to_owned();
    NewTask { subject: subject.to_owned(), description, ..NewTask::default() }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    run(dir.path()).await
}

async fn run(dir: &Path) -> Result<()> {
    let never = CancelToken::new();
    let life = Life::begin(dir, false).await?;
    for subject in ["What makes a cache worth it?", "What makes a cache dangerous?"] {
        life.seat.create_task(task(subject)).await?;
    }
    for (name, number) in [("ann", 1), ("bob", 2)] {
        let new = NewMember::new(name, "Thinks about caches.", take(&format!("task-{number}")));
        life.seat.spawn(new, &never).await?;
    }
    life.until_done().await?;
    life.show()?;
    life.harness.shutdown().await?;

    println!("-- the next day");
    let life = Life::begin(dir, true).await?;
    let asleep = life.seat.roster()?.iter().all(|row| row.status != MemberStatus::Running);
    println!("members: {}, all asleep: {asleep}", life.seat.team()?.members().len());
    let made = life.seat.create_task(task("Which of the two weighs more?")).await?;
    let id = made.task.id.to_string();
    life.seat.send(NewMessage::wakeup("ann", take(&id)), &never).await?;
    life.until_done().await?;
    life.show()?;
    life.harness.shutdown().await?;
    Ok(())
}
