//! Text of others on a terminal: names of files, arguments of programs, words in a recording.
//!
//! A terminal obeys control characters, and shows text in another order after some of Unicode's. Who names a
//! file could move the cursor, write over what is there, or type for the user. So such characters are printed
//! as escapes, at two places: names by [`Shown`], line ends included, where they become part of a text, and
//! all that is printed once more by [`Printed`], so that a name that was forgotten does no harm.

use std::ffi::OsStr;
use std::fmt::{self, Display, Write};
use std::os::unix::ffi::OsStrExt;

/// A name or an argument as it is shown: on one line, without control characters, and with what is not UTF-8
/// as `\xNN`.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'t>(&'t [u8]);

impl<'t> Shown<'t> {
    /// Of a string or a path.
    pub fn new(text: &'t (impl AsRef<OsStr> + ?Sized)) -> Self {
        Self(text.as_ref().as_bytes())
    }

    /// Of the bytes of a recording.
    pub fn bytes(bytes: &'t [u8]) -> Self {
        Self(bytes)
    }
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            Escaping { out: f, manner: Manner::Line }.write_str(chunk.valid())?;
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// How a text is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// On one line: line ends are escaped, too.
    Line,
    /// In lines, with tabs.
    Lines,
    /// As JSON, in which control characters are in strings only: escaped as JSON has it.
    Json,
}

/// A text as it is printed.
#[derive(Clone, Copy, Debug)]
pub struct Printed<T>(pub T, pub Manner);

impl<T: Display> Display for Printed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text, manner) = self;
        write!(Escaping { out: f, manner: *manner }, "{text}")
    }
}

/// Whether a terminal, or a reader of the text, would be misled by this character.
fn is_harmful(letter: char) -> bool {
    // C0, DEL and C1.
    letter.is_control()
        || matches!(
            letter,
            // Marks, embeddings, overrides and isolates of the direction; line and paragraph separators.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // What cannot be seen: two names that look the same.
            | '\u{ad}' | '\u{200b}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// Writes on, with escapes.
struct Escaping<'o, W: ?Sized> {
    out: &'o mut W,
    manner: Manner,
}

impl<W: Write + ?Sized> Escaping<'_, W> {
    fn escape(&mut self, letter: char) -> fmt::Result {
        match self.manner {
            Manner::Json => {
                letter.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(self.out, "\\u{unit:04x}"))
            }
            // \n, \t, \r, and \u{1b} and the like.
            Manner::Line | Manner::Lines => write!(self.out, "{}", letter.escape_default()),
        }
    }
}

impl<W: Write + ?Sized> Write for Escaping<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        let manner = self.manner;
        let is_escaped =
            |letter| is_harmful(letter) && (manner == Manner::Line || !matches!(letter, '\n' | '\t'));
        while let Some((place, letter)) = rest.char_indices().find(|(_, letter)| is_escaped(*letter)) {
            self.out.write_str(&rest[..place])?;
            self.escape(letter)?;
            rest = &rest[place + letter.len_utf8()..];
        }
        self.out.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn names_are_one_line_without_control_characters() {
        for (name, shown) in [
            ("ls", "ls"),
            ("größe 中文 a\\b", "größe 中文 a\\b"),
            ("a\u{1b}]0;title\u{7}", "a\\u{1b}]0;title\\u{7}"),
            ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{7f}", "\\u{7f}"),
            ("gnp.\u{202e}exe", "gnp.\\u{202e}exe"),
            ("a\u{2066}b\u{2069}\u{200f}\u{2028}", "a\\u{2066}b\\u{2069}\\u{200f}\\u{2028}"),
            ("a\u{200b}\u{e0041}", "a\\u{200b}\\u{e0041}"),
        ] {
            assert_eq!(Shown::new(Path::new(name)).to_string(), shown);
            assert_eq!(Printed(name, Manner::Line).to_string(), shown);
        }
        assert_eq!(Shown::bytes(b"a\xff\x9b\x1bz").to_string(), "a\\xff\\x9b\\u{1b}z");
    }

    #[test]
    fn printed_text_keeps_its_lines() {
        assert_eq!(Printed("a\n\u{1b}[2J\tb\n", Manner::Lines).to_string(), "a\n\\u{1b}[2J\tb\n");
    }

    #[test]
    fn json_stays_json() {
        let printed = Printed("{\"a\":\"\u{9b}\u{202e}\u{e0041}\\u001b\"}", Manner::Json).to_string();
        assert_eq!(printed, "{\"a\":\"\\u009b\\u202e\\udb40\\udc41\\u001b\"}");
    }
}
