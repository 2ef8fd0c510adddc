use std::sync::Arc;

use playhouse_messages::{
    event::{AssistantAttempt, AssistantMessage, NewEvent},
    message::{Message, Role, Source},
    packed::TimedChunk,
};

use super::*;

const AT: StepAt = StepAt { turn: 1, step: 1 };

fn start(attempt: &str) -> Frame {
    Frame::Start { attempt_id: attempt.to_owned(), at: AT }
}

fn chunks(attempt: &str, texts: &[&str]) -> Frame {
    let chunk = |text: &&str| TimedChunk {
        time: 0,
        chunk: StreamChunk::TextDelta { index: 0, text: (*text).to_owned() },
    };
    Frame::Chunks { attempt_id: attempt.to_owned(), index: 0, chunks: texts.iter().map(chunk).collect() }
}

fn event(seq: Seq, body: EventBody) -> Event {
    NewEvent::log_only(body).at(seq, 0)
}

fn message(seq: Seq, text: &str) -> Event {
    let message = Message {
        id: "m".into(),
        role: Role::Assistant,
        tool_call_id: None,
        is_error: None,
        content: vec![ContentBlock::text(text)],
        source: Source::model("p", "m", None),
    };
    let (turn, step) = (AT.turn, AT.step);
    let message = Arc::new(message);
    event(
        seq,
        EventBody::AssistantMessage(AssistantMessage {
            turn,
            step,
            message,
            stream: vec![],
            usage: None,
            interrupted: false,
        }),
    )
}

fn texts(told: &[Told]) -> Vec<(String, String)> {
    let text = |told: &Told| match told {
        Told::Update(SessionUpdate::AgentMessageChunk(chunk)) => match &chunk.content {
            acp::ContentBlock::Text(text) => {
                let id = chunk.message_id.as_ref().map(ToString::to_string);
                (id.unwrap_or_default(), text.text.clone())
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    told.iter().map(text).collect()
}

fn pair(id: &str, text: &str) -> (String, String) {
    (id.to_owned(), text.to_owned())
}

#[test]
fn an_event_tells_what_its_stream_did_not() {
    let mut updates = Updates::default();
    assert_eq!(updates.frame(&start("s:1")), []);
    assert_eq!(texts(&updates.frame(&chunks("s:1", &["a", "b"]))), [pair("s:1", "ab")]);
    assert_eq!(texts(&updates.event(&message(1, "abc"))), [pair("s:1", "c")]);
    // Nothing of this one was streamed, nor is left of the one before.
    assert_eq!(texts(&updates.event(&message(2, "abc"))), [pair("m", "abc")]);
    updates.frame(&start("s:3"));
    updates.frame(&chunks("s:3", &["abc"]));
    assert_eq!(updates.event(&message(3, "abc")), []);
    updates.frame(&start("s:4"));
    updates.frame(&chunks("s:4", &["abc"]));
    assert_eq!(texts(&updates.event(&message(4, "xyz"))), [pair("s:4", "xyz")], "a hook rewrote it");
}

#[test]
fn a_retry_is_another_message() {
    let mut updates = Updates::default();
    updates.frame(&start("s:1"));
    assert_eq!(texts(&updates.frame(&chunks("s:1", &["ab"]))), [pair("s:1", "ab")]);
    let attempt = AssistantAttempt { turn: 1, step: 1, stream: vec![] };
    assert_eq!(updates.event(&event(1, EventBody::AssistantAttempt(attempt))), []);
    updates.frame(&start("s:2"));
    assert_eq!(texts(&updates.frame(&chunks("s:2", &["ab"]))), [pair("s:2", "ab")]);
    assert_eq!(texts(&updates.event(&message(2, "abc"))), [pair("s:2", "c")]);
}

#[test]
fn only_people_are_replayed_as_users_and_only_from_before() {
    let user = |source: Source| {
        let content = vec![ContentBlock::text("hi")];
        EventBody::UserMessage(Arc::new(Message::user_from("u", content, source)))
    };
    let mut updates = Updates::replaying_until(5);
    assert_eq!(updates.event(&event(4, user(Source::user()))).len(), 1);
    assert_eq!(updates.event(&event(5, user(Source::user()))), []);
    assert_eq!(updates.event(&event(3, user(Source::notice("plugin", "x")))), []);
}
