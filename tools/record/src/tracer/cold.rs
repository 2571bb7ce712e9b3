//! Taking files out of the page cache before programs map them.

use super::Tracer;
use super::state::Entry;
use crate::files::FileKey;
use crate::proc::mounts::Served;
use crate::proc::names;
use crate::sys::page_cache::{count, evict};
use crate::sys::{Tid, memory, named};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const PAGE: u64 = 4096;
/// A program names its interpreter in its first page, and the kernel looks no further in a script.
const HEAD: u64 = PAGE;
/// A script may name another script, up to so many.
const MOST_INTERPRETERS: usize = 5;

impl Tracer<'_> {
    /// A thread is about to execute a program: takes that, and what it names as its interpreter, out of the
    /// page cache, if that is wanted.
    pub(super) fn make_program_cold(&mut self, tid: Tid, entry: &Entry) {
        if !self.files.is_cold() {
            return;
        }
        let is_at = entry.number as i64 == libc::SYS_execveat;
        let Some(path) = memory::read_string(tid, entry.args[usize::from(is_at)], PAGE as usize) else {
            return;
        };
        let mut next = Some(PathBuf::from(OsStr::from_bytes(&path)));
        let mut folder = if is_at { entry.args[0] as i32 } else { libc::AT_FDCWD };
        for _ in 0..MOST_INTERPRETERS {
            let Some(path) = next.take() else { return };
            let mounts = &mut self.files.mounts;
            let Some(found) = names::find(mounts, tid, folder, &path) else { return };
            // A script names its interpreter from the working directory on.
            folder = libc::AT_FDCWD;
            if mounts.of_own(tid, &found) != Served::Here {
                return;
            }
            let Some(facts) = named::look_at(&found) else { return };
            let Some(mut file) = named::open_regular(&found) else { return };
            if self.files.table.get(FileKey::of(&facts)).is_some() {
                return;
            }
            let mut head = Vec::new();
            if (&mut file).take(HEAD).read_to_end(&mut head).is_ok() {
                next = interpreter(&head).map(|name| PathBuf::from(OsStr::from_bytes(name)));
            }
            self.make_cold(&file, facts.bytes, &path);
        }
    }

    /// Takes a file out of the page cache, and notes if that cannot be.
    pub(super) fn make_cold(&mut self, file: &File, bytes: u64, path: &Path) {
        let pages = bytes.div_ceil(PAGE).max(1);
        if count(file, 0, pages).is_ok_and(|counted| counted.dirty > 0) {
            // What cannot be written stays, which is noted below.
            drop(file.sync_data());
        }
        drop(evict(file));
        let left = count(file, 0, pages).map_or(0, |counted| counted.cached);
        if left > 0 {
            self.files.stays_warm(path, left);
        }
    }
}

/// The interpreter that the first bytes of a program name.
fn interpreter(head: &[u8]) -> Option<&[u8]> {
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii_start();
        let name = line.split(u8::is_ascii_whitespace).next()?;
        return (!name.is_empty()).then_some(name);
    }
    // A 64-bit ELF file: where its segments are listed, how long an entry is, and how many there are.
    const INTERPRETER: u32 = 3;
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let word = |at: usize| head.get(at..at + 8)?.first_chunk().map(|word| u64::from_le_bytes(*word));
    let half = |at: usize| head.get(at..at + 2)?.first_chunk().map(|half| u16::from_le_bytes(*half));
    let (list, size, segments) = (word(32)? as usize, half(54)?, half(56)?);
    let at = |number: u16| list.checked_add(usize::from(number) * usize::from(size));
    let kind = |at: usize| Some(u32::from_le_bytes(*head.get(at..at.checked_add(4)?)?.first_chunk()?));
    let found = (0..segments).filter_map(at).find(|&at| kind(at) == Some(INTERPRETER))?;
    let (start, bytes) = (word(found + 8)? as usize, word(found + 32)? as usize);
    let name = head.get(start..start.checked_add(bytes)?)?;
    Some(name.strip_suffix(b"\0").unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_scripts_name_their_interpreters() {
        assert_eq!(interpreter(b"#! /bin/sh -e\necho"), Some(&b"/bin/sh"[..]));
        assert_eq!(interpreter(b"#!/usr/bin/env python3"), Some(&b"/usr/bin/env"[..]));
        for none in [&b"#!\n/x"[..], b"", b"text", b"\x7fELF\x02\x01"] {
            assert_eq!(interpreter(none), None);
        }
        let program = std::fs::read("/proc/self/exe").unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        if let Some(name) = interpreter(&program[..HEAD as usize]) {
            assert!(name.starts_with(b"/"), "{}", String::from_utf8_lossy(name));
            assert!(maps.contains("ld"), "it is mapped, by this name or another");
        }
        // Lengths and places that are not there.
        let mut hostile = program[..HEAD as usize].to_vec();
        for at in [32, 54, 56] {
            hostile[at..at + 2].fill(0xff);
            interpreter(&hostile);
        }
    }
}
