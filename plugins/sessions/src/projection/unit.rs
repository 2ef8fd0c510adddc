//! What a projection is, and its form without types.

use std::any::Any;

use playhouse_messages::event::Event;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// A fold of a session's log.
///
/// Folding is pure, synchronous and total. A projection that panics is given up for that session and
/// reported by [`ProjectionError::Failed`](super::ProjectionError::Failed); the others go on.
///
/// ```
/// use playhouse_messages::event::{Event, EventBody};
/// use playhouse_sessions::Projection;
/// use serde_json::Value;
///
/// /// Counts turns.
/// struct Turns;
///
/// impl Projection for Turns {
///     type State = u64;
///
///     fn key(&self) -> &str {
///         "turns"
///     }
///
///     fn version(&self) -> u32 {
///         1
///     }
///
///     fn init(&self) -> u64 {
///         0
///     }
///
///     fn apply(&self, turns: &mut u64, event: &Event) -> bool {
///         let ended = matches!(event.body, EventBody::TurnEnd(_));
///         *turns += u64::from(ended);
///         ended
///     }
///
///     fn view(&self, turns: &u64) -> Option<Value> {
///         Some((*turns).into())
///     }
/// }
/// ```
pub trait Projection: Send + Sync + 'static {
    /// What is folded. Its JSON is what a cache keeps.
    type State: Serialize + DeserializeOwned + Clone + Send + Sync + 'static;

    /// Unique among the registered projections.
    fn key(&self) -> &str;

    /// Moves when the state's meaning or shape changes; cached states of another version are folded
    /// anew.
    fn version(&self) -> u32;

    /// The kinds of events that can change the state; `None` for any. Events of other kinds may be
    /// passed over unread.
    fn kinds(&self) -> Option<&[&str]> {
        None
    }

    /// The state of an empty log.
    fn init(&self) -> Self::State;

    /// Folds one event, and says whether the state is another one now.
    fn apply(&self, state: &mut Self::State, event: &Event) -> bool;

    /// The whole value that others are shown; `None`, the default, for a projection of the host's own.
    fn view(&self, _state: &Self::State) -> Option<Value> {
        None
    }
}

pub(super) type AnyState = Box<dyn Any + Send + Sync>;

/// A projection without types.
pub(super) trait Unit: Send + Sync {
    fn name(&self) -> &str;
    fn state_version(&self) -> u32;
    fn reads(&self, kind: &str) -> bool;
    fn start(&self) -> AnyState;
    fn fold(&self, state: &mut AnyState, event: &Event) -> bool;
    fn show(&self, state: &AnyState) -> Option<Value>;
    fn save(&self, state: &AnyState) -> Result<Value, serde_json::Error>;
    fn load(&self, state: &Value) -> Result<AnyState, serde_json::Error>;
}

/// The state of `P`, which made it.
fn typed<P: Projection>(state: &AnyState) -> &P::State {
    let state = (**state).downcast_ref();
    state.unwrap_or_else(|| unreachable!("a unit is only given states that it made"))
}

impl<P: Projection> Unit for P {
    fn name(&self) -> &str {
        self.key()
    }

    fn state_version(&self) -> u32 {
        self.version()
    }

    fn reads(&self, kind: &str) -> bool {
        self.kinds().is_none_or(|kinds| kinds.contains(&kind))
    }

    fn start(&self) -> AnyState {
        Box::new(self.init())
    }

    fn fold(&self, state: &mut AnyState, event: &Event) -> bool {
        let state = (**state).downcast_mut();
        let state = state.unwrap_or_else(|| unreachable!("a unit is only given states it made"));
        self.apply(state, event)
    }

    fn show(&self, state: &AnyState) -> Option<Value> {
        self.view(typed::<P>(state))
    }

    fn save(&self, state: &AnyState) -> Result<Value, serde_json::Error> {
        serde_json::to_value(typed::<P>(state))
    }

    fn load(&self, state: &Value) -> Result<AnyState, serde_json::Error> {
        let state: P::State = serde::Deserialize::deserialize(state)?;
        Ok(Box::new(state))
    }
}
