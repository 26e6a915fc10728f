//! The `latermq` command.

fn main() {}
