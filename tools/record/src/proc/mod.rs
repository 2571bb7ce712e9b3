//! What `/proc` says about processes and the machine.
//!
//! The parsers are our own: names of threads and of mapped files may be any bytes, and crates that read these
//! files reject lines that are not UTF-8.

mod counted;
pub(crate) mod files;
pub(crate) mod maps;
pub(crate) mod mounts;
pub(crate) mod names;
pub(crate) mod pagemap;
pub(crate) mod status;
pub(crate) mod system;
pub(crate) mod trial;

use super::sys::Tid;
use std::fs;

/// The contents of a file about a thread; empty if the thread has ended.
pub(crate) fn read(tid: Tid, name: &str) -> Vec<u8> {
    fs::read(format!("/proc/{tid}/{name}")).unwrap_or_default()
}

/// The text of a file about a thread; empty if the thread has ended.
pub(crate) fn text(tid: Tid, name: &str) -> String {
    String::from_utf8_lossy(&read(tid, name)).into_owned()
}

/// Text with lines such as `Key: value`.
#[derive(Debug)]
pub(crate) struct Keyed(pub(crate) String);

impl Keyed {
    /// `/proc/TID/status`; empty if the thread has ended.
    pub(crate) fn status(tid: Tid) -> Self {
        Self(text(tid, "status"))
    }

    /// The words of a line.
    pub(crate) fn words(&self, key: &str) -> impl Iterator<Item = &str> {
        let value = self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        value.unwrap_or_default().split_whitespace()
    }

    /// The first word of a line.
    pub(crate) fn word(&self, key: &str) -> Option<&str> {
        self.words(key).next()
    }

    /// A number.
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.word(key)?.parse().ok()
    }

    /// A size in bytes (the file has kB); 0 if there is none.
    pub(crate) fn bytes(&self, key: &str) -> u64 {
        self.number(key).map_or(0, |kib| kib * 1024)
    }
}
