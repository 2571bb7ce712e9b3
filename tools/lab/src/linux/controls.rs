//! Linux's controls of large folios, set for a while.

use super::number;
use crate::folios::Folios;
use arrayvec::ArrayVec;
use core::ffi::CStr;
use quire_arch::Order;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::{pread, pwrite};
use std::ffi::CString;

const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

/// A word without an allocation.
type Word = ArrayVec<u8, 16>;

/// Which files say whether a program may have folios of one size, and how many it got. Made before the
/// process that uses it, since it allocates.
#[derive(Debug)]
pub(super) struct Control(Option<Files>);

#[derive(Debug)]
struct Files {
    enabled: CString,
    made: CString,
}

impl Control {
    /// The control of `folios`.
    pub(super) fn of(folios: Folios) -> Self {
        let folder = format!("{FOLDER}/hugepages-{}kB", folios.bytes() / 1024);
        let name = |file: &str| CString::new(format!("{folder}/{file}")).ok();
        let files = || Some(Files { enabled: name("enabled")?, made: name("stats/anon_fault_alloc")? });
        Self(if folios.order == Order::ZERO { None } else { files() })
    }

    /// Enables the size for all programs that ask for it, until the result is dropped: for as short as
    /// possible, since other programs on the host see it. `None` where that is not possible.
    pub(super) fn set(&self) -> Option<Set> {
        let Some(files) = &self.0 else { return Some(Set { enabled: None, made: None }) };
        let made = open_file(&files.made, OFlags::RDONLY)?;
        let file = open_file(&files.enabled, OFlags::RDWR)?;
        // A second measuring process waits: two that restore what they found would not restore the original.
        flock(&file, FlockOperation::LockExclusive).ok()?;
        let mut text = [0; 64];
        let len = pread(&file, &mut text, 0).ok()?;
        let old = chosen(&text[..len])?;
        let enabled = Enabled { file, old };
        pwrite(&enabled.file, b"madvise", 0).ok()?;
        Some(Set { enabled: Some(enabled), made: Some(made) })
    }
}

fn open_file(path: &CStr, flags: OFlags) -> Option<OwnedFd> {
    open(path, flags | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// A control that is set.
#[derive(Debug)]
pub(super) struct Set {
    /// Held for its drop.
    #[expect(dead_code, reason = "restores the control when it is dropped")]
    enabled: Option<Enabled>,
    made: Option<OwnedFd>,
}

impl Set {
    /// Folios of the size that faults have made so far on the whole host. 0 for single pages.
    pub(super) fn made(&self) -> u64 {
        let Some(file) = &self.made else { return 0 };
        let mut text = [0; 32];
        let len = pread(file, &mut text, 0).unwrap_or(0);
        number(&text[..len])
    }
}

/// Restores the old word when it is dropped.
#[derive(Debug)]
struct Enabled {
    file: OwnedFd,
    old: Word,
}

impl Drop for Enabled {
    fn drop(&mut self) {
        let _ = pwrite(&self.file, &self.old, 0);
    }
}

/// The word in brackets, if it is not too long.
fn chosen(text: &[u8]) -> Option<Word> {
    let start = text.iter().position(|&byte| byte == b'[')? + 1;
    let len = text[start..].iter().position(|&byte| byte == b']')?;
    text[start..start + len].try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_word_is_the_one_in_brackets() {
        let chosen = |text: &str| chosen(text.as_bytes()).map(|word| word.to_vec());
        assert_eq!(chosen("always inherit madvise [never]\n").as_deref(), Some(&b"never"[..]));
        assert_eq!(chosen("[always] madvise").as_deref(), Some(&b"always"[..]));
        for wrong in ["", "always", "[always", "[a word that is too long]"] {
            assert_eq!(chosen(wrong), None, "{wrong}");
        }
    }
}
