//! Who makes titles from prompts.

use futures::future::BoxFuture;
use playhouse_messages::{chunk::Failure, config::Route, event::Seq, message::SharedMessage};
use playhouse_plugin_api::{cancel::CancelToken, session::Session};

/// When a provider is asked by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TitleMode {
    /// Once, for a session's first prompt; never for a fork.
    #[default]
    FirstPrompt,
    /// For each prompt, with all of them.
    AllPrompts,
}

/// Makes titles. A harness has at most one.
pub trait TitleProvider: Send + Sync + 'static {
    /// What logs call it.
    fn name(&self) -> &str;

    /// When it is asked by itself.
    fn mode(&self) -> TitleMode;

    /// A title for these messages. The future is dropped, and `cancel` fires, when nobody wants it any
    /// more; a title that comes too late is not used.
    fn title(&self, request: TitleRequest) -> BoxFuture<'static, Result<ProvidedTitle, Failure>>;
}

/// What a title is made from.
#[derive(Debug, Clone)]
pub struct TitleRequest {
    /// The session.
    pub session: Session,
    /// The prompts, oldest first: the first one, or all, by the provider's mode.
    pub prompts: Vec<(Seq, SharedMessage)>,
    /// Where the session's last request went.
    pub route: Option<Route>,
    /// Fires when the title is not wanted any more.
    pub cancel: CancelToken,
}

impl TitleRequest {
    /// The prompts' places in the log.
    pub fn seqs(&self) -> Vec<Seq> {
        self.prompts.iter().map(|(seq, _)| *seq).collect()
    }
}

/// A title as a provider gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvidedTitle {
    /// Any text; it is made fit to show.
    pub title: String,
    /// The model that was asked, if one was.
    pub model: Option<Route>,
}
