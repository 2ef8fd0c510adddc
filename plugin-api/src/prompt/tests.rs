use std::sync::atomic::{AtomicUsize, Ordering};

use playhouse_messages::event::CancelCause;
use serde_json::json;

use playhouse_messages::runtime_context::ContextSection;

use super::*;

fn context(scope: &Scope) -> AssembleContext {
    AssembleContext {
        scope: scope.clone(),
        choice: ModelChoice {
            provider: "acme".into(),
            model: "large".into(),
            reasoning_effort: None,
        },
        cancel: CancelToken::new(),
    }
}

fn tool(name: &str) -> Arc<ToolSchema> {
    Arc::new(ToolSchema {
        name: name.to_owned(),
        description: String::new(),
        parameters: json!({"type": "object"}),
        defer_loading: false,
    })
}

fn tool_names(assembly: &Assembly) -> Vec<&str> {
    assembly.tools.iter().map(|tool| tool.name.as_str()).collect()
}

async fn rendered(prompt: &PromptRegistry, scope: &Scope) -> Result<String, Failure> {
    render_prompt(&prompt.assemble(context(scope)).await?)
}

/// A registry, a root scope, and an agent's below it.
fn stage() -> (PromptRegistry, Scope, Scope) {
    let root = Scope::root("root");
    let agent = root.child("agent").unwrap();
    (PromptRegistry::new(), root, agent)
}

#[tokio::test]
async fn contributions_end_with_their_scope_and_each_change_is_counted() {
    let (prompt, root, agent) = stage();
    let mut watch = prompt.watch();
    prompt.section(&root, identity_section()).unwrap();
    let extra = prompt.section(&agent, Section::text("extra", 1.0, "more")).unwrap();
    prompt.section(&agent, Section::text("mine", 2.0, "mine")).unwrap();
    assert!(watch.has_changed().unwrap());
    watch.borrow_and_update();
    let identity = "You are an AI agent running in the Playhouse harness.";
    assert_eq!(rendered(&prompt, &agent).await.unwrap(), format!("{identity}\n\nmore\n\nmine"));
    extra.remove();
    extra.remove();
    assert_eq!(rendered(&prompt, &agent).await.unwrap(), format!("{identity}\n\nmine"));
    let before = *watch.borrow_and_update();
    agent.close();
    assert_eq!(*watch.borrow_and_update(), before + 1);
    assert_eq!(rendered(&prompt, &agent).await.unwrap(), identity);
    let refused = prompt.section(&agent, Section::text("late", 1.0, "x")).unwrap_err();
    assert_eq!(refused.code(), "SCOPE_CLOSED");
}

#[test]
fn what_cannot_be_meant_is_refused_at_registration() {
    let (prompt, root, agent) = stage();
    let section = |name: &str, order| Section::text(name, order, "x");
    prompt.section(&root, section("s", 0.0)).unwrap();
    prompt.section(&agent, section("s", 0.0)).unwrap();
    prompt.context(&root, Context::text("s", 0.0, "x")).unwrap();
    for (refused, code, text) in [
        (
            prompt.section(&root, section("s", 1.0)),
            "PROMPT_DUPLICATE",
            "prompt section \"s\" is already registered globally; to replace it for one agent or \
             preset, register it in that scope instead",
        ),
        (
            prompt.section(&agent, section("s", 1.0)),
            "PROMPT_DUPLICATE",
            "prompt section \"s\" is already registered in scope `agent`; remove that one first, \
             or register this in a scope below",
        ),
        (
            prompt.context(&root, Context::text("c", f64::NAN, "x")),
            "PROMPT_ORDER",
            "the order of runtime context \"c\" must be a finite number, not NaN",
        ),
        (
            prompt.section(&root, section("", 0.0)),
            "PROMPT_NAME",
            "a prompt section needs a name that is not empty",
        ),
        (
            prompt.variable(&root, "Cwd", |_| async { Ok("x".to_owned()) }),
            "PROMPT_NAME",
            "invalid prompt variable name \"Cwd\": it starts with a-z and goes on with a-z, 0-9 or _",
        ),
    ] {
        let error = refused.unwrap_err();
        assert_eq!((error.code(), error.to_string().as_str()), (code, text));
    }
}

#[tokio::test]
async fn a_failing_or_panicking_contribution_fails_the_assembly_by_name() {
    let (prompt, _, agent) = stage();
    let failing = |_: &AssembleContext| async { Err::<String, _>(Failure::new("NO_DISK", "gone")) };
    let section = prompt.section(&agent, Section::computed("s", 0.0, failing)).unwrap();
    let failure = rendered(&prompt, &agent).await.unwrap_err();
    assert_eq!(failure, Failure::new("NO_DISK", "prompt section \"s\": gone"));
    section.remove();
    prompt
        .variable(&agent, "v", |_| -> std::future::Ready<Result<String, Failure>> {
            panic!("boom")
        })
        .unwrap();
    let failure = rendered(&prompt, &agent).await.unwrap_err();
    assert_eq!(failure, Failure::new("PANIC", "prompt variable \"v\": panicked: boom"));
}

#[tokio::test]
async fn a_cancelled_assembly_does_not_wait_for_its_contributions() {
    let (prompt, _, agent) = stage();
    let hung = |_: &AssembleContext| std::future::pending::<Result<String, Failure>>();
    prompt.section(&agent, Section::computed("hung", 0.0, hung)).unwrap();
    let ctx = context(&agent);
    let assembling = tokio::spawn(prompt.assemble(ctx.clone()));
    ctx.cancel.cancel(CancelCause::User);
    assert_eq!(assembling.await.unwrap().unwrap_err().code, "ABORTED");
}

#[tokio::test]
async fn of_two_tools_with_one_name_the_nearer_counts() {
    let (prompt, root, agent) = stage();
    prompt.tools(&root, |_| vec![tool("b"), tool("a")]).unwrap();
    let near = tool("a");
    let offered = near.clone();
    prompt.tools(&agent, move |_| vec![offered.clone()]).unwrap();
    let assembly = prompt.assemble(context(&agent)).await.unwrap();
    assert_eq!(tool_names(&assembly), ["a", "b"]);
    assert!(Arc::ptr_eq(&assembly.tools[0], &near));
    prompt.tools(&agent, |_| vec![tool("a")]).unwrap();
    assert_eq!(prompt.assemble(context(&agent)).await.unwrap_err().code, "TOOL_DUPLICATE");
    let other = root.child("other").unwrap();
    prompt.tools(&other, |_| vec![tool(UNLISTED_TOOLS)]).unwrap();
    assert_eq!(prompt.assemble(context(&other)).await.unwrap_err().code, "TOOL_NAME_RESERVED");
}

#[tokio::test]
async fn a_refresh_evaluates_facts_again_and_keeps_what_a_listener_said() {
    let (prompt, root, agent) = stage();
    let count = Arc::new(AtomicUsize::new(0));
    let counting = |count: Arc<AtomicUsize>| {
        move |_: &AssembleContext| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            async move { Ok(format!("{number} {{{{model}}}}")) }
        }
    };
    for name in ["fresh", "changed", "dropped"] {
        let fact = Context::computed(name, 0.0, counting(count.clone()));
        prompt.context(&root, fact).unwrap();
    }
    prompt
        .on_assemble()
        .add(&root, |mut input: AssembleInput, next| {
            input.assembly.contexts.retain(|context| context.name != "dropped");
            input.assembly.contexts[1].text = "said".into();
            let added = AssembledContext { name: "added".into(), text: "too".into() };
            input.assembly.contexts.push(added);
            next.run(input)
        })
        .unwrap();
    let facts = |assembly: &Assembly| {
        let sections = runtime_sections(assembly).unwrap();
        sections
            .into_iter()
            .map(|ContextSection { name, text }| format!("{name}: {text}"))
            .collect::<Vec<_>>()
    };
    let first = prompt.assemble(context(&agent)).await.unwrap();
    assert_eq!(facts(&first), ["fresh: 0 large", "changed: said", "added: too"]);
    let gone = prompt.context(&agent, Context::text("new", 1.0, "new")).unwrap();
    let second = prompt.refresh_contexts(context(&agent), &first).await.unwrap();
    assert_eq!(facts(&second), ["fresh: 3 large", "changed: said", "new: new", "added: too"]);
    assert_eq!((&second.sections, &second.tools), (&first.sections, &first.tools));
    gone.remove();
    let third = prompt.refresh_contexts(context(&agent), &second).await.unwrap();
    assert_eq!(facts(&third), ["fresh: 6 large", "changed: said", "added: too"]);
    prompt.suppress_runtime_context(&agent).unwrap();
    let last = prompt.refresh_contexts(context(&agent), &third).await.unwrap();
    assert!(facts(&last).is_empty());
    assert_eq!(count.load(Ordering::Relaxed), 9);
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn llm_101_equal_orders_stand_by_registration_and_a_shadowed_section_is_not_evaluated() {
        let (prompt, root, agent) = stage();
        let global = |_: &AssembleContext| -> std::future::Ready<Result<String, Failure>> {
            panic!("a shadowed provider was called")
        };
        prompt.section(&root, Section::computed("persona", 0.0, global)).unwrap();
        prompt.section(&root, Section::text("second", 0.0, "second")).unwrap();
        prompt.section(&root, Section::text("first", -100.0, "first")).unwrap();
        prompt.section(&agent, Section::text("persona", -0.0, "persona of {{provider}}")).unwrap();
        let text = rendered(&prompt, &agent).await.unwrap();
        assert_eq!(text, "first\n\npersona of acme\n\nsecond");
    }

    #[tokio::test]
    async fn llm_102_a_complete_section_is_all_there_is_and_two_are_refused() {
        let (prompt, root, agent) = stage();
        prompt.section(&root, Section::text("other", 0.0, "other")).unwrap();
        prompt.section(&agent, Section::text("all", 5.0, "all").complete()).unwrap();
        prompt
            .on_assemble()
            .add(&root, |mut input: AssembleInput, next| {
                let added =
                    AssembledSection { name: "added".into(), order: 9.0, text: "added".into() };
                input.assembly.sections.push(added);
                input.assembly.tools.push(tool("added"));
                next.run(input)
            })
            .unwrap();
        let assembly = prompt.assemble(context(&agent)).await.unwrap();
        assert_eq!(render_prompt(&assembly).unwrap(), "all");
        assert_eq!(tool_names(&assembly), ["added"]);
        prompt.section(&root, Section::text("whole", 0.0, "whole").complete()).unwrap();
        let failure = rendered(&prompt, &agent).await.unwrap_err();
        assert_eq!(
            (failure.code.as_str(), failure.message.as_str()),
            (
                "PROMPT_TWO_COMPLETE",
                "more than one complete prompt section: \"whole\", \"all\"; keep one"
            )
        );
    }

    #[tokio::test]
    async fn llm_103_an_unset_variable_matters_only_where_it_is_referenced() {
        let (prompt, root, agent) = stage();
        prompt.variable(&root, "cwd", |_| async { Ok(None::<String>) }).unwrap();
        prompt.variable(&root, "echo", |_| async { Ok("{{cwd}}".to_owned()) }).unwrap();
        prompt.section(&root, Section::text("s", 0.0, "{{echo}} {{model}}")).unwrap();
        assert_eq!(rendered(&prompt, &agent).await.unwrap(), "{{cwd}} large");
        let unset = prompt.section(&agent, Section::text("t", 0.0, "{{cwd}}")).unwrap();
        let failure = rendered(&prompt, &agent).await.unwrap_err();
        assert_eq!(
            failure.message,
            r#"prompt variable "{{cwd}}" has no value for this assembly (section "t")"#
        );
        unset.remove();
        prompt.section(&agent, Section::text("t", 0.0, "{{nope}}")).unwrap();
        let failure = rendered(&prompt, &agent).await.unwrap_err();
        assert_eq!(
            failure.message,
            "unknown prompt variable \"{{nope}}\" in section \"t\"; registered variables: cwd, \
             echo, model, provider"
        );
        // The nearest variable of a name counts, loop variables included.
        prompt.variable(&agent, "nope", |_| async { Ok("found".to_owned()) }).unwrap();
        prompt.variable(&agent, "model", |_| async { Ok("small".to_owned()) }).unwrap();
        assert_eq!(rendered(&prompt, &agent).await.unwrap(), "{{cwd}} small\n\nfound");
    }

    #[tokio::test]
    async fn llm_104_an_order_may_list_a_hidden_tool_and_no_unregistered_one() {
        let (prompt, root, agent) = stage();
        let offer = |_: &AssembleContext| ToolOffer {
            schemas: vec![tool("a"), tool("b")],
            known: vec!["hidden".into()],
        };
        prompt.tools(&root, offer).unwrap();
        let order = |names: &[&str]| Some(ToolOrder::new(names.iter().copied()).unwrap());
        prompt.set_tool_order(order(&["hidden", "b", UNLISTED_TOOLS]));
        assert_eq!(tool_names(&prompt.assemble(context(&agent)).await.unwrap()), ["b", "a"]);
        prompt.set_tool_order(order(&[UNLISTED_TOOLS, "x"]));
        let failure = prompt.assemble(context(&agent)).await.unwrap_err();
        assert_eq!(
            (failure.code.as_str(), failure.message.as_str()),
            (
                "TOOL_ORDER_UNKNOWN",
                "toolOrder lists unregistered tool(s) \"x\"; known tools: a, b, hidden"
            )
        );
    }

    #[tokio::test]
    async fn llm_105_a_tool_that_a_listener_adds_stays_where_it_put_it() {
        let (prompt, root, agent) = stage();
        prompt.tools(&root, |_| vec![tool("c"), tool("b")]).unwrap();
        prompt
            .on_assemble()
            .add(&root, |mut input: AssembleInput, next| {
                input.assembly.tools.push(tool("a"));
                next.run(input)
            })
            .unwrap();
        for _ in 0..2 {
            let assembly = prompt.assemble(context(&agent)).await.unwrap();
            assert_eq!(tool_names(&assembly), ["b", "c", "a"]);
        }
    }

    #[tokio::test]
    async fn llm_106_runtime_facts_are_in_order_unless_suppressed() {
        let (prompt, root, agent) = stage();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let fact = move |_: &AssembleContext| {
            count.fetch_add(1, Ordering::Relaxed);
            async { Ok(Some("by {{provider}}".to_owned())) }
        };
        prompt.context(&root, Context::computed("later", 2.0, fact)).unwrap();
        prompt.context(&root, Context::text("sooner", 1.0, "now")).unwrap();
        prompt.context(&root, Context::computed("none", 0.0, |_| async { Ok(None) })).unwrap();
        let assembly = prompt.assemble(context(&agent)).await.unwrap();
        let facts = runtime_sections(&assembly).unwrap();
        let sections = [("sooner", "now"), ("later", "by acme")]
            .map(|(name, text)| ContextSection { name: name.into(), text: text.into() });
        assert_eq!(facts, sections);
        let calm = root.child("calm").unwrap();
        prompt.suppress_runtime_context(&calm).unwrap();
        prompt
            .on_assemble()
            .add(&calm, |mut input: AssembleInput, next| {
                let added = AssembledContext { name: "added".into(), text: "added".into() };
                input.assembly.contexts.push(added);
                next.run(input)
            })
            .unwrap();
        let assembly = prompt.assemble(context(&calm)).await.unwrap();
        assert!(runtime_sections(&assembly).unwrap().is_empty());
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}
