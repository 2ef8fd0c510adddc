use agent_client_protocol::{
    ErrorCode,
    schema::ProtocolVersion,
    v1::schema::{
        self as acp, ContentBlock, InitializeRequest, LoadSessionRequest, StopReason,
    },
};
use base64::{Engine, prelude::BASE64_STANDARD};
use playhouse_models::scripted::{Fault, FaultKind, Reply};
use serde_json::json;

use super::rig::Rig;

fn gif() -> ContentBlock {
    let data = BASE64_STANDARD.encode(b"GIF89a\x03\0\x02\0\0\0\0;");
    ContentBlock::Image(acp::ImageContent::new(data, "image/gif"))
}

#[tokio::test(start_paused = true)]
async fn a_loaded_session_is_told_whole_and_goes_on() {
    let rig = Rig::new([
        Reply::call("act", json!({"n": 1})).with_reasoning("Act first."),
        Reply::text("Acted."),
        Reply::text("Again."),
    ])
    .await;
    let mut first = rig.connect().await;
    let session = first.session().await;
    let prompt = first.send(&session, vec!["Do ".into(), "it".into(), gif()]);
    assert_eq!(prompt.await.unwrap().unwrap().stop_reason, StopReason::EndTurn);
    let live = first.told();
    assert_eq!(live, ["t Act first.", r#"call act {"n":1}"#, "Completed done", "a Acted."]);
    let own = first.ask(LoadSessionRequest::new(session.clone(), "/")).await.unwrap_err();
    assert_eq!(own.code, ErrorCode::INVALID_PARAMS, "it is open here");
    let mut second = rig.connect().await;
    let taken = second.ask(LoadSessionRequest::new(session.clone(), "/")).await.unwrap_err();
    assert_eq!(taken.code, ErrorCode::INVALID_PARAMS, "it is open elsewhere");
    first.leave().await.unwrap();

    second.ask(LoadSessionRequest::new(session.clone(), "/")).await.unwrap();
    let mut replay = vec!["u Do it<image/gif 20>".to_owned()];
    replay.extend(live);
    assert_eq!(second.told(), replay, "before the answer");
    assert_eq!(second.prompt(&session, "Again").await, StopReason::EndTurn);
    assert_eq!(second.told(), ["a Again."], "what it asked itself it is not told");
    let nobody = second.ask(LoadSessionRequest::new("nobody", "/")).await.unwrap_err();
    assert_eq!(nobody.code, ErrorCode::RESOURCE_NOT_FOUND);
    second.leave().await.unwrap();
    rig.harness.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_offered_is_what_there_is() {
    let rig = Rig::new([]).await;
    let client = rig.connect().await;
    let hello = client.ask(InitializeRequest::new(ProtocolVersion::V1)).await;
    // The library answers a second handshake, or refuses it; the first one was made by the rig.
    if let Ok(hello) = hello {
        assert!(hello.agent_capabilities.load_session);
        let prompts = hello.agent_capabilities.prompt_capabilities;
        assert_eq!((prompts.image, prompts.audio, prompts.embedded_context), (true, false, false));
        assert_eq!(hello.agent_info.unwrap().name, "playhouse");
    }
    client.leave().await.unwrap();
    rig.harness.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_cut_or_fails_says_so() {
    let rig = Rig::new([
        Reply::text("abc").with_finish("length"),
        Reply::text("x").with_fault(Fault::new(FaultKind::Error).with_message("no credit")),
    ])
    .await;
    let mut client = rig.connect().await;
    let session = client.session().await;
    assert_eq!(client.prompt(&session, "1").await, StopReason::MaxTokens);
    assert_eq!(client.told(), ["a abc"]);
    let failed = client.send(&session, vec!["2".into()]).await.unwrap().unwrap_err();
    assert_eq!(failed.code, ErrorCode::INTERNAL_ERROR);
    assert!(failed.message.contains("no credit"), "{failed}");
    client.leave().await.unwrap();
    rig.harness.shutdown().await.unwrap();
}
