//! Watches a resident child: when it is quiet, what it has claimed, and whether it goes.

use std::sync::Arc;

use playhouse_messages::event::{EventBody, InboxTarget};
use playhouse_plugin_api::{
    agent::{Agent, Disposal},
    watch,
};

use super::{
    machine::{Epoch, Input},
    shell::Shell,
};

/// Looks whenever the child comes to rest, and ends when it goes.
pub(super) async fn watch_child(
    shell: Arc<Shell>,
    child: Agent,
    epoch: Epoch,
    mut looks: watch::Receiver<()>,
) {
    let mut disposal = child.cell().disposal();
    let rests = async {
        while child.when_idle().await.is_ok() {
            let at = observe(&shell, &child, epoch);
            let mut grown = child.session().events(at);
            tokio::select! {
                biased;
                _ = looks.changed() => {}
                _ = grown.next() => {}
            }
        }
        std::future::pending().await
    };
    let left = tokio::select! {
        biased;
        left = disposal.wait_for(|state| *state != Disposal::Live) => left.map(|state| *state),
        () = rests => return,
    };
    let keep_inbox = !matches!(left, Ok(Disposal::Disposing { keep_inbox: false }));
    shell.input(Input::Leaving { child: child.id().clone(), epoch, keep_inbox });
}

/// Tells what the child is at; returns the length of the log that says so.
fn observe(shell: &Arc<Shell>, child: &Agent, epoch: Epoch) -> u64 {
    let view = child.session().view();
    let lists = [InboxTarget::NextTurn, InboxTarget::NextStep];
    let pending = lists.iter().flat_map(|list| view.inbox.list(*list));
    let pending = pending.map(|message| message.id.clone()).collect();
    // It may have begun another turn since it was at rest.
    let last = view.log.iter().rev().find_map(|event| match &event.body {
        EventBody::TurnStart(_) => Some(false),
        EventBody::TurnEnd(_) => Some(true),
        _ => None,
    });
    let (at, quiet) = (view.log.len(), last.unwrap_or(true));
    let child = child.id().clone();
    shell.input(Input::Observed { child, epoch, at, pending, quiet });
    at
}
