//! The `ringfile` command.
fn main() {}
