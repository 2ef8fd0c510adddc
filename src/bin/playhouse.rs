//! The `playhouse` command.
fn main() {}
