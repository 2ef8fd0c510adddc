//! The provider's actor: one a route.
//!
//! It binds prepared calls and owns the streams of the route. Its death ends its streams with a
//! retryable failure: their channels close without a finish chunk.

mod actor;

pub(crate) use actor::is_unserved;
pub use actor::{ProviderActor, ProviderArgs};
