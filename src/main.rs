//! The `latermq` command; all of it is in [`latermq::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    latermq::cli::run()
}
