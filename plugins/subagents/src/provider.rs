//! The seam: who starts children.

use futures::future::BoxFuture;
use playhouse_plugin_api::agent::Agent;

use crate::{Basis, ChildError, ChildRequest, Run};

/// Starts children: in this process, in another, or in a product of its own.
///
/// May be called concurrently for distinct children, which must not depend on each other.
pub trait ChildProvider: Send + Sync + 'static {
    /// Unique in a harness.
    fn name(&self) -> &str;

    /// What requests may ask for.
    fn capabilities(&self) -> Capabilities;

    /// Whether a child sees its parent's history: then a prompt says only what is new.
    fn inherits_parent_context(&self) -> bool {
        false
    }

    /// Whether its children can be continued: they are made in this process, from
    /// [`ChildProvider::basis`], and made again without the provider.
    fn is_continuable(&self) -> bool {
        false
    }

    /// Where the history of a child that is made for this parent now would begin.
    fn basis(&self, _parent: &Agent) -> Basis {
        Basis::Fresh
    }

    /// Starts a child. Resolves once it is published and its prompt accepted; a failure before has
    /// cleaned everything. All failures after settle through the run.
    fn start(&self, request: ChildRequest) -> BoxFuture<'static, Result<Run, ChildError>>;
}

/// What a provider can do. A request that asks for more is refused, never half followed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// A structured result.
    pub output_schema: bool,
    /// A limit on the depth of delegation.
    pub depth_limit: bool,
    /// A restriction of the child's tools.
    pub tool_filter: bool,
    /// A persona of the child's own.
    pub persona: bool,
}

impl Capabilities {
    /// Everything.
    pub const ALL: Self =
        Self { output_schema: true, depth_limit: true, tool_filter: true, persona: true };
}
