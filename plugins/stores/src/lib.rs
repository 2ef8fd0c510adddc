//! Session stores for Playhouse: the journal with a sled index, and memory.

pub mod journal;
