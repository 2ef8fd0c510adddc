//! Bounds what a tool's result takes of the conversation: the whole text goes to a store, and the
//! model sees its beginning, its end, and where the rest is.

use std::{fmt, panic::AssertUnwindSafe, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    chunk::Failure,
    content::{ContentBlock, joined_text},
    id::{CallId, SessionId},
};
use playhouse_plugin_api::{
    hook::{Next, panic_text},
    plugin::{Plugin, PluginContext},
    tool::{PostVerdict, Replacement, ToolCallContext, ToolSettled},
};

use crate::SpillError;

/// The tool whose results are never spilled: it is how a model reads what was.
const READ: &str = "read";

/// Keeps texts that are too long for a conversation.
pub trait SpillStore: Send + Sync + 'static {
    /// Keeps a call's text, and says where: a place that the model can name to a tool. A second text
    /// of the same call never replaces the first. Whoever drops the future may leave the text there.
    fn save(
        &self,
        session: SessionId,
        call: CallId,
        text: Arc<str>,
    ) -> BoxFuture<'static, Result<String, SpillError>>;

    /// Removes all texts of a session; none is no error. For whoever deletes the session.
    fn remove(&self, session: SessionId) -> BoxFuture<'static, Result<(), SpillError>>;
}

/// A plugin that bounds the text of tool results.
///
/// It acts last on what a result shows (only [`Tool::finalize`] comes after), on failures as well,
/// and leaves alone what is not all text, calls that another call made, and the tool `read`.
/// If the text cannot be kept (no agent, a failing or hanging store, a bound too small for the
/// notice), the result stays as it is: spilling fails no call.
///
/// [`Tool::finalize`]: playhouse_plugin_api::tool::Tool::finalize
///
/// ```
/// use std::sync::Arc;
/// use playhouse_policies::{Spill, SpillDir};
///
/// let plugin = Spill::new(64 * 1024, Arc::new(SpillDir::new("data/spills")));
/// # drop(plugin);
/// ```
#[derive(Clone)]
pub struct Spill {
    max_inline_bytes: usize,
    store: Arc<dyn SpillStore>,
}

impl Spill {
    /// Spills what is longer than `max_inline_bytes` of UTF-8. What is shown instead is no longer
    /// than that.
    pub fn new(max_inline_bytes: usize, store: Arc<dyn SpillStore>) -> Self {
        Self { max_inline_bytes, store }
    }

    /// What `call` shows in place of `content`; `None` leaves it.
    async fn bounded(&self, call: &ToolCallContext, content: &[ContentBlock]) -> Option<String> {
        let agent = call.agent()?;
        if call.is_nested() || call.name() == READ {
            return None;
        }
        if !content.iter().all(|block| matches!(block, ContentBlock::Text(_))) {
            return None;
        }
        let text = joined_text(content);
        let cap = self.max_inline_bytes;
        // Asked before anything is written: a bound that has no room for any notice.
        if text.len() <= cap || Excerpt::of(&text, "", cap).is_none() {
            return None;
        }
        let text: Arc<str> = text.into();
        let (store, session, id) = (&self.store, agent.id().clone(), call.call_id().clone());
        let save = async { store.save(session, id, text.clone()).await };
        let saved = call.cancel().race(AssertUnwindSafe(save).catch_unwind()).await?;
        let problem = match saved {
            Ok(Ok(locator)) => {
                return Excerpt::of(&text, &locator, cap).map(|excerpt| excerpt.to_string());
            }
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic_text(&*panic).to_owned(),
        };
        tracing::warn!(call = %call.call_id(), problem, "a long result stays in the conversation");
        None
    }
}

impl fmt::Debug for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spill")
            .field("max_inline_bytes", &self.max_inline_bytes)
            .finish_non_exhaustive()
    }
}

impl Plugin for Spill {
    fn name(&self) -> &str {
        "spill"
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let spill = self.clone();
        async move {
            let world = ctx.world()?;
            let post = move |settled: ToolSettled, next: Next<ToolSettled, PostVerdict>| {
                let spill = spill.clone();
                async move {
                    let ToolSettled { call, outcome } = settled.clone();
                    let mut verdict = next.run(settled).await?;
                    if let PostVerdict::Accept { replacement, .. } = &mut verdict {
                        let content = match replacement {
                            None => outcome.content(),
                            Some(Replacement::Content(content)) => content,
                            Some(Replacement::Value(_)) => return Ok(verdict),
                        };
                        if let Some(text) = spill.bounded(&call, content).await {
                            let content = vec![ContentBlock::text(text)];
                            *replacement = Some(Replacement::Content(content));
                        }
                    }
                    Ok(verdict)
                }
            };
            ctx.tie(world.tools.hooks().post.add_first(&world.scope, post)?)?;
            Ok(())
        }
        .boxed()
    }
}

/// Between the beginning and the end of a text.
const GAP: &str = "\n[…]\n";

/// The beginning and the end of a text, and a notice of what is missing.
#[derive(Debug, PartialEq, Eq)]
struct Excerpt<'a> {
    head: &'a str,
    tail: &'a str,
    omitted: usize,
    locator: &'a str,
}

impl<'a> Excerpt<'a> {
    /// The longest excerpt of at most `cap` bytes; `None` if not even the notice fits. `text` must be
    /// longer than `cap`.
    fn of(text: &'a str, locator: &'a str, cap: usize) -> Option<Self> {
        // No count of omitted bytes is written longer than this one.
        let most = Self { head: "", tail: "", omitted: text.len(), locator };
        let room = cap.checked_sub(most.to_string().len())?;
        let mut head = room.div_ceil(2);
        while !text.is_char_boundary(head) {
            head -= 1;
        }
        let mut tail = text.len() - room / 2;
        while !text.is_char_boundary(tail) {
            tail += 1;
        }
        Some(Self { head: &text[..head], tail: &text[tail..], omitted: tail - head, locator })
    }
}

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { head, tail, omitted, locator } = self;
        write!(
            f,
            "{head}{GAP}{tail}\n\n({omitted} bytes are left out here. The whole output is in \
             {locator}; read the part of it that you need.)"
        )
    }
}

#[cfg(test)]
mod tests;
