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

/// Whether a terminal, or a reader of the text, would be misled by this character: it is obeyed, turns the
/// direction of text, cannot be seen, or is none that Unicode has. Letters and visible marks of all scripts
/// are harmless.
fn is_harmful(letter: char) -> bool {
    if letter.is_ascii() {
        return letter.is_ascii_control();
    }
    is_not_printable(letter) && letter != WIDE_SPACE || is_ignorable(letter)
}

/// The space of scripts whose letters are as wide.
const WIDE_SPACE: char = '\u{3000}';

/// Whether it is, by Unicode's categories, a control or format character, a separator, for private use or
/// unassigned. The standard library has these: it escapes them, and behind another character nothing else
/// that is not ASCII.
fn is_not_printable(letter: char) -> bool {
    let mut text = [b'a', 0, 0, 0, 0];
    let len = 1 + letter.encode_utf8(&mut text[1..]).len();
    // What is no text is not shown either.
    str::from_utf8(&text[..len]).map_or(true, |text| text.escape_debug().nth(1) == Some('\\'))
}

/// Letters, marks and symbols that are shown as nothing (Unicode's Default_Ignorable_Code_Point, without
/// those that are not printable) or as a space.
fn is_ignorable(letter: char) -> bool {
    matches!(
        letter,
        // A joiner, fillers, vowels that are not written, and selectors of variants.
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2800}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}'
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
            ("a\u{200d}b\u{200c}", "a\\u{200d}b\\u{200c}"),
        ] {
            assert_eq!(Shown::new(Path::new(name)).to_string(), shown);
            assert_eq!(Printed(name, Manner::Line).to_string(), shown);
        }
        assert_eq!(Shown::bytes(b"a\xff\x9b\x1bz").to_string(), "a\\xff\\x9b\\u{1b}z");
    }

    #[test]
    fn characters_that_cannot_be_seen_are_escaped() {
        let unseen = [
            // Format characters of all planes; joiners and spaces.
            "\u{ad}\u{600}\u{61c}\u{6dd}\u{70f}\u{8e2}\u{180e}\u{200b}\u{200c}\u{200d}\u{200e}\u{200f}",
            "\u{202a}\u{202e}\u{2060}\u{2064}\u{2066}\u{206f}\u{feff}\u{fff9}\u{fffb}\u{110bd}\u{110cd}",
            "\u{13430}\u{1343f}\u{1bca0}\u{1bca3}\u{1d173}\u{1d17a}\u{e0001}\u{e0020}\u{e007f}",
            "\u{a0}\u{1680}\u{2000}\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{85}\u{2800}",
            // Fillers, vowels without a shape, selectors.
            "\u{34f}\u{115f}\u{1160}\u{17b4}\u{17b5}\u{180b}\u{180f}\u{3164}\u{fe00}\u{fe0f}\u{ffa0}",
            "\u{e0100}\u{e01ef}",
            // For private use, unassigned, and never assigned.
            "\u{e000}\u{f8ff}\u{f0000}\u{10fffd}\u{378}\u{2fe0}\u{2065}\u{fff0}\u{e0000}\u{e0fff}",
            "\u{fdd0}\u{ffff}\u{1ffff}\u{10ffff}\u{50000}",
        ];
        for letter in unseen.concat().chars() {
            let name = format!("a{letter}b");
            assert_eq!(Shown::new(&name).to_string(), format!("a\\u{{{:x}}}b", u32::from(letter)));
        }
    }

    #[test]
    fn letters_and_marks_of_all_scripts_are_shown() {
        for text in [
            "Grüße čeština Ελληνικά Русский עברית العربية हिन्दी ไทย ქართული አማርኛ",
            "中文 日本語\u{3000}한국어",
            // Marks that are seen, by themselves too.
            "e\u{301}o\u{308} \u{301} ש\u{5b8}\u{5c1} ك\u{64e} क\u{93f}\u{902} ก\u{e33}\u{e49}",
            "か\u{3099} x\u{20d7}",
            "│ █ ▁ × ± µ € “quoted” – … 🙂 👍🏽 \"'\\",
            "\u{10400}\u{1e900}\u{12000}\u{20000}\u{30000}",
        ] {
            assert_eq!(Shown::new(text).to_string(), text);
            assert_eq!(Printed(text, Manner::Json).to_string(), text);
        }
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
