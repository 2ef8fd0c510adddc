//! What is below a supervisor: how it stops it, and how much it is.

use futures::future::join_all;
use ractor::{ActorCell, ActorStatus};

/// Stops all children, and waits until each has done what it was at. They are told in the order in
/// which they were started; ractor keeps them in none.
pub(crate) async fn stop_children(parent: &ActorCell) {
    let mut children = parent.get_children();
    children.sort_by_key(ActorCell::get_id);
    // One that is dead already cannot be stopped.
    join_all(children.iter().map(|child| child.stop_and_wait(None, None))).await;
}

/// How many actors live at and below this one.
pub(crate) fn count(actor: &ActorCell) -> usize {
    let lives = actor.get_status() < ActorStatus::Stopping;
    usize::from(lives) + actor.get_children().iter().map(count).sum::<usize>()
}
