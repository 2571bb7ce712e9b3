//! Recordings of one program: of one command, made under one setting of huge pages.

use crate::predict::{command, present};
use quire_trace::format::TraceHeader;

/// What recordings of one program have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    command: Vec<Box<[u8]>>,
    /// The files of the setting, and their words.
    setting: Vec<(String, String)>,
}

impl Key {
    pub(super) fn of(header: &TraceHeader) -> Self {
        let setting = present(header).files(|_| true);
        Self { command: header.command.clone(), setting }
    }
}

/// What `files` has in messages: the command, shortened.
pub(super) fn name(header: &TraceHeader) -> String {
    const MOST: usize = 60;
    let words = command(header);
    if words.chars().count() <= MOST {
        return words;
    }
    words.chars().take(MOST - 3).chain("...".chars()).collect()
}
