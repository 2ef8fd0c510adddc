//! Jobs of real agents, with a scripted model.

mod bench;
mod notices;
mod scenarios;
