//! Policies: plugins that steer the loop at its hook points, each by a rule of its own.
//!
//! - [`RepeatReminder`]: tells a model that it repeats itself.
//! - [`Spill`]: bounds tool results, and keeps what is too long in a [`SpillStore`].
//! - [`DefaultTimeout`]: a time budget for tools that have none of their own.

mod default_timeout;
mod patterns;
mod repeat_reminder;
mod spill;
mod spill_dir;

pub use default_timeout::DefaultTimeout;
pub use patterns::Patterns;
pub use repeat_reminder::{
    REPEAT_TOOL_REMINDER, RepeatReminder, RepeatReminderConfig, RepeatReminderError,
};
pub use spill::{Spill, SpillStore};
pub use spill_dir::{SpillDir, SpillError};

#[cfg(test)]
mod guard_rig;
