use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const TREES: usize = 6;
const PROVIDERS: [&str; 3] = ["a", "b", "c"];

/// What may happen to a queue. Numbers choose among what there is.
#[derive(Debug, Clone)]
enum Op {
    Ask { tree: usize, provider: usize },
    Withdraw(usize),
    Release(usize),
}

fn ops(providers: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0..TREES, 0..providers).prop_map(|(tree, provider)| Op::Ask { tree, provider }),
        1 => any::<usize>().prop_map(Op::Withdraw),
        4 => any::<usize>().prop_map(Op::Release),
    ];
    prop::collection::vec(op, 0..200)
}

/// A queue, and what must be true of it by an account of its own.
struct Run {
    queue: Queue,
    caps: Caps,
    waiting: BTreeMap<Ticket, (TreeId, Arc<str>)>,
    held: Vec<(TreeId, Arc<str>)>,
    /// Of each tree that waits and holds nothing: how often others were served since then, and how
    /// many trees waited at most.
    hungry: HashMap<TreeId, (usize, usize)>,
}

impl Run {
    fn new(caps: Caps) -> Self {
        let queue = Queue::new(caps.clone());
        Self { queue, caps, waiting: BTreeMap::new(), held: Vec::new(), hungry: HashMap::new() }
    }

    fn op(&mut self, op: Op) {
        match op {
            Op::Ask { tree, provider } => {
                let (tree, provider): (TreeId, Arc<str>) =
                    (format!("t{tree}").into(), PROVIDERS[provider].into());
                let ticket = self.queue.ask(&tree, &provider);
                self.waiting.insert(ticket, (tree, provider));
            }
            Op::Withdraw(which) => {
                if let Some(&ticket) = self.waiting.keys().nth(which % self.waiting.len().max(1)) {
                    let (tree, _) = self.waiting.remove(&ticket).unwrap();
                    self.queue.withdraw(&tree, ticket);
                }
            }
            Op::Release(which) => {
                if !self.held.is_empty() {
                    let (tree, provider) = self.held.swap_remove(which % self.held.len());
                    self.queue.release(&tree, &provider);
                }
            }
        }
        self.note_hungry();
        while let Some(ticket) = self.queue.grant() {
            self.granted(ticket);
            self.note_hungry();
        }
        self.judge();
    }

    fn holds(&self, tree: &TreeId) -> usize {
        self.held.iter().filter(|(holder, _)| holder == tree).count()
    }

    fn waiting_trees(&self) -> Vec<TreeId> {
        let mut trees: Vec<_> = self.waiting.values().map(|(tree, _)| tree.clone()).collect();
        trees.sort();
        trees.dedup();
        trees
    }

    fn note_hungry(&mut self) {
        let trees = self.waiting_trees();
        self.hungry.retain(|tree, _| trees.contains(tree));
        for tree in &trees {
            if self.holds(tree) > 0 {
                self.hungry.remove(tree);
                continue;
            }
            let (_, most) = self.hungry.entry(tree.clone()).or_default();
            *most = trees.len().max(*most);
        }
    }

    fn granted(&mut self, ticket: Ticket) {
        let (tree, provider) = self.waiting.remove(&ticket).expect("it waited");
        let first =
            |(_, (other, by)): &(&Ticket, &(TreeId, Arc<str>))| *other == tree && *by == provider;
        let earlier = self.waiting.iter().find(first);
        assert!(earlier.is_none_or(|(other, _)| *other > ticket), "out of order within a tree");
        for (other, by) in self.waiting.values() {
            if by == &provider {
                assert!(self.holds(other) >= self.holds(&tree), "{tree} was served before {other}");
            }
        }
        self.hungry.remove(&tree);
        for (passed, _) in self.hungry.values_mut() {
            *passed += 1;
        }
        self.held.push((tree, provider));
    }

    fn judge(&self) {
        let by_provider = |name: &str| self.held.iter().filter(|(_, by)| **by == *name).count();
        assert_eq!(self.queue.held(), self.held.len());
        assert_eq!(self.queue.waiting(), self.waiting.len());
        let global = self.caps.global.unwrap_or(usize::MAX);
        assert!(self.held.len() <= global, "over the cap");
        let room = |name: &str| {
            let cap = self.caps.providers.get(name).copied().unwrap_or(usize::MAX);
            assert!(by_provider(name) <= cap, "over the cap of {name}");
            by_provider(name) < cap
        };
        for name in PROVIDERS {
            assert_eq!(self.queue.held_by_provider(name), by_provider(name));
            let waits = self.waiting.values().any(|(_, by)| **by == *name);
            let room = room(name) && self.held.len() < global;
            assert!(!(waits && room), "a request for {name} waits though it could run");
        }
    }
}

proptest! {
    #[test]
    fn never_over_a_cap_never_idle_and_in_order(
        ops in ops(3), global in prop::option::of(1_usize..6), a in 1_usize..4,
    ) {
        let providers = [("a".to_owned(), a)].into();
        let mut run = Run::new(Caps { global, providers });
        ops.into_iter().for_each(|op| run.op(op));
        while !run.held.is_empty() {
            run.op(Op::Release(0));
        }
        assert_eq!((run.queue.held(), run.queue.waiting()), (0, 0));
        assert!(run.queue.trees.is_empty() && run.queue.order.is_empty(), "something is left");
    }

    #[test]
    fn a_tree_that_waits_is_served_after_at_most_as_many_releases_as_trees_wait(
        ops in ops(1), cap in 1_usize..6,
    ) {
        let mut run = Run::new(Caps { global: Some(cap), ..Caps::default() });
        for op in ops {
            run.op(op);
            for (tree, (passed, trees)) in &run.hungry {
                // It and the others: each of them at most once.
                prop_assert!(passed < trees, "{tree} was passed over {passed} times by {trees}");
            }
        }
    }
}

#[test]
fn one_tree_of_many_does_not_starve_a_lone_one() {
    let mut queue = Queue::new(Caps { global: Some(4), ..Caps::default() });
    let (big, lone, provider): (TreeId, TreeId, Arc<str>) =
        ("big".into(), "lone".into(), "p".into());
    for _ in 0..1000 {
        queue.ask(&big, &provider);
    }
    while queue.grant().is_some() {}
    let ticket = queue.ask(&lone, &provider);
    assert_eq!(queue.grant(), None);
    queue.release(&big, &provider);
    assert_eq!(queue.grant(), Some(ticket));
    assert_eq!((queue.held_by_tree("big"), queue.held_by_tree("lone")), (3, 1));
}

#[test]
fn the_last_permit_is_for_a_tree_that_holds_none() {
    let mut queue = Queue::new(Caps { global: Some(SPARE_FROM), ..Caps::default() });
    let (big, lone, provider): (TreeId, TreeId, Arc<str>) =
        ("big".into(), "lone".into(), "p".into());
    for _ in 0..20 {
        queue.ask(&big, &provider);
    }
    while queue.grant().is_some() {}
    assert_eq!(queue.held(), SPARE_FROM - 1);
    let ticket = queue.ask(&lone, &provider);
    assert_eq!(queue.grant(), Some(ticket));
    queue.ask(&lone, &provider);
    assert_eq!(queue.grant(), None);
}
