//! Operations that are about large folios: whole aligned blocks of 2 MiB, nearly whole ones, and parts of
//! them.

use super::super::names::*;
use super::super::{Call, Word};
use super::arguments::{in_word, with_offset, words};
use super::{Generator, MIB2, NONE, PAGE, PROT_READ_WRITE};

/// Written words that are remembered, to be read again.
const REMEMBERED: usize = 64;

/// What is advised, and how often.
const ADVICE: &[(u64, usize)] = &[
    (MADV_HUGEPAGE, 6),
    (MADV_NOHUGEPAGE, 1),
    (MADV_DONTNEED, 4),
    (MADV_DONTFORK, 2),
    (MADV_DOFORK, 1),
    (MADV_WIPEONFORK, 1),
    (MADV_KEEPONFORK, 1),
    (MADV_POPULATE_WRITE, 2),
    (MADV_COLLAPSE, 3),
    (MADV_DONTNEED_LOCKED, 1),
    (MADV_FREE, 2),
    (MADV_COLD, 1),
    (MADV_PAGEOUT, 3),
    (MADV_WILLNEED, 2),
    (MADV_GUARD_INSTALL, 2),
    (MADV_GUARD_REMOVE, 2),
];

impl Generator {
    /// The first two operations: most of the window is mapped, and large folios are asked for.
    pub(super) fn large_start(&mut self, id: u32) -> (Call, [Word; 6]) {
        let (start, len) =
            (self.random.pick(&[0, 0, MIB2, PAGE, MIB2 - PAGE]), self.random.pick(&[3, 4, 6]) * MIB2);
        let len = len + self.random.pick(&[0, 0, PAGE]);
        if id == 0 {
            self.map_at(Word::Window(start), len, MAP_FIXED)
        } else {
            (Call::Madvise, words([Word::Window(start), Word::Exact(len), Word::Exact(MADV_HUGEPAGE)]))
        }
    }

    pub(super) fn large_call(&mut self) -> (Call, [Word; 6]) {
        match self.random.below(100) {
            0..12 => {
                let populate = if self.random.chance(15) { MAP_POPULATE } else { 0 };
                if self.random.chance(30) {
                    let len = self.random.pick(&[MIB2, MIB2, 2 * MIB2, 2 * MIB2 + PAGE, MIB2 - PAGE]);
                    self.map_at(Word::Exact(0), len, populate)
                } else {
                    let (addr, len) = self.whole();
                    self.map_at(addr, len, MAP_FIXED | populate)
                }
            }
            12..34 => {
                let advice = self.random.weighted(ADVICE);
                let (addr, len) = match advice {
                    MADV_HUGEPAGE | MADV_COLLAPSE if self.random.chance(80) => self.whole(),
                    _ => self.any_range(),
                };
                (Call::Madvise, words([addr, Word::Exact(len), Word::Exact(advice)]))
            }
            34..58 => {
                let (addr, value) = (in_word(self.place()), self.word());
                self.remember(addr);
                (Call::Write, words([addr, Word::Exact(value)]))
            }
            58..62 => {
                let (pages, value) = (1 + self.random.below(24), self.word());
                (Call::Fill, words([self.place(), Word::Exact(pages * PAGE), Word::Exact(value)]))
            }
            62..68 => {
                let addr = if self.written.is_empty() || self.random.chance(3) {
                    self.place()
                } else {
                    self.recently_written()
                };
                (Call::Read, words([addr]))
            }
            68..76 => {
                let (addr, len) = self.any_range();
                (Call::Munmap, words([addr, Word::Exact(len)]))
            }
            76..84 => {
                let (addr, len) = self.any_range();
                let protection = self.random.pick(&[PROT_READ_WRITE, PROT_READ_WRITE, 1, 0, 7]);
                (Call::Mprotect, words([addr, Word::Exact(len), Word::Exact(protection)]))
            }
            84..95 => self.large_mremap(),
            95..97 => {
                let (addr, len) = if self.random.chance(70) { (self.block(), MIB2) } else { self.part() };
                (Call::Mlock, words([addr, Word::Exact(len)]))
            }
            _ => {
                let (addr, len) = self.any_range();
                (Call::Munlock, words([addr, Word::Exact(len)]))
            }
        }
    }

    fn large_mremap(&mut self) -> (Call, [Word; 6]) {
        let ((addr, old), (target, _)) = (self.any_range(), self.any_range());
        let new = match self.random.below(10) {
            0 => old + MIB2,
            1 => old + PAGE,
            2 => old.saturating_sub(MIB2).max(PAGE),
            3 => old.saturating_sub(PAGE).max(PAGE),
            _ => old,
        };
        let flags = self.random.pick(&[0, 1, 3, 3, 3, 3, 5, 7]);
        let rest = [old, new, flags].map(Word::Exact);
        (Call::Mremap, words([addr, rest[0], rest[1], rest[2], target]))
    }

    /// A private mapping that may be read and written.
    fn map_at(&mut self, addr: Word, len: u64, flags: u64) -> (Call, [Word; 6]) {
        let flags = flags | MAP_PRIVATE | MAP_ANONYMOUS;
        let rest = [len, PROT_READ_WRITE, flags, NONE, 0].map(Word::Exact);
        (Call::Mmap, words([addr, rest[0], rest[1], rest[2], rest[3], rest[4]]))
    }

    fn remember(&mut self, addr: Word) {
        if self.written.len() == REMEMBERED {
            self.written.remove(0);
        }
        self.written.push(addr);
    }

    /// Where a block begins: in the window, or in what an operation before has mapped.
    fn block(&mut self) -> Word {
        if !self.areas.is_empty() && self.random.chance(15) {
            let area = self.recent_area(4);
            return Word::Area(area, self.random.below(2) * MIB2);
        }
        let blocks = (self.window.end - self.window.start) / MIB2;
        Word::Window(self.window.start + self.random.below(blocks) * MIB2)
    }

    /// Blocks, from one to three, or a page more or less at one end.
    fn whole(&mut self) -> (Word, u64) {
        let (block, len) = (self.block(), (1 + self.random.below(3)) * MIB2);
        match self.random.below(12) {
            0 => (forward(block, PAGE), len),
            1 => (block, len - PAGE),
            2 => (block, len + PAGE),
            _ => (block, len),
        }
    }

    /// Some pages of a block, which may go on in the next.
    fn part(&mut self) -> (Word, u64) {
        let addr = self.place();
        let pages = match self.random.below(10) {
            0..5 => 1 + self.random.below(4),
            5..8 => 16,
            _ => 1 + self.random.below(511),
        };
        (addr, pages * PAGE)
    }

    fn any_range(&mut self) -> (Word, u64) {
        if self.random.chance(45) { self.whole() } else { self.part() }
    }

    /// A page of a block: one at its borders, or any.
    fn place(&mut self) -> Word {
        let block = self.block();
        let page = match self.random.below(10) {
            0..3 => 0,
            3..5 => 511,
            5..7 => 16 * self.random.below(32),
            _ => self.random.below(512),
        };
        forward(block, page * PAGE)
    }
}

fn forward(addr: Word, by: u64) -> Word {
    with_offset(addr, |offset| offset + by)
}
