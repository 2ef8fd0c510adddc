use playhouse_messages::event::InboxTarget;
use playhouse_models::scripted::Reply;
use playhouse_plugin_api::cancel::CancelToken;
use playhouse_teams::{NewMessage, record::DELIVERED_KIND};
use serde_json::json;

use crate::rig::{Rig, came, held, lists, on, read, turns};

#[tokio::test(start_paused = true)]
async fn orchestration_18_7_3_a_quiet_message_waits_for_the_next_start_and_comes_once() {
    let rig = Rig::new([]).await;
    let rev = rig.spawn("rev", "go").await;
    rig.until_inactive("rev").await;
    let sent = rig.send(NewMessage::quiet("rev", "mind the gap")).await.unwrap();
    assert!(!sent.accepted);
    assert!(came(&rig.stored_log(&rev).await).is_empty());
    assert_eq!(rig.seat.team().unwrap().pending().len(), 1);
    // It wakes nobody, in this life or in the next.
    let store = rig.ends().await;
    let rig = Rig::over(store, []).await;
    rig.lead.prompt("hello").await.unwrap();
    assert_eq!(turns(&rig.stored_log(&rev).await), 1);

    let sent = rig.send(NewMessage::wakeup("rev", "go on")).await.unwrap();
    assert!(sent.accepted);
    rig.until("all is delivered", || rig.seat.team().unwrap().pending().is_empty()).await;
    rig.until_inactive("rev").await;
    let log = rig.stored_log(&rev).await;
    // In the order in which they were sent, and in one turn.
    let texts = read(&log);
    assert!(texts.len() == 2 && texts[0].ends_with("mind the gap"), "{texts:?}");
    assert!(texts[1].ends_with("go on") && turns(&log) == 2, "{texts:?}");
    assert_eq!(came(&log), texts);
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_7_3_a_crash_between_inbox_and_acknowledgement_doubles_nothing() {
    for delivery in [NewMessage::quiet, NewMessage::wakeup] {
        // No acknowledgement is recorded in this life.
        let rig =
            Rig::dying(Default::default(), [held("work", "work")], Some(DELIVERED_KIND)).await;
        let rev = rig.spawn("rev", "work").await;
        rig.model.gate("work").arrived(1).await;
        let sent = rig.send(delivery("rev".to_owned(), "once".to_owned())).await.unwrap();
        assert!(!sent.accepted);
        let agent = rig.member("rev");
        rig.until("it came", || came(&agent.session().log()).len() == 1).await;
        let store = rig.ends().await;

        let rig = Rig::over(store, []).await;
        assert_eq!(came(&rig.stored_log(&rev).await).len(), 1);
        rig.send(NewMessage::wakeup("rev", "and now")).await.unwrap();
        rig.until("all is delivered", || rig.seat.team().unwrap().pending().is_empty()).await;
        rig.until_inactive("rev").await;
        let texts = read(&rig.stored_log(&rev).await);
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(texts[0].ends_with("once") && texts[1].ends_with("and now"), "{texts:?}");
        assert_eq!(came(&rig.stored_log(&rev).await), texts);
        rig.ends().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_wakes_and_was_not_run_before_a_crash_is_run_by_the_next_life() {
    // The member's turn is cut off with the message in its inbox, and the acknowledgement never came.
    let rig = Rig::dying(Default::default(), [held("work", "work")], Some(DELIVERED_KIND)).await;
    let rev = rig.spawn("rev", "work").await;
    rig.model.gate("work").arrived(1).await;
    rig.send(NewMessage::wakeup("rev", "next")).await.unwrap();
    let store = rig.shuts_down().await;
    let log = {
        use playhouse_plugin_api::store::StoreReader;
        store.read(&rev).await.unwrap().log().unwrap()
    };
    assert_eq!((came(&log).len(), read(&log).len()), (1, 0));

    let rig = Rig::over(store, []).await;
    rig.until("all is delivered", || rig.seat.team().unwrap().pending().is_empty()).await;
    rig.until_inactive("rev").await;
    let log = rig.stored_log(&rev).await;
    assert_eq!((came(&log).len(), read(&log).len()), (1, 1));
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_7_10_a_followup_resumes_an_inactive_member_for_one_turn() {
    let rig = Rig::new([]).await;
    let rev = rig.spawn("rev", "go").await;
    rig.until_inactive("rev").await;
    let store = rig.ends().await;

    let rig = Rig::over(store, []).await;
    rig.until_inactive("rev").await;
    let args = json!({"target": "rev", "message": "look again"});
    let sent = rig.call(&rig.lead, "followup_task", args).await.unwrap();
    assert_eq!(sent["status"], "accepted");
    rig.until_inactive("rev").await;
    let log = rig.stored_log(&rev).await;
    let id = sent["messageId"].as_str().unwrap();
    assert_eq!(read(&log), [format!("Message {id} from lead:look again")]);
    assert_eq!((turns(&log), lists(&log)), (2, vec![InboxTarget::NextTurn]));
    // It knows its first turn, and has its tools again.
    let request = rig.model.captured().into_iter().find(|request| {
        request.messages.iter().any(|message| message.text().contains("look again"))
    });
    let request = request.unwrap();
    assert!(request.messages.iter().any(|message| message.text() == "go"));
    assert!(request.tools.iter().any(|tool| tool.name == "team_task_update"));
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_4_members_write_to_each_other_and_to_the_lead() {
    let rig = Rig::new([held("work", "work"), on("thanks", Reply::text("welcome"))]).await;
    rig.spawn("ann", "work").await;
    rig.spawn("bob", "work").await;
    rig.model.gate("work").arrived(2).await;
    let cancel = CancelToken::new();
    let sent = rig.seat_of("ann").send(NewMessage::quiet("bob", "psst"), &cancel).await.unwrap();
    assert!(sent.accepted);
    assert_eq!(lists(&rig.member("bob").session().log()), [InboxTarget::NextStep]);
    let quiet = rig.seat_of("ann").send(NewMessage::quiet("lead", "fyi"), &cancel).await.unwrap();
    assert!(quiet.accepted);
    assert_eq!(turns(&rig.lead.session().log()), 0, "it wakes nobody");
    let loud =
        rig.seat_of("bob").send(NewMessage::wakeup("lead", "thanks"), &cancel).await.unwrap();
    assert!(loud.accepted);
    rig.lead.when_idle().await.unwrap();
    let texts = read(&rig.lead.session().log());
    assert!(texts[0].contains("from ann:fyi") && texts[1].contains("from bob:thanks"), "{texts:?}");
    assert!(rig.seat.team().unwrap().pending().is_empty());
    rig.model.gate("work").open();
    rig.ends().await;
}

#[tokio::test(start_paused = true)]
async fn orchestration_18_4_what_wakes_one_target_is_taken_in_order_whoever_sends_it() {
    let rig = Rig::new([]).await;
    let rev = rig.spawn("rev", "go").await;
    rig.until_inactive("rev").await;
    let texts: Vec<_> = (0..12).map(|n| format!("message {n}")).collect();
    let sends = texts.iter().map(|text| rig.send(NewMessage::wakeup("rev", text.as_str())));
    let sent = futures::future::join_all(sends).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    let queued: Vec<_> = sent.into_iter().map(|sent| sent.unwrap().message).collect();
    rig.until("all is delivered", || rig.seat.team().unwrap().pending().is_empty()).await;
    rig.until_inactive("rev").await;
    let read = read(&rig.stored_log(&rev).await);
    let expected: Vec<_> = queued
        .iter()
        .zip(&texts)
        .map(|(id, text)| format!("Message {id} from lead:{text}"))
        .collect();
    assert_eq!(read, expected);
    rig.ends().await;
}
