//! How a rendered system prompt enters the conversation: the table of core specification 4.7.
//!
//! The prompt lives on the surface as `system/message` nodes. A route that takes changes in history
//! gets them appended, which keeps the provider's prefix cache; any other route gets one prompt, at
//! the head.

use crate::event::Seq;

/// What a surviving `system/message` node says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeText {
    /// Empty content: a reserved slot, or a dormant later node.
    Empty,
    /// Exactly one text block.
    Text(String),
    /// Anything else: not empty, and equal to nothing.
    Opaque,
}

impl NodeText {
    fn is(&self, text: &str) -> bool {
        matches!(self, Self::Text(own) if own == text)
    }
}

/// One `system/message` event to append, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptChange {
    /// A new node at the surface's tail.
    Append,
    /// The node of this event becomes empty.
    Empty(Seq),
    /// The node of this event gets the rendered prompt.
    Rewrite(Seq),
}

/// What to append so that the model sees `rendered` and nothing older.
///
/// `nodes` are the surviving system nodes in surface order, `in_history` whether the prepared route
/// takes prompt changes in history, `series` whether a new request series starts.
pub fn admit_prompt(
    nodes: &[(Seq, NodeText)],
    rendered: &str,
    in_history: bool,
    series: bool,
) -> Vec<PromptChange> {
    let Some(((head_seq, head), tails)) = nodes.split_first() else {
        return vec![PromptChange::Append];
    };
    let active_tails = || tails.iter().filter(|(_, text)| *text != NodeText::Empty);
    let mut changes: Vec<_> = active_tails().map(|(seq, _)| PromptChange::Empty(*seq)).collect();
    if rendered.is_empty() {
        if *head != NodeText::Empty {
            changes.push(PromptChange::Empty(*head_seq));
        }
        return changes;
    }
    let effective = active_tails().next_back().map_or(head, |(_, text)| text);
    if in_history && effective.is(rendered) {
        return Vec::new();
    }
    if in_history && !series {
        return vec![PromptChange::Append];
    }
    if !head.is(rendered) {
        changes.push(PromptChange::Rewrite(*head_seq));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::{NodeText::*, PromptChange as P, *};

    fn t(text: &str) -> NodeText {
        Text(text.to_owned())
    }

    mod scenario {
        use super::*;

        /// Rows: nodes, rendered, in_history, series, expected.
        #[test]
        fn core_4_7_llm_107_the_decision_table() {
            let nodes = |texts: Vec<NodeText>| -> Vec<(Seq, NodeText)> {
                texts.into_iter().enumerate().map(|(at, text)| (at as Seq * 10, text)).collect()
            };
            type Row = (Vec<NodeText>, &'static str, bool, bool, Vec<P>);
            let table: Vec<Row> = vec![
                // 1: no node: even an empty prompt reserves the slot.
                (vec![], "", false, false, vec![P::Append]),
                (vec![], "p", true, true, vec![P::Append]),
                // 2: clear, later nodes first; dormant ones untouched; repeated clears add nothing.
                (
                    vec![t("a"), t("b"), Empty, t("c")],
                    "",
                    true,
                    false,
                    vec![P::Empty(10), P::Empty(30), P::Empty(0)],
                ),
                (vec![Empty, Empty], "", false, true, vec![]),
                (vec![Opaque], "", true, true, vec![P::Empty(0)]),
                // 3: an incapable route has one prompt, at the head.
                (vec![t("a")], "a", false, false, vec![]),
                (vec![t("a")], "b", false, false, vec![P::Rewrite(0)]),
                (vec![t("a"), t("b")], "b", false, true, vec![P::Empty(10), P::Rewrite(0)]),
                (vec![t("b"), t("a")], "b", false, false, vec![P::Empty(10)]),
                (vec![Empty, Empty], "p", false, false, vec![P::Rewrite(0)]),
                // 4: a series start with the same effective text keeps the prefix.
                (vec![t("a"), t("b")], "b", true, true, vec![]),
                // 5: a series start with another text consolidates.
                (vec![t("a"), t("b")], "c", true, true, vec![P::Empty(10), P::Rewrite(0)]),
                (vec![t("c"), t("b")], "c", true, true, vec![P::Empty(10)]),
                // 6 and 7: a continuing capable series appends only a change.
                (vec![t("a"), t("b"), Empty], "b", true, false, vec![]),
                (vec![t("a")], "b", true, false, vec![P::Append]),
                (vec![Empty, Empty], "x", true, false, vec![P::Append]),
                (vec![Opaque], "x", true, false, vec![P::Append]),
            ];
            for (row, (texts, rendered, in_history, series, expected)) in
                table.into_iter().enumerate()
            {
                let changes = admit_prompt(&nodes(texts), rendered, in_history, series);
                assert_eq!(changes, expected, "row {row}");
            }
        }
    }
}
