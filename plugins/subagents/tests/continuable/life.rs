use playhouse_messages::{
    config::ModelChoice, content::ContentBlock, event::CancelCause, message::Source,
};
use playhouse_models::scripted::Reply;
use playhouse_plugin_api::{cancel::CancelToken, tool::ToolFilter};
use playhouse_subagents::{
    ChildOptions, ChildRequest, StartContinuable,
    continuable::{Authority, ReportDelivery},
};

use crate::rig::{Rig, held, last_told, on, told_by_children, trace};

#[tokio::test(start_paused = true)]
async fn orchestration_1_14_6_a_child_that_was_accepted_outlives_its_callers_cancel() {
    let rig = Rig::new([held("work", "work")]).await;
    let cancel = CancelToken::new();
    let request = ChildRequest::new(&rig.root, "work").cancelled_by(cancel.clone());
    let started = rig.try_start("a", request).await.unwrap();
    cancel.cancel(CancelCause::Parent);
    rig.model.gate("work").arrived(1).await;
    assert_eq!((started.child.as_str(), rig.states()), ("a", vec!["a running".to_owned()]));
    rig.model.gate("work").open();
    rig.until_settled("a").await;
    assert_eq!(told_by_children(&rig.root), ["subagent-settled a"]);
    assert_eq!(rig.told(), ["+run-1 spawn a", "-run-1 completed: done"]);
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_14_6_one_that_is_given_up_before_is_nowhere_and_nobody_is_told() {
    let rig = Rig::new([]).await;
    let cancel = CancelToken::new();
    cancel.cancel(CancelCause::User);
    let request = ChildRequest::new(&rig.root, "work").cancelled_by(cancel);
    let refused = rig.try_start("a", request).await.unwrap_err();
    assert_eq!(refused.code(), "CANCELLED");
    // A caller that is dropped gives up as well.
    let dropped = rig.start(&rig.root, "b", "work");
    assert!(futures::FutureExt::now_or_never(dropped).is_none());
    rig.until_settled("b").await;
    assert!(!rig.is_live("a") && !rig.is_live("b"));
    assert_eq!((told_by_children(&rig.root).len(), rig.told().len()), (0, 0));
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_14_7_a_waiting_parent_settles_after_its_children() {
    let rig = Rig::new([held("work of a", "a"), held("work of b", "b")]).await;
    rig.start(&rig.root, "a", "work of a").await;
    let a = rig.agent("a");
    rig.start(&a, "b", "work of b").await;
    rig.model.gate("a").open();
    rig.until("a waits", || rig.states() == ["a waiting", "b running"]).await;
    assert!(rig.is_live("a"));
    assert_eq!(told_by_children(&rig.root).len(), 0);
    rig.model.gate("b").open();
    rig.until_settled("a").await;
    assert_eq!(told_by_children(&a), ["subagent-settled b"]);
    assert_eq!(told_by_children(&rig.root), ["subagent-settled a"]);
    // Its second turn is over what it heard of b.
    assert!(trace(&a).contains("TE2(completed)"), "{}", trace(&a));
    assert_eq!(
        rig.told(),
        ["+run-1 spawn a", "+run-2 spawn b", "-run-2 completed: done", "-run-1 completed: done"]
    );
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_14_8_a_busy_parent_hears_of_all_in_one_step() {
    let rig = Rig::new([held("be busy", "root"), on("work", Reply::text("done"))]).await;
    rig.root.followup("be busy").await.unwrap();
    rig.model.gate("root").arrived(1).await;
    for child in ["a", "b", "c"] {
        rig.start(&rig.root, child, "work").await;
    }
    rig.until("all settle", || rig.states().is_empty()).await;
    rig.model.gate("root").open();
    rig.root.when_idle().await.unwrap();
    let settled = "U(subagent-settled) U(subagent-settled) U(subagent-settled)";
    let expected = format!("A -step {settled} A TE1(completed)");
    assert!(trace(&rig.root).ends_with(&expected), "{}", trace(&rig.root));
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_14_8_an_idle_parent_is_woken_and_later_notices_join_its_turn() {
    let rules = [on("task", Reply::text("done")), held("Sub-agent a", "x")];
    let rig = Rig::new(rules).await;
    rig.start(&rig.root, "a", "task").await;
    rig.model.gate("x").arrived(1).await;
    rig.start(&rig.root, "b", "task").await;
    rig.until_settled("b").await;
    rig.model.gate("x").open();
    rig.root.when_idle().await.unwrap();
    assert_eq!(
        trace(&rig.root),
        "+turn(subagent-settled) TS1 -turn U(subagent-settled) +step(subagent-settled) A -step \
         U(subagent-settled) A TE1(completed)"
    );
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_14_9_a_settled_child_is_resumed_by_what_its_descriptor_says() {
    let rig = Rig::new([]).await;
    let model =
        ModelChoice { provider: "scripted".into(), model: "small".into(), reasoning_effort: None };
    let options = ChildOptions { model: Some(model), ..ChildOptions::default() };
    let request = ChildRequest::new(&rig.root, "first")
        .options(options)
        .persona("You count beans.")
        .tool_filter(ToolFilter::deny(["subagent"]));
    rig.try_start("a", request).await.unwrap();
    rig.until_settled("a").await;
    assert!(!rig.is_live("a"));
    rig.root.when_idle().await.unwrap();

    rig.send(&rig.root, "a", "second").await.unwrap();
    let a = rig.agent("a");
    rig.until_settled("a").await;
    assert_eq!(
        trace(&a),
        "subagent/descriptor +turn(delegation) TS1 -turn U(delegation) A TE1(completed) ES \
         +turn(delegation) TS2 -turn U(delegation) A TE2(completed)"
    );
    assert_eq!((a.depth(), a.runtime_parent().unwrap().as_str()), (1, "root"));
    let requests = rig.model.captured();
    let of_a: Vec<_> = requests.iter().filter(|request| request.config.model == "small").collect();
    assert_eq!(of_a.len(), 2);
    for request in of_a {
        assert!(request.messages[0].text().contains("You count beans."));
        let has = |name: &str| request.tools.iter().any(|tool| tool.name == name);
        assert!(has("report") && has("send_message") && !has("subagent"));
    }
    let told = rig.told();
    assert_eq!(
        told,
        ["+run-1 spawn a", "-run-1 completed: ok", "+run-2 spawn a", "-run-2 completed: ok"]
    );
    assert_eq!(told_by_children(&rig.root), ["subagent-settled a", "subagent-settled a"]);
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_14_9_nobody_else_resumes_it() {
    let rig = Rig::new([]).await;
    rig.start(&rig.root, "a", "first").await;
    rig.until_settled("a").await;
    let options = rig.root.options().clone();
    let new = playhouse_plugin_api::creation::NewAgent::new(options).id("stranger");
    let stranger = rig.harness.create(new).await.unwrap();
    assert_eq!(rig.send(&stranger, "a", "hello").await.unwrap_err().code(), "UNAUTHORIZED");
    assert!(!rig.is_live("a"));
    assert_eq!(rig.told().len(), 2);
    // A session that is nobody's child, and one that is not there.
    assert_eq!(rig.send(&rig.root, "stranger", "x").await.unwrap_err().code(), "UNAUTHORIZED");
    let nowhere = rig.send(&rig.root, "nowhere", "x").await.unwrap_err();
    assert_eq!(nowhere.code(), "NOT_RESUMABLE");
    // The agent of an earlier life of the same session.
    let before = rig.root.agent().clone();
    rig.root.dispose().await.unwrap();
    let new = playhouse_plugin_api::creation::NewAgent::new(before.options().clone());
    let after = rig.harness.resume("root", new).await.unwrap();
    assert_eq!(rig.send(&before, "a", "x").await.unwrap_err().code(), "UNAUTHORIZED");
    rig.send(&after, "a", "x").await.unwrap();
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_14_10_an_interrupt_parks_what_waits_until_the_next_message() {
    let rig = Rig::new([held("work", "work"), on("M", Reply::text("m"))]).await;
    rig.start(&rig.root, "a", "work").await;
    rig.model.gate("work").arrived(1).await;
    rig.send(&rig.root, "a", "M").await.unwrap();
    let a = rig.agent("a");
    rig.service.interrupt(a.id(), Authority::Ancestor(rig.root.agent().clone())).unwrap();
    rig.until("M is parked", || rig.states() == ["a parked"]).await;
    assert!(trace(&a).ends_with("TE1(aborted:parent)"), "{}", trace(&a));
    assert_eq!(a.inbox().len(), 1);
    rig.send(&rig.root, "a", "N").await.unwrap();
    rig.until_settled("a").await;
    let turn = |turn: u32| format!("TS{turn} -turn U(delegation) A TE{turn}(completed)");
    let expected = format!("+turn(delegation) {} {}", turn(2), turn(3));
    assert!(trace(&a).ends_with(&expected), "{}", trace(&a));
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_7_an_interrupt_without_anything_parked_settles_the_child() {
    let rig = Rig::new([held("work", "work")]).await;
    rig.start(&rig.root, "a", "work").await;
    rig.model.gate("work").arrived(1).await;
    let by = |parent: &str| Authority::User { parent: parent.into() };
    let a = "a".into();
    assert_eq!(rig.service.interrupt(&a, by("stranger")).unwrap_err().code(), "UNAUTHORIZED");
    rig.service.interrupt(&a, by("root")).unwrap();
    rig.until_settled("a").await;
    assert!(last_told(&rig.root, "subagent-settled").starts_with("Sub-agent a was cancelled."));
    // It is not there any more: nothing to do, and no error.
    rig.service.interrupt(&a, by("root")).unwrap();
    rig.root.when_idle().await.unwrap();
    assert!(trace(&rig.root).contains("TE1(completed)"), "its parent was woken");
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_14_11_a_prompt_that_is_declined_is_told_as_that() {
    let rig = Rig::new([]).await;
    let world = rig.world();
    let blocks = |step: playhouse_plugin_api::points::PreStep,
                  next: playhouse_plugin_api::hook::Next<_, _>| async move {
        if step.agent.depth() > 0 {
            return Ok(playhouse_messages::machine::Decision::Reject);
        }
        next.run(step).await
    };
    drop(world.hooks.pre_step.add(&world.scope, blocks).unwrap());
    rig.start(&rig.root, "a", "work").await;
    rig.until_settled("a").await;
    let notice = last_told(&rig.root, "subagent-settled");
    assert_eq!(notice, "Sub-agent a declined the task.\nIt left no closing message.");
    assert_eq!(rig.told(), ["+run-1 spawn a", "-run-1 refusal: "]);
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_14_14_a_report_wakes_an_idle_parent_and_one_without_a_parent_fails() {
    let rig = Rig::new([held("work", "work")]).await;
    rig.start(&rig.root, "a", "work").await;
    let a = rig.agent("a");
    let said = |text: &str| vec![ContentBlock::text(text)];
    rig.service.report(&a, said("half of it"), ReportDelivery::NextStep).await.unwrap();
    rig.root.when_idle().await.unwrap();
    assert_eq!(
        trace(&rig.root),
        "+step(subagent-report) TS1 -step U(subagent-report) A TE1(completed)"
    );
    let report = last_told(&rig.root, "subagent-report");
    assert_eq!(report, "Report of sub-agent a:\nhalf of it");
    rig.service.report(&a, said("quietly"), ReportDelivery::Quiet).await.unwrap();
    rig.root.when_idle().await.unwrap();
    assert!(trace(&rig.root).ends_with("TE1(completed) +step(subagent-report)"));
    let other = rig.service.report(&rig.root, said("x"), ReportDelivery::Quiet).await;
    assert_eq!(other.unwrap_err().code(), "UNAUTHORIZED");
    rig.model.gate("work").open();
    rig.until_settled("a").await;
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn steering_joins_the_turn_that_runs() {
    let rig = Rig::new([held("work", "work")]).await;
    rig.start(&rig.root, "a", "work").await;
    rig.model.gate("work").arrived(1).await;
    let (source, cancel) = (Source::delegation("root"), CancelToken::new());
    let content = vec![ContentBlock::text("also this")];
    rig.service.steer(&rig.root, &"a".into(), content, source, &cancel).await.unwrap();
    let a = rig.agent("a");
    rig.model.gate("work").open();
    rig.until_settled("a").await;
    assert_eq!(
        trace(&a),
        "subagent/descriptor +turn(delegation) TS1 -turn U(delegation) +step(delegation) A -step \
         U(delegation) A TE1(completed)"
    );
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_1_16_what_a_start_is_refused_for() {
    let rig = Rig::new([held("work", "work")]).await;
    let root = rig.root.agent();
    let code = |provider: &'static str, request: ChildRequest| {
        let start = StartContinuable { label: "x".into(), child_id: Some("a".into()), request };
        let service = rig.service.clone();
        async move {
            let started = service.start(provider, start).await;
            started.map_err(|error| error.code().to_owned()).map(|started| started.child)
        }
    };
    let request = || ChildRequest::new(root, "work");
    assert_eq!(code("none", request()).await, Err("NO_PROVIDER".into()));
    let schema = request().output_schema(serde_json::json!({"type": "object"}));
    assert_eq!(code("spawn", schema).await, Err("UNSUPPORTED_CAPABILITY".into()));
    assert_eq!(code("spawn", request().max_depth(0)).await, Err("SUBAGENT_DEPTH".into()));
    let unknown = request().tool_filter(ToolFilter::allow(["nothing"]));
    assert!(code("spawn", unknown).await.is_err());
    assert_eq!(rig.slots.taken(), 0);
    code("spawn", request()).await.unwrap();
    assert_eq!(code("spawn", request()).await, Err("DUPLICATE_CHILD".into()));
    rig.model.gate("work").open();
    rig.until_settled("a").await;
    // It is stored now.
    assert_eq!(code("spawn", request()).await, Err("DUPLICATE_CHILD".into()));
    rig.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_fork_goes_on_from_its_parents_completed_turns() {
    let rig = Rig::new([]).await;
    rig.root.prompt("what is known").await.unwrap();
    let request = ChildRequest::new(&rig.root, "go on");
    let start = StartContinuable { label: "Fork".into(), child_id: Some("f".into()), request };
    rig.service.start("fork", start).await.unwrap();
    rig.until_settled("f").await;
    rig.send(&rig.root, "f", "and on").await.unwrap();
    let fork = rig.agent("f");
    rig.until_settled("f").await;
    let known = fork.session().inherited_event_count();
    assert!(known > 0 && fork.depth() == 1);
    let last = rig
        .model
        .captured()
        .into_iter()
        .rev()
        .find(|request| request.messages.iter().any(|message| message.text() == "and on"));
    let texts: Vec<_> = last.unwrap().messages.iter().map(|message| message.text()).collect();
    assert!(texts.contains(&"what is known".to_owned()) && texts.contains(&"go on".to_owned()));
    rig.ends_clean().await;
}
