//! An agent served to a client: an editor, or another agent.

mod gate;
mod house;
mod input;
mod seat;
mod settle;
mod slot;
#[cfg(test)]
mod tests;
mod updates;

use std::{fmt, sync::Arc};

use agent_client_protocol::{
    Agent, on_receive_notification, on_receive_request,
    v1::schema::{
        AuthenticateRequest, AuthenticateResponse, CancelNotification, InitializeRequest,
        LoadSessionRequest, NewSessionRequest, PromptRequest,
    },
};
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{cancel::CancelToken, creation::NewAgent, world::World};
use tokio::io::{AsyncRead, AsyncWrite};

use self::house::House;
use crate::wire;

/// How long the last messages may take to be written to a client that reads slowly.
const LAST_WORDS: std::time::Duration = std::time::Duration::from_secs(10);

/// Serves agents of a harness to clients of the protocol.
///
/// Each session of a client is an agent of its own, made from a template, with the client's working
/// directory; it is disposed when the client leaves, and its log stays in the store, to be loaded
/// again. The client hears what the agent says and thinks, and of its tool calls; it is asked about
/// calls that need approval. Sub-agents work unseen, and nobody approves what they ask for.
///
/// ```
/// use std::sync::Arc;
/// use playhouse_acp::AcpServer;
/// use playhouse_plugin_api::{cancel::CancelToken, creation::NewAgent, options::AgentOptions};
/// use playhouse_supervisor::harness::Harness;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let harness = Harness::builder().start().await?;
/// let agent = NewAgent::new(AgentOptions::new().model("scripted", "any"));
/// let server = AcpServer::new(harness.world().clone(), agent);
/// // Standard input and output, as a rule.
/// let (input, output) = (tokio::io::empty(), tokio::io::sink());
/// server.serve(input, output, &CancelToken::new()).await?;
/// harness.shutdown().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct AcpServer {
    world: Arc<World>,
    template: NewAgent,
}

impl AcpServer {
    /// Serves agents like this one. Its id, owner and working directory are not used.
    pub fn new(world: Arc<World>, mut template: NewAgent) -> Self {
        (template.id, template.owner) = (None, None);
        Self { world, template }
    }

    /// Serves one client, until it ends its side, does not read ours, or `until` fires. Then all that
    /// it has is cancelled and disposed before this returns. Dropping the future disposes it too, and
    /// waits for nothing.
    ///
    /// # Errors
    ///
    /// What could not be ended well, or a broken pipe.
    pub async fn serve(
        &self,
        input: impl AsyncRead + Send + 'static,
        output: impl AsyncWrite + Send + 'static,
        until: &CancelToken,
    ) -> Result<(), Failure> {
        let house = House::open(self.world.clone(), self.template.clone())?;
        let transport = wire::windowed(input, output, house.window.clone(), house.lost.clone());
        let owner = house.clone();
        let (hello, new, load, prompt, cancel) =
            (house.clone(), house.clone(), house.clone(), house.clone(), house.clone());
        let agent = Agent
            .v1()
            .name("playhouse")
            .on_receive_request(
                async move |_: InitializeRequest, responder, _client| {
                    let house = hello.clone();
                    hello.serve(responder, async move { Ok(house.greet().await) })
                },
                on_receive_request!(),
            )
            .on_receive_request(
                // There is nothing to authenticate.
                async move |_: AuthenticateRequest, responder, _client| {
                    responder.respond(AuthenticateResponse::new())
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |request: NewSessionRequest, responder, client| {
                    let house = new.clone();
                    new.serve(responder, async move { house.create(client, request).await })
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |request: LoadSessionRequest, responder, client| {
                    let house = load.clone();
                    load.serve(responder, async move { house.load(client, request).await })
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |request: PromptRequest, responder, _client| match prompt.admit(request)
                {
                    Ok(answer) => prompt.serve(responder, answer),
                    Err(error) => responder.respond_with_error(error),
                },
                on_receive_request!(),
            )
            .on_receive_notification(
                async move |told: CancelNotification, _client| {
                    cancel.cancel(&told.session_id);
                    Ok(())
                },
                on_receive_notification!(),
            );
        let connection = agent.connect_with(transport, async move |client| {
            tokio::select! {
                () = client.incoming_closed() => {}
                () = until.cancelled() => {}
            }
            // What is to say of it comes again from the close below.
            let _ = owner.close().await;
            Ok(())
        });
        let last_words = async {
            house.closing.cancelled().await;
            let _ = house.close().await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        let ended = tokio::select! {
            ended = connection => ended,
            () = last_words => {
                tracing::warn!("the client did not read the last messages; they are in the logs");
                Ok(())
            }
        };
        // A client that stops reading has left, whatever it still says.
        let has_left = house.closing.is_cancelled() || house.lost.is_cancelled();
        house.close().await?;
        match ended {
            Err(error) if !has_left => Err(Failure::new("ACP_CONNECTION", error.to_string())),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for AcpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcpServer").field("template", &self.template).finish_non_exhaustive()
    }
}
