//! How agents come to be, come back and end, and what plugins see of it: over the real actors.

mod creation;
mod hooks;
mod middleware;
mod plugins;
mod prefix;
mod pressure;
mod reference;
mod resume;
pub mod rig;
mod selection;
mod streams;
mod teardown;
mod toy_loop;
mod vetoes;
mod wire;
