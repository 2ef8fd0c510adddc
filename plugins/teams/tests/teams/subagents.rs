//! The numbered scenarios, and what a team promises beside them.

mod board;
mod ends;
mod mail;
mod members;
mod waiting;
