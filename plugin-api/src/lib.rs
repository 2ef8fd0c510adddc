//! What a Playhouse plugin may use: handles, hook points, registries, scopes, and the seams to
//! models, tools, stores, clocks and ids.

pub mod cancel;
pub mod hook;
pub mod llm;
pub mod plugin;
pub mod prompt;
pub mod scope;
pub mod service;
pub mod store;
