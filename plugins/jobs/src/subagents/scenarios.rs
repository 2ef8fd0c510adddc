use std::time::Duration;

use playhouse_messages::{event::CancelCause, machine::Status};
use playhouse_models::scripted::{Reply, Script};
use playhouse_plugin_api::{cancel::CancelToken, creation::NewAgent, options::AgentOptions};
use playhouse_supervisor::harness::Harness;
use serde_json::json;

use super::bench::{Bench, Desk, Manner, notices, results, until, until_turns};
use crate::{JobOutcome, JobStatus, Jobs, NewJob, tools::JOB_OUTPUT};

fn begin() -> Reply {
    Reply::call("begin", json!({"label": "Count the files"}))
}

fn wait_for(id: &str) -> Reply {
    Reply::call(JOB_OUTPUT, json!({"job_id": id, "wait": true}))
}

#[tokio::test(start_paused = true)]
async fn orchestration_2_5_1_an_eleventh_job_is_refused_before_it_runs() {
    let bench = Bench::new(Script::new()).await;
    let owner = bench.agent().await;
    for _ in 0..10 {
        bench.start(&owner, Manner::Obeys).unwrap();
    }
    let refused = bench.start(&owner, Manner::Obeys).unwrap_err();
    assert_eq!((refused.code(), bench.desk.begun()), ("JOB_LIMIT", 10));
    assert!(refused.to_string().contains("limit of 10"), "{refused}");
    // Another owner has a limit of its own.
    let other = bench.agent().await;
    bench.start(&other, Manner::Obeys).unwrap();
    bench.desk.end(3, JobOutcome::completed());
    let (id, token) = ("work-4".into(), CancelToken::new());
    let settled = bench.jobs.wait(&id, Duration::from_secs(1), Some(owner.id()), &token).await;
    assert_eq!(settled.unwrap().status, JobStatus::Completed);
    assert_eq!(bench.start(&owner, Manner::Obeys).unwrap().as_str(), "work-12");
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_2_5_2_a_job_of_another_session_is_refused() {
    let bench = Bench::new(Script::sequence([wait_for("work-1"), Reply::text("No.")])).await;
    let (a, b) = (bench.agent().await, bench.agent().await);
    bench.start(&a, Manner::Obeys).unwrap();
    b.prompt("Look at the other's job").await.unwrap();
    let text = "Error: job \"work-1\" belongs to another session".to_owned();
    assert_eq!(results(&b), [(true, text)]);
    // It is not among those that are listed, either.
    assert!(bench.jobs.list(Some(b.id())).is_empty() && bench.jobs.list(None).is_empty());
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_2_5_3_an_end_wakes_its_idle_owner_three_times_until_a_person_speaks() {
    let bench = Bench::new(Script::new().reply(Reply::text("Noted."))).await;
    let owner = bench.agent().await;
    for nth in 0..3 {
        bench.start(&owner, Manner::Obeys).unwrap();
        bench.desk.end(nth, JobOutcome::completed().detail("exit code 0"));
        until_turns(&owner, nth + 1).await;
    }
    let first = &notices(&owner)[0];
    assert_eq!(first.source.get("form"), Some("notice"));
    assert!(first.text().contains("work-1 has ended [status: completed, exit code 0]"));
    bench.start(&owner, Manner::Obeys).unwrap();
    bench.desk.end(3, JobOutcome::completed());
    until(&owner, |owner| notices(owner).len() == 4).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(owner.status(), Status::Idle);
    assert_eq!(owner.session().view().last_turn, 3, "the fourth is only injected");
    // A person's prompt takes the notice along, and the wakes are whole again.
    owner.prompt("How is it going?").await.unwrap();
    assert!(
        bench.model.captured().last().unwrap().messages.iter().any(|m| m.text().contains("work-4"))
    );
    bench.start(&owner, Manner::Obeys).unwrap();
    bench.desk.end(4, JobOutcome::failed("it broke"));
    until_turns(&owner, 5).await;
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_2_5_4_who_waits_gets_the_status_and_no_notice() {
    let script = Script::sequence([begin(), wait_for("work-1"), Reply::text("Done.")]);
    let bench = Bench::new(script).await;
    let owner = bench.agent().await;
    owner.followup("Count").await.unwrap();
    until(&owner, |owner| results(owner).len() == 1).await;
    // The second call waits.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(owner.status(), Status::Running);
    bench.desk.end(0, JobOutcome::completed().output("7 files"));
    owner.when_idle().await.unwrap();
    assert_eq!(results(&owner)[1], (false, "7 files\n[status: completed]".to_owned()));
    assert!(bench.jobs.get(&"work-1".into(), Some(owner.id())).unwrap().reported);
    assert!(notices(&owner).is_empty());
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_2_5_5_a_cancelled_wait_does_not_suppress_the_notice() {
    let script = Script::sequence([begin(), wait_for("work-1"), Reply::text("I see.")]);
    let bench = Bench::new(script).await;
    let owner = bench.agent().await;
    owner.followup("Count").await.unwrap();
    until(&owner, |owner| results(owner).len() == 1).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    owner.cancel(CancelCause::User);
    owner.when_idle().await.unwrap();
    assert_eq!(
        bench.jobs.get(&"work-1".into(), Some(owner.id())).unwrap().status,
        JobStatus::Running
    );
    bench.desk.end(0, JobOutcome::completed().output("7 files"));
    until_turns(&owner, 2).await;
    assert_eq!(notices(&owner).len(), 1);
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_2_5_6_an_owners_disposal_cancels_its_jobs_and_waits_for_them() {
    let bench = Bench::new(Script::new().reply(Reply::text("?"))).await;
    let (owner, other) = (bench.agent().await, bench.agent().await);
    for who in [&owner, &owner, &other] {
        bench.start(who, Manner::Obeys).unwrap();
    }
    // Their end takes a second, and the disposal no less.
    let before = tokio::time::Instant::now();
    owner.dispose().await.unwrap();
    assert!(before.elapsed() >= Duration::from_secs(1), "{:?}", before.elapsed());
    assert_eq!([0, 1, 2].map(|nth| bench.desk.is_cancelled(nth)), [true, true, false]);
    assert!(bench.jobs.list(Some(owner.id())).is_empty());
    assert!(notices(&owner).is_empty() && owner.session().view().last_turn == 0);
    assert_eq!(bench.jobs.active(), 1);
    assert_eq!(bench.start(&owner, Manner::Obeys).unwrap_err().code(), "JOB_OWNER_GONE");
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn work_that_begins_late_and_ignores_its_cancel_keeps_no_owner_from_ending() {
    let bench = Bench::new(Script::new()).await;
    let owner = bench.agent().await;
    let (began, begins) = std::sync::mpsc::channel();
    let (go, may_go) = std::sync::mpsc::channel();
    let (jobs, desk, agent) = (bench.jobs.clone(), bench.desk.clone(), owner.agent().clone());
    let runtime = tokio::runtime::Handle::current();
    let starting = std::thread::spawn(move || {
        let _runtime = runtime.enter();
        let new = NewJob::new("work", "Late work").owned_by(&agent);
        jobs.start(new, || {
            began.send(()).unwrap();
            may_go.recv().unwrap();
            Ok(desk.work(Manner::Ignores))
        })
    });
    begins.recv().unwrap();
    let ending = owner.clone();
    let ending = tokio::spawn(async move { ending.dispose().await });
    // The first grace passes before there is anything to drop.
    for _ in 0..3 {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(bench.harness.world().limits.grace).await;
    }
    go.send(()).unwrap();
    starting.join().unwrap().unwrap();
    let _told_if_it_took_too_long = ending.await.unwrap();
    // Its work is dropped after the next grace.
    while bench.jobs.active() > 0 {
        tokio::time::advance(bench.harness.world().limits.grace).await;
    }
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_2_5_7_a_kill_that_the_producer_refuses_is_an_error_and_changes_nothing() {
    let kill = Reply::call("job_kill", json!({"job_id": "work-1", "reason": "not needed"}));
    let bench = Bench::new(Script::sequence([kill, Reply::text("It goes on.")])).await;
    let owner = bench.agent().await;
    bench.start(&owner, Manner::Refuses).unwrap();
    owner.prompt("Stop it").await.unwrap();
    let (is_error, text) = results(&owner).remove(0);
    assert!(is_error && text.contains("could not be cancelled and goes on"), "{text}");
    let job = bench.jobs.get(&"work-1".into(), Some(owner.id())).unwrap();
    assert_eq!((job.status, job.reported), (JobStatus::Running, false));
    // At the owner's end there is no asking: its record fails and its work is dropped.
    owner.dispose().await.unwrap();
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_2_5_8_without_a_controller_nothing_starts() {
    let harness = Harness::builder().start().await.unwrap();
    let world = harness.world().clone();
    let scope = world.scope.child("jobs").unwrap();
    let (jobs, desk) = (Jobs::new(world.clone(), &scope, 10).unwrap(), Desk::default());
    let composed = world.scope.child("composed").unwrap();
    let new = |options| NewAgent::new(options).within(composed.clone());
    let inside = harness.create(new(AgentOptions::new())).await.unwrap();
    let outside = harness.create(NewAgent::new(AgentOptions::new())).await.unwrap();
    let start = |owner| {
        let new = NewJob::new("work", "Some work").owned_by(owner);
        jobs.start(new, || Ok(desk.work(Manner::Obeys)))
    };
    assert_eq!(start(&inside).unwrap_err().code(), "NO_JOB_CONTROLLER");
    // A controller serves the agents that are composed under its scope, and one above all everybody.
    let near = jobs.attach_controller(&composed).unwrap();
    assert_eq!(start(&outside).unwrap_err().code(), "NO_JOB_CONTROLLER");
    assert_eq!(desk.begun(), 0);
    start(&inside).unwrap();
    near.remove();
    assert_eq!(start(&inside).unwrap_err().code(), "NO_JOB_CONTROLLER");
    jobs.attach_controller(&world.scope).unwrap();
    start(&outside).unwrap();
    // The service's end is the jobs'.
    scope.close_and_wait().await;
    assert_eq!([0, 1].map(|nth| desk.is_cancelled(nth)), [true, true]);
    assert_eq!(start(&outside).unwrap_err().code(), "JOBS_CLOSED");
    harness.shutdown().await.unwrap();
}
