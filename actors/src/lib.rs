//! Who speaks in Playhouse: the actor shells.
