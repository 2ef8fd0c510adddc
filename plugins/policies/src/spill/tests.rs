use std::sync::Mutex;

use playhouse_messages::event::CancelCause;
use playhouse_plugin_api::tool::{ToolCallRequest, ToolOutput, tool_fn};
use serde_json::json;

use super::*;
use crate::guard_rig::{Rig, code, text};

/// Keeps texts, unless it is told to do otherwise.
#[derive(Default)]
struct Shelf {
    texts: Mutex<Vec<(String, String, Arc<str>)>>,
    mood: Mutex<Mood>,
}

#[derive(Default, Clone, Copy)]
enum Mood {
    #[default]
    Works,
    Fails,
    Panics,
    Hangs,
}

impl Shelf {
    fn texts(&self) -> Vec<(String, String, Arc<str>)> {
        self.texts.lock().unwrap().clone()
    }
}

impl SpillStore for Shelf {
    fn save(
        &self,
        session: SessionId,
        call: CallId,
        text: Arc<str>,
    ) -> BoxFuture<'static, Result<String, SpillError>> {
        match *self.mood.lock().unwrap() {
            Mood::Works => {
                let entry = (session.to_string(), call.to_string(), text);
                self.texts.lock().unwrap().push(entry);
                futures::future::ready(Ok("shelf 7".to_owned())).boxed()
            }
            Mood::Fails => futures::future::ready(Err(SpillError::Other("full".into()))).boxed(),
            Mood::Panics => panic!("boom"),
            Mood::Hangs => futures::future::pending().boxed(),
        }
    }

    fn remove(&self, _: SessionId) -> BoxFuture<'static, Result<(), SpillError>> {
        futures::future::ready(Ok(())).boxed()
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Args {
    bytes: usize,
}

async fn rig(cap: usize) -> (Rig, Arc<Shelf>) {
    let shelf = Arc::new(Shelf::default());
    let rig = Rig::new(Spill::new(cap, shelf.clone())).await;
    for name in ["dump", "read"] {
        rig.tool(tool_fn(name, "", |args: Args, _run| async move { Ok("x".repeat(args.bytes)) }));
    }
    (rig, shelf)
}

#[test]
fn an_excerpt_is_as_long_as_it_may_be_and_never_longer() {
    for text in ["abcdefghij".repeat(50), "äöü€𝄞".repeat(40), "𝄞".repeat(100)] {
        for cap in 0..text.len() {
            let Some(excerpt) = Excerpt::of(&text, "f", cap) else { continue };
            let shown = excerpt.to_string();
            assert!(shown.len() <= cap, "{cap}: {}", shown.len());
            // Two cut characters, and a count with a digit less: no more is given away.
            assert!(shown.len() + 3 + 3 + 2 >= cap, "{cap}: {}", shown.len());
            let Excerpt { head, tail, omitted, .. } = excerpt;
            assert!(text.starts_with(head) && text.ends_with(tail));
            assert_eq!(head.len() + omitted + tail.len(), text.len());
            assert!(head.len() + 4 > tail.len());
        }
    }
}

#[test]
fn a_bound_without_room_for_the_notice_has_no_excerpt() {
    let text = "x".repeat(5000);
    let least = (0..5000).find(|cap| Excerpt::of(&text, "f", *cap).is_some()).unwrap();
    let excerpt = Excerpt::of(&text, "f", least).unwrap();
    assert_eq!((excerpt.head, excerpt.tail, excerpt.omitted), ("", "", 5000));
    assert_eq!(excerpt.to_string().len(), least);
    let longer = Excerpt::of(&text, "f", least + 3).unwrap();
    assert_eq!((longer.head, longer.tail, longer.omitted), ("xx", "x", 4997));
    assert!(Excerpt::of(&text, "ff", least).is_none());
}

#[tokio::test]
async fn what_listeners_made_of_a_result_is_what_is_bounded() {
    use playhouse_plugin_api::tool::PostVerdict::{Accept, Block};
    let (rig, shelf) = rig(400).await;
    let verdicts = Arc::new(Mutex::new(Vec::new()));
    let given = verdicts.clone();
    let post = move |_, _| {
        let verdict = given.lock().unwrap().pop().unwrap();
        futures::future::ready(Ok::<PostVerdict, _>(verdict))
    };
    rig.hooks().post.add(&rig.world().scope, post).unwrap();
    let long = || vec![ContentBlock::text("y".repeat(300)), ContentBlock::text("z".repeat(300))];
    let accept = |replacement| Accept { replacement, contexts: vec![] };
    for (verdict, spilled) in [
        (accept(Some(Replacement::Content(long()))), true),
        (accept(Some(Replacement::Value(json!("v".repeat(600))))), false),
        (Block { feedback: long(), contexts: vec![] }, false),
        (accept(Some(Replacement::Content(vec![ContentBlock::text("short")]))), false),
    ] {
        verdicts.lock().unwrap().push(verdict.clone());
        let outcome = rig.call("dump", json!({"bytes": 600})).await;
        assert_eq!(text(&outcome).contains("shelf 7"), spilled, "{verdict:?}");
    }
    assert_eq!(*shelf.texts()[0].2, format!("{}{}", "y".repeat(300), "z".repeat(300)));
    assert_eq!(shelf.texts().len(), 1);
    rig.harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn the_directory_store_gives_the_model_a_file_with_the_whole_output() {
    let temp = tempfile::tempdir().unwrap();
    let store = Arc::new(crate::SpillDir::new(temp.path().join("spills")));
    let rig = Rig::new(Spill::new(500, store.clone())).await;
    rig.tool(tool_fn("dump", "", |args: Args, _run| async move { Ok("x".repeat(args.bytes)) }));
    let shown = text(&*rig.call("dump", json!({"bytes": 9000})).await);
    let path = shown.rsplit_once(" is in ").unwrap().1.split_once(';').unwrap().0;
    assert_eq!(std::fs::read_to_string(path).unwrap(), "x".repeat(9000));
    store.remove(rig.agent.id().clone()).await.unwrap();
    assert!(!std::path::Path::new(path).exists());
    rig.harness.shutdown().await.unwrap();
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn llm_112_a_long_text_is_bounded_with_its_place_and_nothing_else_is_touched() {
        let (rig, shelf) = rig(1000).await;
        let long = json!({"bytes": 5000});
        let outcome = rig.call("dump", long.clone()).await;
        let shown = text(&outcome);
        assert!(shown.len() <= 1000 && shown.len() > 990, "{}", shown.len());
        assert!(shown.contains("The whole output is in shelf 7;"), "{shown}");
        assert_eq!(outcome.value().unwrap().as_str().unwrap().len(), 5000, "programs see it all");
        let entry = (rig.agent.id().to_string(), "c1".to_owned(), "x".repeat(5000).into());
        assert_eq!(shelf.texts(), [entry]);

        // Exactly the bound is not over it.
        assert_eq!(text(&*rig.call("dump", json!({"bytes": 1000})).await).len(), 1000);
        assert_eq!(text(&*rig.call("read", long.clone()).await).len(), 5000);
        let nested = ToolCallRequest {
            root_call_id: Some("outer".into()),
            ..rig.request("dump", long.clone())
        };
        let nested = rig.world().tools.execute_one(nested).await;
        assert_eq!(text(&nested).len(), 5000);
        let nobody = ToolCallRequest { agent: None, ..rig.request("dump", long.clone()) };
        assert_eq!(text(&*rig.world().tools.execute_one(nobody).await).len(), 5000);
        rig.tool(tool_fn("paint", "", |args: Args, _run| async move {
            let image = ContentBlock::Image { attachment: json!({}), offloaded: false };
            let blocks = vec![ContentBlock::text("x".repeat(args.bytes)), image];
            Ok(ToolOutput::new(json!(null)).showing(blocks))
        }));
        assert_eq!(rig.call("paint", long.clone()).await.content().len(), 2);
        assert_eq!(shelf.texts().len(), 1);

        // A long failure is as long as a long success.
        rig.tool(tool_fn("fail", "", |args: Args, _run| async move {
            if args.bytes > 0 { Err("e".repeat(args.bytes).into()) } else { Ok("") }
        }));
        let failed = rig.call("fail", long.clone()).await;
        assert!(failed.is_error() && text(&failed).len() <= 1000);

        for mood in [Mood::Fails, Mood::Panics] {
            *shelf.mood.lock().unwrap() = mood;
            let outcome = rig.call("dump", long.clone()).await;
            assert_eq!((text(&outcome).len(), outcome.is_error()), (5000, false));
        }
        rig.harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn llm_112_a_store_that_hangs_is_left_when_the_call_is_cancelled() {
        let (rig, shelf) = rig(1000).await;
        *shelf.mood.lock().unwrap() = Mood::Hangs;
        let request = rig.request("dump", json!({"bytes": 5000}));
        let cancel = request.cancel.clone();
        let mut calling = Box::pin(rig.world().tools.execute_one(request));
        assert!(calling.as_mut().now_or_never().is_none());
        cancel.cancel(CancelCause::User);
        assert_eq!(code(&*calling.await), Some("ABORTED"));
        rig.harness.shutdown().await.unwrap();
    }
}
