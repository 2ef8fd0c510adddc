//! Any modes, durations, denials, and an abort at any time, through the real actor.

use playhouse_plugin_api::{
    hook::Next,
    tool::{PreVerdict, ToolCallContext},
};
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
struct Plan {
    /// Parallel or not, and how long the body takes; `None` hangs.
    calls: Vec<(bool, Option<u64>)>,
    denied: Option<usize>,
    cap: usize,
    abort_at: Option<u64>,
}

fn plans() -> impl Strategy<Value = Plan> {
    let body = prop_oneof![9 => (0_u64..20).prop_map(Some), 1 => Just(None)];
    let call = (any::<bool>(), body);
    let calls = prop::collection::vec(call, 0..7);
    let abort = prop::option::of(0_u64..60);
    (calls, prop::option::of(0_usize..7), 1_usize..4, abort).prop_map(
        |(calls, denied, cap, abort_at)| {
            // A batch that hangs ends only by an abort.
            let hangs = calls.iter().any(|(_, body)| body.is_none());
            let abort_at = abort_at.or(hangs.then_some(100));
            Plan { calls, denied, cap, abort_at }
        },
    )
}

/// Runs a plan, and says how many bodies overlapped at most and whether an exclusive one did.
async fn run(rig: &Rig, plan: &Plan) -> (Result<BatchOutcome, Failure>, usize, bool) {
    /// Counts bodies, dropped ones included.
    struct Inside(Arc<Mutex<(Vec<bool>, usize, bool)>>, bool);
    impl Drop for Inside {
        fn drop(&mut self) {
            let mut counts = self.0.lock().unwrap();
            let at = counts.0.iter().position(|parallel| *parallel == self.1).unwrap();
            counts.0.remove(at);
        }
    }
    let counts = Arc::new(Mutex::new((Vec::new(), 0, false)));
    for (index, (parallel, body)) in plan.calls.iter().copied().enumerate() {
        let counts = counts.clone();
        let tool = tool_fn(format!("t{index}"), "", move |_: NoArgs, _run| {
            let counts = counts.clone();
            async move {
                {
                    let mut counts = counts.lock().unwrap();
                    counts.0.push(parallel);
                    counts.1 = counts.1.max(counts.0.len());
                    counts.2 |= counts.0.len() > 1 && counts.0.contains(&false);
                }
                let _inside = Inside(counts, parallel);
                match body {
                    Some(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
                    None => std::future::pending().await,
                }
                Ok("done")
            }
        });
        rig.add(tool.parallel_if(move |_| parallel));
    }
    let denied = plan.denied.map(|index| format!("c{index}"));
    let pre = move |call: ToolCallContext, next: Next<_, _>| {
        let deny = denied.as_deref() == Some(call.call_id().as_str());
        async move {
            if deny {
                return Ok(PreVerdict::Deny { reason: "no".into() });
            }
            next.run(call).await
        }
    };
    rig.executor.pipeline.hooks().pre.add(&rig.host.scope, pre).unwrap();
    let calls: Vec<_> = (0..plan.calls.len()).map(|index| format!("c{index}:t{index}")).collect();
    let batch = rig.start(&calls.join(" "));
    if let Some(millis) = plan.abort_at {
        tokio::time::sleep(Duration::from_millis(millis)).await;
        rig.cancel.cancel(CancelCause::User);
    }
    let outcome = batch.await.unwrap();
    // What was given up is dropped by now, or at the next chance.
    quiet().await;
    let counts = counts.lock().unwrap();
    assert!(counts.0.is_empty(), "a body outlived its batch");
    (outcome, counts.1, counts.2)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_call_has_one_result_in_order_and_no_body_breaks_a_barrier_or_the_cap(plan in plans()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let rig = Rig::new(plan.cap);
            let (outcome, most, broken) = run(&rig, &plan).await;
            prop_assert_eq!(outcome, Ok(BatchOutcome::default()));
            prop_assert!(most <= plan.cap && !broken, "{} {}", most, broken);
            let results: Vec<_> =
                rig.trace().into_iter().filter(|line| line.starts_with("TR")).collect();
            let expected: Vec<_> = (0..plan.calls.len()).map(|index| format!("TR c{index}")).collect();
            prop_assert_eq!(results, expected);
            for (index, (_, body)) in plan.calls.iter().enumerate() {
                // Also checks that the result cites its call.
                let (text, code) = rig.result(&format!("c{index}"));
                let code = code.as_deref();
                if plan.denied == Some(index) && plan.abort_at.is_none() {
                    prop_assert_eq!(text, "Error: no");
                } else if plan.abort_at.is_none() {
                    prop_assert_eq!((text.as_str(), code), ("done", None));
                } else if code == Some("TOOL_OUTCOME_UNKNOWN") {
                    prop_assert!(body.is_none(), "given up although it ended");
                }
            }
            prop_assert_eq!(rig.executor.abandoned_running(), 0);
            Ok(())
        })?;
    }
}
