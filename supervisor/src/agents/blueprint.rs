//! What a blueprint says of an agent.

use playhouse_messages::{chunk::Failure, header::SessionHeader};
use playhouse_plugin_api::{
    blueprint::Blueprint, creation::NewAgent, options::AgentOptions, world::World,
};

/// The request with all that its blueprint says.
pub(super) fn applied(world: &World, mut new: NewAgent) -> Result<NewAgent, Failure> {
    let Some(name) = &new.blueprint else { return Ok(new) };
    let Some(Blueprint { options, owner, within, set_up, .. }) = world.blueprints.get(name) else {
        let text = format!(
            "no blueprint \"{name}\" is registered; register it, under the name that the session \
             knows, before agents are made from it"
        );
        return Err(Failure::new("UNKNOWN_BLUEPRINT", text));
    };
    let has_own = new.options != AgentOptions::default();
    if has_own || new.owner.is_some() || new.within.is_some() || new.set_up.is_some() {
        // They would be gone with its first life.
        let text = format!(
            "options, owner, scope and set-up are those of blueprint \"{name}\"; leave them out, \
             or register another blueprint"
        );
        return Err(Failure::new("INVALID_ARGUMENT", text));
    }
    (new.options, new.owner, new.within, new.set_up) = (options, owner, within, set_up);
    Ok(new)
}

/// A session is made anew from the blueprint that it was made from, or from none.
pub(super) fn check(new: &NewAgent, header: &SessionHeader) -> Result<(), Failure> {
    let Some(name) = &new.blueprint else { return Ok(()) };
    if header.blueprint.as_ref() == Some(name) {
        return Ok(());
    }
    let made = header.blueprint.as_ref().map_or("none".to_owned(), |made| format!("\"{made}\""));
    let text = format!(
        "session `{}` was made from blueprint {made}, not from \"{name}\"; resume it with that, or \
         with options of its own",
        header.id
    );
    Err(Failure::new("INVALID_ARGUMENT", text))
}
