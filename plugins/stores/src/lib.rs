//! Session stores for Playhouse: the journal with a sled index, and memory.

mod index;
pub mod journal;
