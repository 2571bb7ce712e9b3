//! What is printed.

pub(crate) mod comparison;
pub(crate) mod dump;
pub(crate) mod json;
pub(crate) mod progress;
pub(crate) mod table;

use std::io::Write;

/// Prints `text` and a line end to standard output. Whoever closed the other end of a pipe does not want the rest,
/// so the program ends there, and well.
pub(crate) fn say(text: impl std::fmt::Display) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}
