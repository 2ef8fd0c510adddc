//! What a script may use, and what ends it.

use super::*;

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
    let config =
        EngineConfig { memory_bytes: 8 << 20, sync_timeout: Duration::from_secs(20), ..limits() };
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
        ("try { await agent('x', {effort: 'high'}) } finally { return 1 }", "UNSUPPORTED_OPTION"),
        ("try { await agent(' ') } finally { return 1 }", "INVALID_ARGUMENT"),
    ] {
        let (result, _) = rig.run(script).await;
        let found = result.error.as_ref().map(|error| error.code.as_str());
        assert_eq!(found, Some(code), "{script}: {result:?}");
    }
    // An error that looks like one is an item's own.
    let forged = "const e = new Error('x'); e.code = 'CANCELLED'; e.fatal = true; e.name = 'Fatal';
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
