//! How wide a tree is on each level, and what its agents are worth.

use std::{fmt, str::FromStr};

/// More agents than this are refused: their ids and values would still be distinct, the machine
/// would not hold them.
const AGENTS_MAX: u64 = 10_000_000;

/// The widths of the levels below the root: `10x10` has a root, 10 children, 100 grandchildren.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape(Vec<u32>);

/// Where an agent stands: its level, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) level: u32,
    pub(super) number: u64,
}

impl Node {
    pub(super) const ROOT: Self = Self { level: 0, number: 0 };

    /// What its tool gives: a mix of the seed and the place, by SplitMix64.
    pub(super) fn worth(self, seed: u64) -> u64 {
        let mut mixed = seed ^ (u64::from(self.level) << 56) ^ self.number;
        mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Shape {
    /// How many agents there are on each level, the root's first.
    fn levels(&self) -> impl Iterator<Item = u64> {
        let widths = self.0.iter().scan(1, |agents, width| {
            *agents *= u64::from(*width);
            Some(*agents)
        });
        std::iter::once(1).chain(widths)
    }

    /// How many agents there are.
    pub fn agents(&self) -> u64 {
        self.levels().sum()
    }

    /// How deep the deepest stand.
    pub fn depth(&self) -> u32 {
        // At most as many levels as `AGENTS_MAX` has bits, or one agent each.
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// How wide the widest level is, for one parent.
    pub(super) fn widest(&self) -> usize {
        self.0.iter().max().map_or(0, |width| *width as usize)
    }

    pub(super) fn children(&self, node: Node) -> impl Iterator<Item = Node> {
        let width = u64::from(self.0.get(node.level as usize).copied().unwrap_or(0));
        let first = node.number * width;
        (first..first + width).map(move |number| Node { level: node.level + 1, number })
    }

    /// What the root must report.
    pub(super) fn sum(&self, seed: u64) -> u64 {
        let worth = |(level, agents): (usize, u64)| {
            let level = level as u32;
            (0..agents).fold(0_u64, move |sum, number| {
                sum.wrapping_add(Node { level, number }.worth(seed))
            })
        };
        self.levels().enumerate().map(worth).fold(0, u64::wrapping_add)
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let widths = text.split('x').map(|width| match width.parse() {
            Ok(width @ 1_u32..) => Ok(width),
            _ => Err(format!("`{width}` is no width: a shape is like 10x10x10, each at least 1")),
        });
        let widths: Vec<_> = widths.collect::<Result<_, _>>()?;
        let agents = widths.iter().try_fold((1_u64, 1_u64), |(level, all), width| {
            let level = level.checked_mul(u64::from(*width))?;
            Some((level, all.checked_add(level).filter(|all| *all <= AGENTS_MAX)?))
        });
        match agents {
            Some(_) => Ok(Self(widths)),
            None => Err(format!("a tree may have {AGENTS_MAX} agents at most")),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<_> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&widths.join("x"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_read_counted_and_written() {
        let shape: Shape = "10x10x10x10".parse().unwrap();
        assert_eq!((shape.agents(), shape.depth(), shape.widest()), (11_111, 4, 10));
        assert_eq!(shape.to_string(), "10x10x10x10");
        for refused in ["", "0", "3x", "x3", "3x0x3", "-1", "3y3", "9999x9999", "4294967296"] {
            assert!(refused.parse::<Shape>().is_err(), "{refused}");
        }
    }

    #[test]
    fn a_walk_meets_every_agent_once_and_gives_the_sum() {
        let shape: Shape = "3x1x4".parse().unwrap();
        let (mut open, mut met, mut sum) = (vec![Node::ROOT], 0, 0_u64);
        while let Some(node) = open.pop() {
            open.extend(shape.children(node));
            met += 1;
            sum = sum.wrapping_add(node.worth(7));
        }
        assert_eq!((met, sum), (shape.agents(), shape.sum(7)));
        assert_eq!(met, 1 + 3 + 3 + 12);
        assert_ne!(shape.sum(7), shape.sum(8));
    }
}
