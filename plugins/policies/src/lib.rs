//! Policies: plugins that steer the loop at its hook points, each by a rule of its own.
//!
//! - [`mod@retry`]: failed requests are sent again, as the policy of their route says.
//! - [`fallback`]: a step whose route has failed goes on with another one.
//! - [`ModelNotice`]: a model that takes over from another one is told so.
//! - [`RepeatReminder`]: tells a model that it repeats itself.
//! - [`Spill`]: bounds tool results, and keeps what is too long in a [`SpillStore`].
//! - [`DefaultTimeout`]: a time budget for tools that have none of their own.

mod default_timeout;
pub mod fallback;
mod model_notice;
mod repeat_reminder;
pub mod retry;
mod spill;
mod spill_dir;
mod step_log;

pub use self::{
    default_timeout::DefaultTimeout,
    fallback::{FALLBACK_KIND, Fallback, FallbackError, FallbackPolicy},
    model_notice::{MODEL_SELECTION_SOURCE, ModelNotice},
    repeat_reminder::{
        REPEAT_TOOL_REMINDER, RepeatReminder, RepeatReminderConfig, RepeatReminderError,
    },
    retry::{RETRY_KIND, RETRY_STARTED_KIND, Retry},
    spill::{Spill, SpillStore},
    spill_dir::{SpillDir, SpillError},
};

/// The event kinds that these plugins write. Their events are ignorable; a harness that knows the
/// kinds also loads logs whose writer did not say so.
pub const EVENT_KINDS: [&str; 3] = [RETRY_KIND, RETRY_STARTED_KIND, FALLBACK_KIND];

#[cfg(test)]
mod guard_rig;
