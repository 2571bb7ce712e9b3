//! What is printed.

pub(crate) mod advice;
mod columns;
pub(crate) mod comparison;
pub(crate) mod costs;
pub(crate) mod dump;
pub(crate) mod fleet;
pub(crate) mod json;
mod losses;
pub(crate) mod progress;
mod quantity;
pub(crate) mod replay;
pub(crate) mod spark;
pub(crate) mod techniques;

use crate::failure::FOUND_FAILURE;
use quire_output::{Manner, Printed, Shown};
use std::fmt::{Arguments, Display};
use std::io::{ErrorKind, Write};

/// Prints `text`, of one or more lines, and a line end to standard output. If the reader has closed the pipe,
/// the program ends there with success. Any other error, such as a full disk, ends it with a message and a
/// failure.
pub(crate) fn say(text: impl Display) {
    put(Printed(text, Manner::Lines));
}

/// Prints a text in which names of others may be: on one line.
fn say_line(text: impl Display) {
    put(Printed(text, Manner::Line));
}

/// Prints JSON.
pub(crate) fn say_json(object: impl Display) {
    put(Printed(object, Manner::Json));
}

/// Prints a line as it is: a command with names that were looked at.
pub(crate) fn say_bytes(line: &[u8]) {
    ended(std::io::stdout().write_all(&[line, b"\n"].concat()));
}

fn put(text: impl Display) {
    ended(writeln!(std::io::stdout(), "{text}"));
}

fn ended(written: std::io::Result<()>) {
    if let Err(error) = written {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        warn(format_args!("standard output: {error}"));
        std::process::exit(i32::from(FOUND_FAILURE));
    }
}

/// Says something on stderr, on one line.
pub(crate) fn warn(line: impl Display) {
    complain(format_args!("quire: {}\n", Printed(line, Manner::Line)));
}

/// Prints lines on stderr that tell of a recording: standard output is the program's.
pub(crate) fn tell(lines: impl Display) {
    complain(format_args!("{}", Printed(lines, Manner::Lines)));
}

/// Prints to the standard error output. If that cannot be written, as it is for a pipe whose reader is gone
/// or on a full disk, the work and its exit code are worth more than the message.
fn complain(text: Arguments<'_>) {
    let _ = std::io::stderr().write_fmt(text);
}

/// The words of a command, on one line.
pub(crate) fn command_line(words: &[Box<[u8]>]) -> String {
    words.iter().map(|word| Shown::bytes(word).to_string()).collect::<Vec<_>>().join(" ")
}

/// A text on one line of at most so many letters.
fn shorten(text: &str, most: usize) -> String {
    let text = Printed(text, Manner::Line).to_string();
    if text.chars().count() <= most {
        return text;
    }
    text.chars().take(most - 3).chain("...".chars()).collect()
}

/// The widest line of a text.
const WIDTH: usize = 100;

/// Prints a text in lines that end between words.
fn say_wrapped(text: &str) {
    wrapped(text, WIDTH).iter().for_each(say_line);
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
