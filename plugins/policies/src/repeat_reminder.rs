//! Tells a model that it repeats itself.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    chunk::Failure,
    content::ContentBlock,
    id::MessageId,
    message::{Message, Source},
};
use playhouse_plugin_api::{
    agent::Agent,
    hook::Next,
    patterns::Patterns,
    plugin::{Plugin, PluginContext},
    points::PreStep,
    scope::ScopeId,
    tool::{PostVerdict, ToolCallContext, ToolSettled},
};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The plugin's name, and the source kind of its messages.
pub const REPEAT_TOOL_REMINDER: &str = "repeat-tool-reminder";

/// When to remind, and of which tools.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RepeatReminderConfig {
    /// After how many identical calls in a row; each at least 2, none twice, in any order.
    pub thresholds: Vec<u32>,
    /// Only these tools are counted; all if empty.
    pub include: Patterns,
    /// These are not counted, and do not end a chain of others.
    pub exclude: Patterns,
    /// How many characters of the arguments a reminder shows; at least 1.
    pub arguments_preview_chars: usize,
}

impl Default for RepeatReminderConfig {
    fn default() -> Self {
        Self {
            thresholds: vec![3, 5, 8],
            include: Patterns::default(),
            exclude: Patterns::default(),
            arguments_preview_chars: 500,
        }
    }
}

/// Why a [`RepeatReminderConfig`] is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RepeatReminderError {
    /// There is nothing to remind at.
    #[error("repeat-tool-reminder: `thresholds` is empty; name a count, or leave the plugin out")]
    NoThreshold,
    /// One call is no repetition.
    #[error("repeat-tool-reminder: threshold {threshold} is too low; the least is 2")]
    LowThreshold {
        /// The threshold.
        threshold: u32,
    },
    /// A threshold stands twice.
    #[error("repeat-tool-reminder: threshold {threshold} stands twice; remove one of them")]
    DuplicateThreshold {
        /// The threshold.
        threshold: u32,
    },
    /// A preview of nothing.
    #[error("repeat-tool-reminder: `arguments_preview_chars` must be at least 1")]
    NoPreview,
}

impl RepeatReminderError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        "INVALID_CONFIG"
    }
}

/// A plugin that counts identical tool calls in a row, and attaches an advice to the result at some
/// counts. Nothing is refused.
///
/// A chain is an agent's: calls of one tool with the same arguments, whatever the order of their
/// keys, and whatever became of them, also denied and blocked ones. Another call or a message from
/// a person ends it. Chains live in the plugin: one outlives the death of its agent's actors, and a
/// resumed agent starts anew.
///
/// ```
/// use playhouse_policies::{RepeatReminder, RepeatReminderConfig};
///
/// let config = RepeatReminderConfig { exclude: ["todo*"].into(), ..Default::default() };
/// let plugin = RepeatReminder::new(config)?;
/// # Ok::<(), playhouse_policies::RepeatReminderError>(())
/// ```
#[derive(Debug, Clone)]
pub struct RepeatReminder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    config: RepeatReminderConfig,
    chains: Mutex<HashMap<ScopeId, Chain>>,
}

impl RepeatReminder {
    /// A reminder, if the config makes sense.
    ///
    /// # Errors
    ///
    /// What is wrong with the config.
    pub fn new(mut config: RepeatReminderConfig) -> Result<Self, RepeatReminderError> {
        config.thresholds.sort_unstable();
        match config.thresholds.first() {
            None => return Err(RepeatReminderError::NoThreshold),
            Some(&threshold) if threshold < 2 => {
                return Err(RepeatReminderError::LowThreshold { threshold });
            }
            Some(_) => {}
        }
        if let Some(pair) = config.thresholds.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(RepeatReminderError::DuplicateThreshold { threshold: pair[0] });
        }
        if config.arguments_preview_chars == 0 {
            return Err(RepeatReminderError::NoPreview);
        }
        Ok(Self(Arc::new(Shared { config, chains: Mutex::default() })))
    }
}

impl Default for RepeatReminder {
    /// Reminds of any tool, after 3, 5 and 8 calls.
    fn default() -> Self {
        let config = RepeatReminderConfig::default();
        Self(Arc::new(Shared { config, chains: Mutex::default() }))
    }
}

impl Shared {
    fn chains(&self) -> MutexGuard<'_, HashMap<ScopeId, Chain>> {
        self.chains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call of an agent.
    fn called(&self, call: &ToolCallContext) -> Option<Reminder> {
        let scope = call.agent()?.scope();
        let mut chains = self.chains();
        // A call that outlives its agent leaves no chain behind. Asked under the lock: an agent that
        // goes from here on is forgotten after this.
        if !scope.is_open() {
            return None;
        }
        chains.entry(scope.id()).or_default().called(call.name(), call.arguments(), &self.config)
    }

    fn forget(&self, agent: &Agent) {
        self.chains().remove(&agent.scope().id());
    }
}

impl Plugin for RepeatReminder {
    fn name(&self) -> &str {
        REPEAT_TOOL_REMINDER
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let shared = self.0.clone();
        async move {
            let world = ctx.world()?;
            let (counting, ids) = (shared.clone(), world.ids.clone());
            // Outside the others: what they block counts, too, and what they add comes after.
            let post = move |settled: ToolSettled, next: Next<ToolSettled, PostVerdict>| {
                let reminder = counting.called(&settled.call);
                let reminder = reminder.map(|reminder| reminder.into_message(ids.message()));
                async move {
                    let mut verdict = next.run(settled).await?;
                    let (PostVerdict::Accept { contexts, .. }
                    | PostVerdict::Block { contexts, .. }) = &mut verdict;
                    contexts.splice(0..0, reminder.map(Arc::new));
                    Ok(verdict)
                }
            };
            ctx.tie(world.tools.hooks().post.add_first(&world.scope, post)?)?;
            let resetting = shared.clone();
            let pre_step = move |step: PreStep, next: Next<PreStep, _>| {
                if step.messages.iter().any(|message| message.source.kind() == "user") {
                    resetting.forget(&step.agent);
                }
                next.run(step)
            };
            ctx.tie(world.hooks.pre_step.add_first(&world.scope, pre_step)?)?;
            let gone = move |agent: &Agent| shared.forget(agent);
            ctx.tie(world.hooks.disposed.add(&world.scope, gone)?)?;
            Ok(())
        }
        .boxed()
    }
}

/// One agent's identical calls in a row.
#[derive(Debug, Default)]
struct Chain {
    /// The tool, and its arguments with sorted keys.
    call: Option<(String, String)>,
    count: u32,
}

impl Chain {
    /// Counts a call, and says what to attach to its result.
    fn called(
        &mut self,
        tool: &str,
        arguments: &Value,
        config: &RepeatReminderConfig,
    ) -> Option<Reminder> {
        let tracked = config.include.is_empty() || config.include.fit(tool);
        if !tracked || config.exclude.fit(tool) {
            return None;
        }
        let arguments = sorted(arguments).to_string();
        let same = matches!(&self.call, Some((name, last)) if name == tool && *last == arguments);
        self.count = if same { self.count.saturating_add(1) } else { 1 };
        let place = config.thresholds.iter().position(|threshold| *threshold == self.count);
        let reminder = place.map(|place| Reminder {
            summary: format!("{tool} × {}", self.count),
            text: match place {
                0 => NUDGE.to_owned(),
                _ => detailed(tool, self.count, &arguments, config.arguments_preview_chars),
            },
        });
        self.call = Some((tool.to_owned(), arguments));
        reminder
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Reminder {
    summary: String,
    text: String,
}

impl Reminder {
    fn into_message(self, id: MessageId) -> Message {
        let source = Source::notice(REPEAT_TOOL_REMINDER, &self.summary);
        Message::user_from(id, vec![ContentBlock::text(self.text)], source)
    }
}

const NUDGE: &str = "You have repeated exactly the same tool call. Study the result that you have \
                     already: another call like it will hardly tell you more. If it does not help, \
                     change your approach or the arguments.";

fn detailed(tool: &str, count: u32, arguments: &str, preview_chars: usize) -> String {
    let preview = match arguments.char_indices().nth(preview_chars) {
        None => arguments.to_owned(),
        Some((at, _)) => {
            let more = arguments[at..].chars().count();
            format!("{}… (+{more} more chars)", &arguments[..at])
        }
    };
    format!(
        "You have called the tool \"{tool}\" {count} times in a row with the same arguments:\n\
         {preview}\n\
         Do not make this call again. Work with the results that you have, try something else, or \
         say what keeps you from going on."
    )
}

/// The value with the keys of all its objects in order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(key, _)| *key);
            let fields = fields.into_iter().map(|(key, value)| (key.clone(), sorted(value)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        scalar => scalar.clone(),
    }
}

#[cfg(test)]
mod tests;
