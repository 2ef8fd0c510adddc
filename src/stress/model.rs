//! A scripted model whose streams may be cut.

use std::sync::{Arc, Mutex, PoisonError};

use fastrand::Rng;
use futures::{FutureExt, StreamExt, stream::BoxStream};
use playhouse_messages::{
    chunk::{Failure, StreamChunk},
    retry::{Backoff, RetryPolicy},
};
use playhouse_models::scripted::{Fault, FaultKind, Reply, Script, ScriptedAdapter, When};
use playhouse_plugin_api::{cancel::CancelToken, llm::LlmAdapter};
use serde_json::json;

use super::{Load, ledger::Ledger, workshop};

/// Of a thousand streams, so many are cut.
const CUTS: u32 = 40;

/// Milliseconds between two chunks.
const CHUNK_MS: u64 = 2;

/// What a prompt asks for, by its first word.
pub(super) const MOODS: [&str; 8] =
    ["talk", "talk", "work", "work", "twice", "delegate", "fail", "cut"];

/// Answers by what the last user message says; see [`MOODS`].
pub(super) fn script(load: &Load) -> Script {
    let words: Vec<_> = (0..load.chunks.max(1)).map(|n| format!("word-{n}")).collect();
    let talk = Reply::text(words.join(" ")).paced(CHUNK_MS, CHUNK_MS);
    let calls = (0..load.tools).fold(Reply::text("Let me see."), |reply, call| {
        reply.and_call(workshop::TOOLS[call % workshop::TOOLS.len()], json!({}))
    });
    let delegation = |child| json!({"description": "a task", "prompt": format!("talk {child}")});
    let delegate = (0..load.children).fold(Reply::text("Let others do it."), |reply, child| {
        reply.and_call("subagent", delegation(child))
    });
    let again = When::default().after_tool("*").user_contains("twice").assistant_messages(1);
    let cut = talk.clone().with_fault(Fault::new(FaultKind::Cut).after(load.chunks / 2));
    Script::new()
        .rule(again, calls.clone())
        .rule(When::default().after_tool("*"), talk.clone())
        .rule(When::default().user_contains("fail"), Reply::error("REFUSED", "no"))
        .rule(When::default().user_contains("cut"), cut)
        .rule(When::default().user_contains("delegate"), delegate)
        .rule(When::default().user_contains("work"), calls.clone())
        .rule(When::default().user_contains("twice"), calls)
        .reply(talk)
}

type Stream = BoxStream<'static, Result<StreamChunk, Failure>>;

/// The model of one route.
pub(super) struct Model {
    ledger: Arc<Ledger>,
    /// Decides which streams are cut, and where; none without it.
    cuts: Option<Mutex<Rng>>,
    /// Once it fires, none is cut.
    over: CancelToken,
    chunks: usize,
}

impl Model {
    pub(super) fn adapter(
        load: &Load,
        ledger: Arc<Ledger>,
        over: CancelToken,
        rng: Rng,
    ) -> impl LlmAdapter + use<> {
        let backoff = Backoff { initial_delay_ms: 1, max_delay_ms: 20, ..Backoff::default() };
        let codes = ["EMPTY_RESPONSE", "TRANSPORT"].map(str::to_owned).to_vec();
        let policy = RetryPolicy::Normal { max_retries: 5, retryable_codes: codes, backoff };
        let script = ScriptedAdapter::new(script(load)).with_retry_policy(policy);
        script.stage().record(false);
        let cuts = (load.chaos > 0.0).then(|| Mutex::new(rng));
        let model = Self { ledger, cuts, over, chunks: load.chunks };
        script.streamed(move |script, request| model.perhaps_cut(script.stream(request)))
    }

    /// After how many chunks this stream is cut, and whether it says so.
    fn cut(&self) -> Option<(usize, bool)> {
        let mut rng = self.cuts.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        (!self.over.is_cancelled() && rng.u32(0..1_000) < CUTS)
            .then(|| (rng.usize(0..=self.chunks), rng.bool()))
    }

    fn perhaps_cut(&self, stream: Stream) -> Stream {
        let Some((after, says)) = self.cut() else { return stream };
        let ledger = self.ledger.clone();
        let end = async move {
            ledger.entries().streams_dropped += 1;
            says.then(|| Err(Failure::new("TRANSPORT", "the stream was cut")))
        };
        let end = end.into_stream().filter_map(futures::future::ready);
        stream.take(after).chain(end).boxed()
    }
}
