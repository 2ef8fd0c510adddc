//! What is told when, and what a model is shown.

use std::time::Duration;

use playhouse_messages::{
    event::InboxTarget,
    machine::{Decision, Status},
};
use playhouse_models::scripted::{Reply, Script};
use playhouse_plugin_api::{cancel::CancelToken, hook::Next, points::PreStep};
use serde_json::json;

use super::bench::{Bench, Manner, notices, results, until, until_turns};
use crate::{Delivery, JobOutcome, JobStatus, JobsConfig, KillOutcome, NewJob, Work};

#[tokio::test(start_paused = true)]
async fn an_end_joins_the_turn_that_runs() {
    let gated = Reply::call("job_list", json!({})).at_gate("busy");
    let script = Script::sequence([gated, Reply::text("I know.")]);
    let bench = Bench::new(script).await;
    let owner = bench.agent().await;
    owner.followup("Work").await.unwrap();
    until(&owner, |owner| owner.session().view().last_turn == 1).await;
    bench.start(&owner, Manner::Obeys).unwrap();
    bench.desk.end(0, JobOutcome::completed());
    until(&owner, |owner| notices(owner).len() == 1).await;
    bench.model.gate("busy").open();
    owner.when_idle().await.unwrap();
    assert_eq!(owner.session().view().last_turn, 1);
    let last = bench.model.captured().pop().unwrap();
    assert!(last.messages.iter().any(|message| message.text().contains("work-1 has ended")));
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_notice_that_no_turn_could_take_wakes_its_owner_once_it_is_idle() {
    let bench = Bench::new(Script::sequence([Reply::text("I see.")])).await;
    let owner = bench.agent().await;
    // Busy, and without a turn that would take it.
    let upkeep = owner.run_maintenance(|_| async {
        bench.start(&owner, Manner::Obeys).unwrap();
        bench.desk.end(0, JobOutcome::completed());
        until(&owner, |owner| notices(owner).len() == 1).await;
    });
    upkeep.await.unwrap();
    until_turns(&owner, 1).await;
    assert!(owner.inbox().list(InboxTarget::NextStep).is_empty());
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_notice_for_a_turn_that_was_refused_waits_with_the_rest_of_its_input() {
    let bench = Bench::new(Script::new()).await;
    let (owner, world) = (bench.agent().await, bench.harness.world());
    let (jobs, desk, agent) = (bench.jobs.clone(), bench.desk.clone(), owner.agent().clone());
    let refuse = move |_: PreStep, _: Next<PreStep, Decision>| {
        let (jobs, desk, agent) = (jobs.clone(), desk.clone(), agent.clone());
        async move {
            let new = NewJob::new("work", "Some work").owned_by(&agent);
            jobs.start(new, || Ok(desk.work(Manner::Obeys))).unwrap();
            desk.end(0, JobOutcome::completed());
            until(&agent, |agent| notices(agent).len() == 1).await;
            Ok(Decision::Reject)
        }
    };
    world.hooks.pre_step.add(&world.scope, refuse).unwrap();
    owner.followup("Go").await.unwrap();
    until_turns(&owner, 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(owner.inbox().list(InboxTarget::NextStep).len(), 1);
    assert_eq!(owner.session().view().last_turn, 1);
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_quiet_end_waits_for_the_next_turn() {
    let config = JobsConfig { completion_delivery: Delivery::Quiet, ..JobsConfig::default() };
    let bench = Bench::with(Script::sequence([Reply::text("I see.")]), config).await;
    let owner = bench.agent().await;
    bench.start(&owner, Manner::Obeys).unwrap();
    bench.desk.end(0, JobOutcome::completed());
    until(&owner, |owner| notices(owner).len() == 1).await;
    assert_eq!((owner.status(), owner.session().view().last_turn), (Status::Idle, 0));
    owner.prompt("Well?").await.unwrap();
    assert_eq!(bench.model.captured().len(), 1);
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_after_the_end_leaves_it_news() {
    let bench = Bench::new(Script::sequence([Reply::text("I see.")])).await;
    let owner = bench.agent().await;
    let id = bench.start(&owner, Manner::Obeys).unwrap();
    let token = CancelToken::new();
    let mut wait = Box::pin(bench.jobs.wait(&id, Duration::from_secs(9), Some(owner.id()), &token));
    assert!(futures::poll!(&mut wait).is_pending());
    bench.desk.end(0, JobOutcome::completed());
    while !bench.jobs.get(&id, Some(owner.id())).unwrap().status.is_terminal() {
        tokio::task::yield_now().await;
    }
    assert!(bench.jobs.get(&id, Some(owner.id())).unwrap().reported);
    drop(wait);
    until_turns(&owner, 1).await;
    assert_eq!(notices(&owner).len(), 1);
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_person_who_steers_ends_a_wait_and_not_the_job() {
    let wait = Reply::call("job_output", json!({"job_id": "work-1", "wait": true}));
    let bench = Bench::new(Script::sequence([wait, Reply::text("All right.")])).await;
    let owner = bench.agent().await;
    bench.start(&owner, Manner::Obeys).unwrap();
    owner.followup("Wait for it").await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(owner.status(), Status::Running);
    owner.steer("Never mind").await.unwrap();
    owner.when_idle().await.unwrap();
    assert_eq!(results(&owner), [(false, "(no new output)\n[status: running]".to_owned())]);
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_lasts_as_long_as_it_may_and_leaves_the_job_alone() {
    let wait = |ms: u64| {
        Reply::call("job_output", json!({"job_id": "work-1", "wait": true, "timeout_ms": ms}))
    };
    let script = Script::sequence([wait(2_000), wait(9_000_000), wait(0), Reply::text("Hm.")]);
    let bench = Bench::new(script).await;
    let owner = bench.agent().await;
    bench.start(&owner, Manner::Obeys).unwrap();
    let before = tokio::time::Instant::now();
    owner.prompt("Wait").await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 602, "the longest wait is ten minutes");
    let texts: Vec<_> = results(&owner);
    assert!(texts[..2].iter().all(|(is_error, text)| !is_error && text.contains("running")));
    assert!(texts[2].0 && texts[2].1.contains("timeout_ms must be a positive number"));
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn streams_give_what_is_new_and_ends_the_whole_again() {
    let bench = Bench::new(Script::new().reply(Reply::text("?"))).await;
    let owner = bench.agent().await;
    let (send, ended) = tokio::sync::oneshot::channel();
    let mut parts = vec!["three", "two\n", "one\n"];
    let id = bench.jobs.start(NewJob::new("tail", "Follow it").owned_by(&owner), || {
        Ok(Work::new(async { Ok(ended.await.unwrap()) })
            .reading(move || parts.pop().unwrap_or_default().to_owned()))
    });
    let (id, me) = (id.unwrap(), Some(owner.id()));
    let read = || bench.jobs.read(&id, me).unwrap();
    assert_eq!((read().text, read().text), ("one\n".to_owned(), "two\n".to_owned()));
    let token = CancelToken::new();
    send.send(JobOutcome::completed()).unwrap();
    bench.jobs.wait(&id, Duration::from_secs(1), me, &token).await.unwrap();
    assert_eq!((read().text, read().text), ("three".to_owned(), String::new()));

    let id = bench.start(&owner, Manner::Obeys).unwrap();
    let read = || bench.jobs.read(&id, me).unwrap();
    assert_eq!(read().text, "");
    bench.desk.end(0, JobOutcome::completed().output("all of it"));
    bench.jobs.wait(&id, Duration::from_secs(1), me, &token).await.unwrap();
    assert_eq!((read().text, read().text), ("all of it".to_owned(), "all of it".to_owned()));
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_kill_is_asked_for_and_its_end_is_no_news() {
    let kill = || Reply::call("job_kill", json!({"job_id": "work-1"}));
    let list = Reply::call("job_list", json!({}));
    let bench = Bench::new(Script::sequence([kill(), list, Reply::text("x"), kill()])).await;
    let owner = bench.agent().await;
    bench.start(&owner, Manner::Obeys).unwrap();
    owner.prompt("Stop it").await.unwrap();
    let texts: Vec<_> = results(&owner).into_iter().map(|(_, text)| text).collect();
    assert_eq!(
        texts,
        ["Job work-1 was asked to end.\n[status: stopping]", "work-1 [work] stopping — Some work",]
    );
    tokio::time::sleep(Duration::from_secs(2)).await;
    let me = Some(owner.id());
    let job = bench.jobs.get(&"work-1".into(), me).unwrap();
    assert_eq!((job.status, job.reported), (JobStatus::Killed, true));
    assert!(notices(&owner).is_empty());
    let again = bench.jobs.kill(&"work-1".into(), me, None).unwrap();
    assert!(matches!(again, KillOutcome::AlreadyFinished(_)));
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_shows_no_more_than_its_limit_and_keeps_the_status() {
    let read = Reply::call("job_output", json!({"job_id": "work-1", "wait": true}));
    let bench = Bench::new(Script::sequence([read, Reply::text("x"), Reply::text("y")])).await;
    let owner = bench.agent().await;
    let start = || {
        let new = NewJob::new("work", "Some work").owned_by(&owner).output_limit_bytes(60);
        bench.jobs.start(new, || Ok(bench.desk.work(Manner::Obeys))).unwrap();
    };
    start();
    let long = "0123456789".repeat(50);
    bench.desk.end(0, JobOutcome::completed().output(&long));
    until_turns(&owner, 1).await;
    let (_, text) = results(&owner).remove(0);
    assert!(text.len() <= 60 && text.starts_with("[… cut]"), "{text}");
    assert!(text.ends_with("456789\n[status: completed]"), "{text}");
    start();
    bench.desk.end(1, JobOutcome::failed(&long));
    until_turns(&owner, 2).await;
    let notice = notices(&owner).pop().unwrap().text();
    assert!(notice.len() <= 60 && notice.ends_with("[… cut]"), "{notice}");
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn work_that_fails_or_panics_is_a_failed_job() {
    let bench = Bench::new(Script::new()).await;
    let token = CancelToken::new();
    let failures = [
        Work::new(async { Err(playhouse_messages::chunk::Failure::new("E", "boom")) }),
        Work::new(async { panic!("boom") }),
    ];
    for work in failures {
        let id = bench.jobs.start(NewJob::new("bad", "Fail"), || Ok(work)).unwrap();
        let job = bench.jobs.wait(&id, Duration::from_secs(1), None, &token).await.unwrap();
        assert_eq!(job.status, JobStatus::Failed);
        assert!(job.detail.unwrap().contains("boom"));
    }
    let refused = bench.jobs.start(NewJob::new("bad", "Fail"), || panic!("at once")).unwrap_err();
    assert_eq!(refused.code(), "PANIC");
    assert_eq!(bench.jobs.active(), 0);
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn work_that_ignores_its_cancel_is_dropped_after_the_grace() {
    let bench = Bench::new(Script::new()).await;
    let owner = bench.agent().await;
    bench.start(&owner, Manner::Ignores).unwrap();
    let before = tokio::time::Instant::now();
    owner.dispose().await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 10);
    bench.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_is_set_up_again_leaves_nothing_of_its_jobs() {
    let bench = Bench::new(Script::new()).await;
    let owner = bench.agent().await;
    bench.start(&owner, Manner::Obeys).unwrap();
    bench
        .jobs
        .start(NewJob::new("free", "Nobody's"), || Ok(bench.desk.work(Manner::Obeys)))
        .unwrap();
    bench.ends_clean().await;
}
