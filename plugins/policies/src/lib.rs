//! Policies: plugins that steer the loop at its hook points, each by a rule of its own.

mod model_notice;

pub use model_notice::{MODEL_SELECTION_SOURCE, ModelNotice};
