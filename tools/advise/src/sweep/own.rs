//! Whose result a file has: a line replaces its own one only.

use super::line::{LINE_START, Recording};
use super::request::{Number, Request};
use crate::identity::Identity;
use serde::de::DeserializeOwned;
use std::fmt;
use std::path::Path;

/// Whose result it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    number: Option<Number>,
    file: String,
    sha256: String,
    asked: Request,
}

/// The value at the start of `text` behind `key`, and what follows it.
fn value<'t, T: DeserializeOwned>(text: &'t str, key: &str) -> Option<(T, &'t str)> {
    let rest = text.strip_prefix(key)?;
    let mut values = serde_json::Deserializer::from_str(rest).into_iter();
    let value = values.next()?.ok()?;
    Some((value, &rest[values.byte_offset()..]))
}

impl Owner {
    /// Of the only result in this text, whole or cut. None if its start does not say, or something follows.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        let version = first.strip_prefix(LINE_START)?;
        let first = version.trim_start_matches(|digit: char| digit.is_ascii_digit());
        let (_, first) = value::<String>(first, ",\"quire\":")?;
        let (number, first) = value(first, ",\"number\":")?;
        let (recording, first) = value::<Recording>(first, ",\"recording\":")?;
        let (asked, _) = value(first, ",\"asked\":")?;
        let Recording { file, sha256, .. } = recording;
        // Others may be joined to it without a line end.
        let is_only = rest.is_empty() && !text[LINE_START.len()..].contains(LINE_START);
        is_only.then_some(Self { number, file, sha256, asked })
    }

    /// Whether a line may replace it: one of this number, or without one of this recording that asks for
    /// this.
    #[must_use]
    pub fn is(&self, number: Option<&Number>, file: &Path, asked: &Request) -> bool {
        let is_of = || Identity::of_file(file).is_ok_and(|identity| identity.digits() == self.sha256);
        self.number.as_ref() == number && (number.is_some() || (self.asked == *asked && is_of()))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, file, asked, .. } = self;
        let whose = match number {
            Some(Number { line, of, sweep }) => format!("the result of line {line} of {of} of sweep {sweep}"),
            None => "a result of no sweep".to_owned(),
        };
        write!(f, "{whose}, of {file} under {}", asked.told())
    }
}
