use super::*;

/// How many bodies ran at once, at most.
fn overlap(trace: &[String]) -> usize {
    let mut running = 0usize;
    let at_each = trace.iter().map(|line| {
        match line.split_once(' ') {
            Some(("run", _)) => running += 1,
            Some(("end", _)) => running -= 1,
            _ => {}
        }
        running
    });
    at_each.max().unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn llm_92_results_keep_the_models_order_and_no_more_bodies_overlap_than_the_cap() {
    let rig = Rig::new(2);
    let batch = rig.start("c1:p c2:p c3:p");
    quiet().await;
    for call in ["c2", "c1", "c3"] {
        rig.open(call).await;
    }
    batch.await.unwrap().unwrap();
    let trace = rig.trace();
    let of = |kind: &str| -> Vec<_> {
        trace.iter().filter_map(|line| line.strip_prefix(kind).map(str::to_owned)).collect()
    };
    assert_eq!(of("end "), ["c2", "c1", "c3"]);
    assert_eq!(of("TR "), ["c1", "c2", "c3"]);
    assert_eq!(overlap(&trace), 2);
}

#[tokio::test(start_paused = true)]
async fn llm_95_a_tool_whose_classifier_panics_runs_alone() {
    let rig = Rig::new(10);
    let host = rig.host.clone();
    let odd = tool_fn("odd", "", move |_: NoArgs, run: ToolRun| {
        let gate = host.gate(run.call_id().as_str());
        async move {
            gate.notified().await;
            Ok("odd")
        }
    });
    rig.add(odd.parallel_if(|_| panic!("boom")));
    let batch = rig.start("a:p b:odd c:p");
    quiet().await;
    assert_eq!(rig.log(), "TC a");
    for call in ["a", "b", "c"] {
        rig.open(call).await;
    }
    batch.await.unwrap().unwrap();
    assert_eq!(rig.log(), "TC a · TR a · TC b · TR b · TC c · TR c");
    assert_eq!(rig.result("b"), ("odd".into(), None));
}

#[tokio::test(start_paused = true)]
async fn llm_96_policy_waits_for_the_call_before_and_post_processing_for_its_turn() {
    let rig = Rig::new(3);
    let hooks = rig.executor.pipeline.hooks();
    let host = rig.host.clone();
    let pre = move |call: ToolCallContext, next: Next<_, _>| {
        let (host, gate) = (host.clone(), host.gate(&format!("policy of {}", call.call_id())));
        async move {
            host.note(format!("pre {}", call.call_id()));
            gate.notified().await;
            next.run(call).await
        }
    };
    hooks.pre.add(&rig.host.scope, pre).unwrap();
    let host = rig.host.clone();
    let post = move |settled: ToolSettled, next: Next<_, _>| {
        host.note(format!("post {}", settled.call.call_id()));
        next.run(settled)
    };
    hooks.post.add(&rig.host.scope, post).unwrap();
    let asked = |rig: &Rig| rig.trace().iter().filter(|line| line.starts_with("pre ")).count();
    let batch = rig.start("a:p b:p c:p");
    quiet().await;
    for (count, call) in (1..).zip(["a", "b", "c"]) {
        assert_eq!(asked(&rig), count, "the policy of the next call waits");
        rig.open(&format!("policy of {call}")).await;
    }
    for call in ["c", "b", "a"] {
        rig.open(call).await;
    }
    batch.await.unwrap().unwrap();
    let order: Vec<_> = rig.trace().into_iter().filter(|line| line.starts_with("post ")).collect();
    assert_eq!(order, ["post a", "post b", "post c"]);
}

#[tokio::test(start_paused = true)]
async fn llm_100_a_refused_append_drains_what_runs_and_keeps_what_is_committed() {
    let rig = Rig::new(2);
    let full = Failure::new("STORE_FULL", "no space");
    *rig.host.refuse.lock().unwrap() = Some(("TC c3".into(), full.clone()));
    let batch = rig.start("c1:p c2:p c3:p");
    quiet().await;
    rig.open("c1").await;
    assert!(!batch.is_finished(), "c2 is awaited");
    rig.open("c2").await;
    assert_eq!(batch.await.unwrap(), Err(full));
    // The caller closes c2 as unknown and c3 as not started: see the scenario of the machine.
    assert_eq!(rig.log(), "TC c1 · TC c2 · TR c1");
    assert_eq!(rig.result("c1").0, "result of c1");
    assert!(rig.trace().contains(&"end c2".to_owned()));
}
