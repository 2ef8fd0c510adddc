//! The engine over children that the test plays: scripts and native workflows alike.

use std::time::Duration;

use playhouse_messages::event::CancelCause;
use playhouse_plugin_api::cancel::CancelToken;
use serde_json::{Value, json};

use crate::{
    AgentOutcome, EngineConfig, Halt, Live, NoticeKind, WorkflowRequest, WorkflowStop,
    rig::{Rig, limits, meta, until},
};

fn outcomes(seen: &crate::rig::Seen) -> Vec<AgentOutcome> {
    let ends = seen.all().into_iter().filter_map(|notice| match notice {
        NoticeKind::AgentEnd { outcome, .. } => Some(outcome),
        _ => None,
    });
    ends.collect()
}

mod subagents {
    use super::*;

    #[tokio::test]
    async fn orchestration_3_8_1_a_meta_with_two_faults_is_one_error_that_lists_both() {
        let rig = Rig::new().await;
        let odd = json!({"name": "n", "colour": "red"});
        let request = WorkflowRequest::new(rig.parent.agent(), odd.clone());
        let error = rig.engine.start(request, "await agent('x')").await.unwrap_err();
        assert_eq!(error.code(), "META_INVALID");
        let text = error.to_string();
        assert!(text.contains("description is missing") && text.contains("colour"), "{text}");
        // The tool's schema says the same before the engine is asked.
        let called = rig.call("workflow", json!({"script": "return 1", "meta": odd})).await;
        let text = called.error().unwrap().message().to_owned();
        assert!(text.contains("description") && text.contains("colour"), "{text}");
        assert_eq!((rig.puppets.counts(), rig.engine.live()), ((0, 0), Live::default()));
    }

    #[tokio::test]
    async fn orchestration_3_8_2_thirty_calls_never_have_more_than_four_children_at_once() {
        let rig = Rig::new().await;
        let script = "const all = [];
            for (let n = 1; n <= 30; n++) all.push(agent(`job ${n}`));
            return (await Promise.all(all)).length";
        let (result, seen) = rig.run(script).await;
        assert_eq!((result.value, result.agents_started), (Some(json!(30)), 30));
        assert_eq!((rig.puppets.peak(), rig.puppets.counts()), (4, (30, 30)));
        assert_eq!(outcomes(&seen), vec![AgentOutcome::Completed; 30]);
        // First come, first served.
        let asked: Vec<_> = (1..=30).map(|n| format!("job {n}")).collect();
        assert_eq!(rig.puppets.prompts(), asked);
    }

    #[tokio::test]
    async fn orchestration_3_8_3_a_failure_is_its_items_own_and_a_misuse_ends_the_script() {
        let rig = Rig::new().await;
        let script = "return parallel([
            () => agent('x'), () => agent('!fail'), () => { throw new Error('mine') }])";
        let (result, seen) = rig.run(script).await;
        assert_eq!(result.value, Some(json!(["re: x", null, null])));
        assert_eq!(outcomes(&seen), [AgentOutcome::Completed, AgentOutcome::Failed]);

        let script = "return parallel([async () => {
            try { return await agent('x', {lable: 'typo'}) } catch { return 'caught' } }])";
        let (result, _) = rig.run(script).await;
        let error = result.error.unwrap();
        assert_eq!((result.stop_reason, &*error.code), (WorkflowStop::Error, "UNSUPPORTED_OPTION"));
        assert!(error.message.contains("lable"), "{}", error.message);
    }

    #[tokio::test]
    async fn orchestration_3_8_4_the_third_of_two_agents_ends_the_run_also_inside_parallel() {
        let rig = Rig::new().await;
        let (request, seen) = rig.request();
        let script = "return parallel([1, 2, 3].map((n) => async () => {
            try { return await agent(`!wait ${n}`) } catch { return null } }))";
        let run = rig.engine.start(request.max_total_agents(2), script).await.unwrap();
        let result = run.result().await;
        assert_eq!((result.stop_reason, result.agents_started), (WorkflowStop::Error, 2));
        assert_eq!(result.error.unwrap().code, "AGENT_CAP");
        run.dispose().await.unwrap();
        rig.is_clean(&seen);
    }

    #[tokio::test]
    async fn orchestration_3_8_5_an_aborted_call_ends_a_script_that_waits_for_ever() {
        let rig = Rig::new().await;
        let mut request = rig.tool_request(
            "workflow",
            json!({
                "script": "agent('!hang'); agent('!hang too'); await new Promise(() => {})",
                "meta": meta(),
            }),
        );
        let abort = CancelToken::new();
        request.cancel = abort.clone();
        let called = rig.world().tools.execute_one(request);
        let aborting = async {
            rig.puppets.until_live(2).await;
            abort.cancel(CancelCause::User);
        };
        let (outcome, ()) = futures::join!(called, aborting);
        assert!(outcome.is_error());
        assert_eq!((rig.puppets.counts(), rig.engine.live()), ((2, 2), Live::default()));
    }

    #[tokio::test]
    async fn orchestration_3_8_6_a_dead_worker_is_an_error_and_its_children_end_before_the_run() {
        let rig = Rig::new().await;
        let (request, seen) = rig.request();
        let puppets = rig.puppets.clone();
        let run = rig.engine.start_native(request, move |cx| async move {
            let both = cx.parallel([cx.agent("!hang"), cx.agent("!hang")]);
            let dying = async {
                puppets.until_live(2).await;
                panic!("the worker breaks");
            };
            let (_, ()): (Result<Vec<Value>, Halt>, ()) = futures::join!(both, dying);
            Ok(Value::Null)
        });
        let run = run.unwrap();
        let result = run.result().await;
        let error = result.error.unwrap();
        assert_eq!((result.stop_reason, &*error.code), (WorkflowStop::Error, "WORKER_DIED"));
        assert!(error.message.contains("the worker breaks"));
        run.dispose().await.unwrap();
        // Both ends come before the run's, which `is_clean` wants to be the last word.
        rig.is_clean(&seen);
        assert_eq!(outcomes(&seen), [AgentOutcome::Cancelled; 2]);
        assert_eq!(rig.puppets.counts(), (2, 2));
    }

    #[tokio::test]
    async fn orchestration_3_8_7_what_is_no_plain_json_is_no_result() {
        let rig = Rig::new().await;
        for (script, why) in [
            ("const a = {}; a.b = [a]; return a", "cyclic"),
            ("return {f: () => 1}", "result.f is a function"),
            ("return [1, NaN]", "result[1] is not finite"),
            ("return [1, , 2]", "sparse"),
            ("return new Array(4e9)", "sparse"),
            ("return new Map()", "exotic"),
            ("return new Date()", "exotic"),
            ("return new (class A {})", "exotic"),
            ("return new Proxy({}, {})", "proxy"),
            ("return Symbol('x')", "symbol"),
            ("return 10n", "big_int"),
            ("return {[Symbol('x')]: 1}", "symbol"),
            ("return {get x() { throw 1 }}", "cannot be read"),
            ("let a = []; for (let n = 0; n < 200; n++) a = [a]; return a", "deeper"),
        ] {
            let (result, _) = rig.run(script).await;
            let error = result.error.unwrap();
            assert_eq!(error.code, "RESULT_UNSERIALIZABLE", "{script}: {}", error.message);
            let text = error.message.to_lowercase();
            assert!(text.contains(&why.to_lowercase()), "{script}: {text}");
        }
        for (script, value) in [
            ("", json!(null)),
            ("return undefined", json!(null)),
            (
                "return {a: 1, b: undefined, c: [undefined, 1.5, -0, 2**53]}",
                json!({"a": 1, "c": [null, 1.5, 0, 9007199254740992.0]}),
            ),
            (
                "const o = Object.create(null); o.x = 'ü\\u2028'; return [o, o]",
                json!([{"x": "ü\u{2028}"}, {"x": "ü\u{2028}"}]),
            ),
        ] {
            let (result, _) = rig.run(script).await;
            assert_eq!(result.value, Some(value), "{script}: {:?}", result.error);
        }
    }

    #[tokio::test]
    async fn orchestration_3_8_8_a_loop_whose_rounds_are_used_up_is_budget_limited() {
        let rig = Rig::new().await;
        let report = |n: u32| {
            json!({"status": "continue", "summary": format!("round {n} was here"), "evidence": [],
                "nextSteps": ["go on"], "blocker": ""})
        };
        rig.puppets.report(report(1));
        rig.puppets.report(report(2));
        let outcome = rig.call("ralph", json!({"objective": "win", "maxRounds": 2})).await;
        let value = outcome.value().unwrap();
        assert_eq!(value["agentsStarted"], 2);
        let expected = json!({"status": "budget-limited", "roundsStarted": 2, "report": report(2)});
        assert_eq!(value["result"], expected);
        let prompts = rig.puppets.prompts();
        assert!(prompts[0].contains("none") && prompts[0].contains("1 of at most 2"));
        let second = &prompts[1];
        assert!(second.contains("round 1 was here") && !second.contains("round 2 was here"));
        assert!(prompts.iter().all(|prompt| prompt.contains("win")));
        assert_eq!((rig.puppets.counts(), rig.engine.live()), ((2, 2), Live::default()));
    }

    #[tokio::test]
    async fn a_loop_ends_with_a_complete_report_and_names_the_round_that_failed() {
        let rig = Rig::new().await;
        let done = json!({"status": "complete", "summary": "did it", "evidence": ["the tests"],
            "nextSteps": [], "blocker": ""});
        rig.puppets.report(done.clone());
        let outcome = rig.call("ralph", json!({"objective": "win"})).await;
        let expected = json!({"status": "complete", "roundsStarted": 1, "report": done});
        assert_eq!(outcome.value().unwrap()["result"], expected);

        let more = json!({"status": "continue", "summary": "half", "evidence": [],
            "nextSteps": ["rest"], "blocker": ""});
        rig.puppets.report(more);
        let outcome = rig.call("ralph", json!({"objective": "win"})).await;
        let text = outcome.error().unwrap().message().to_owned();
        assert!(text.contains("round 2 failed") && text.contains("\"half\""), "{text}");
        for args in [json!({"objective": " "}), json!({"objective": "x", "maxRounds": 257})] {
            let outcome = rig.call("ralph", args).await;
            assert_eq!(outcome.error().unwrap().code(), Some("INVALID_ARGUMENT"));
        }
    }

    #[tokio::test]
    async fn a_script_sees_the_language_the_hooks_and_nothing_else() {
        let rig = Rig::new().await;
        let script = "const names = Reflect.ownKeys(globalThis).filter((n) => typeof n === 'string');
            const language = ['Array', 'JSON', 'Promise', 'Math', 'Date'];
            const hooks = ['agent', 'parallel', 'pipeline', 'phase', 'log', 'args'];
            return {
                missing: [...language, ...hooks].filter((n) => !names.includes(n)),
                there: ['eval', 'require', 'process', 'std', 'os', 'setTimeout', 'fetch', 'console',
                    'performance', 'navigator', 'Atomics', 'SharedArrayBuffer', 'WeakRef',
                    'queueMicrotask', 'gc', 'print', 'Worker', 'host'].filter((n) => names.includes(n)),
                count: names.length,
                fixed: (() => { try { agent = 1 } catch (e) { return e.name } })(),
                args,
            }";
        let request = rig.request().0.args(json!({"deep": [1, "two"]}));
        let run = rig.engine.start(request, script).await.unwrap();
        let value = run.result().await.value.unwrap();
        run.dispose().await.unwrap();
        assert_eq!(value["missing"], json!([]));
        assert_eq!(value["there"], json!([]));
        assert_eq!(value["fixed"], json!("TypeError"));
        assert_eq!(value["args"], json!({"deep": [1, "two"]}));
        assert!(value["count"].as_u64().unwrap() < 75, "{value}");
        for escape in ["await import('fs')", "require('fs')", "new Function('return process')()"] {
            let (result, _) = rig.run(escape).await;
            assert_eq!(result.stop_reason, WorkflowStop::Error, "{escape}: {result:?}");
        }
    }

    #[tokio::test]
    async fn a_script_that_only_computes_is_killed_at_once_or_after_an_await() {
        let rig = Rig::new().await;
        for script in [
            "while (true) {}",
            "await agent('x'); while (true) {}",
            "await agent('x'); for (;;) await null",
            "await agent('x'); for (;;) { try { for (;;); } catch {} finally { continue } }",
            "const spin = () => Promise.resolve().then(spin); spin(); await new Promise(() => {})",
            "const t = agent('!hang'); await null; /(x+x+)+y/.test('x'.repeat(40)); return 1",
        ] {
            let (result, _) = rig.run(script).await;
            assert_eq!(result.error.unwrap().code, "SCRIPT_TIMEOUT", "{script}");
        }
        assert_eq!(rig.engine.live(), Live::default());
    }

    #[tokio::test]
    async fn memory_and_stack_of_a_script_are_limited() {
        let config = EngineConfig {
            memory_bytes: 8 << 20,
            sync_timeout: Duration::from_secs(20),
            ..limits()
        };
        let rig = Rig::with(config).await;
        for (script, text) in [
            ("const a = []; while (true) a.push('x'.repeat(100000) + a.length)", "memory"),
            ("const f = () => 1 + f(); return f()", "stack"),
        ] {
            let (result, _) = rig.run(script).await;
            let error = result.error.unwrap();
            assert_eq!(error.code, "WORKFLOW_ERROR");
            assert!(error.message.contains(text), "{}", error.message);
        }
    }

    #[tokio::test]
    async fn what_ends_a_run_can_neither_be_caught_nor_forged() {
        let rig = Rig::new().await;
        // Whatever a script does to the language, it cannot go on after a fatal error.
        for (script, code) in [
            ("try { parallel(7) } catch {} ; await agent('x'); return 1", "INVALID_ARGUMENT"),
            ("try { await parallel([1]) } catch {} ; return 1", "INVALID_ARGUMENT"),
            (
                "Promise.all = () => 1; Array.prototype.map = null;
              await pipeline([1], async () => { try { phase(1) } catch {} }); return 1",
                "INVALID_ARGUMENT",
            ),
            (
                "try { await agent('x', {schema: {type: 'string'}}) } catch {} return 1",
                "UNSUPPORTED_SCHEMA",
            ),
            ("try { await agent('!refuse') } catch {} return 1", "AGENT_START"),
            ("try { await parallel([() => agent('!lost')]) } catch {} return 1", "AGENT_RESULT"),
            ("try { await agent('!panic') } catch {} return 1", "AGENT_RESULT"),
            (
                "try { await agent('x', {effort: 'high'}) } finally { return 1 }",
                "UNSUPPORTED_OPTION",
            ),
            ("try { await agent(' ') } finally { return 1 }", "INVALID_ARGUMENT"),
        ] {
            let (result, _) = rig.run(script).await;
            let found = result.error.as_ref().map(|error| error.code.as_str());
            assert_eq!(found, Some(code), "{script}: {result:?}");
        }
        // An error that looks like one is an item's own.
        let forged =
            "const e = new Error('x'); e.code = 'CANCELLED'; e.fatal = true; e.name = 'Fatal';
            return parallel([() => { throw e }, () => agent('y')])";
        let (result, _) = rig.run(forged).await;
        assert_eq!(result.value, Some(json!([null, "re: y"])));
    }

    #[tokio::test]
    async fn a_combinator_takes_so_many_items_and_no_more() {
        let rig = Rig::with(EngineConfig { max_items_per_call: 3, ..limits() }).await;
        let (result, _) = rig.run("return pipeline([1, 2, 3], (n) => n + 1)").await;
        assert_eq!(result.value, Some(json!([2, 3, 4])));
        for script in [
            "return pipeline([1, 2, 3, 4], (n) => n)",
            "return parallel(Array(4).fill(() => 1)).catch(() => 1)",
        ] {
            let (result, _) = rig.run(script).await;
            assert_eq!(result.error.unwrap().code, "ITEM_CAP");
        }
        let (request, _) = rig.request();
        let run = rig.engine.start_native(request, |cx| async move {
            let ready = (0..4).map(|n| async move { Ok::<_, Halt>(n) });
            let _ = cx.parallel(ready).await;
            Ok(json!("caught"))
        });
        let result = run.unwrap().result().await;
        assert_eq!(result.error.unwrap().code, "ITEM_CAP");
    }

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
        let script =
            "agent('!hang'); agent('!hang'); agent('!wait ever'); agent('!hang'); agent('q');
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

        // In the interpreter's own loops nobody asks the watchdog.
        let endless = "log('in'); Array.prototype.indexOf.call({length: 2 ** 53 - 1}, 1)";
        let (run, seen) = rig.start(endless).await;
        until(|| seen.all().len() == 2).await;
        let left = run.dispose().await.unwrap_err();
        assert!(left.message.contains("still busy"), "{}", left.message);
        assert_eq!(run.result().await.stop_reason, WorkflowStop::Cancelled);
        seen.fits();
        assert_eq!(rig.engine.live(), Live { runs: 1, workers: 1 });
    }

    #[tokio::test]
    async fn what_cannot_be_started_leaves_nothing() {
        let rig = Rig::with(EngineConfig { script_bytes: 200, ..limits() }).await;
        let request = || rig.request().0;
        let cases = [
            (request(), "return (".to_owned(), "SCRIPT_PARSE", "SyntaxError"),
            (request(), "export const meta = {}".to_owned(), "SCRIPT_PARSE", "beside the script"),
            (request(), "import 'fs'".to_owned(), "SCRIPT_PARSE", ""),
            (request(), "x".repeat(201), "INVALID_ARGUMENT", "201 bytes"),
            (request().provider("nobody"), String::new(), "AGENT_START", "puppets"),
            (request().provider(" "), String::new(), "INVALID_ARGUMENT", "subagentProvider"),
            (request().max_total_agents(0), String::new(), "INVALID_ARGUMENT", "maxTotalAgents"),
            (request().max_total_agents(1_001), String::new(), "INVALID_ARGUMENT", "1 to 1000"),
        ];
        for (request, script, code, text) in cases {
            let error = rig.engine.start(request, script).await.unwrap_err();
            assert_eq!(error.code(), code);
            assert!(error.to_string().contains(text), "{error}");
        }
        until(|| rig.engine.live() == Live::default()).await;
    }

    #[tokio::test]
    async fn an_error_names_the_scripts_line_and_what_it_threw() {
        let rig = Rig::new().await;
        let (result, _) = rig.run("const a = 1;\nconst b = 2;\nthrow new RangeError('far')").await;
        let error = result.error.unwrap();
        assert_eq!(error.code, "WORKFLOW_ERROR");
        assert!(error.message.starts_with("RangeError: far"), "{}", error.message);
        assert!(error.message.contains("workflow.js:3"), "{}", error.message);
        let (result, _) = rig.run("throw {why: 'so'}").await;
        assert!(result.error.unwrap().message.contains(r#"{"why":"so"}"#));
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
}
