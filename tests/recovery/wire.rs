//! Retries over HTTP.

use std::sync::Arc;

use playhouse::{
    AgentOptions, EventBody, NewAgent,
    models::{
        mock_server::{MockServer, Outcome},
        openai_compatible::{Config, KeySource, OpenAiCompatible},
        scripted::Script,
    },
    plugin_api::session::Events,
    policies::retry::{Scheduled, Started},
};

use super::rig::{check_retries, soon};

/// Waits for the next retry, and lets its delay pass at once: while it waits no request is under
/// way, so that nothing else is hurried.
async fn pass_retry(events: &mut Events) -> Scheduled {
    let retry = loop {
        if let Some(retry) = Scheduled::read(&soon(events.next()).await.body) {
            break retry;
        }
    };
    tokio::time::pause();
    while Started::read(&events.next().await.body).is_none() {}
    tokio::time::resume();
    retry
}

mod scenario {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn llm_115_l85_a_limit_and_a_broken_stream_are_recovered_from() {
        let script = Script::behaviours(["rate_limit", "partial_disconnect", "success"]).unwrap();
        let server = MockServer::start(script, 0).await.unwrap();
        let config = Config::new("wire", &server.base_url(), KeySource::None);
        let adapter = Arc::new(OpenAiCompatible::new(config).unwrap());
        let harness = playhouse::base().start().await.unwrap();
        let _ = harness.world().models.register(["wire"], adapter).unwrap();
        let options = AgentOptions::new().model("wire", "any");
        let agent = harness.create(NewAgent::new(options)).await.unwrap();
        let mut events = agent.session().events(0);
        let id = agent.followup("go").await.unwrap();

        let limited = pass_retry(&mut events).await;
        assert_eq!((&*limited.failure.code, limited.delay_ms), ("RATE_LIMIT", 1_000.0));
        let broken = pass_retry(&mut events).await;
        assert_eq!((&*broken.failure.code, broken.retry), ("TRANSPORT", 2));
        assert_eq!(limited.retry_id, broken.retry_id);
        let outcome = soon(agent.outcome(&id, 0)).await.unwrap();
        assert!(outcome.is_completed());
        assert_eq!(outcome.text, "mock response recovered");

        let log = agent.session().log();
        check_retries(&log);
        let answers: Vec<_> = log
            .iter()
            .filter_map(|event| match &event.body {
                EventBody::AssistantMessage(data) => Some(data.message.text()),
                _ => None,
            })
            .collect();
        assert_eq!(answers, ["mock response recovered"]);
        let requests = server.requests();
        let outcomes: Vec<_> = requests.iter().map(|request| request.outcome).collect();
        assert_eq!(outcomes, [Outcome::Failed(429), Outcome::Reset, Outcome::Completed]);
        assert!(requests[1].chunks_sent > 0, "some of an answer was shown");
        assert_eq!(requests[1].body, requests[0].body);
        assert_eq!(requests[2].body, requests[0].body, "and is no part of the history");
        harness.shutdown().await.unwrap();
        server.shutdown().await;
    }
}
