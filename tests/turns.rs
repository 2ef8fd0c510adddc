//! Turns as a user of the library sees them.

use playhouse::{
    CancelCause, TurnEndReason,
    models::scripted::{Reply, Script},
    testing::Stage,
};

#[tokio::test]
async fn a_prompt_is_answered_and_the_log_tells_the_turn() {
    let stage = Stage::new(Script::sequence([Reply::text("Hello.")])).await.unwrap();
    let outcome = stage.agent().prompt("Hi").await.unwrap();
    assert_eq!((outcome.text.as_str(), outcome.reason), ("Hello.", TurnEndReason::Completed));
    stage.agent().when_idle().await.unwrap();
    assert_eq!(stage.trace(), "IN+ TS1 IN- SS1.1 SYS+ U H C A SE1.1 TE1(completed)");
    stage.model().assert_consumed();
    stage.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_cancelled_prompt_ends_its_turn_and_the_next_one_runs() {
    let script = Script::sequence([Reply::text("never").at_gate("shut"), Reply::text("Yes.")]);
    let stage = Stage::new(script).await.unwrap();
    let id = stage.agent().followup("Hi").await.unwrap();
    stage.gate("shut").arrived(1).await;
    stage.agent().cancel(CancelCause::User);
    let outcome = stage.agent().outcome(&id, 0).await.unwrap();
    assert_eq!(outcome.reason, TurnEndReason::Aborted(CancelCause::User));
    assert_eq!(stage.agent().prompt("Still there?").await.unwrap().text, "Yes.");
    stage.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_works_as_soon_as_it_is_made() {
    let script = Script::new().reply(Reply::text("Hello."));
    let stage = Stage::new(script).await.unwrap();
    // Its actors start beside its maker, sooner or later.
    for _ in 0..100 {
        let agent = stage.another().await.unwrap();
        assert_eq!(agent.prompt("Hi").await.unwrap().text, "Hello.");
        agent.dispose().await.unwrap();
    }
    stage.shutdown().await.unwrap();
}
