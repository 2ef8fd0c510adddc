//! How items and runs end, and what is left then.

use super::*;

#[tokio::test]
async fn items_of_a_pipeline_do_not_wait_for_each_other_and_one_that_throws_skips_its_stages() {
    let rig = Rig::new().await;
    rig.puppets.open("b");
    let script = "phase('Go'); log('here');
        return pipeline(['a', 'b', 'c'],
            (prev, item, index) => agent(`${index} !wait ${item}`, {label: item, phase: 'Go'}),
            (prev, item, index) => { if (item === 'c') throw 1; return [prev, item, index] },
            (prev, item, index) => agent(`${prev[1]} is ${index}`))";
    let (run, seen) = rig.start(script).await;
    // `b` is through all its stages while `a` is still in its first.
    until(|| rig.puppets.prompts().iter().any(|prompt| prompt == "b is 1")).await;
    rig.puppets.open("a");
    rig.puppets.open("c");
    let value = run.result().await.value.unwrap();
    run.dispose().await.unwrap();
    rig.is_clean(&seen);
    assert_eq!(value[1], json!("re: b is 1"));
    assert_eq!(value[2], json!(null));
    let told = seen.all();
    assert_eq!(told[1], NoticeKind::Phase { title: "Go".to_owned() });
    assert_eq!(told[2], NoticeKind::Log { text: "here".to_owned() });
    let first = told.iter().find_map(|notice| match notice {
        NoticeKind::AgentStart { seq: 1, label, phase, .. } => Some((label, phase)),
        _ => None,
    });
    assert_eq!(first, Some((&"a".to_owned(), &Some("Go".to_owned()))));
}

#[tokio::test]
async fn a_result_with_children_still_at_work_aborts_and_disposes_them() {
    let rig = Rig::new().await;
    let script = "agent('!hang'); agent('!hang'); agent('!wait ever'); agent('!hang'); agent('q');
        await agent2(); return 1; function agent2() { return Promise.resolve() }";
    let (run, seen) = rig.start(script).await;
    assert_eq!(run.result().await.value, Some(json!(1)));
    run.dispose().await.unwrap();
    rig.is_clean(&seen);
}

#[tokio::test]
async fn a_cancel_says_its_first_reason_and_nothing_is_told_after_it_but_ends() {
    let rig = Rig::new().await;
    let (request, seen) = rig.request();
    let run = rig.engine.start_native(request, |cx| async move {
        let halted = cx.agent("!hang").await.unwrap_err();
        assert!(halted.is_fatal());
        cx.log("not told").await?;
        // Whatever it returns.
        Ok(json!("done"))
    });
    let run = run.unwrap();
    rig.puppets.until_live(1).await;
    run.cancel("enough");
    run.cancel("never mind");
    let result = run.result().await;
    assert_eq!((result.stop_reason, result.value), (WorkflowStop::Cancelled, None));
    assert!(result.error.unwrap().message.contains("enough"));
    run.dispose().await.unwrap();
    rig.is_clean(&seen);
    assert!(!seen.all().iter().any(|notice| matches!(notice, NoticeKind::Log { .. })));
}

#[tokio::test]
async fn a_native_workflow_that_ignores_its_cancel_is_dropped_after_the_grace() {
    let rig = Rig::new().await;
    let (request, seen) = rig.request();
    let run = rig.engine.start_native(request, |cx| async move {
        cx.phase("stubborn").await?;
        std::future::pending::<()>().await;
        Ok(Value::Null)
    });
    let run = run.unwrap();
    run.dispose().await.unwrap();
    assert_eq!(run.result().await.stop_reason, WorkflowStop::Cancelled);
    rig.is_clean(&seen);
}

#[tokio::test]
async fn native_combinators_give_the_default_for_what_fails_and_pass_fatal_errors_on() {
    let rig = Rig::new().await;
    let (request, seen) = rig.request();
    let run = rig.engine.start_native(request, |cx| async move {
        let all = cx
            .parallel(["x", "!fail", "wrong"].map(|prompt| {
                let cx = cx.clone();
                async move {
                    if prompt == "wrong" {
                        "x".parse::<u32>()?;
                    }
                    cx.agent(prompt).await
                }
            }))
            .await?;
        let piped = cx
            .pipeline(1..=2, |n, index| {
                let cx = cx.clone();
                async move { Ok(json!([cx.agent(format!("p{n}")).await?, index])) }
            })
            .await?;
        Ok(json!([all, piped]))
    });
    let run = run.unwrap();
    let value = run.result().await.value.unwrap();
    run.dispose().await.unwrap();
    rig.is_clean(&seen);
    assert_eq!(value, json!([["re: x", null, null], [["re: p1", 0], ["re: p2", 1]]]));
}

#[tokio::test]
async fn a_dispose_ends_though_a_thread_or_a_child_does_not() {
    let rig = Rig::new().await;
    let (run, _) = rig.start("await agent('!cling'); return 1").await;
    rig.puppets.until_live(1).await;
    let left = run.dispose().await.unwrap_err();
    assert_eq!(left.code, "WORKFLOW_LEFTOVERS");
    assert!(left.message.contains("1 of its children"), "{}", left.message);
    assert_eq!(rig.engine.live(), Live { runs: 1, workers: 0 });

    // As a thread in one of the interpreter's own loops, which ask for no interrupt.
    let (release, held) = std::sync::mpsc::channel::<()>();
    let (request, seen) = rig.request();
    let run = rig.engine.start_guest(request, |alive| {
        let (to_host, from_guest) = tokio::sync::mpsc::channel(1);
        std::thread::spawn(move || {
            let _busy = (alive, to_host);
            let _ = held.recv();
        });
        (Box::new(Deaf), from_guest)
    });
    let left = run.dispose().await.unwrap_err();
    assert!(left.message.contains("still busy"), "{}", left.message);
    assert_eq!(run.result().await.stop_reason, WorkflowStop::Cancelled);
    seen.fits();
    assert_eq!(rig.engine.live(), Live { runs: 1, workers: 1 });
    drop(release);
    until(|| rig.engine.live() == Live { runs: 1, workers: 0 }).await;
}

/// Hears nothing, and cannot be killed.
struct Deaf;

impl Guest for Deaf {
    fn tell(&mut self, _: HostMessage) {}

    fn kill(&mut self) {}
}

#[tokio::test]
async fn a_run_ends_with_its_parent_and_does_not_need_the_plugin() {
    let rig = Rig::new().await;
    let waits = "await agent('!wait it'); return (await agent('after'))";
    let (first, seen) = rig.start(waits).await;
    rig.puppets.until_live(1).await;
    // The plugin goes; a run that was returned goes on.
    rig.plugin.stop().await;
    assert!(rig.world().tools.registry().lookup(rig.parent.scope(), "workflow").is_none());
    rig.puppets.open("it");
    assert_eq!(first.result().await.value, Some(json!("re: after")));
    first.dispose().await.unwrap();
    rig.is_clean(&seen);

    let (second, seen) = rig.start("await agent('!hang'); return 1").await;
    rig.puppets.until_live(1).await;
    rig.parent.dispose().await.unwrap();
    assert_eq!(second.result().await.stop_reason, WorkflowStop::Cancelled);
    until(|| rig.engine.live() == Live::default()).await;
    rig.is_clean(&seen);
}
