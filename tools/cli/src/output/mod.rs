//! What is printed.

pub(crate) mod advice;
pub(crate) mod comparison;
pub(crate) mod costs;
pub(crate) mod dump;
pub(crate) mod json;
pub(crate) mod progress;
pub(crate) mod table;

use crate::exit::FOUND_FAILURE;
use std::io::{ErrorKind, Write};

/// Prints `text` and a line end to standard output. A reader that closed the pipe does not want the
/// rest, so the program ends there, and well. Any other error, as that of a full disk, ends it with a message
/// and a failure.
pub(crate) fn say(text: impl std::fmt::Display) {
    if let Err(error) = writeln!(std::io::stdout(), "{text}") {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("quire: standard output: {error}");
        std::process::exit(i32::from(FOUND_FAILURE));
    }
}
