//! What is printed.

pub(crate) mod advice;
mod advice_limits;
pub(crate) mod comparison;
pub(crate) mod costs;
pub(crate) mod dump;
pub(crate) mod json;
pub(crate) mod progress;
pub(crate) mod spark;
pub(crate) mod table;
pub(crate) mod techniques;

use crate::exit::FOUND_FAILURE;
use std::io::{ErrorKind, Write};

/// Prints `text` and a line end to standard output. If the reader has closed the pipe, the program ends there
/// with success. Any other error, such as a full disk, ends it with a message and a failure.
pub(crate) fn say(text: impl std::fmt::Display) {
    if let Err(error) = writeln!(std::io::stdout(), "{text}") {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("quire: standard output: {error}");
        std::process::exit(i32::from(FOUND_FAILURE));
    }
}

/// The widest line of a text.
const WIDTH: usize = 100;

/// Prints a text in lines that end between words.
fn say_wrapped(text: &str) {
    wrapped(text, WIDTH).iter().for_each(say);
}

/// The words of `text` in lines of at most `width` characters, if no word is longer.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut().filter(|line| line.chars().count() + 1 + word.chars().count() <= width) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("one twothreefour", 7), ["one", "twothreefour"]);
    }
}
