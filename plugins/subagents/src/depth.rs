//! How deep a child may stand.
//!
//! An agent's depth is what its header says, or what it was made with if that is more: a resume
//! never lowers it. A child stands one below its parent.

use playhouse_plugin_api::agent::Agent;

use crate::ChildError;

/// Where a child will stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depth {
    /// How deep.
    pub depth: u32,
    /// The deepest that it, and whoever stands below it, may.
    pub max_depth: u32,
}

impl Depth {
    /// The place of a child of this agent. `asked` can only lower the parent's own limit; 0 forbids
    /// delegation.
    ///
    /// # Errors
    ///
    /// [`ChildError::Depth`] if that is too deep.
    pub fn below(parent: &Agent, asked: Option<u32>) -> Result<Self, ChildError> {
        Self::one_below(parent.depth(), parent.options().max_depth, asked)
    }

    fn one_below(parent: u32, limit: u32, asked: Option<u32>) -> Result<Self, ChildError> {
        let max_depth = asked.map_or(limit, |asked| asked.min(limit));
        match parent.checked_add(1) {
            Some(depth) if depth <= max_depth => Ok(Self { depth, max_depth }),
            _ => Err(ChildError::Depth { depth: parent.saturating_add(1), max_depth }),
        }
    }
}

#[cfg(test)]
mod tests {
    mod subagents {
        use super::super::*;

        #[test]
        fn orchestration_1_3_a_child_stands_one_deeper_and_the_lower_limit_counts() {
            let at = |depth, max_depth| Ok(Depth { depth, max_depth });
            let cases = [
                ((0, 3, None), at(1, 3)),
                ((2, 3, Some(9)), at(3, 3)),
                ((0, 3, Some(1)), at(1, 1)),
                ((0, 3, Some(0)), Err("subagent depth 1 exceeds maxDepth 0")),
                ((3, 3, None), Err("subagent depth 4 exceeds maxDepth 3")),
                (
                    (u32::MAX, u32::MAX, None),
                    Err("subagent depth 4294967295 exceeds maxDepth 4294967295"),
                ),
            ];
            for ((parent, limit, asked), expected) in cases {
                let found = Depth::one_below(parent, limit, asked);
                let found = found.map_err(|error| error.to_string());
                assert_eq!(found, expected.map_err(str::to_owned));
            }
        }
    }
}
