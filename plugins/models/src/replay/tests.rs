use std::sync::Arc;

use futures::StreamExt;
use playhouse_messages::{
    chunk::{Failure, FinishReason, StreamChunk, Usage},
    config::{HeaderReason, RequestContext},
    content::ContentBlock,
    event::{AssistantAttempt, AssistantMessage, CancelCause, EndSeed, EventBody, NewEvent},
    message::{Message, Source},
    packed::{TimedChunk, pack},
    testing::{Script as LogScript, assistant, header, user},
};
use playhouse_plugin_api::{
    cancel::CancelToken,
    llm::{CallInput, LlmAdapter},
};
use serde_json::json;

use super::*;
use crate::{
    contract::{Fixture, PROVIDER, blocks, contract_of_fixed_answers, failure, finish, tools},
    scripted::{Conversation, FaultKind, Script, Stage, Step},
};

fn text(text: &str) -> Vec<StreamChunk> {
    vec![
        StreamChunk::BlockStart { index: 0, block_type: "text".into() },
        StreamChunk::TextDelta { index: 0, text: text.into() },
        StreamChunk::BlockEnd { index: 0, block: ContentBlock::text(text) },
        StreamChunk::Usage { usage: Usage::default() },
        StreamChunk::Finish { reason: FinishReason::Stop, replay_state: None },
    ]
}

fn refused(code: &str) -> Vec<StreamChunk> {
    let failure = Failure::new(code, "no");
    vec![StreamChunk::Finish { reason: FinishReason::Error { failure }, replay_state: None }]
}

/// A log with a step for each answer; the attempts before the last of an answer fail.
struct Recorder {
    script: LogScript,
    step: u32,
}

impl Recorder {
    fn new() -> Self {
        let mut script = LogScript::new();
        script.turn(1);
        Self { script, step: 0 }
    }

    fn open(&mut self) -> &mut Self {
        if self.step > 0 {
            self.script.end_step(1, self.step);
        }
        self.step += 1;
        self.script.step(1, self.step);
        if self.step == 1 {
            self.script.system("be brief");
            self.script.push(user("u", "hi"));
            self.script.header(&["one"]);
        }
        self
    }

    fn failed(&mut self, chunks: Vec<StreamChunk>) -> &mut Self {
        let stream = packed(chunks);
        let attempt = AssistantAttempt { turn: 1, step: self.step, stream };
        self.script.log_only(EventBody::AssistantAttempt(attempt));
        self
    }

    fn answered(&mut self, said: &str) -> &mut Self {
        let message = assistant(&format!("a{}", self.step), said, &[]);
        self.script.push(NewEvent::append(EventBody::AssistantMessage(AssistantMessage {
            turn: 1,
            step: self.step,
            message: Arc::new(message),
            stream: packed(text(said)),
            usage: None,
            interrupted: false,
        })));
        self
    }

    fn recording(&self) -> Result<Recording, ReplayError> {
        Recording::of(&self.script.log)
    }
}

/// A chunk every 10 ms.
fn packed(chunks: Vec<StreamChunk>) -> Vec<playhouse_messages::packed::StreamRecord> {
    let timed = |(index, chunk)| TimedChunk { time: index as i64 * 10, chunk };
    pack(chunks.into_iter().enumerate().map(timed))
}

fn one(said: &str) -> Recording {
    Recording::written([Entry::Chunks(text(said))]).unwrap()
}

fn fixture(model: &ReplayAdapter) -> Fixture {
    Fixture::new(model.clone(), Stage::new(Script::new()), ())
}

fn of(session: &str) -> CallInput {
    CallInput { session_id: Some(session.into()), ..crate::contract::user("hi") }
}

async fn code(fixture: &Fixture, session: &str) -> String {
    failure(&fixture.ask(of(session)).await).code.clone()
}

async fn says(fixture: &Fixture, session: &str, text: &str) {
    assert_eq!(blocks(&fixture.ask(of(session)).await), [ContentBlock::text(text)]);
}

/// Each reply of a script as an entry; one rule answers as often as it is asked.
fn recorded(script: Script) -> Recording {
    let (stage, replies) = (Stage::new(script.clone()), script.sequence.len());
    let replies = if replies == 0 { 3 } else { replies };
    let conversation = Conversation { next_call: 1, ..Conversation::default() };
    let entry = |_| {
        let (mut chunks, mut end) = (Vec::new(), None);
        for step in stage.answer(&conversation).unwrap().0 {
            match step {
                Step::Chunk(chunk) => chunks.push(chunk),
                Step::Fault(kind, failure) => end = Some((kind, failure)),
                Step::Wait(_) | Step::Gate(_) => {}
            }
        }
        match end {
            None | Some((FaultKind::Cut, _)) => Entry::Chunks(chunks),
            Some((FaultKind::Stall, _)) => Entry::Hang { chunks, ready_file: None },
            Some((_, failure)) => Entry::failing(chunks, &failure),
        }
    };
    Recording::written((0..replies).map(entry)).unwrap()
}

#[tokio::test]
async fn the_replay_adapter_keeps_the_contract() {
    contract_of_fixed_answers(|script| async {
        fixture(&ReplayAdapter::with_anonymous([], recorded(script)))
    })
    .await;
}

#[tokio::test]
async fn sessions_take_recordings_in_order_and_keep_to_them() {
    let two = Recording::written([Entry::Chunks(text("a1")), Entry::Chunks(text("a2"))]).unwrap();
    let own = one("own").for_session("mine");
    let model = ReplayAdapter::with_anonymous([two, own, one("b1")], one("nobody"));
    let fixture = fixture(&model);
    says(&fixture, "x", "a1").await;
    says(&fixture, "mine", "own").await;
    says(&fixture, "y", "b1").await;
    assert_eq!(code(&fixture, "z").await, "REPLAY_UNRECORDED_SESSION");
    assert_eq!(
        model.check_consumed().unwrap_err().to_string(),
        "recorded calls were not made: 1 of 2 of recording 1, 1 of 1 of the anonymous recording"
    );
    says(&fixture, "x", "a2").await;
    assert_eq!(code(&fixture, "x").await, "REPLAY_EXHAUSTED");
    let anonymous = fixture.ask(crate::contract::user("hi")).await;
    assert_eq!(blocks(&anonymous), [ContentBlock::text("nobody")]);
    model.assert_consumed();
}

#[tokio::test]
async fn a_sidecar_replaces_or_patches() {
    let mut recorder = Recorder::new();
    recorder.open().answered("one").open().answered("two");
    let recording = recorder.recording().unwrap();
    let throw = json!({"throw": {"message": "full", "code": "SERVER", "status": 503}});
    let patch = json!({"patches": [{"at": 1, "entry": throw}]}).to_string();
    let model = ReplayAdapter::new([recording.clone().amended(&patch).unwrap()]);
    let fixture_ = fixture(&model);
    says(&fixture_, "s", "one").await;
    let chunks = fixture_.ask(of("s")).await;
    assert_eq!((failure(&chunks).code.as_str(), failure(&chunks).status), ("SERVER", Some(503)));
    let whole = json!([{"chunks": text("{{fromRequest:h(.)}}!")}]).to_string();
    let model = ReplayAdapter::new([recording.clone().amended(&whole).unwrap()]);
    says(&fixture(&model), "s", "i!").await;
    for (sidecar, told) in [
        (json!({"patches": [{"at": 2, "entry": throw}]}).to_string(), "there are 2 calls"),
        (json!([{"chunks": text("{{fromRequest:(}}")}]).to_string(), "entry 0"),
        (json!([{"chunks": text("{{fromRequest:x")}]).to_string(), "not closed"),
        (json!([{"shrug": {}}]).to_string(), "shrug"),
        ("{}".to_owned(), "patches"),
    ] {
        let error = recording.clone().amended(&sidecar).unwrap_err();
        assert_eq!(error.code(), "REPLAY_SIDECAR");
        assert!(error.to_string().contains(told), "{error}");
    }
}

#[tokio::test]
async fn a_placeholder_takes_the_last_match_and_recorded_text_is_verbatim() {
    let mut input = of("s");
    for (id, said) in [("v", "order 11"), ("w", "order 22, then rest")] {
        input.messages.push(Arc::new(Message::user(id, said)));
    }
    let written = |said: &str| Recording::written([Entry::Chunks(text(said))]).unwrap();
    for (said, expected) in [
        (r"{{fromRequest:\d{2}}} and {{fromRequest:order (\d)}}", "22 and 2"),
        ("{{fromRequest:th..}}", "then"),
    ] {
        let fixture = fixture(&ReplayAdapter::new([written(said)]));
        assert_eq!(blocks(&fixture.ask(input.clone()).await), [ContentBlock::text(expected)]);
    }
    let fixture_ = fixture(&ReplayAdapter::new([written("{{fromRequest:nowhere}}")]));
    assert_eq!(code(&fixture_, "s").await, "REPLAY_PLACEHOLDER");
    let mut recorder = Recorder::new();
    recorder.open().answered("{{fromRequest:h}}");
    let fixture = fixture(&ReplayAdapter::new([recorder.recording().unwrap()]));
    says(&fixture, "s", "{{fromRequest:h}}").await;
}

#[tokio::test]
async fn a_hanging_call_says_so_in_a_file_and_waits_for_the_cancel() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ready");
    let hang = json!([{"hang": {"chunks": text("x")[..2], "readyFile": file}}]).to_string();
    let model = ReplayAdapter::new([Recording::default().amended(&hang).unwrap()]);
    let fixture = fixture(&model);
    let input = of("s");
    let mut stream = fixture.stream(input.clone()).await;
    assert!(stream.next().await.is_some() && stream.next().await.is_some());
    while !file.exists() {
        assert!(futures::poll!(stream.next()).is_pending());
        tokio::task::yield_now().await;
    }
    input.cancel.cancel(CancelCause::User);
    let rest: Vec<_> = stream.collect().await;
    assert!(matches!(finish(&rest), FinishReason::Aborted { .. }), "{rest:?}");
}

#[tokio::test(start_paused = true)]
async fn chunks_come_at_their_pace() {
    let mut recorder = Recorder::new();
    recorder.open().answered("one");
    for (pacing, millis) in [(Pacing::AtOnce, 0), (Pacing::AsRecorded, 40)] {
        let model = ReplayAdapter::new([recorder.recording().unwrap()]).paced(pacing);
        let start = tokio::time::Instant::now();
        says(&fixture(&model), "s", "one").await;
        assert_eq!(start.elapsed().as_millis(), millis, "{pacing:?}");
    }
}

/// The request that the recorder's first call recorded.
fn same_request() -> CallInput {
    let mut input = of("s");
    input.messages.insert(0, Arc::new(Message::system("other-id", "be brief")));
    input.tools = header(&["one"]).tools;
    input
}

#[tokio::test]
async fn a_strict_replay_names_the_first_difference() {
    let mut recorder = Recorder::new();
    recorder.open().answered("one");
    let strict = || ReplayAdapter::new([recorder.recording().unwrap()]).strict();
    let ask =
        |model: ReplayAdapter, input: CallInput| async move { fixture(&model).ask(input).await };
    assert_eq!(finish(&ask(strict(), same_request()).await), &FinishReason::Stop);
    type Edit = fn(&mut CallInput);
    let edits: [(Edit, &str); 5] = [
        (
            |input| input.messages[1] = Arc::new(Message::user("u", "hello")),
            r#"message 2 was …ser",[{"type":"text","text":"hi"}],null,null], now …ser""#,
        ),
        (|input| drop(input.messages.pop()), "message 2 is missing: [\"user\""),
        (
            |input| input.messages.push(Arc::new(Message::user("v", "more"))),
            "message 3 is new: [\"user\"",
        ),
        (|input| input.tools = tools(&["one"]), "tool 1 was [\"one\",\"does one\""),
        (|input| input.tools = tools(&[]), "tool 1 is missing"),
    ];
    for (edit, told) in edits {
        let mut input = same_request();
        edit(&mut input);
        let chunks = ask(strict(), input).await;
        let failure = failure(&chunks);
        assert_eq!(failure.code, "REPLAY_DIFFERS");
        assert!(failure.message.contains(told), "{}", failure.message);
    }
    // What is known to differ each time can be left aside.
    let mut input = same_request();
    let context =
        Message::user_from("c", vec![ContentBlock::text("now")], Source::of_kind("clock"));
    input.messages.insert(1, Arc::new(context));
    let chunks = ask(strict().ignoring("clock"), input).await;
    assert_eq!(finish(&chunks), &FinishReason::Stop);
}

#[tokio::test]
async fn a_model_is_what_the_log_tells_of_it() {
    let mut recorder = Recorder::new();
    recorder.open();
    let mut defaults = header(&[]);
    defaults.config.max_tokens = Some(500);
    defaults.config.reasoning_effort = Some("high".into());
    defaults.adapter_defaults.max_tokens = true;
    defaults.adapter_defaults.reasoning_effort = true;
    recorder.script.header_for(defaults, HeaderReason::Change);
    recorder.script.log_only(EventBody::RequestContext(RequestContext {
        provider: "p".into(),
        model: "m".into(),
        context_window: Some(9000),
        system_prompt_update: None,
    }));
    recorder.answered("one");
    let model = ReplayAdapter::new([recorder.recording().unwrap()]);
    let call = fixture(&model).prepare().await;
    assert_eq!((call.context_window(), call.config().max_tokens), (Some(9000), Some(500)));
    assert_eq!(call.config().reasoning_effort.as_deref(), Some("high"));
    assert!(call.adapter_defaults().max_tokens && call.adapter_defaults().reasoning_effort);
    let models = model.models(PROVIDER, &CancelToken::new()).await.unwrap();
    assert_eq!(models.iter().map(|model| &*model.id).collect::<Vec<_>>(), ["m"]);
    assert!(model.models("other", &CancelToken::new()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_log_is_read_from_what_the_command_prints() {
    let mut recorder = Recorder::new();
    recorder.open().answered("one");
    let lines: Vec<_> = recorder.script.log.iter().map(|event| event.to_json()).collect();
    let model = ReplayAdapter::new([Recording::from_jsonl(&lines.join("\n")).unwrap()]);
    says(&fixture(&model), "s", "one").await;
    let line = |event: &String| format!(r#"{{"kind":"event","session":"b","event":{event}}}"#);
    let mut run: Vec<_> = lines.iter().map(line).collect();
    run.insert(1, r#"{"kind":"stream","session":"a","frame":{}}"#.to_owned());
    let model = ReplayAdapter::new(Recording::all_from_run(&run.join("\n")).unwrap());
    says(&fixture(&model), "b", "one").await;
    model.assert_consumed();
    let error = Recording::from_jsonl(&lines[1..].join("\n")).unwrap_err();
    assert_eq!(error.code(), "REPLAY_NOT_AN_EVENT");
    assert!(error.to_string().contains("line 1"), "{error}");
    let error = Recording::from_jsonl("{}").unwrap_err();
    assert!(error.to_string().contains("line 1"), "{error}");
}

#[test]
fn calls_before_the_cut_of_a_fork_were_another_sessions() {
    let mut recorder = Recorder::new();
    recorder.open().answered("parent");
    recorder.script.end_step(1, 1).end_turn(1, playhouse_messages::event::TurnEndReason::Completed);
    assert_eq!(recorder.recording().unwrap().len(), 1);
    recorder.script.log_only(EventBody::EndSeed(EndSeed { inherited: true }));
    assert!(recorder.recording().unwrap().is_empty());
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn llm_113_retries_are_calls_and_what_is_left_or_unfinished_is_told() {
        let mut recorder = Recorder::new();
        recorder.open().failed(refused("RATE_LIMIT")).answered("one");
        let model = ReplayAdapter::new([recorder.recording().unwrap()]).strict();
        let fixture_ = fixture(&model);
        let refused = fixture_.ask(same_request()).await;
        assert_eq!(failure(&refused).code, "RATE_LIMIT");
        assert_eq!(model.check_consumed().unwrap_err().code(), "REPLAY_LEFTOVERS");
        // The retry is asked the same.
        assert_eq!(blocks(&fixture_.ask(same_request()).await), [ContentBlock::text("one")]);
        model.assert_consumed();

        recorder.open().failed(text("half")[..2].to_vec());
        let error = recorder.recording().unwrap_err();
        assert_eq!(error.code(), "REPLAY_UNFINISHED");
        assert!(error.to_string().contains("turn 1, step 2"), "{error}");
        let log = &recorder.script.log;
        let lost = Unfinished::Fail(Failure::new("TRANSPORT", "lost"));
        let model = ReplayAdapter::new([Recording::with_unfinished(log, &lost).unwrap()]);
        let fixture_ = fixture(&model);
        assert_eq!(code(&fixture_, "s").await, "RATE_LIMIT");
        says(&fixture_, "s", "one").await;
        let chunks = fixture_.ask(of("s")).await;
        assert_eq!((failure(&chunks).code.as_str(), chunks.len()), ("TRANSPORT", 3));
        let hanging = Recording::with_unfinished(log, &Unfinished::Hang).unwrap();
        assert_eq!(hanging.len(), 3);
    }

    #[tokio::test]
    #[should_panic(expected = "1 of 1 of recording 1")]
    async fn llm_113_leftovers_fail_the_test() {
        ReplayAdapter::new([one("x")]).assert_consumed();
    }
}
