//! The machine over a session, driven by hand.
//!
//! Observers are asynchronous here, so where a specified window lies inside an observer of an
//! event, a test announces the cancel between the command that commits the event and its reply.

mod crash;
mod interleavings;
mod judge;
mod lives;
mod ops;
mod others;
mod rig;
mod theorem;
mod trace;
mod windows;
mod work;
mod world;

mod scenario {
    mod basics;
    mod cancel;
    mod endings;
    mod errors;
    mod requests;
    mod tools;
}
