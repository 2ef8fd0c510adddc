use futures::future::join_all;
use playhouse_messages::id::SessionId;
use playhouse_teams::{NewTask, Seat, TaskAction, TaskId, TaskStatus};
use serde_json::json;

use crate::rig::{Rig, held};

fn new(subject: &str, blocked_by: &[u64]) -> NewTask {
    NewTask {
        subject: subject.into(),
        description: "do it".into(),
        blocked_by: blocked_by.iter().map(|n| TaskId(*n)).collect(),
        write_scopes: Vec::new(),
    }
}

async fn two() -> (Rig, Seat, Seat) {
    let rig = Rig::new([held("work", "work")]).await;
    rig.spawn("ann", "work").await;
    rig.spawn("bob", "work").await;
    let (ann, bob) = (rig.seat_of("ann"), rig.seat_of("bob"));
    (rig, ann, bob)
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_7_4_of_two_claims_at_one_revision_one_wins_and_the_other_is_stale() {
    let (rig, ann, bob) = two().await;
    for n in 0..20 {
        rig.seat.create_task(new(&format!("task {n}"), &[])).await.unwrap();
    }
    for n in 1..=20 {
        let claim =
            |seat: Seat| async move { seat.change_task(TaskId(n), 1, TaskAction::Claim).await };
        let claims = join_all([claim(ann.clone()), claim(bob.clone())]).await;
        let codes: Vec<_> = claims.iter().filter_map(|claim| claim.as_ref().err()).collect();
        assert_eq!(codes.len(), 1, "{claims:?}");
        assert_eq!(codes[0].code(), "TEAM_TASK_STALE_REVISION");
    }
    let owned = |seat: &Seat| {
        let team = rig.seat.team().unwrap();
        let id: &SessionId = seat.agent().id();
        team.tasks().iter().filter(|task| task.owner_id.as_ref() == Some(id)).count()
    };
    assert_eq!(owned(&ann) + owned(&bob), 20);
    rig.model.gate("work").open();
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_7_5_a_blocked_task_is_claimed_once_its_blocker_is_completed_also_later() {
    let (rig, ann, bob) = two().await;
    rig.seat.create_task(new("a", &[])).await.unwrap();
    rig.seat.create_task(new("b", &[1])).await.unwrap();
    let claim = |seat: &Seat, n, revision| {
        let seat = seat.clone();
        async move { seat.change_task(TaskId(n), revision, TaskAction::Claim).await }
    };
    assert_eq!(claim(&bob, 2, 1).await.unwrap_err().code(), "TEAM_TASK_BLOCKED");
    claim(&ann, 1, 1).await.unwrap();
    assert_eq!(claim(&bob, 2, 1).await.unwrap_err().code(), "TEAM_TASK_BLOCKED");
    rig.model.gate("work").open();
    rig.until_inactive("ann").await;
    rig.until_inactive("bob").await;
    // Nobody gives back what an idle member has; nor does a restart.
    let store = rig.ends().await;
    let rig = Rig::over(store, []).await;
    let team = rig.seat.team().unwrap();
    assert_eq!(team.task(TaskId(1)).unwrap().status, TaskStatus::InProgress);
    rig.seat.change_task(TaskId(1), 2, TaskAction::Complete).await.unwrap();
    claim(&rig.seat, 2, 1).await.unwrap();
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_7_6_a_dependency_cycle_is_refused() {
    let rig = Rig::new([]).await;
    rig.seat.create_task(new("a", &[])).await.unwrap();
    rig.seat.create_task(new("b", &[1])).await.unwrap();
    let action = TaskAction::SetDependencies(vec![TaskId(2)]);
    let refused = rig.seat.change_task(TaskId(1), 1, action).await.unwrap_err();
    assert_eq!(refused.code(), "TEAM_TASK_DEPENDENCY_CYCLE");
    assert_eq!(rig.seat.team().unwrap().task(TaskId(1)).unwrap().revision, 1);
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_6_the_tools_of_the_board() {
    let rig = Rig::new([]).await;
    let lead = &rig.lead;
    let call = |tool: &'static str, args| rig.call(lead, tool, args);
    let made = call(
        "team_task_create",
        json!({
            "subject": "a", "description": "do a", "write_scopes": ["./src/"],
        }),
    );
    assert_eq!(
        made.await.unwrap(),
        json!({"task": {
            "id": "task-1", "revision": 1, "subject": "a", "status": "pending", "owner": null,
            "ready": true, "blockedBy": [], "writeScopes": ["src"], "description": "do a",
        }})
    );
    for n in 2..5 {
        let args = json!({"subject": n.to_string(), "description": "d", "blocked_by": ["task-1"]});
        call("team_task_create", args).await.unwrap();
    }
    let claimed = call(
        "team_task_update",
        json!({
            "task_id": "task-1", "expected_revision": 1, "action": "claim",
        }),
    );
    assert_eq!(claimed.await.unwrap()["task"]["owner"], "lead");
    let ids = |value: serde_json::Value| {
        let tasks = value["tasks"].as_array().unwrap().clone();
        let ids = tasks.iter().map(|task| task["id"].as_str().unwrap().to_owned());
        (ids.collect::<Vec<_>>().join(" "), value["nextCursor"].clone())
    };
    for (args, expected, cursor) in [
        (json!({}), "task-1 task-2 task-3 task-4", json!(null)),
        (json!({"limit": 2}), "task-1 task-2", json!(2)),
        (json!({"limit": 2, "cursor": 2}), "task-3 task-4", json!(null)),
        (json!({"status": "in_progress"}), "task-1", json!(null)),
        (json!({"owner": "lead"}), "task-1", json!(null)),
        (json!({"owner": "unowned", "ready": false}), "task-2 task-3 task-4", json!(null)),
        (json!({"ready": true}), "", json!(null)),
    ] {
        let listed = call("team_task_list", args.clone()).await.unwrap();
        assert_eq!(ids(listed), (expected.to_owned(), cursor), "{args}");
    }
    let warned = call(
        "team_task_create",
        json!({
            "subject": "w", "description": "d", "write_scopes": ["src/x"],
        }),
    );
    assert_eq!(warned.await.unwrap()["warnings"].as_array().unwrap().len(), 1);
    for (tool, args, code) in [
        ("team_task_get", json!({"task_id": "task-9"}), "TEAM_TASK_NOT_FOUND"),
        ("team_task_get", json!({"task_id": "9"}), "TEAM_INVALID_ARGUMENT"),
        ("team_task_list", json!({"owner": "x"}), "TEAM_MEMBER_NOT_FOUND"),
        ("team_task_list", json!({"limit": 101}), "INVALID_ARGS"),
        ("team_task_list", json!({"status": "deleted"}), "INVALID_ARGS"),
        (
            "team_task_create",
            json!({"subject": "x".repeat(201), "description": "d"}),
            "INVALID_ARGS",
        ),
        ("team_task_create", json!({"subject": " ", "description": "d"}), "TEAM_INVALID_ARGUMENT"),
        ("wait_agent", json!({"timeout_ms": 9_999}), "INVALID_ARGS"),
        ("send_message", json!({"target": "lead", "message": "x"}), "TEAM_SELF_MESSAGE"),
    ] {
        assert_eq!(call(tool, args.clone()).await.unwrap_err(), code, "{tool} {args}");
    }
    let update = |more: serde_json::Value| {
        let mut args = json!({"task_id": "task-2", "expected_revision": 1});
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call("team_task_update", args)
    };
    for (more, code) in [
        (json!({"action": "edit"}), "TEAM_INVALID_ARGUMENT"),
        (json!({"action": "set_dependencies"}), "TEAM_INVALID_ARGUMENT"),
        (json!({"action": "reassign"}), "TEAM_INVALID_ARGUMENT"),
        (json!({"action": "reassign", "owner": "x"}), "TEAM_MEMBER_NOT_FOUND"),
        (json!({"action": "claim", "expected_revision": 7}), "TEAM_TASK_STALE_REVISION"),
        (json!({"action": "burn"}), "INVALID_ARGS"),
    ] {
        assert_eq!(update(more.clone()).await.unwrap_err(), code, "{more}");
    }
    let given = update(json!({"action": "reassign", "owner": "lead"})).await.unwrap();
    assert_eq!((&given["task"]["owner"], &given["task"]["revision"]), (&json!("lead"), &json!(2)));
    let freed = update(json!({"action": "reassign", "owner": " ", "expected_revision": 2}));
    assert_eq!(freed.await.unwrap()["task"]["owner"], json!(null));
    let edited = update(json!({"action": "edit", "subject": "new", "expected_revision": 3}));
    assert_eq!(edited.await.unwrap()["task"]["subject"], "new");
    let got = call("team_task_get", json!({"task_id": "task-2"})).await.unwrap();
    assert_eq!((&got["task"]["revision"], &got["task"]["description"]), (&json!(4), &json!("d")));
    rig.ends().await;
}
