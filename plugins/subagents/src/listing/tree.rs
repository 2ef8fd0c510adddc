//! The tree that headers make by naming their parents.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use playhouse_messages::{header::SessionHeader, id::SessionId};

/// A session below another one.
#[derive(Debug, Clone)]
pub(super) struct Kin {
    pub(super) header: Arc<SessionHeader>,
    /// How many levels below; at least 1.
    pub(super) depth: u32,
}

/// Sessions by their parent, siblings oldest first.
pub(super) struct Tree(HashMap<SessionId, Vec<Arc<SessionHeader>>>);

impl Tree {
    pub(super) fn new(headers: Vec<Arc<SessionHeader>>) -> Self {
        let mut by_parent: HashMap<SessionId, Vec<Arc<SessionHeader>>> = HashMap::new();
        for header in headers {
            if let Some(parent) = &header.parent_session {
                by_parent.entry(parent.clone()).or_default().push(header);
            }
        }
        for siblings in by_parent.values_mut() {
            siblings.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        }
        Self(by_parent)
    }

    pub(super) fn children(&self, id: &SessionId) -> impl Iterator<Item = &Arc<SessionHeader>> {
        self.0.get(id).into_iter().flatten()
    }

    /// All sessions below this one, down to a depth, each before those below it. Headers that name
    /// each other in a circle are met once.
    pub(super) fn below(&self, root: &SessionId, depth_max: Option<u32>) -> Vec<Kin> {
        let mut found = Vec::new();
        let mut seen = HashSet::from([root]);
        let mut ahead: Vec<(&Arc<SessionHeader>, u32)> = Vec::new();
        let enter = |ahead: &mut Vec<_>, id: &SessionId, depth| {
            if depth_max.is_none_or(|max| depth <= max) {
                let start = ahead.len();
                ahead.extend(self.children(id).map(|child| (child, depth)));
                ahead[start..].reverse();
            }
        };
        enter(&mut ahead, root, 1);
        while let Some((header, depth)) = ahead.pop() {
            if seen.insert(&header.id) {
                found.push(Kin { header: header.clone(), depth });
                enter(&mut ahead, &header.id, depth + 1);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    mod subagents {
        use proptest::prelude::*;

        use super::super::*;

        fn header(id: &str, parent: &str, created_at: u64) -> Arc<SessionHeader> {
            let mut header = SessionHeader::new(id.into(), created_at);
            header.parent_session = Some(parent.into());
            header.into()
        }

        fn below(tree: &Tree, depth_max: Option<u32>) -> Vec<String> {
            let kin = tree.below(&"root".into(), depth_max);
            kin.iter().map(|kin| format!("{}{}", kin.depth, kin.header.id)).collect()
        }

        #[test]
        fn orchestration_1_9_each_comes_before_those_below_it_and_siblings_by_age_then_id() {
            let tree = Tree::new(vec![
                header("young", "root", 3),
                header("b", "root", 1),
                header("a", "root", 1),
                header("below-a", "a", 9),
                header("deep", "below-a", 0),
                header("elsewhere", "other", 0),
            ]);
            assert_eq!(below(&tree, None), ["1a", "2below-a", "3deep", "1b", "1young"]);
            assert_eq!(below(&tree, Some(1)), ["1a", "1b", "1young"]);
        }

        #[test]
        fn orchestration_1_9_a_circle_of_parents_is_walked_once() {
            let circle = [
                header("root", "c", 0),
                header("b", "root", 0),
                header("c", "b", 0),
                header("b", "c", 1),
            ];
            let tree = Tree::new(circle.to_vec());
            assert_eq!(below(&tree, None), ["1b", "2c"]);
            let alone = Tree::new(vec![header("root", "root", 0)]);
            assert_eq!(below(&alone, None), [] as [&str; 0]);
        }

        proptest! {
            #[test]
            fn whatever_headers_say_nobody_is_met_twice_and_the_walk_ends(
                parents in prop::collection::vec(0_usize..12, 12),
            ) {
                let name = |at: usize| if at == 0 { "root".to_owned() } else { format!("s{at}") };
                let headers = parents.iter().enumerate();
                let headers = headers.map(|(at, parent)| header(&name(at), &name(*parent), 0));
                let found = below(&Tree::new(headers.collect()), None);
                let distinct: HashSet<_> = found.iter().collect();
                prop_assert_eq!(distinct.len(), found.len());
                prop_assert!(found.len() < 12);
            }
        }
    }
}
