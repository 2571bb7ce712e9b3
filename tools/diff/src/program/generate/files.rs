//! Random calls about the file.

use super::super::names::*;
use super::super::{Call, Word};
use super::arguments::{with_offset, words};
use super::{Generator, PAGE};

/// What the descriptors of calls about the file are: mostly one that allows all of them.
const DESCRIPTORS: [u32; 12] =
    [FILE, FILE, FILE, FILE, FILE, FILE, FILE, READ_ONLY, READ_ONLY, WRITE_ONLY, PATH_ONLY, 999];

/// Modes that are refused, one for not being known.
const ODD_MODES: &[u64] = &[
    FALLOC_FL_PUNCH_HOLE,
    FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_INSERT_RANGE | FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_ZERO_RANGE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_UNSHARE_RANGE,
    FALLOC_FL_UNSHARE_RANGE | FALLOC_FL_KEEP_SIZE,
    4,
];

impl Generator {
    pub(super) fn file_call(&mut self) -> (Call, [Word; 6]) {
        let file = Word::Exact(self.random.pick(&DESCRIPTORS).into());
        let least = if self.theme.changes_file { 0 } else { 100 };
        match self.random.below(100) + least {
            0..28 | 100..150 => self.transfer(Call::Pread, file),
            28..56 => self.transfer(Call::Pwrite, file),
            56..70 => (Call::Ftruncate, words([file, Word::Exact(self.file_size())])),
            70..96 => self.fallocate(file),
            _ => (Call::Fsync, words([file])),
        }
    }

    /// Bytes between the file and memory: of the same offset in a page, so that a program that copies a page
    /// of the file to itself finds it as it was.
    pub(super) fn transfer(&mut self, call: Call, file: Word) -> (Call, [Word; 6]) {
        let offset = match self.random.below(20) {
            0 => u64::MAX - self.random.below(2 * PAGE),
            _ => self.file_offset(),
        };
        let addr = with_offset(self.address(), |at| at & !(PAGE - 1) | offset & (PAGE - 1));
        let len = match self.random.below(20) {
            0 => 0,
            1..8 => self.random.below(64),
            8..15 => self.random.below(3 * PAGE),
            _ => (1 + self.random.below(8)) * PAGE,
        };
        (call, words([file, addr, Word::Exact(len), Word::Exact(offset)]))
    }

    fn fallocate(&mut self, file: Word) -> (Call, [Word; 6]) {
        let mode = match self.random.below(20) {
            0..7 => FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            7..9 => FALLOC_FL_ZERO_RANGE,
            9..11 => FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
            11..14 => FALLOC_FL_COLLAPSE_RANGE,
            14..17 => FALLOC_FL_INSERT_RANGE,
            17 => 0,
            18 => FALLOC_FL_KEEP_SIZE,
            _ => self.random.pick(ODD_MODES),
        };
        let offset = match self.random.below(40) {
            0 => u64::MAX - self.random.below(2 * PAGE),
            // No file can have an end behind that.
            1 => (1 << 63) - 1,
            _ => self.file_offset(),
        };
        let moves = mode & (FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE) != 0;
        // These are refused where they begin or end within a page, mostly.
        let offset = if moves && self.random.chance(80) { offset & !(PAGE - 1) } else { offset };
        let len = match self.random.below(20) {
            0 => 0,
            // Past the end, or up to its page.
            1 if !moves => MOST_FILE_BYTES,
            1 => (FILE_BYTES & !(PAGE - 1)).saturating_sub(offset),
            2..8 if !moves || self.random.chance(20) => self.random.below(3 * PAGE),
            _ => (1 + self.random.below(8)) * PAGE,
        };
        // What is left of a word begins as a whole one does.
        let len = if self.theme.executes { len & !7 } else { len };
        let mode = Word::Exact(mode | self.odd_int());
        (Call::Fallocate, words([file, mode, Word::Exact(offset), Word::Exact(len)]))
    }

    /// A byte of the file, or a little past its first end.
    fn file_offset(&mut self) -> u64 {
        let most = if self.theme.large_file && self.random.chance(60) { 800 } else { 48 };
        let page = self.random.below(most) * PAGE;
        match self.random.below(10) {
            0..5 => page,
            5 => self.theme.store.file_bytes() & !7,
            _ if self.theme.executes => page + self.random.below(PAGE / 8) * 8,
            _ => page + self.random.below(PAGE),
        }
    }

    /// A new size: mostly near the first one, so that mappings have pages on both sides of the end.
    fn file_size(&mut self) -> u64 {
        match self.random.below(20) {
            0 => 0,
            1 => u64::MAX - self.random.below(PAGE),
            2 => MOST_FILE_BYTES - self.random.below(PAGE),
            3..8 => self.theme.store.file_bytes(),
            _ => self.file_offset(),
        }
    }
}
