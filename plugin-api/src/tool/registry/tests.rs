use serde_json::json;

use super::*;
use crate::tool::tool_fn;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct NoArgs {}

fn tool(name: &str, description: &str) -> Arc<dyn Tool> {
    Arc::new(tool_fn(name, description, |_: NoArgs, _run| async { Ok("x") }).parallel())
}

fn names(registry: &ToolRegistry, scope: &Scope) -> Vec<String> {
    let tools = registry.visible(scope);
    tools.iter().map(|tool| tool.schema().name.clone()).collect()
}

fn three() -> (ToolRegistry, Scope, Scope, Scope) {
    let root = Scope::root("root");
    let preset = root.child("preset").unwrap();
    let agent = preset.child("agent").unwrap();
    (ToolRegistry::new(), root, preset, agent)
}

#[test]
fn restrictions_intersect_and_spare_a_scopes_own_tools() {
    let (registry, root, preset, agent) = three();
    for name in ["a", "b", "c"] {
        registry.register(&root, tool(name, "")).unwrap();
    }
    registry.restrict(&preset, ToolFilter::allow(["a", "b"])).unwrap();
    let deny = registry.restrict(&agent, ToolFilter::deny(["a"])).unwrap();
    registry.register(&agent, tool("report", "")).unwrap();
    registry.register(&agent, tool("a", "own")).unwrap();
    assert_eq!(names(&registry, &agent), ["a", "b", "report"]);
    assert!(registry.lookup(&agent, "c").is_none());
    // Judged by the same list, though it came later.
    registry.register(&root, tool("late", "")).unwrap();
    assert_eq!(names(&registry, &preset), ["a", "b"]);
    deny.remove();
    assert_eq!(registry.lookup(&agent, "a").unwrap().tool().schema().description, "own");
    assert_eq!(names(&registry, &root), ["a", "b", "c", "late"]);
}

#[test]
fn a_restriction_must_be_scoped_and_name_inherited_tools() {
    let (registry, root, _, agent) = three();
    registry.register(&root, tool("a", "")).unwrap();
    let refuse = |scope, filter| registry.restrict(scope, filter).unwrap_err();
    assert_eq!(refuse(&root, ToolFilter::deny(["a"])).code(), "INVALID_RESTRICTION");
    assert_eq!(refuse(&agent, ToolFilter::default()), ToolRegistryError::EmptyFilter);
    let error = refuse(&agent, ToolFilter::allow(["a", "x", "y"]));
    assert_eq!(
        error.to_string(),
        "tool restriction names unknown tool(s) \"x\", \"y\"; known tools: a"
    );
}

#[test]
fn every_change_moves_the_generation() {
    let (registry, root, _, agent) = three();
    let mut changes = registry.changes();
    assert!(!changes.has_changed().unwrap());
    registry.register(&root, tool("a", "")).unwrap();
    assert_eq!(*changes.borrow_and_update(), 1);
    registry.restrict(&agent, ToolFilter::deny(["a"])).unwrap();
    assert_eq!(*changes.borrow_and_update(), 2);
    agent.close();
    assert_eq!(*changes.borrow_and_update(), 3);
    assert!(registry.register(&agent, tool("a", "")).is_err());
    assert_eq!(registry.read().by_scope.len(), 1);
}

#[test]
fn a_bad_schema_or_budget_is_refused_at_registration() {
    let (registry, root, ..) = three();
    let bad = tool_fn("t", "", |_: NoArgs, _run| async { Ok("x") });
    let error = registry
        .register(&root, Arc::new(bad.output_schema(json!({"type": "strin"}))))
        .unwrap_err();
    assert_eq!(error.code(), "UNSUPPORTED_SCHEMA");
    assert!(error.to_string().starts_with("tool \"t\": unsupported JSON schema: schema.type "));
    let bad = tool_fn("t", "", |_: NoArgs, _run| async { Ok("x") });
    let error =
        registry.register(&root, Arc::new(bad.timeout(std::time::Duration::ZERO))).unwrap_err();
    assert_eq!(error.to_string(), "tool \"t\" timeoutMs must be a positive finite number");
}

mod scenario {
    use super::*;

    #[test]
    fn llm_89_the_nearest_layer_wins_and_a_closed_scope_gives_the_name_back() {
        let (registry, root, preset, agent) = three();
        for name in ["b", "a", "c"] {
            registry.register(&root, tool(name, "root")).unwrap();
        }
        registry.register(&preset, tool("b", "preset")).unwrap();
        let own = registry.register(&agent, tool("b", "agent")).unwrap();
        assert_eq!(names(&registry, &agent), ["a", "b", "c"]);
        let of = |scope| registry.lookup(scope, "b").unwrap().tool().schema().description.clone();
        assert_eq!([of(&root), of(&preset), of(&agent)], ["root", "preset", "agent"]);
        own.remove();
        assert_eq!(of(&agent), "preset");
        preset.close();
        assert_eq!(of(&agent), "root");
    }

    #[test]
    fn llm_89_a_name_is_taken_once_a_layer_and_the_refusal_says_the_way_out() {
        let (registry, root, preset, _) = three();
        registry.register(&root, tool("x", "")).unwrap();
        registry.register(&preset, tool("x", "")).unwrap();
        let error = registry.register(&root, tool("x", "")).unwrap_err();
        assert!(error.to_string().contains("already registered; register it in an agent's scope"));
        let error = registry.register(&preset, tool("x", "")).unwrap_err();
        assert_eq!(error.to_string(), "tool \"x\" is already registered in this scope");
        assert_eq!(error.code(), "TOOL_DUPLICATE");
    }

    #[test]
    fn llm_95_only_a_visible_tool_with_valid_arguments_is_parallel() {
        let (registry, root, _, agent) = three();
        registry.register(&root, tool("safe", "")).unwrap();
        let panics = tool_fn("panics", "", |_: NoArgs, _run| async { Ok("x") })
            .parallel_if(|_| panic!("boom"));
        registry.register(&root, Arc::new(panics)).unwrap();
        let classify = |name, args| registry.classify(&agent, name, &args);
        assert_eq!(classify("safe", json!({})), Concurrency::Parallel);
        assert_eq!(classify("safe", json!("{")), Concurrency::Exclusive);
        assert_eq!(classify("panics", json!({})), Concurrency::Exclusive);
        assert_eq!(classify("gone", json!({})), Concurrency::Exclusive);
        registry.restrict(&agent, ToolFilter::deny(["safe"])).unwrap();
        assert_eq!(classify("safe", json!({})), Concurrency::Exclusive);
    }

    #[test]
    fn llm_90_an_allow_list_masks_what_is_inherited_now_or_later_and_nothing_of_the_agents_own() {
        let (registry, root, preset, agent) = three();
        for name in ["read", "write"] {
            registry.register(&root, tool(name, "root")).unwrap();
        }
        registry.register(&preset, tool("search", "preset")).unwrap();
        registry.register(&agent, tool("report", "own")).unwrap();
        registry.restrict(&agent, ToolFilter::allow(["read"])).unwrap();
        registry.register(&root, tool("late", "root")).unwrap();
        assert_eq!(names(&registry, &agent), ["read", "report"]);
        for hidden in ["write", "search", "late"] {
            assert!(registry.lookup(&agent, hidden).is_none(), "{hidden}");
        }
        assert_eq!(names(&registry, &preset), ["late", "read", "search", "write"]);
    }
}
