//! Slots: how an actor is reached over its restarts.
//!
//! A raw actor reference goes stale when its actor dies. A slot is filled again by the supervisor
//! with the successor, and closed when there will be none.

use crate::watch;
use ractor::{ActorId, ActorRef, Message, RpcReplyPort, rpc::CallResult};

/// Where the current incarnation of an actor stands.
#[derive(Debug)]
pub struct Slot<M: Message> {
    state: watch::Sender<State<M>>,
}

#[derive(Debug)]
enum State<M: Message> {
    Vacant,
    Live(ActorRef<M>),
    Closed,
}

impl<M: Message> Clone for State<M> {
    fn clone(&self) -> Self {
        match self {
            Self::Vacant => Self::Vacant,
            Self::Live(actor) => Self::Live(actor.clone()),
            Self::Closed => Self::Closed,
        }
    }
}

/// The actor is gone for good: its agent was disposed, or its harness shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the agent is disposed: resume its session to go on")]
pub struct Gone;

impl Gone {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        "DISPOSED"
    }
}

impl<M: Message> Slot<M> {
    /// A vacant slot.
    pub fn new() -> Self {
        Self { state: watch::Sender::new(State::Vacant) }
    }

    /// Puts an incarnation in. A closed slot stays closed.
    pub fn fill(&self, actor: ActorRef<M>) {
        self.state.send_if_modified(|state| {
            let open = !matches!(state, State::Closed);
            if open {
                *state = State::Live(actor);
            }
            open
        });
    }

    /// Takes this incarnation out, if it is still the one.
    pub fn vacate(&self, dead: ActorId) {
        self.state.send_if_modified(|state| {
            let current = matches!(state, State::Live(actor) if actor.get_id() == dead);
            if current {
                *state = State::Vacant;
            }
            current
        });
    }

    /// Nobody will come any more.
    pub fn close(&self) {
        self.state.send_replace(State::Closed);
    }

    /// Whether nobody will come any more.
    pub fn is_closed(&self) -> bool {
        matches!(&*self.state.borrow(), State::Closed)
    }

    /// The current incarnation, if one lives.
    pub fn live(&self) -> Option<ActorRef<M>> {
        match &*self.state.borrow() {
            State::Live(actor) => Some(actor.clone()),
            _ => None,
        }
    }

    /// Sends to the current incarnation; gives the message back if there is none. No incarnation
    /// after it will see the message.
    pub fn cast(&self, message: M) -> Result<(), M> {
        let Some(actor) = self.live() else { return Err(message) };
        actor.cast(message).map_err(|fault| match fault {
            ractor::MessagingErr::SendErr(message) => message,
            fault => unreachable!("a typed send fails only with its message: {fault}"),
        })
    }

    /// Waits for an incarnation other than `stale`.
    pub async fn next(&self, stale: Option<ActorId>) -> Result<ActorRef<M>, Gone> {
        let mut states = self.state.subscribe();
        let state = states
            .wait_for(|state| match state {
                State::Vacant => false,
                State::Live(actor) => Some(actor.get_id()) != stale,
                State::Closed => true,
            })
            .await;
        match state.as_deref() {
            Ok(State::Live(actor)) => Ok(actor.clone()),
            _ => Err(Gone),
        }
    }

    /// Asks, and asks the successor if the actor dies before it answers. `message` is told which
    /// try it is, from 0, so that it can mark a retry.
    ///
    /// Dropping the future abandons the wait; what was asked may still be done.
    pub async fn call<T, F>(&self, mut message: F) -> Result<T, Gone>
    where
        T: Send + 'static,
        F: FnMut(u32, RpcReplyPort<T>) -> M,
    {
        let mut stale = None;
        let mut tries = 0;
        loop {
            let actor = self.next(stale).await?;
            stale = Some(actor.get_id());
            if let Ok(CallResult::Success(answer)) =
                actor.call(|reply| message(tries, reply), None).await
            {
                return Ok(answer);
            }
            tries += 1;
        }
    }
}

impl<M: Message> Default for Slot<M> {
    fn default() -> Self {
        Self::new()
    }
}
