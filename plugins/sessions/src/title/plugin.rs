//! Titles as a plugin: each session is named as it goes.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    agent::{Agent, Disposal},
    plugin::{Plugin, PluginContext},
    points::Created,
    watch,
};

use super::{
    ProvidedTitle, TITLE_KIND, TITLE_REQUEST_KIND, TitleError, Titles,
    service::{Attempt, Named},
};

/// The service under which a harness offers its [`Titles`].
pub const TITLES_SERVICE: &str = "playhouse.titles";

impl Plugin for Titles {
    fn name(&self) -> &str {
        "titles"
    }

    fn event_kinds(&self) -> Vec<&'static str> {
        vec![TITLE_KIND, TITLE_REQUEST_KIND]
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let titles = self.clone();
        async move {
            let world = ctx.world()?;
            ctx.services.provide(&ctx.scope, TITLES_SERVICE, Arc::new(titles.clone()))?;
            let scope = ctx.scope.clone();
            let follow = move |agent: Agent| scope.spawn(follow(titles.clone(), agent));
            let start = follow.clone();
            let listener = world.hooks.created.add(&world.scope, move |created: Created| {
                start(created.agent);
                std::future::ready(Ok(()))
            })?;
            ctx.tie(listener)?;
            world.agents.list().into_iter().for_each(follow);
            Ok(())
        }
        .boxed()
    }
}

/// Names an agent's session until the agent is gone, or there is nothing more to do.
fn follow(titles: Titles, agent: Agent) -> impl Future<Output = ()> + Send {
    // Now, so that the first prompt is one that is seen to come.
    let session = agent.session().clone();
    let start = session.log().len();
    let mut events = session.events(start);
    let named = titles.enter(&session, start);
    async move {
        let mut disposal = agent.cell().disposal();
        let mut under_way: Option<UnderWay> = None;
        loop {
            match titles.advance(&named, &session).await {
                Ok(None) => {}
                // What was under way is superseded, and dropped.
                Ok(Some(attempt)) => under_way = Some(UnderWay::start(attempt)),
                Err(error) => tracing::debug!(session = %session.id(), %error, "no title"),
            }
            if under_way.is_none() && titles.is_settled(&named).await {
                return;
            }
            loop {
                let provided = async {
                    match &mut under_way {
                        Some(under_way) => (&mut under_way.run).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    () = gone(&mut disposal) => return,
                    provided = provided => {
                        if let Some(UnderWay { attempt, .. }) = under_way.take() {
                            finish(&titles, &named, &attempt, provided).await;
                        }
                        break;
                    }
                    event = events.next() => {
                        if MATTERS.contains(&event.body.kind()) {
                            break;
                        }
                    }
                }
            }
        }
    }
}

/// Resolves once the agent is gone.
async fn gone(disposal: &mut watch::Receiver<Disposal>) {
    // The agent owns the sender, so that it cannot go while the agent is held.
    drop(disposal.wait_for(|state| *state == Disposal::Disposed).await);
}

/// What may change what is to be done.
const MATTERS: [&str; 3] = ["user/message", "request/header", TITLE_KIND];

/// A provider that was asked.
struct UnderWay {
    attempt: Arc<Attempt>,
    run: BoxFuture<'static, Result<ProvidedTitle, TitleError>>,
}

impl UnderWay {
    fn start(attempt: Attempt) -> Self {
        let attempt = Arc::new(attempt);
        let asked = attempt.clone();
        Self { attempt, run: async move { asked.run().await }.boxed() }
    }
}

async fn finish(
    titles: &Titles,
    named: &Named,
    attempt: &Attempt,
    provided: Result<ProvidedTitle, TitleError>,
) {
    match titles.finish(named, attempt, provided).await {
        Ok(_) => {}
        Err(error @ (TitleError::Superseded | TitleError::Session(_))) => {
            tracing::debug!(%error, "a title came too late");
        }
        Err(error) => tracing::warn!(%error, "no title was provided"),
    }
}
