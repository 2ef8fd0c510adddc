use std::sync::Arc;

use futures::FutureExt;
use playhouse_messages::{event::CancelCause, id::SessionId};
use playhouse_models::scripted::Reply;
use playhouse_plugin_api::{
    agent::Agent, cancel::CancelToken, fork::ForkPoint, store::StoreReader,
};
use playhouse_teams::{
    EVENT_KINDS, Member, MemberStatus, NewMember, NewMessage, NewTask, Phase, TeamContext,
    VALIDATOR, record::Record,
};
use serde_json::json;
use tokio::sync::Notify;

use crate::rig::{Rig, held, on, results};

#[tokio::test(start_paused = true)]
async fn orchestration_18_7_1_a_name_is_taken_for_good_also_if_its_first_bearer_failed() {
    let rig = Rig::new([]).await;
    let cancel = CancelToken::new();
    cancel.cancel(CancelCause::User);
    let new = || NewMember::new("rev", "reviews", "go");
    let failed = rig.seat.spawn(new(), &cancel).await.unwrap_err();
    assert_eq!(failed.code(), "CANCELLED");
    let team = rig.seat.team().unwrap();
    let member = team.named("rev").unwrap();
    assert_eq!(member.phase, Phase::Failed);
    assert!(member.error.as_ref().unwrap().contains("cancelled"), "{member:?}");
    let taken = rig.seat.spawn(new(), &CancelToken::new()).await.unwrap_err();
    assert_eq!(taken.code(), "TEAM_MEMBER_NAME_TAKEN");
    rig.spawn("dev", "go").await;
    let dev = NewMember::new("dev", "develops", "go");
    let taken = rig.seat.spawn(dev, &CancelToken::new()).await.unwrap_err();
    assert_eq!(taken.code(), "TEAM_MEMBER_NAME_TAKEN");
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_7_2_who_was_never_stored_is_found_to_have_failed() {
    let rig = Rig::new([]).await;
    let member = |id: &str, name: &str| Member {
        id: id.into(),
        name: name.into(),
        description: "d".into(),
        provider: "spawn".into(),
        context: TeamContext::Fresh,
        phase: Phase::Provisioning,
        error: None,
    };
    // What a crash leaves that comes right after the record.
    let event = Record::Member(member("nowhere", "rev")).event(rig.lead.id());
    rig.lead.session().append(event).await.unwrap();
    // A session that is somebody else's does not count either.
    let event = Record::Member(member("stranger", "dev")).event(rig.lead.id());
    rig.lead.session().append(event).await.unwrap();
    let options = rig.lead.options().clone();
    let new = playhouse_plugin_api::creation::NewAgent::new(options).id("stranger");
    rig.harness.create(new).await.unwrap().prompt("x").await.unwrap();
    let store = rig.ends().await;

    let rig = Rig::over(store, []).await;
    let team = rig.seat.team().unwrap();
    let settled = |name: &str| {
        let member = team.named(name).unwrap();
        (member.phase, member.error.clone().unwrap())
    };
    assert_eq!(settled("rev"), (Phase::Failed, "it was never stored".into()));
    assert_eq!(settled("dev"), (Phase::Failed, "its session is somebody else's".into()));
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_3_who_came_to_be_without_its_record_is_found_to_be_active() {
    let rig = Rig::dying(Default::default(), [], Some("\"phase\":\"active\"")).await;
    let new = NewMember::new("rev", "reviews", "go");
    let failed = rig.seat.spawn(new, &CancelToken::new()).await.unwrap_err();
    assert_eq!(failed.code(), "INVARIANT");
    let id = rig.seat.team().unwrap().named("rev").unwrap().id.clone();
    assert_eq!(rig.status("rev"), MemberStatus::Provisioning);
    assert!(rig.harness.agent(&id).is_none(), "who is no member does not go on");
    let store = rig.ends().await;

    let rig = Rig::over(store, []).await;
    assert_eq!(rig.status("rev"), MemberStatus::Inactive);
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_7_7_a_teammate_starts_nobody() {
    let args = json!({"name": "sub", "description": "d", "prompt": "p"});
    let rules = [
        playhouse_models::scripted::Rule {
            when: playhouse_models::scripted::When::default()
                .user_contains("work")
                .assistant_messages(0),
            reply: Reply::call("spawn_teammate", args),
        },
        on("work", Reply::text("done").at_gate("end")),
    ];
    let rig = Rig::new(rules).await;
    let id = rig.spawn("rev", "work").await;
    rig.model.gate("end").arrived(1).await;
    let log = rig.member("rev").session().log();
    assert!(results(&log)[0].contains("only the Lead of a team may start members"), "{log:?}");
    let new = NewMember::new("sub", "d", "p");
    let refused = rig.seat_of("rev").spawn(new, &CancelToken::new()).await.unwrap_err();
    assert_eq!(refused.code(), "TEAM_LEAD_REQUIRED");
    assert_eq!(rig.seat_of("rev").interrupt("rev").unwrap_err().code(), "TEAM_LEAD_REQUIRED");
    assert_eq!(rig.seat.team().unwrap().members().len(), 1);
    rig.model.gate("end").open();
    rig.until_inactive("rev").await;
    assert!(rig.store.stat(&id).await.unwrap().is_some());
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_7_9_the_fork_of_a_lead_has_an_empty_team() {
    let rig = Rig::new([]).await;
    rig.lead.prompt("hello").await.unwrap();
    let rev = rig.spawn("rev", "go").await;
    let new = NewTask { subject: "s".into(), description: "d".into(), ..NewTask::default() };
    rig.seat.create_task(new.clone()).await.unwrap();
    rig.until_inactive("rev").await;
    rig.send(NewMessage::quiet("rev", "later")).await.unwrap();
    rig.lead.when_idle().await.unwrap();

    let options = rig.lead.options().clone();
    let new_agent = playhouse_plugin_api::creation::NewAgent::new(options).id("fork");
    let fork = rig.harness.fork(ForkPoint::from(rig.lead.id().clone()), new_agent).await.unwrap();
    let seat = rig.teams.team(&fork).unwrap();
    let team = seat.team().unwrap();
    assert_eq!(team.id(), &SessionId::from("fork"));
    assert_eq!((team.members().len(), team.tasks().len(), team.pending().len()), (0, 0, 0));
    // It begins its own, and the other's goes on.
    assert_eq!(seat.create_task(new).await.unwrap().task.id.0, 1);
    assert_eq!(rig.seat.team().unwrap().tasks().len(), 1);
    assert_eq!(rig.seat.team().unwrap().pending_for(&rev).count(), 1);
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_6_members_alone_have_the_tools_and_know_who_they_are() {
    let rig = Rig::new([held("work", "work"), held("aside", "aside")]).await;
    rig.lead.prompt("hello").await.unwrap();
    rig.spawn("rev", "work").await;
    // A sub-agent that is nobody's member.
    let request = playhouse_subagents::ChildRequest::new(&rig.lead, "aside");
    let aside = playhouse_subagents::spawn(rig.world(), request).await.unwrap();
    rig.model.gate("work").arrived(1).await;
    rig.model.gate("aside").arrived(1).await;
    let requests = rig.model.captured();
    let facts = |text: &str| {
        let request = requests
            .iter()
            .find(|request| request.messages.iter().any(|message| message.text() == text));
        let request = request.unwrap();
        let system: String = request.messages.iter().map(|message| message.text()).collect();
        let mut tools: Vec<_> = request.tools.iter().map(|tool| tool.name.clone()).collect();
        tools.sort();
        (system, tools)
    };
    let team = [
        "followup_task",
        "interrupt_agent",
        "list_agents",
        "report",
        "send_message",
        "spawn_teammate",
        "subagent",
        "team_task_create",
        "team_task_get",
        "team_task_list",
        "team_task_update",
        "wait_agent",
    ];
    let (system, tools) = facts("work");
    assert_eq!(tools, team);
    assert!(system.contains("a teammate of team lead-session, named \"rev\""), "{system}");
    let (system, tools) = facts("hello");
    assert_eq!(tools, team.iter().filter(|name| **name != "report").copied().collect::<Vec<_>>());
    assert!(system.contains("the Lead of team lead-session, named \"lead\""), "{system}");
    let (system, tools) = facts("aside");
    assert_eq!(tools, ["subagent"]);
    assert!(!system.contains("of team"), "{system}");
    assert_eq!(rig.teams.seat(aside.agent().unwrap()).unwrap_err().code(), "TEAM_NOT_A_MEMBER");
    rig.model.gate("work").open();
    rig.model.gate("aside").open();
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn a_member_knows_its_leads_turns_if_it_is_forked() {
    let rig = Rig::new([held("work", "work")]).await;
    rig.lead.prompt("remember 42").await.unwrap();
    let new = NewMember::new("rev", "reviews", "work").context(TeamContext::Fork);
    rig.seat.spawn(new, &CancelToken::new()).await.unwrap();
    rig.model.gate("work").arrived(1).await;
    let request = rig.model.captured().pop().unwrap();
    assert!(request.messages.iter().any(|message| message.text() == "remember 42"));
    let team = rig.seat.team().unwrap();
    assert_eq!(team.named("rev").unwrap().provider, "fork");
    rig.model.gate("work").open();
    rig.until_inactive("rev").await;
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_3_an_interrupt_ends_a_members_turn_and_says_what_it_was_at() {
    let rig = Rig::new([held("work", "work")]).await;
    rig.spawn("rev", "work").await;
    rig.model.gate("work").arrived(1).await;
    assert_eq!(rig.seat.interrupt("rev").unwrap(), MemberStatus::Running);
    rig.until_inactive("rev").await;
    assert_eq!(rig.seat.interrupt("rev").unwrap(), MemberStatus::Inactive);
    assert_eq!(rig.seat.interrupt("lead").unwrap_err().code(), "TEAM_SELF_MESSAGE");
    assert_eq!(rig.seat.interrupt("nobody").unwrap_err().code(), "TEAM_MEMBER_NOT_FOUND");
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_2_a_record_that_no_team_can_have_is_refused_before_it_is_committed() {
    let rig = Rig::new([]).await;
    for kind in EVENT_KINDS {
        let event = playhouse_messages::event::NewEvent::custom(kind, json!({"version": 1}));
        let refused = rig.lead.session().append(event).await.unwrap_err();
        assert_eq!(refused.code(), "INVARIANT");
        assert!(refused.to_string().contains(VALIDATOR), "{refused}");
    }
    let message = Record::Delivered { message: "m".into(), target: "lead-session".into() };
    let event = message.event(rig.lead.id());
    assert!(rig.lead.session().append(event).await.is_err());
    assert!(rig.seat.team().is_ok());
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_3_who_settles_a_member_first_wins_and_the_other_ends_what_it_started() {
    let rig = Rig::new([held("work", "work")]).await;
    let (gate, stands) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (opens, arrived) = (gate.clone(), stands.clone());
    let held_back = Arc::new(move |_: Agent| {
        let (gate, stands) = (gate.clone(), stands.clone());
        async move {
            stands.notify_one();
            gate.notified().await;
            Ok(Vec::new())
        }
        .boxed()
    });
    let continuations = rig.continuations();
    continuations.register_set_up(&rig.world().scope, held_back).unwrap();
    let cancel = CancelToken::new();
    let spawn = rig.seat.spawn(NewMember::new("rev", "reviews", "work"), &cancel);
    let (spawned, ()) = tokio::join!(spawn, async {
        arrived.notified().await;
        let team = rig.seat.team().unwrap();
        let id = team.named("rev").unwrap().id.clone();
        let failed = team.settled_member(&id, Some("somebody else says so".into())).unwrap();
        let event = Record::Member(failed).event(rig.lead.id());
        rig.lead.session().append(event).await.unwrap();
        opens.notify_one();
    });
    assert_eq!(spawned.unwrap_err().code(), "TEAM_PROVISIONING_CONFLICT");
    let id = rig.seat.team().unwrap().named("rev").unwrap().id.clone();
    assert!(rig.harness.agent(&id).is_none() && continuations.activation(&id).is_none());
    assert_eq!(rig.status("rev"), MemberStatus::Failed);
    rig.ends().await;
}
