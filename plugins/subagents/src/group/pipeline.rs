//! Items through stages, without a barrier between the stages.

use super::{ChildGroup, ChildOutcome, at_most};
use crate::{ChildRequest, ChildResult};

type Stage<'a, I> = Box<dyn Fn(&I, &ChildResult) -> ChildRequest + Send + Sync + 'a>;

/// A pipeline that is being put together; see [`ChildGroup::pipeline`].
#[must_use = "a pipeline starts with `run`"]
pub struct Pipeline<'a, I> {
    group: &'a ChildGroup,
    first: Box<dyn Fn(&I) -> ChildRequest + Send + Sync + 'a>,
    stages: Vec<Stage<'a, I>>,
}

impl ChildGroup {
    /// Sends items through stages, each of which is a child: this one for the item, then those of
    /// [`Pipeline::then`] for what the one before came to. An item does not wait for others between
    /// two stages.
    pub fn pipeline<'a, I>(
        &'a self,
        first: impl Fn(&I) -> ChildRequest + Send + Sync + 'a,
    ) -> Pipeline<'a, I> {
        Pipeline { group: self, first: Box::new(first), stages: Vec::new() }
    }
}

impl<'a, I> Pipeline<'a, I> {
    /// With another stage: for the item, and the result of the stage before.
    pub fn then(
        mut self,
        stage: impl Fn(&I, &ChildResult) -> ChildRequest + Send + Sync + 'a,
    ) -> Self {
        self.stages.push(Box::new(stage));
        self
    }

    /// Runs it with at most `limit` items under way (0 counts as 1). Gives, in the order of the items,
    /// what the last stage came to, or the first failure of an item, which ends that item alone.
    pub async fn run(&self, items: impl IntoIterator<Item = I>, limit: usize) -> Vec<ChildOutcome> {
        let through = |item: I| async move {
            let mut result = self.group.run((self.first)(&item)).await?;
            for stage in &self.stages {
                result = self.group.run(stage(&item, &result)).await?;
            }
            Ok(result)
        };
        at_most(limit, items.into_iter().map(through)).await
    }
}
