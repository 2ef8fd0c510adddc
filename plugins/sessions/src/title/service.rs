//! The titles of a harness's sessions.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use playhouse_messages::{
    event::{CancelCause, Seq},
    id::SessionId,
};
use playhouse_plugin_api::{
    cancel::CancelToken,
    scope::{Registration, Scope},
    session::{Session, SessionCell},
};

use super::{
    ProvidedTitle, TitleConfig, TitleError, TitleProvider, TitleRequest, TitleSource, Titled,
    naming::Naming,
};

/// Names sessions: a plugin, and the service that it offers. Clones are the same.
///
/// By itself it gives a session the beginning of its first prompt. A [`TitleProvider`] does better:
/// it names sessions whose agents are made after it was registered. [`Titles::rename`] pins a title,
/// [`Titles::refresh`] asks anew.
///
/// Titles are **accepted** when a method resolves; nothing is flushed for their sake.
#[derive(Clone)]
pub struct Titles(Arc<Inner>);

struct Inner {
    config: TitleConfig,
    provider: Mutex<Option<Registered>>,
    sessions: Mutex<HashMap<SessionId, Arc<Named>>>,
}

#[derive(Clone)]
struct Registered {
    number: u64,
    provider: Arc<dyn TitleProvider>,
}

/// A session that is being named. Whoever appends a title holds the fold.
pub(super) struct Named {
    session: Weak<SessionCell>,
    naming: tokio::sync::Mutex<Naming>,
    current: Mutex<Revision>,
}

/// The latest attempt to name the session; any earlier one is superseded.
#[derive(Default)]
struct Revision {
    number: u64,
    cancel: CancelToken,
}

/// A provider at work.
pub(super) struct Attempt {
    revision: u64,
    of: Registered,
    request: TitleRequest,
    is_automatic: bool,
}

impl Named {
    fn new(session: &Session, from: Seq) -> Arc<Self> {
        Arc::new(Self {
            session: Arc::downgrade(session.cell()),
            naming: tokio::sync::Mutex::new(Naming::new(from)),
            current: Mutex::default(),
        })
    }

    /// Starts another attempt: earlier ones are not wanted any more.
    fn supersede(&self) -> (u64, CancelToken) {
        let mut current = self.current();
        current.cancel.cancel(CancelCause::User);
        let number = current.number + 1;
        *current = Revision { number, cancel: CancelToken::new() };
        (number, current.cancel.clone())
    }

    fn current(&self) -> MutexGuard<'_, Revision> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempt {
    /// Asks the provider, until it has a title or nobody wants one.
    pub(super) async fn run(&self) -> Result<ProvidedTitle, TitleError> {
        let asked = self.of.provider.title(self.request.clone());
        match self.request.cancel.race(asked).await {
            Some(title) => title.map_err(TitleError::Provider),
            None => Err(TitleError::Superseded),
        }
    }
}

impl Titles {
    /// With the default limits.
    pub fn new() -> Self {
        Self::with(TitleConfig::default())
    }

    /// With these limits.
    pub fn with(config: TitleConfig) -> Self {
        let (provider, sessions) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { config, provider, sessions }))
    }

    /// Lets `provider` make titles until `scope` closes.
    ///
    /// # Errors
    ///
    /// [`TitleError::ProviderTaken`]; [`TitleError::Closed`].
    pub fn provide(
        &self,
        scope: &Scope,
        provider: Arc<dyn TitleProvider>,
    ) -> Result<Registration, TitleError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut slot = self.slot();
        if let Some(there) = &*slot {
            return Err(TitleError::ProviderTaken { name: there.provider.name().to_owned() });
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let titles = self.clone();
        // Under the lock: a scope that closes meanwhile waits, and then finds what to remove.
        let registration = scope.on_close(move || {
            let gone = titles.slot().take_if(|there| there.number == number);
            drop(gone);
        })?;
        *slot = Some(Registered { number, provider });
        Ok(registration)
    }

    /// What a live session is called.
    pub async fn get(&self, session: &Session) -> Option<Titled> {
        let named = self.named(session);
        let mut naming = named.naming.lock().await;
        naming.catch_up(&session.log());
        naming.title.clone()
    }

    /// Calls a session what a person wants it to be called, for good: nothing but
    /// [`Titles::refresh`] changes it.
    ///
    /// # Errors
    ///
    /// [`TitleError::Empty`] if nothing of the text can be shown; [`TitleError::Session`].
    pub async fn rename(&self, session: &Session, text: &str) -> Result<Titled, TitleError> {
        let title = self.0.config.title(text).ok_or(TitleError::Empty)?;
        let named = self.named(session);
        let mut naming = named.naming.lock().await;
        named.supersede();
        naming.catch_up(&session.log());
        naming.settle();
        let titled = Titled { title, message_seqs: Vec::new(), source: TitleSource::User };
        append(session, &mut naming, titled).await
    }

    /// Names a session anew, and gives up a title that a person chose: by the provider if there is
    /// one, else by the first prompt. If that fails, the title stays. Dropping the future gives the
    /// attempt up.
    ///
    /// # Errors
    ///
    /// [`TitleError::NoPrompt`], [`TitleError::Provider`], [`TitleError::Superseded`] by a rename or
    /// another refresh, [`TitleError::Session`].
    pub async fn refresh(&self, session: &Session) -> Result<Titled, TitleError> {
        let named = self.named(session);
        let attempt = {
            let mut naming = named.naming.lock().await;
            naming.catch_up(&session.log());
            match self.registered() {
                Some(of) => self.attempt(&named, session, &mut naming, of, false)?,
                None => {
                    named.supersede();
                    let titled = self.fallback(&naming).ok_or(TitleError::NoPrompt)?;
                    return append(session, &mut naming, titled).await;
                }
            }
        };
        let provided = attempt.run().await;
        self.finish(&named, &attempt, provided).await
    }

    fn fallback(&self, naming: &Naming) -> Option<Titled> {
        let (seq, message) = naming.prompts.first()?;
        let title = self.0.config.fallback(&message.text())?;
        Some(Titled { title, message_seqs: vec![*seq], source: TitleSource::Fallback })
    }

    fn attempt(
        &self,
        named: &Named,
        session: &Session,
        naming: &mut Naming,
        of: Registered,
        is_automatic: bool,
    ) -> Result<Attempt, TitleError> {
        let prompts = naming.prompts(of.provider.mode()).to_vec();
        if prompts.is_empty() {
            return Err(TitleError::NoPrompt);
        }
        naming.settle();
        let (revision, cancel) = named.supersede();
        let (session, route) = (session.clone(), naming.route.clone());
        let request = TitleRequest { session, prompts, route, cancel };
        Ok(Attempt { revision, of, request, is_automatic })
    }

    /// What the log has gained: appends the fallback if the session has no title, and says which
    /// attempt is to be made.
    pub(super) async fn advance(
        &self,
        named: &Named,
        session: &Session,
    ) -> Result<Option<Attempt>, TitleError> {
        let mut naming = named.naming.lock().await;
        naming.catch_up(&session.log());
        if naming.title.is_none()
            && let Some(titled) = self.fallback(&naming)
        {
            append(session, &mut naming, titled).await?;
        }
        let Some(of) = self.registered() else { return Ok(None) };
        if !naming.ask(of.provider.mode(), session.header().is_seeded) {
            return Ok(None);
        }
        self.attempt(named, session, &mut naming, of, true).map(Some)
    }

    /// Appends what a provider gave, unless it has come too late.
    pub(super) async fn finish(
        &self,
        named: &Named,
        attempt: &Attempt,
        provided: Result<ProvidedTitle, TitleError>,
    ) -> Result<Titled, TitleError> {
        let Attempt { revision, of, request, is_automatic } = attempt;
        let ProvidedTitle { title, model } = provided?;
        let title = self.0.config.title(&title).ok_or(TitleError::Empty)?;
        let mut naming = named.naming.lock().await;
        naming.catch_up(&request.session.log());
        let unloaded = self.registered().is_none_or(|there| there.number != of.number);
        let late = named.current().number != *revision || *is_automatic && naming.is_pinned();
        if unloaded || late {
            return Err(TitleError::Superseded);
        }
        let provider = of.provider.name().to_owned();
        let source = TitleSource::Provider { provider, model };
        let titled = Titled { title, message_seqs: request.seqs(), source };
        append(&request.session, &mut naming, titled).await
    }

    /// Whether sessions that have a title are done with.
    pub(super) async fn is_settled(&self, named: &Named) -> bool {
        self.registered().is_none() && named.naming.lock().await.title.is_some()
    }

    fn named(&self, session: &Session) -> Arc<Named> {
        self.enter(session, session.log().len())
    }

    /// The state of a session; what its log has before `from` asks for no title by itself.
    pub(super) fn enter(&self, session: &Session, from: Seq) -> Arc<Named> {
        let mut sessions = self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = sessions.get(session.id())
            && std::ptr::eq(found.session.as_ptr(), Arc::as_ptr(session.cell()))
        {
            return found.clone();
        }
        if sessions.len() == sessions.capacity() {
            sessions.retain(|_, named| named.session.strong_count() > 0);
        }
        let named = Named::new(session, from);
        sessions.insert(session.id().clone(), named.clone());
        named
    }

    fn registered(&self) -> Option<Registered> {
        self.slot().clone()
    }

    fn slot(&self) -> MutexGuard<'_, Option<Registered>> {
        self.0.provider.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fold is locked, so nobody else names the session meanwhile.
async fn append(
    session: &Session,
    naming: &mut Naming,
    titled: Titled,
) -> Result<Titled, TitleError> {
    session.append(titled.event()).await?;
    naming.catch_up(&session.log());
    Ok(titled)
}

impl Default for Titles {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Titles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let provider = self.registered().map(|there| there.provider.name().to_owned());
        f.debug_struct("Titles")
            .field("config", &self.0.config)
            .field("provider", &provider)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, future::BoxFuture};
    use playhouse_messages::{
        chunk::Failure,
        config::HeaderReason,
        event::{EventBody, NewEvent, RequestHeader, StepAt, TurnEnd, TurnEndReason, TurnStart},
        testing::{header, user},
    };

    use super::*;
    use crate::{rig::Live, title::TitleMode};

    struct Echo;

    impl TitleProvider for Echo {
        fn name(&self) -> &str {
            "echo"
        }

        fn mode(&self) -> TitleMode {
            TitleMode::AllPrompts
        }

        fn title(
            &self,
            request: TitleRequest,
        ) -> BoxFuture<'static, Result<ProvidedTitle, Failure>> {
            let title = request.prompts.iter().map(|(_, prompt)| prompt.text()).collect();
            async { Ok(ProvidedTitle { title, model: None }) }.boxed()
        }
    }

    /// A turn with a prompt, up to its request.
    fn prompt(turn: u32, text: &str) -> [NewEvent; 6] {
        let at = StepAt { turn, step: 1 };
        let reason = HeaderReason::Initial;
        let (header, starts_series) = (Arc::new(header(&[])), false);
        let request = RequestHeader { header, reason, starts_series };
        let end = TurnEnd { turn, reason: TurnEndReason::Completed };
        [
            NewEvent::log_only(EventBody::TurnStart(TurnStart { turn })),
            NewEvent::log_only(EventBody::StepStart(at)),
            user(text, text),
            NewEvent::log_only(EventBody::RequestHeader(request)),
            NewEvent::log_only(EventBody::StepEnd(at)),
            NewEvent::log_only(EventBody::TurnEnd(end)),
        ]
    }

    /// A titled session with one more prompt, and the attempt that it asks for.
    async fn asked(titles: &Titles) -> (Live, Arc<Named>, Attempt) {
        let mut live = Live::new("s");
        let named = titles.enter(&live.session, 0);
        let source = TitleSource::Fallback;
        let titled = Titled { title: "one".into(), message_seqs: vec![2], source };
        live.append(prompt(1, "one").into_iter().chain([titled.event()]));
        let attempt = titles.advance(&named, &live.session).await.unwrap().unwrap();
        (live, named, attempt)
    }

    fn provided(title: &str) -> Result<ProvidedTitle, TitleError> {
        Ok(ProvidedTitle { title: title.into(), model: None })
    }

    #[tokio::test]
    async fn there_is_one_provider_and_it_goes_with_its_scope() {
        let (titles, root) = (Titles::new(), Scope::root("root"));
        let scope = root.child("first").unwrap();
        titles.provide(&scope, Arc::new(Echo)).unwrap();
        let taken = titles.provide(&root, Arc::new(Echo)).unwrap_err();
        assert_eq!(taken.code(), "TITLE_PROVIDER_TAKEN");
        assert!(taken.to_string().contains("`echo`"));
        scope.close();
        titles.provide(&root, Arc::new(Echo)).unwrap();
        assert_eq!(
            titles.provide(&scope, Arc::new(Echo)).unwrap_err().code(),
            "TITLE_PROVIDER_TAKEN"
        );
    }

    #[tokio::test]
    async fn an_answer_of_a_provider_that_is_gone_or_without_text_is_no_title() {
        let (titles, root) = (Titles::new(), Scope::root("root"));
        let registration = titles.provide(&root, Arc::new(Echo)).unwrap();
        let (live, named, attempt) = asked(&titles).await;
        let empty = titles.finish(&named, &attempt, provided("\x1b[1m \n")).await.unwrap_err();
        assert_eq!(empty.code(), "TITLE_EMPTY");
        registration.remove();
        titles.provide(&root, Arc::new(Echo)).unwrap();
        let late = titles.finish(&named, &attempt, provided("late")).await.unwrap_err();
        assert_eq!(late.code(), "TITLE_SUPERSEDED");
        assert_eq!(live.session.log().len(), 7);
    }

    #[tokio::test]
    async fn a_newer_prompt_supersedes_the_attempt_for_an_older_one() {
        let (titles, root) = (Titles::new(), Scope::root("root"));
        titles.provide(&root, Arc::new(Echo)).unwrap();
        let (mut live, named, first) = asked(&titles).await;
        live.append(prompt(2, "two"));
        let second = titles.advance(&named, &live.session).await.unwrap().unwrap();
        assert!(first.request.cancel.is_cancelled() && !second.request.cancel.is_cancelled());
        assert_eq!((first.request.seqs(), second.request.seqs()), (vec![2], vec![2, 9]));
        assert_eq!(first.run().await.unwrap_err().code(), "TITLE_SUPERSEDED");
        assert_eq!(second.run().await.unwrap().title, "onetwo");
        let late = titles.finish(&named, &first, provided("late")).await.unwrap_err();
        assert_eq!(late.code(), "TITLE_SUPERSEDED");
        assert!(titles.advance(&named, &live.session).await.unwrap().is_none());
    }

    mod scenario {
        use super::*;

        #[tokio::test]
        async fn persistence_91_a_title_that_comes_after_a_rename_or_the_end_is_dropped() {
            let (titles, root) = (Titles::new(), Scope::root("root"));
            titles.provide(&root, Arc::new(Echo)).unwrap();
            let (mut live, named, attempt) = asked(&titles).await;
            // Renamed by somebody who does not go through the service, which only the log tells.
            let source = TitleSource::User;
            live.append([Titled { title: "Mine".into(), message_seqs: vec![], source }.event()]);
            let late = titles.finish(&named, &attempt, provided("late")).await.unwrap_err();
            assert_eq!(late.code(), "TITLE_SUPERSEDED");
            assert_eq!(titles.get(&live.session).await.unwrap().title, "Mine");

            let (live, named, attempt) = asked(&titles).await;
            live.session.cell().appender.close();
            let late = titles.finish(&named, &attempt, provided("late")).await.unwrap_err();
            assert!(matches!(late, TitleError::Session(_)), "{late:?}");
            assert_eq!(live.session.log().len(), 7);
        }
    }
}
