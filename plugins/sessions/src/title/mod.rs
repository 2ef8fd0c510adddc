//! What sessions are called.
//!
//! The last `session/title` event of a log is its title: a fallback from the first prompt, what a
//! provider made of the prompts, or what a person chose, which nothing replaces by itself.

mod error;
mod event;
mod llm;
mod naming;
mod normalise;
mod plugin;
mod provider;
mod service;

pub use self::{
    error::TitleError,
    event::{TITLE_KIND, TITLE_REQUEST_KIND, TitleProjection, TitleRequested, TitleSource, Titled},
    llm::LlmTitles,
    normalise::{TitleConfig, normalise},
    plugin::TITLES_SERVICE,
    provider::{ProvidedTitle, TitleMode, TitleProvider, TitleRequest},
    service::Titles,
};
