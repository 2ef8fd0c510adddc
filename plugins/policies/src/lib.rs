//! Policies: plugins that steer the loop at its hook points, each by a rule of its own.
//!
//! - [`mod@retry`]: failed requests are sent again, as the policy of their route says.
//! - [`fallback`]: a step whose route has failed goes on with another one.
//! - [`ModelNotice`]: a model that takes over from another one is told so.

pub mod fallback;
mod model_notice;
pub mod retry;
mod step_log;

pub use self::{
    fallback::{FALLBACK_KIND, Fallback, FallbackError, FallbackPolicy},
    model_notice::{MODEL_SELECTION_SOURCE, ModelNotice},
    retry::{RETRY_KIND, RETRY_STARTED_KIND, Retry},
};

/// The event kinds that these plugins write. Their events are ignorable; a harness that knows the
/// kinds also loads logs whose writer did not say so.
pub const EVENT_KINDS: [&str; 3] = [RETRY_KIND, RETRY_STARTED_KIND, FALLBACK_KIND];
