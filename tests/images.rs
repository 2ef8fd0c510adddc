//! Images from the prompt to the wire, and out of requests again.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use playhouse::{
    AgentOptions, CancelCause, ContentBlock, EventBody, NewAgent, TurnEndReason,
    context::{ImageBudget, ImageOffload},
    messages::{
        attachment::{Attachment, AttachmentId},
        config::HeaderReason,
        event::Event,
    },
    models::{
        mock_server::MockServer,
        openai_compatible::{Config, KeySource, OpenAiCompatible},
        scripted::{Fault, FaultKind, Reply, Script},
    },
    plugin_api::attachment::{AttachmentError, AttachmentStore, MemoryAttachments},
    testing::{Stage, StageBuilder},
    tool_fn,
};
use serde_json::Value;
use tokio::sync::Notify;

/// An image of its own for each number: a GIF's head, and bytes behind it.
fn gif(number: u8) -> Bytes {
    [b"GIF89a\x03\0\x02\0\0\0\0;", &[number][..]].concat().into()
}

async fn put(stage: &Stage, number: u8) -> Attachment {
    stage.world().attachments.put(gif(number), None).await.unwrap()
}

fn shown(text: &str, image: &Attachment) -> [ContentBlock; 2] {
    [ContentBlock::text(text), ContentBlock::image(image)]
}

fn sees_images(stage: StageBuilder) -> StageBuilder {
    stage.model(|model| model.with_modalities(["text", "image"]))
}

fn one_image() -> ImageOffload {
    ImageOffload::new().budget(ImageBudget {
        images_max: 1,
        images_quantum: 1,
        ..ImageBudget::default()
    })
}

/// The tool `photo`, which shows the image of a number.
fn photo(store: Arc<dyn AttachmentStore>) -> Arc<impl playhouse::Tool> {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Args {
        number: u8,
    }
    let tool = tool_fn("photo", "Takes a photo", move |args: Args, _run| {
        let store = store.clone();
        async move {
            let image = store.put(gif(args.number), None).await.map_err(|it| it.to_string())?;
            Ok(playhouse::ToolOutput::new(Value::from("taken"))
                .showing(shown("Taken.", &image).into()))
        }
    });
    Arc::new(tool)
}

fn header_reasons(stage: &Stage) -> Vec<HeaderReason> {
    let log = stage.agent().session().log();
    let reason = |event: &Event| match &event.body {
        EventBody::RequestHeader(data) => Some(data.reason),
        _ => None,
    };
    log.iter().filter_map(|event| reason(event)).collect()
}

/// An attachment store that counts reads, and answers none once it is stuck.
#[derive(Clone, Default)]
struct Watched {
    inner: MemoryAttachments,
    reads: Arc<AtomicUsize>,
    stuck: Option<Arc<Notify>>,
}

impl AttachmentStore for Watched {
    fn describe(&self) -> String {
        "watched".to_owned()
    }

    fn put(
        &self,
        bytes: Bytes,
        name: Option<String>,
    ) -> BoxFuture<'_, Result<Attachment, AttachmentError>> {
        self.inner.put(bytes, name)
    }

    fn get<'a>(
        &'a self,
        id: &'a AttachmentId,
    ) -> BoxFuture<'a, Result<Option<Bytes>, AttachmentError>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        match &self.stuck {
            None => self.inner.get(id),
            Some(reached) => {
                reached.notify_one();
                std::future::pending().boxed()
            }
        }
    }
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn core_117_an_image_that_goes_over_the_budget_pushes_the_oldest_out() {
        let script = Script::new().reply(Reply::text("{{images}}"));
        let stage = sees_images(Stage::minimal(script))
            .harness(|harness| harness.plugin(one_image()))
            .start()
            .await
            .unwrap();
        for number in 1..=3 {
            let image = put(&stage, number).await;
            let outcome = stage.agent().prompt(shown("And this?", &image)).await.unwrap();
            assert_eq!(outcome.text, "1", "{:?}", outcome.reason);
        }
        stage.agent().when_idle().await.unwrap();
        let turn =
            |n| format!("IN+ TS{n} IN- image/offload SS{n}.1 U H A SE{n}.1 TE{n}(completed)");
        let first = "IN+ TS1 IN- SS1.1 SYS+ U H C A SE1.1 TE1(completed)";
        assert_eq!(stage.trace(), format!("{first} {} {}", turn(2), turn(3)));
        use HeaderReason::{Initial, Series};
        assert_eq!(header_reasons(&stage), [Initial, Series, Series]);
        let requests = stage.requests();
        let ids = |at: usize| requests[at].messages.iter().map(|it| it.id.clone());
        assert!(ids(2).zip(ids(1)).all(|(now, before)| now == before), "ids stay");
        stage.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn llm_34_a_text_only_model_reads_of_an_image_and_the_log_keeps_it() {
        let script = [Reply::call("photo", r#"{"number": 1}"#), Reply::text("{{images}}")];
        let stage = Stage::new(Script::sequence(script)).await.unwrap();
        stage.harness().register_tool(photo(stage.world().attachments.clone())).unwrap();
        assert_eq!(stage.agent().prompt("Take one").await.unwrap().text, "0");
        let history = stage.agent().session().view().history.clone();
        let result = history.messages().rev().nth(1).unwrap();
        let record = result.content[1].shown_image().expect("the log has the image");
        let id = Attachment::read(record).unwrap().attachment_id;
        let requests = stage.requests();
        let sent = requests[1].messages.last().unwrap();
        assert!(sent.content.iter().all(|block| block.shown_image().is_none()));
        assert_eq!(
            sent.text(),
            format!("Taken.[Image {} omitted: this model takes text only.]", &id.digits()[..8])
        );
        stage.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn a_provider_that_wants_fewer_images_gets_fewer_and_is_asked_again() {
    let too_many = |count| {
        let code = Some("INVALID_REQUEST".into());
        let fault = Fault { code, ..Fault::new(FaultKind::Error).offloading(count) };
        Reply::default().with_fault(fault.with_message("too many images"))
    };
    let script = [too_many(2), Reply::text("{{images}}"), too_many(5), too_many(1)];
    let stage = sees_images(Stage::base(Script::sequence(script))).start().await.unwrap();
    let mut content = vec![ContentBlock::text("Compare")];
    for number in 1..=3 {
        content.push(ContentBlock::image(&put(&stage, number).await));
    }
    assert_eq!(stage.agent().prompt(content).await.unwrap().text, "1");
    stage.agent().when_idle().await.unwrap();
    let trace = "IN+ TS1 IN- SS1.1 SYS+ U H C AT image/offload H A SE1.1 TE1(completed)";
    // The title comes beside the turn, wherever that has got.
    assert_eq!(stage.trace().replace(" session/title", ""), trace);
    // The last image goes, and then nothing is left that could: the failure stands.
    let outcome = stage.agent().prompt("Again").await.unwrap();
    assert!(matches!(outcome.reason, TurnEndReason::Error(it) if it.message == "too many images"));
    stage.model().assert_consumed();
    stage.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_image_is_read_once_a_route() {
    let store = Watched::default();
    let script = Script::new().reply(Reply::text("{{images}}"));
    let stage = sees_images(Stage::minimal(script))
        .harness(|harness| harness.attachments(store.clone()))
        .start()
        .await
        .unwrap();
    let image = put(&stage, 1).await;
    let agent = stage.agent();
    assert_eq!(agent.prompt(shown("Look", &image)).await.unwrap().text, "1");
    assert_eq!(agent.prompt("And now?").await.unwrap().text, "1");
    assert_eq!(store.reads.load(Ordering::Relaxed), 1);
    let other = serde_json::from_value(serde_json::json!({"provider": "scripted", "model": "b"}));
    let choice = playhouse::NewEvent::log_only(EventBody::ModelSelection(other.unwrap()));
    agent.session().append(choice).await.unwrap();
    assert_eq!(agent.prompt("And you?").await.unwrap().text, "1");
    assert_eq!(store.reads.load(Ordering::Relaxed), 2);
    stage.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_image_that_is_not_there_is_named_by_the_failure() {
    let script = Script::new().reply(Reply::text("never"));
    let stage = sees_images(Stage::minimal(script)).start().await.unwrap();
    let elsewhere = MemoryAttachments::new().put(gif(1), None).await.unwrap();
    let message = playhouse::Message::user_from(
        "m-1",
        shown("Look", &elsewhere).into(),
        playhouse::Source::user(),
    );
    let outcome = stage.agent().prompt(message).await.unwrap();
    let TurnEndReason::Error(failure) = outcome.reason else { panic!("{outcome:?}") };
    assert_eq!(failure.code, "MISSING_ATTACHMENT");
    let id = elsewhere.attachment_id.as_str();
    assert!(failure.message.contains(id) && failure.message.contains("\"m-1\""), "{failure}");
    assert!(stage.requests().is_empty());
    // Once its bytes are there, the same conversation goes on.
    put(&stage, 1).await;
    assert_eq!(stage.agent().prompt("Again").await.unwrap().text, "never");
    stage.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_cancel_ends_a_turn_whose_image_never_comes() {
    let reached = Arc::new(Notify::new());
    let store = Watched { stuck: Some(reached.clone()), ..Watched::default() };
    let script = Script::new().reply(Reply::text("never"));
    let stage = sees_images(Stage::minimal(script))
        .harness(|harness| harness.attachments(store))
        .start()
        .await
        .unwrap();
    let image = put(&stage, 1).await;
    let id = stage.agent().followup(shown("Look", &image)).await.unwrap();
    reached.notified().await;
    stage.agent().cancel(CancelCause::User);
    let outcome = stage.agent().outcome(&id, 0).await.unwrap();
    assert_eq!(outcome.reason, TurnEndReason::Aborted(CancelCause::User));
    assert!(stage.requests().is_empty());
    stage.shutdown().await.unwrap();
}

/// A stage whose agent talks to a server on the wire.
async fn on_the_wire(
    script: impl IntoIterator<Item = Reply>,
    modalities: Option<&[&str]>,
) -> (Stage, playhouse::AgentHandle, MockServer) {
    let server = MockServer::start(Script::sequence(script), 0).await.unwrap();
    let stage = Stage::minimal(Script::new())
        .harness(|harness| harness.plugin(ImageOffload::new()))
        .start()
        .await
        .unwrap();
    let mut config = Config::new("wire", &server.base_url(), KeySource::None);
    config.input_modalities =
        modalities.map(|them| them.iter().map(|&modality| modality.to_owned()).collect());
    let adapter = Arc::new(OpenAiCompatible::new(config).unwrap());
    let _registration = stage.world().models.register(["wire"], adapter).unwrap();
    let new = NewAgent::new(AgentOptions::new().model("wire", "any"));
    let agent = stage.harness().create(new).await.unwrap();
    stage.harness().register_tool(photo(stage.world().attachments.clone())).unwrap();
    (stage, agent, server)
}

/// What stands before the end of the messages of a body.
fn messages_of(body: &Bytes) -> &[u8] {
    let end = body.windows(11).rposition(|at| at == b"],\"stream\":").unwrap();
    &body[..end]
}

#[tokio::test]
async fn images_of_parallel_results_follow_the_last_of_them_byte_for_byte() {
    let calls = Reply::call("photo", r#"{"number": 1}"#).and_call("photo", r#"{"number": 2}"#);
    let script =
        [calls, Reply::text("{{images}}"), Reply::text("{{images}}"), Reply::text("{{images}}")];
    let (stage, agent, server) = on_the_wire(script, Some(&["text", "image"])).await;
    let image = put(&stage, 3).await;
    assert_eq!(agent.prompt(shown("Look, and take two", &image)).await.unwrap().text, "3");
    assert_eq!(agent.prompt("Well?").await.unwrap().text, "3");
    let requests = server.requests();
    let roles = |at: usize| {
        let messages = requests[at].json["messages"].as_array().unwrap();
        messages.iter().map(|it| it["role"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(roles(1), ["user", "assistant", "tool", "tool", "user"]);
    let (before, after) = (messages_of(&requests[1].body), messages_of(&requests[2].body));
    assert!(after.starts_with(before), "old bytes stay");

    // The older result's image goes: what the newer one carries is made anew, without it.
    let history = agent.session().view().history.clone();
    let result = history.iter().find(|it| it.message.tool_call_id.is_some()).unwrap();
    let target = serde_json::json!({"targets": [{"seq": result.seq, "imageIndexes": [0]}]});
    agent.session().append(playhouse::NewEvent::custom("image/offload", target)).await.unwrap();
    assert_eq!(agent.prompt("And now?").await.unwrap().text, "2");
    let requests = server.requests();
    let carried = requests[3].json["messages"][4]["content"].to_string();
    let url = |number: u8| {
        let first = requests[1].json["messages"][4]["content"].as_array().unwrap();
        first[2 * usize::from(number)]["image_url"]["url"].as_str().unwrap()
    };
    assert!(!carried.contains(url(1)) && carried.contains(url(2)), "{carried}");
    stage.shutdown().await.unwrap();
    server.shutdown().await;
}

#[tokio::test]
async fn a_model_that_does_not_say_whether_it_takes_images_is_not_sent_any() {
    let (stage, agent, server) = on_the_wire([Reply::text("never")], None).await;
    let image = put(&stage, 1).await;
    let outcome = agent.prompt(shown("Look", &image)).await.unwrap();
    let TurnEndReason::Error(failure) = outcome.reason else { panic!("{outcome:?}") };
    assert_eq!(failure.code, "UNSUPPORTED_CONTENT");
    assert!(failure.message.contains("input_modalities"), "{failure}");
    assert_eq!(server.connections(), 0, "refused before any I/O");
    stage.shutdown().await.unwrap();
    server.shutdown().await;
}
