use playhouse_plugin_api::cancel::CancelToken;
use playhouse_supervisor::plugin_host::PluginStatus;
use playhouse_teams::{NewMember, NewMessage, NewTask, record::Record};

use crate::rig::{Rig, came, held, read};

#[tokio::test(start_paused = true)]
async fn orchestration_18_6_a_lead_that_goes_takes_its_team_along_and_leaves_nothing() {
    let rig = Rig::new([held("work", "work")]).await;
    rig.spawn("ann", "work").await;
    let bob = rig.spawn("bob", "work").await;
    rig.model.gate("work").arrived(2).await;
    let (lead, seat) = (rig.lead.clone(), rig.seat.clone());
    lead.dispose().await.unwrap();
    assert!(rig.harness.agents().is_empty());
    assert!(rig.harness.agent(&bob).is_none());
    for refused in [
        rig.send(NewMessage::wakeup("bob", "x")).await.map(drop),
        seat.create_task(NewTask::default()).await.map(drop),
        seat.spawn(NewMember::new("cid", "d", "p"), &CancelToken::new()).await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().code(), "TEAM_CLOSING");
    }
    assert_eq!(rig.teams.team(&lead).unwrap_err().code(), "TEAM_NOT_A_MEMBER");
    assert!(rig.teams.all().is_empty());
    rig.harness.shutdown().await.unwrap();
    drop((lead, seat));
    let metrics = tokio::runtime::Handle::current().metrics();
    for _ in 0..10_000 {
        if metrics.num_alive_tasks() == 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{} tasks outlive the harness", metrics.num_alive_tasks());
}

#[tokio::test(start_paused = true)]
async fn a_lead_that_goes_in_the_middle_of_a_spawn_leaves_no_member_and_says_so() {
    let rig = Rig::new([held("work", "work")]).await;
    let (seat, cancel) = (rig.seat.clone(), CancelToken::new());
    let spawn = seat.spawn(NewMember::new("ann", "d", "work"), &cancel);
    let (spawned, ended) = tokio::join!(spawn, rig.lead.dispose());
    ended.unwrap();
    assert!(rig.harness.agents().is_empty());
    let store = rig.shuts_down().await;
    let rig = Rig::over(store, []).await;
    let team = rig.seat.team().unwrap();
    let phase = team.named("ann").map(|member| member.phase);
    assert_eq!(spawned.is_ok(), phase == Some(playhouse_teams::Phase::Active), "{spawned:?}");
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_queued_when_a_lead_goes_is_delivered_by_its_next_life() {
    let rig = Rig::new([held("work", "work")]).await;
    let ann = rig.spawn("ann", "work").await;
    rig.model.gate("work").open();
    rig.until_inactive("ann").await;
    // Ann's end has woken the Lead. Nobody is told of what is recorded after that.
    rig.lead.when_idle().await.unwrap();
    let team = rig.seat.team().unwrap();
    let new = NewMessage::wakeup("ann", "later");
    let message = team.new_message("m".into(), rig.lead.id(), new, rig.teams.config()).unwrap();
    rig.lead.session().append(Record::Queued(message).event(rig.lead.id())).await.unwrap();
    let store = rig.shuts_down().await;

    let rig = Rig::over(store, []).await;
    rig.until("it is delivered", || rig.seat.team().unwrap().pending().is_empty()).await;
    rig.until_inactive("ann").await;
    let log = rig.stored_log(&ann).await;
    assert_eq!((came(&log).len(), read(&log).len()), (1, 1));
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn a_team_rests_while_its_plugin_is_away_and_goes_on_when_it_is_back() {
    let rig = Rig::new([held("work", "work")]).await;
    rig.spawn("ann", "work").await;
    rig.model.gate("work").arrived(1).await;
    let ann = rig.member("ann");
    let tool = |name: &str| rig.world().tools.registry().lookup(ann.scope(), name).is_some();
    assert!(tool("team_task_list"));
    rig.plugin.reload().await.unwrap();
    let is_active = |status: &PluginStatus| matches!(status, PluginStatus::Active);
    drop(rig.plugin.watch().wait_for(is_active).await.unwrap());
    assert_eq!(rig.seat.create_task(NewTask::default()).await.unwrap_err().code(), "TEAM_CLOSING");
    let service = playhouse_teams::TEAMS_SERVICE;
    let teams = rig.world().services.require::<playhouse_teams::Teams>(service).unwrap();
    let seat = teams.seat(&ann).unwrap();
    assert_eq!((seat.name(), tool("team_task_list")), ("ann", true));
    rig.model.gate("work").open();
    rig.ends().await;
}
