//! What a Playhouse plugin may use: handles, hook points, registries, scopes, and the seams to
//! models, tools, stores, clocks and ids.

pub mod agent;
pub mod attachment;
pub mod blueprint;
pub mod budget;
pub mod cancel;
pub mod clock;
pub mod creation;
pub mod delay;
pub mod factory;
pub mod feed;
pub mod fork;
pub mod hook;
pub mod llm;
pub mod options;
pub mod patterns;
pub mod plugin;
pub mod points;
pub mod prompt;
pub mod registry;
pub mod scope;
pub mod service;
pub mod session;
pub mod slot;
pub mod store;
pub mod tool;
pub mod undurable;
pub mod validators;
pub mod watch;
pub mod world;
