//! Scripts that want more than they may have.

use super::*;

/// Where a script has the time for what it does, also on a busy machine.
async fn patient(sync_timeout: Duration) -> Rig {
    let dispose_grace = Duration::from_secs(20);
    Rig::with(EngineConfig { sync_timeout, dispose_grace, ..limits() }).await
}

/// Runs a script, which must come to an end.
async fn ends(rig: &Rig, script: &str) -> crate::WorkflowResult {
    let ended = tokio::time::timeout(Duration::from_secs(30), rig.run(script));
    ended.await.unwrap_or_else(|_| panic!("it hangs: {script}")).0
}

#[tokio::test]
async fn a_small_value_that_stands_in_a_result_many_times_is_counted_each_time() {
    let rig = patient(Duration::from_secs(20)).await;
    for script in [
        "let a = []; for (let i = 0; i < 100; i++) a = [a, a]; return a",
        "const s = 'x'.repeat(1 << 20); return Array(100000).fill(s)",
        "let o = {}; for (let i = 0; i < 60; i++) o = {['k'.repeat(1000)]: o, b: o}; return o",
    ] {
        let error = ends(&rig, script).await.error.unwrap();
        assert_eq!(error.code, "RESULT_UNSERIALIZABLE", "{script}");
        assert!(error.message.contains("larger than"), "{}", error.message);
    }
    for script in [
        "let a = []; for (let i = 0; i < 100; i++) a = [a, a]; throw a",
        "let a = []; for (let i = 0; i < 100; i++) a = [a, a]; await agent('x', {schema: a})",
        "const big = 'x'.repeat(2 << 20); await agent(big)",
    ] {
        let error = ends(&rig, script).await.error.unwrap();
        assert!(["WORKFLOW_ERROR", "INVALID_ARGUMENT"].contains(&&*error.code), "{error:?}");
        assert!(error.message.len() < 8192, "{}", error.message.len());
    }
}

#[tokio::test]
async fn a_value_whose_walk_takes_too_long_times_out() {
    let rig = Rig::with(EngineConfig { memory_bytes: 1 << 40, ..limits() }).await;
    let script = "let a = []; for (let i = 0; i < 100; i++) a = [a, a];
        const o = {get x() { for (;;); }}; return [o, a]";
    assert_eq!(ends(&rig, script).await.error.unwrap().code, "SCRIPT_TIMEOUT");
}

#[tokio::test]
async fn an_error_about_a_long_key_is_short() {
    let rig = patient(Duration::from_secs(20)).await;
    let script = "return {['k'.repeat(1 << 20)]: {['k'.repeat(1 << 20)]: Symbol('s')}}";
    let error = ends(&rig, script).await.error.unwrap();
    assert_eq!(error.code, "RESULT_UNSERIALIZABLE");
    assert!(error.message.len() < 1000, "{}", error.message.len());
}

#[tokio::test]
async fn a_loop_of_the_interpreter_that_hears_no_interrupt_ends_the_run_and_is_told_of() {
    let rig = Rig::with(EngineConfig {
        sync_timeout: Duration::from_millis(50),
        dispose_grace: Duration::from_millis(50),
        ..limits()
    })
    .await;
    let script = "agent('!hang'); Array.prototype.reverse.call({length: 2 ** 22}); return 1";
    let (run, seen) = rig.start(script).await;
    let result = tokio::time::timeout(Duration::from_secs(30), run.result()).await.unwrap();
    assert_eq!(result.error.unwrap().code, "SCRIPT_TIMEOUT");
    assert_eq!(run.dispose().await.unwrap_err().code, "WORKFLOW_LEFTOVERS");
    // This loop does end.
    until(|| rig.engine.live() == Live::default()).await;
    rig.is_clean(&seen);
}

#[tokio::test]
async fn a_script_that_awaits_what_nobody_brings_about_fails_at_once() {
    let rig = Rig::new().await;
    for script in [
        "await new Promise(() => {})",
        "await agent('x'); return new Promise(() => {})",
        "return {then() {}}",
        "return Promise.race([])",
        "return new Promise((resolve) => agent('x').finally(() => {}))",
    ] {
        let error = ends(&rig, script).await.error.unwrap();
        assert_eq!(error.code, "WORKFLOW_ERROR", "{script}");
        assert!(error.message.contains("awaits"), "{}", error.message);
    }
}

#[tokio::test]
async fn a_script_cannot_leave_the_function_that_it_is_the_body_of() {
    let rig = Rig::new().await;
    for script in [
        "}), log('early'), (async () => {",
        "}); log('early'); (async () => {",
        "}}), log('early'), (async () => {{",
        "}); for (;;); (async () => {",
    ] {
        let error = rig.engine.start(rig.request().0, script).await.unwrap_err();
        assert_eq!(error.code(), "SCRIPT_PARSE", "{script}: {error}");
    }
    until(|| rig.engine.live() == Live::default()).await;
}

#[tokio::test]
async fn whoever_panics_while_watching_ends_no_run() {
    let rig = Rig::new().await;
    let request = WorkflowRequest::new(rig.parent.agent(), meta())
        .observed_by(|notice| assert!(!matches!(notice, NoticeKind::AgentStart { .. }), "boom"));
    let run = rig.engine.start(request, "return agent('x')").await.unwrap();
    assert_eq!(run.result().await.value, Some(json!("re: x")));
    run.dispose().await.unwrap();
    assert_eq!((rig.engine.live(), rig.puppets.live()), (Live::default(), 0));
}

#[tokio::test]
async fn strange_promises_and_prototypes_harm_the_script_alone() {
    let rig = patient(Duration::from_secs(1)).await;
    for (script, value) in [
        ("return {then(resolve) { resolve(7) }}", Some(json!(7))),
        ("Object.prototype.toJSON = () => 'evil'; return {a: await agent('x')}", Some(json!({"a": "re: x"}))),
        ("Object.prototype.label = 'evil'; return agent('x', {})", Some(json!("re: x"))),
        ("Promise.prototype.then = () => {}; Map.prototype.get = () => {}; JSON.parse = () => 'evil';
          return agent('x')", None),
        ("return JSON.parse('{\"__proto__\": {\"a\": 1}}')", Some(json!({"__proto__": {"a": 1}}))),
        ("const a = agent('x'); const b = agent('y'); return [await b, await a]", Some(json!(["re: y", "re: x"]))),
        ("agent('!fail'); agent('x'); return 1", Some(json!(1))),
        ("try { return 1 } finally { for (;;); }", None),
        ("return new Proxy({}, {ownKeys() { for (;;); }})", None),
        ("const e = new Error('x'); Object.defineProperty(e, 'message', {get() { for (;;); }}); throw e", None),
        ("const e = new Error('x'); Object.defineProperty(e, 'name', {get() { throw e }}); throw e", None),
        ("return '\\ud800'", None),
        ("return {['\\ud800']: 1}", None),
        ("return {'a\\0b': 1, 'a': 2}", Some(json!({"a\0b": 1, "a": 2}))),
        ("return agent('x', {['\\ud800']: 1})", None),
        ("phase('\\udfff'); return 1", None),
        ("throw new Error('\\ud800')", None),
        ("throw {['\\ud800']: 1}", None),
        ("return 10n", None),
        ("return globalThis", None),
        ("return new Array(2 ** 32 - 1)", None),
        ("log('x'.repeat(1 << 18)); return 1", Some(json!(1))),
    ] {
        let result = ends(&rig, script).await;
        assert_eq!(result.value, value, "{script}: {result:?}");
    }
}
