//! Arguments of random calls: addresses, lengths, protections.

use super::super::Word;
use super::{Generator, MIB2, NONE, PAGE, PROT_READ_WRITE};
use core::ops::Range;

impl Generator {
    /// A word to write. It begins with a `nop`, so that it may be executed.
    pub(super) fn word(&mut self) -> u64 {
        self.random.any() << 20 | 0x90
    }

    /// A page of the window, most often near one of its borders of 2 MiB, so that operations overlap.
    pub(super) fn window_page(&mut self) -> u64 {
        let Range { start, end } = self.window;
        let border = start / PAGE + self.random.below((end - start) / MIB2) * (MIB2 / PAGE);
        let near = self.random.below(20);
        if self.random.chance(60) { border + near } else { border + MIB2 / PAGE - 1 - near }
    }

    /// A word to read. Programs with large folios read little but what they wrote: a huge page of zeros is a
    /// known difference.
    pub(super) fn word_to_read(&mut self, addr: Word) -> Word {
        if self.theme.large && !self.written.is_empty() && self.random.chance(97) {
            return self.recently_written();
        }
        in_word(addr)
    }

    /// One of the last words that were written, of which there is one.
    pub(super) fn recently_written(&mut self) -> Word {
        let from = self.written.len().saturating_sub(12);
        self.random.pick(&self.written[from..])
    }

    /// One of the last areas, of which there is one.
    pub(super) fn recent_area(&mut self, count: usize) -> u32 {
        let from = self.areas.len().saturating_sub(count);
        self.random.pick(&self.areas[from..])
    }

    pub(super) fn address(&mut self) -> Word {
        if !self.areas.is_empty() && self.random.chance(30) {
            // Mostly one of the last: the older ones are gone.
            let count = if self.random.chance(80) { 8 } else { self.areas.len() };
            let area = self.recent_area(count);
            return Word::Area(area, self.random.below(12) * PAGE);
        }
        let addr = if self.theme.large_file && self.random.chance(50) {
            // Anywhere in what is mapped of the file.
            self.random.below(4 * MIB2 / PAGE) * PAGE
        } else {
            self.window_page() * PAGE
        };
        Word::Window(if self.random.chance(2) { addr + self.random.below(PAGE) } else { addr })
    }

    /// Where `mincore` is to write: mostly anywhere in a page of the window, sometimes where no program may
    /// write.
    pub(super) fn vector(&mut self) -> Word {
        if self.random.chance(10) {
            return Word::Exact(self.random.pick(&[0, 1 << 47, NONE, (1 << 47) - PAGE - 1]));
        }
        let within = self.random.below(PAGE);
        let offset = self.random.pick(&[0, PAGE - 1, within]);
        match in_page(self.address()) {
            Word::Window(at) => Word::Window(at + offset),
            Word::Area(area, at) => Word::Area(area, at + offset),
            other => other,
        }
    }

    pub(super) fn length(&mut self) -> u64 {
        match self.random.below(100) {
            0..70 => (1 + self.random.below(8)) * PAGE,
            70..80 => (9 + self.random.below(40)) * PAGE,
            80..88 => MIB2 * (1 + self.random.below(2)),
            88..94 => (1 + self.random.below(8)) * PAGE - self.random.below(PAGE),
            94..96 => 0,
            _ => self.absurd_length(),
        }
    }

    /// An invalid length: it wraps, or passes the end of user space.
    pub(super) fn absurd_length(&mut self) -> u64 {
        match self.random.below(4) {
            0 => u64::MAX - self.random.below(3 * PAGE),
            1 => u64::MAX - (1 << 41) - self.random.below(2 * PAGE),
            2 => (1 << 47) - self.random.below(3) * PAGE,
            _ => self.random.any() | 1 << 63,
        }
    }

    /// A length of which every page may be populated.
    pub(super) fn short_length(&mut self) -> u64 {
        match self.random.below(100) {
            0..85 => {
                (1 + self.random.below(16)) * PAGE
                    - if self.random.chance(5) { self.random.below(PAGE) } else { 0 }
            }
            85..87 => MIB2,
            87..94 => 0,
            _ => self.absurd_length(),
        }
    }

    pub(super) fn protection(&mut self) -> u64 {
        if self.theme.executes && self.random.chance(30) {
            return self.random.pick(&[4, 5, 5, 6, 7]);
        }
        match self.random.below(10) {
            0..6 => PROT_READ_WRITE,
            6 | 7 => 1,
            _ => self.random.below(8),
        }
    }

    /// Mostly nothing; else a bit that is rarely given.
    pub(super) fn odd_protection(&mut self) -> u64 {
        match self.random.below(40) {
            0 => 1 << 24,
            1 => 1 << 25,
            2 => 3 << 24,
            3 => 0x10,
            4 => 1 << 30,
            5 => 8,
            _ => 0,
        }
    }
}

impl Generator {
    /// Mostly nothing; else bits beyond those of an `int`, which Linux does not look at in some arguments.
    pub(super) fn odd_int(&mut self) -> u64 {
        if self.random.chance(10) { self.random.any() & (u64::MAX << 32) } else { 0 }
    }
}

pub(super) fn words<const N: usize>(given: [Word; N]) -> [Word; 6] {
    let mut all = [Word::Exact(0); 6];
    all[..N].copy_from_slice(&given);
    all
}

/// The address with its offset changed.
pub(super) fn with_offset(addr: Word, change: impl Fn(u64) -> u64) -> Word {
    match addr {
        Word::Exact(addr) => Word::Exact(change(addr)),
        Word::Window(offset) => Word::Window(change(offset)),
        Word::Area(of, offset) => Word::Area(of, change(offset)),
        Word::Base(base, offset) => Word::Base(base, change(offset)),
        Word::Segment(id) => Word::Segment(id),
    }
}

/// The address made one of a whole word.
pub(super) fn in_word(addr: Word) -> Word {
    with_offset(addr, |offset| offset & !7)
}

/// The address made one that begins a page.
pub(super) fn in_page(addr: Word) -> Word {
    with_offset(addr, |offset| offset & !(PAGE - 1))
}
