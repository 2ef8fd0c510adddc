use proptest::prelude::*;

use super::*;

use playhouse_plugin_api::scope::Scope;

fn owner(name: &str) -> Owner {
    Owner { session: name.into(), scope: Scope::root(name).id() }
}

fn facts(owner: Option<&Owner>) -> Facts {
    let (kind, label) = ("work".to_owned(), "Work".to_owned());
    Facts { kind, label, output_limit_bytes: None, owner: owner.cloned() }
}

fn started(registry: &mut Registry, owner: Option<&Owner>) -> JobId {
    registry.reserve(owner).unwrap();
    let (id, unwanted) = registry.commit(facts(owner), 1);
    assert!(!unwanted);
    id
}

fn code<T: std::fmt::Debug>(result: Result<T, JobError>) -> String {
    result.unwrap_err().code().to_owned()
}

#[test]
fn ids_count_by_kind_and_a_place_given_back_burns_none() {
    let mut registry = Registry::new(10);
    registry.reserve(None).unwrap();
    registry.release(None);
    assert_eq!(started(&mut registry, None).as_str(), "work-1");
    assert_eq!(started(&mut registry, None).as_str(), "work-2");
    registry.reserve(None).unwrap();
    let other = Facts { kind: "other".to_owned(), ..facts(None) };
    assert_eq!(registry.commit(other, 1).0.as_str(), "other-1");
}

#[test]
fn a_place_is_taken_from_the_start_on_and_free_at_the_end() {
    let (a, b) = (owner("a"), owner("b"));
    let mut registry = Registry::new(2);
    let first = started(&mut registry, Some(&a));
    registry.reserve(Some(&a)).unwrap();
    assert_eq!(code(registry.reserve(Some(&a))), "JOB_LIMIT");
    // Others have places of their own, and so has what nobody owns.
    registry.reserve(Some(&b)).unwrap();
    registry.reserve(None).unwrap();
    registry.begin_kill(&first, Some(&a.session)).unwrap();
    registry.end_kill(&first, true);
    assert_eq!(code(registry.reserve(Some(&a))), "JOB_LIMIT", "stopping is active");
    registry.settle(&first, JobOutcome::killed(), 2).unwrap();
    registry.reserve(Some(&a)).unwrap();
}

#[test]
fn what_somebody_owns_is_theirs_and_what_nobody_owns_is_everybodys() {
    let (a, b) = (owner("a"), owner("b"));
    let mut registry = Registry::new(9);
    let (owned, free) = (started(&mut registry, Some(&a)), started(&mut registry, None));
    for (caller, sees) in [(Some(&a.session), true), (Some(&b.session), false), (None, false)] {
        let ids: Vec<_> = registry.list(caller).into_iter().map(|job| job.id).collect();
        let expected = if sees { vec![owned.clone(), free.clone()] } else { vec![free.clone()] };
        assert_eq!(ids, expected);
        if !sees {
            assert_eq!(code(registry.get(&owned, caller)), "FOREIGN_JOB");
            assert_eq!(code(registry.read(&owned, caller)), "FOREIGN_JOB");
            assert_eq!(code(registry.begin_kill(&owned, caller)), "FOREIGN_JOB");
            assert_eq!(code(registry.begin_wait(&owned, caller)), "FOREIGN_JOB");
        }
    }
    assert_eq!(code(registry.get(&"work-9".into(), None)), "UNKNOWN_JOB");
}

#[test]
fn the_first_settlement_counts() {
    let mut registry = Registry::new(9);
    let id = started(&mut registry, None);
    let (job, _) =
        registry.settle(&id, JobOutcome::completed().output("x").detail("d"), 2).unwrap();
    assert_eq!((job.status, job.finished_at, job.reported), (JobStatus::Completed, Some(2), false));
    assert_eq!(job.detail.as_deref(), Some("d"));
    assert_eq!(registry.settle(&id, JobOutcome::failed("late"), 3), None);
    for _ in 0..2 {
        let (job, output) = registry.read(&id, None).unwrap();
        assert_eq!((job.status, output.as_deref()), (JobStatus::Completed, Some("x")));
        assert!(job.reported);
    }
}

#[test]
fn who_waits_is_told_and_so_nobody_else_is() {
    let mut registry = Registry::new(9);
    let id = started(&mut registry, None);
    assert_eq!(registry.begin_wait(&id, None).unwrap(), Wait::Waiting);
    assert_eq!(registry.begin_wait(&id, None).unwrap(), Wait::Waiting);
    // One gives up before the end, the other is there for it.
    assert!(!registry.end_wait(&id).unwrap().status.is_terminal());
    assert!(registry.settle(&id, JobOutcome::completed(), 2).unwrap().0.reported);
    assert!(registry.end_wait(&id).unwrap().status.is_terminal());
    // What was told did not arrive after all: it is news, once.
    assert!(registry.lost(&id).is_some_and(|job| !job.reported));
    assert_eq!(registry.lost(&id), None);
}

#[test]
fn a_wait_that_ended_before_suppresses_nothing() {
    let mut registry = Registry::new(9);
    let id = started(&mut registry, None);
    registry.begin_wait(&id, None).unwrap();
    registry.end_wait(&id);
    assert!(!registry.settle(&id, JobOutcome::completed(), 2).unwrap().0.reported);
    assert_eq!(registry.lost(&id), None, "it was told as news already");
}

#[test]
fn a_refused_kill_leaves_the_job_as_it_was() {
    let mut registry = Registry::new(9);
    let id = started(&mut registry, None);
    assert_eq!(registry.begin_kill(&id, None).unwrap(), Kill::Ask);
    let (job, news) = registry.end_kill(&id, false);
    assert_eq!((job.unwrap().status, news), (JobStatus::Running, None));
    // It ends while the producer thinks about the kill, which it then refuses.
    registry.begin_kill(&id, None).unwrap();
    assert!(registry.settle(&id, JobOutcome::completed(), 2).unwrap().0.reported);
    let (_, news) = registry.end_kill(&id, false);
    assert!(!news.unwrap().reported);
    assert!(matches!(registry.begin_kill(&id, None).unwrap(), Kill::Finished(job) if job.reported));
}

#[test]
fn an_owner_that_ends_takes_its_jobs_with_it_and_no_more() {
    let (a, b) = (owner("a"), owner("b"));
    let mut registry = Registry::new(9);
    let (first, second) = (started(&mut registry, Some(&a)), started(&mut registry, Some(&a)));
    let others = started(&mut registry, Some(&b));
    registry.reserve(Some(&a)).unwrap();
    assert_eq!(registry.end(Some(a.scope)), [first.clone(), second.clone()]);
    assert_eq!(code(registry.reserve(Some(&a))), "JOB_OWNER_GONE");
    // A start that was under way still makes its job, which nobody wants.
    let (late, unwanted) = registry.commit(facts(Some(&a)), 3);
    assert!(unwanted);
    for id in [&first, &second, &late] {
        assert!(registry.settle(id, JobOutcome::killed(), 4).unwrap().0.reported);
    }
    assert_eq!(registry.pending(Some(a.scope)), 0);
    assert_eq!(registry.forget(Some(a.scope)), [first, second, late]);
    assert_eq!(registry.end(None), [others]);
    assert_eq!(code(registry.reserve(Some(&b))), "JOBS_CLOSED");
}

#[test]
fn old_ends_are_forgotten_and_running_jobs_never() {
    let mut registry = Registry::new(9);
    let running = started(&mut registry, None);
    for _ in 0..FINISHED_KEPT_MAX + 3 {
        let id = started(&mut registry, None);
        registry.settle(&id, JobOutcome::completed(), 2).unwrap();
    }
    let jobs = registry.list(None);
    assert_eq!(jobs.len(), FINISHED_KEPT_MAX + 1);
    assert_eq!((&jobs[0].id, jobs[1].id.as_str()), (&running, "work-5"));
}

#[derive(Debug, Clone)]
enum Op {
    Start(usize),
    Settle(usize),
    BeginWait(usize),
    EndWait(usize, bool),
    Read(usize),
    Kill(usize, bool),
    End(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let job = 0..12_usize;
    prop_oneof![
        4 => (0..3_usize).prop_map(Op::Start),
        3 => job.clone().prop_map(Op::Settle),
        3 => job.clone().prop_map(Op::BeginWait),
        3 => (job.clone(), any::<bool>()).prop_map(|(job, given)| Op::EndWait(job, given)),
        2 => job.clone().prop_map(Op::Read),
        2 => (job, any::<bool>()).prop_map(|(job, taken)| Op::Kill(job, taken)),
        1 => (0..2_usize).prop_map(Op::End),
    ]
}

/// What the test itself keeps of a job.
struct Known {
    id: JobId,
    owner: Option<Owner>,
    waiting: usize,
    given: bool,
    killed: bool,
    end: Option<JobSnapshot>,
    news: usize,
}

proptest! {
    /// Of every job: it ends once and stays as it ended; its end is news exactly once if nobody was
    /// given it, killed it or ended with it, and never to an owner that had ended before.
    #[test]
    fn an_end_is_told_exactly_to_those_who_do_not_know(ops in prop::collection::vec(op(), 0..80)) {
        let owners = [Some(owner("a")), Some(owner("b")), None];
        let (mut registry, limit) = (Registry::new(4), 4);
        let mut known: Vec<Known> = Vec::new();
        let mut ended = [false; 2];
        for op in ops {
            match op {
                Op::Start(who) => {
                    let owner = owners[who].as_ref();
                    let key = owner.map(|owner| owner.scope);
                    let full = registry.active(key) >= limit;
                    let gone = ended.get(who).copied().unwrap_or(false);
                    prop_assert_eq!(registry.reserve(owner).is_err(), full || gone);
                    if !full && !gone {
                        let (id, _) = registry.commit(facts(owner), 1);
                        prop_assert!(known.iter().all(|job| job.id != id));
                        let owner = owner.cloned();
                        known.push(Known {
                            id, owner, waiting: 0, given: false, killed: false, end: None, news: 0,
                        });
                    }
                }
                Op::Settle(at) => if let Some(job) = known.get_mut(at) {
                    let settled = registry.settle(&job.id, JobOutcome::completed(), at as i64 + 2);
                    prop_assert_eq!(settled.is_some(), job.end.is_none());
                    if let Some((settled, _)) = settled {
                        job.news += usize::from(!settled.reported);
                        job.end = Some(settled);
                    }
                },
                Op::BeginWait(at) => if let Some(job) = known.get_mut(at) {
                    let caller = job.owner.as_ref().map(|owner| &owner.session);
                    match registry.begin_wait(&job.id, caller).unwrap() {
                        Wait::Over(_) => job.given = true,
                        Wait::Waiting => job.waiting += 1,
                    }
                },
                Op::EndWait(at, given) => if let Some(job) = known.get_mut(at) && job.waiting > 0 {
                    job.waiting -= 1;
                    let over = registry.end_wait(&job.id).unwrap().status.is_terminal();
                    prop_assert_eq!(over, job.end.is_some());
                    if over && given {
                        job.given = true;
                    } else if over {
                        job.news += usize::from(registry.lost(&job.id).is_some());
                    }
                },
                Op::Read(at) => if let Some(job) = known.get_mut(at) {
                    let caller = job.owner.as_ref().map(|owner| &owner.session);
                    let (read, _) = registry.read(&job.id, caller).unwrap();
                    job.given |= read.status.is_terminal();
                },
                Op::Kill(at, taken) => if let Some(job) = known.get_mut(at) {
                    let caller = job.owner.as_ref().map(|owner| &owner.session);
                    match registry.begin_kill(&job.id, caller).unwrap() {
                        Kill::Finished(_) => job.given = true,
                        Kill::Ask => {
                            job.killed |= taken;
                            let (_, news) = registry.end_kill(&job.id, taken);
                            prop_assert!(news.is_none(), "it has not ended");
                        }
                    }
                },
                Op::End(who) => {
                    ended[who] = true;
                    let scope = owners[who].as_ref().map(|owner| owner.scope);
                    let live = registry.end(scope);
                    for job in known.iter_mut().filter(|job| live.contains(&job.id)) {
                        prop_assert!(job.end.is_none());
                        job.killed = true;
                    }
                }
            }
            for key in owners.iter().map(|owner| owner.as_ref().map(|owner| owner.scope)) {
                prop_assert!(registry.active(key) <= limit);
            }
            for job in &known {
                let caller = job.owner.as_ref().map(|owner| &owner.session);
                let now = registry.get(&job.id, caller).unwrap();
                prop_assert_eq!(now.status.is_terminal(), now.finished_at.is_some());
                prop_assert_eq!(now.status.is_terminal(), job.end.is_some());
                if let Some(end) = &job.end {
                    prop_assert_eq!((now.status, now.finished_at), (end.status, end.finished_at));
                    let untold = !job.given && !job.killed && job.waiting == 0;
                    prop_assert!(job.news <= 1);
                    prop_assert!(job.news == 1 || !untold, "nobody knows of {}", job.id);
                    prop_assert!(job.news == 0 || !job.killed, "{} was killed", job.id);
                }
            }
        }
    }
}
