//! How agents come to be, come back and end, and what plugins see of it: over the real actors.

mod creation;
mod hooks;
mod plugins;
mod reference;
mod resume;
mod rig;
mod streams;
mod teardown;
mod toy_loop;
mod vetoes;
mod wire;
