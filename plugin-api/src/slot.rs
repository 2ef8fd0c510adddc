//! Slots: how an actor is reached over its restarts.
//!
//! A raw actor reference goes stale when its actor dies. A slot is filled again by the supervisor
//! with the successor, and closed when there will be none.

use crate::watch;
use ractor::{ActorId, ActorRef, Message, RpcReplyPort};

/// Where the current incarnation of an actor stands.
#[derive(Debug)]
pub struct Slot<M: Message> {
    state: watch::Sender<State<M>>,
}

#[derive(Debug)]
enum State<M: Message> {
    Vacant,
    Live(ActorRef<M>),
    /// It lives, and who would ask it waits.
    Paused(ActorRef<M>),
    Closed,
}

impl<M: Message> Clone for State<M> {
    fn clone(&self) -> Self {
        match self {
            Self::Vacant => Self::Vacant,
            Self::Live(actor) => Self::Live(actor.clone()),
            Self::Paused(actor) => Self::Paused(actor.clone()),
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
            let current = matches!(
                state,
                State::Live(actor) | State::Paused(actor) if actor.get_id() == dead
            );
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
            State::Live(actor) | State::Paused(actor) => Some(actor.clone()),
            _ => None,
        }
    }

    /// Holds back everybody who would ask the current incarnation, if one lives, until the pause is
    /// dropped: what was asked before is in its mailbox, and nothing comes after. What is sent
    /// without an answer goes on.
    pub fn pause(&self) -> Option<Pause<'_, M>> {
        let mut paused = None;
        self.state.send_if_modified(|state| {
            if let State::Live(actor) = state {
                paused = Some(actor.clone());
                *state = State::Paused(actor.clone());
            }
            paused.is_some()
        });
        paused.map(|actor| Pause { slot: self, actor })
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
                State::Vacant | State::Paused(_) => false,
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
            let (reply, answer) = tokio::sync::oneshot::channel();
            if !self.ask(&actor, || message(tries, reply.into())) {
                continue;
            }
            if let Ok(answer) = answer.await {
                return Ok(answer);
            }
            stale = Some(actor.get_id());
            tries += 1;
        }
    }

    /// Sends, unless the slot has been paused or filled anew meanwhile: under its lock, so that a
    /// pause knows that nothing comes after it. One that is dead drops the message.
    fn ask(&self, actor: &ActorRef<M>, message: impl FnOnce() -> M) -> bool {
        let state = self.state.borrow();
        let current = matches!(&*state, State::Live(now) if now.get_id() == actor.get_id());
        if current {
            let _ = actor.cast(message());
        }
        current
    }
}

/// An incarnation that nobody can ask but who holds this.
#[derive(Debug)]
pub struct Pause<'a, M: Message> {
    slot: &'a Slot<M>,
    actor: ActorRef<M>,
}

impl<M: Message> Pause<'_, M> {
    /// The incarnation.
    pub fn actor(&self) -> &ActorRef<M> {
        &self.actor
    }
}

impl<M: Message> Drop for Pause<'_, M> {
    fn drop(&mut self) {
        // One that died, or whose slot was closed, is not brought back.
        self.slot.state.send_if_modified(|state| {
            let paused = matches!(state, State::Paused(now) if now.get_id() == self.actor.get_id());
            if paused {
                *state = State::Live(self.actor.clone());
            }
            paused
        });
    }
}

impl<M: Message> Default for Slot<M> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, poll};
    use ractor::{Actor, ActorProcessingErr};

    use super::*;

    enum Ask {
        Count(RpcReplyPort<u32>),
        Add,
    }

    impl Message for Ask {}

    struct Counter;

    impl Actor for Counter {
        type Msg = Ask;
        type State = u32;
        type Arguments = ();

        async fn pre_start(&self, _: ActorRef<Ask>, (): ()) -> Result<u32, ActorProcessingErr> {
            Ok(0)
        }

        async fn handle(
            &self,
            _: ActorRef<Ask>,
            ask: Ask,
            count: &mut u32,
        ) -> Result<(), ActorProcessingErr> {
            match ask {
                Ask::Count(reply) => drop(reply.send(*count)),
                Ask::Add => *count += 1,
            }
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_pause_holds_back_who_asks_and_lets_go_of_them() {
        let (actor, _) = Actor::spawn(None, Counter, ()).await.unwrap();
        let slot = Slot::new();
        assert!(slot.pause().is_none(), "nobody to pause");
        slot.fill(actor.clone());
        let mut before = slot.call(|_, reply| Ask::Count(reply)).boxed();
        assert!(poll!(&mut before).is_pending());
        let pause = slot.pause().unwrap();
        assert!(slot.pause().is_none(), "one at a time");
        let mut after = slot.call(|_, reply| Ask::Count(reply)).boxed();
        assert!(poll!(&mut after).is_pending());
        assert!(slot.cast(Ask::Add).is_ok());
        let answer = pause.actor().call(Ask::Count, None).await.unwrap();
        assert!(matches!(answer, ractor::rpc::CallResult::Success(1)));
        assert_eq!(before.await, Ok(0), "it was asked before the pause");
        assert!(poll!(&mut after).is_pending());
        drop(pause);
        assert_eq!(after.await, Ok(1));

        // A slot that was closed meanwhile stays closed, and those who wait learn it.
        let pause = slot.pause().unwrap();
        let mut late = slot.call(|_, reply| Ask::Count(reply)).boxed();
        assert!(poll!(&mut late).is_pending());
        slot.close();
        assert_eq!(late.await, Err(Gone));
        drop(pause);
        assert!(slot.is_closed());
        actor.stop(None);
    }
}
