//! The command, as its users see it.
