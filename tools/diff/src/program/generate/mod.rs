//! Random programs.

mod arguments;
mod calls;
mod files;
mod large;
mod memfds;
mod segments;

use super::names::*;
use super::{Base, Call, Op, Program, Store, Trait, WINDOW_BYTES, Word};
use crate::random::Random;
use arguments::{in_page, in_word, words};
use core::ops::Range;

const PAGE: u64 = 4096;
const MIB2: u64 = 2 << 20;

const PROT_READ_WRITE: u64 = PROT_READ | PROT_WRITE;
const NONE: u64 = u64::MAX;

/// Where windows lie: across the border of what one table of the top level covers, of the next, and of the
/// one below that only.
const WINDOWS: [u64; 3] =
    [(1 << 39) - WINDOW_BYTES / 2, (1 << 40) + (3 << 30) - WINDOW_BYTES / 2, (1 << 41) + (5 << 20)];

/// One program of so many has as many mappings as there may be: they take time to make.
const CROWDED_EVERY: u64 = 60;
/// After so many operations, when there is something to be divided.
const CROWDED_FROM: u32 = 30;

/// What a program uses, besides private memory.
struct Theme {
    shared: bool,
    files: bool,
    /// ext4 knows MAP_SYNC, and refuses it later than tmpfs, which does not.
    store: Store,
    /// Private mappings of `/dev/zero`.
    zeros: bool,
    /// Memfds, with what descriptors and seals do.
    memfds: bool,
    /// Segments of SysV shared memory.
    segments: bool,
    forks: bool,
    limits: bool,
    /// Memory that may be executed, and `PR_SET_MDWE`.
    executes: bool,
    /// Large folios: whole aligned blocks of 2 MiB, and parts of them.
    large: bool,
    /// A file with large folios, which is mapped so that theirs and its borders are together.
    large_file: bool,
    /// Calls change the file. Otherwise more can be compared of what is mapped.
    changes_file: bool,
    /// As many mappings as there may be.
    crowded: bool,
}

/// The part of the window for programs that are not about large folios.
const SMALL: Range<u64> = WINDOW_BYTES / 4..WINDOW_BYTES / 4 * 3;

struct Generator {
    random: Random,
    theme: Theme,
    /// The part of the window that the program uses.
    window: Range<u64>,
    /// Bytes from the start of the window to the first border of 2 MiB.
    unaligned: u64,
    /// Words that were written, newest last.
    written: Vec<Word>,
    /// The calls whose areas later ones may name, newest last.
    areas: Vec<u32>,
    /// Operations that made segments, and those that attached some, newest last.
    segments: Vec<u32>,
    attachments: Vec<u32>,
    /// Descriptors of memfds that were opened, newest last.
    memfds: Vec<u64>,
    /// Processes that were forked, living or not, and those that live.
    forked: u32,
    living: Vec<u32>,
    current: u32,
    /// Everything that is mapped from now on is populated: nothing large must be mapped.
    populates: bool,
    /// What was paged out by the operation before.
    paged_out: Option<[Word; 2]>,
    /// What was to be locked by the operation before.
    locked: Option<[Word; 2]>,
}

/// The random program with number `number` of `seed`, with its file in `store` if that is given.
pub(crate) fn generate(store: Option<Store>, seed: u64, number: u64, len: usize) -> Program {
    let mut random = Random::new(seed, number);
    let window = random.pick(&WINDOWS);
    let any = random.pick(&[Store::Memory, Store::Memory, Store::Disk, Store::Disk, Store::Large]);
    let store = store.unwrap_or(any);
    let large = random.chance(15);
    let large_file = store == Store::Large && random.chance(80);
    let crowded = number % CROWDED_EVERY == CROWDED_EVERY - 1;
    let shared = random.chance(if large { 5 } else { 30 });
    let theme = Theme {
        shared,
        files: large_file || random.chance(if large { 5 } else { 30 }),
        store,
        // A child of a crowd has one of its own, which is much memory.
        forks: random.chance(if large || shared { 50 } else { 25 }) && !crowded,
        limits: random.chance(if large { 5 } else { 25 }),
        executes: random.chance(10),
        zeros: random.chance(15),
        memfds: random.chance(if large { 5 } else { 25 }),
        segments: random.chance(if large { 3 } else { 15 }),
        large,
        large_file,
        changes_file: !large_file || random.chance(40),
        crowded,
    };
    let mut generator = Generator {
        random,
        theme,
        window: if large || large_file { 0..WINDOW_BYTES } else { SMALL },
        unaligned: window.next_multiple_of(MIB2) - window,
        written: Vec::new(),
        areas: Vec::new(),
        segments: Vec::new(),
        attachments: Vec::new(),
        memfds: Vec::new(),
        forked: 0,
        living: vec![0],
        current: 0,
        populates: false,
        paged_out: None,
        locked: None,
    };
    let ops = (0..len).map(|id| generator.op(id as u32)).collect();
    Program { window, store, ops }
}

impl Generator {
    fn op(&mut self, id: u32) -> Op {
        if self.random.chance(4) {
            self.current = self.random.pick(&self.living);
        }
        let process = self.current;
        let (call, args) = if id == 0 && self.theme.limits && self.random.chance(60) {
            // Limits on locked memory bind only a process without the privilege.
            (Call::SetPrivileges, words([Word::Exact(self.random.pick(&[0, 0, CAP_SYS_RAWIO]))]))
        } else if id == 0 && self.theme.segments && self.random.chance(25) {
            // Without the other one permissions of segments matter.
            (Call::SetPrivileges, words([Word::Exact(CAP_IPC_LOCK | CAP_SYS_RAWIO)]))
        } else if self.theme.memfds && id < 3 && self.random.chance(70) {
            self.memfd_start(id)
        } else if self.theme.large && id < 2 && self.random.chance(80) {
            self.large_start(id)
        } else if self.theme.crowded && (id == CROWDED_FROM || id > CROWDED_FROM && self.random.chance(2)) {
            // One more than there may be, or what several moves are refused for.
            (Call::Crowd, words([Word::Exact(self.random.below(10))]))
        } else {
            self.any_call()
        };
        if call.has(Trait::Area) {
            self.areas.push(id);
        }
        self.note_memfd(call, &args);
        match call {
            Call::Shmget => self.segments.push(id),
            Call::Shmat => self.attachments.push(id),
            _ => {}
        }
        let pages_out = call == Call::Madvise && args[2] == Word::Exact(MADV_PAGEOUT);
        self.paged_out = pages_out.then_some([args[0], args[1]]);
        self.locked = matches!(call, Call::Mlock | Call::Mlock2).then_some([args[0], args[1]]);
        Op { id, process, call, args }
    }

    /// Something about a range that was just paged out.
    fn about_paged_out(&mut self, [addr, len]: [Word; 2]) -> (Call, [Word; 6]) {
        let short = match len {
            Word::Exact(len) => Word::Exact(len.min(16 * PAGE)),
            other => other,
        };
        match self.random.below(8) {
            0..3 => (Call::Mincore, words([addr, len])),
            3 => (Call::Mlock, words([addr, short])),
            4 => (Call::Munlock, words([addr, len])),
            5 => self.mlockall(),
            6 => (
                Call::Madvise,
                words([
                    addr,
                    len,
                    Word::Exact(self.random.pick(&[4, 8, 20, MADV_PAGEOUT, MADV_WILLNEED, MADV_WILLNEED])),
                ]),
            ),
            _ => (Call::Madvise, words([addr, short, Word::Exact(self.random.pick(&[22, 23]))])),
        }
    }

    fn any_call(&mut self) -> (Call, [Word; 6]) {
        if self.theme.forks && self.random.chance(if self.theme.large { 3 } else { 1 }) {
            return self.fork_or_exit();
        }
        if let Some(range) = self.paged_out.take().filter(|_| self.random.chance(30)) {
            return self.about_paged_out(range);
        }
        let locked = self.locked.take().filter(|_| self.theme.limits && !self.theme.shared);
        if let Some([addr, old @ Word::Exact(len)]) = locked.filter(|_| self.random.chance(25)) {
            // It grows past its limit, which is of 64 pages at most.
            let grown = Word::Exact(len.saturating_add(64 * PAGE));
            return (Call::Mremap, words([addr, old, grown, Word::Exact(1)]));
        }
        if self.theme.large && self.random.chance(70) {
            return self.large_call();
        }
        if self.theme.limits && self.random.chance(3) {
            return self.limit();
        }
        if self.theme.executes && self.random.chance(1) {
            return self.mdwe();
        }
        if self.theme.segments && self.random.chance(18) {
            return self.segment_call();
        }
        if self.theme.memfds && self.random.chance(22) {
            return self.memfd_call();
        }
        if self.theme.files && self.random.chance(14) {
            return self.file_call();
        }
        let (addr, len) = (self.address(), self.length());
        let two = |len| words([addr, Word::Exact(len)]);
        match self.random.below(100) {
            0..20 => self.mmap(),
            20..29 => {
                // Areas are unmapped as a whole, else their number would grow without bound.
                let len = if matches!(addr, Word::Area(..)) { len.max(16 * PAGE) } else { len };
                (Call::Munmap, two(len))
            }
            29..39 => {
                let protection = Word::Exact(self.protection() | self.odd_protection());
                (Call::Mprotect, words([addr, Word::Exact(len), protection]))
            }
            39..41 => {
                let protection = Word::Exact(self.protection() | self.odd_protection());
                let key = Word::Exact(NONE >> 32 | self.odd_int());
                (Call::PkeyMprotect, words([addr, Word::Exact(len), protection, key]))
            }
            41..52 => self.mremap(),
            52..64 => self.madvise(addr),
            64..67 => {
                let offset = self.random.below(64) * 1000;
                let wanted =
                    if self.random.chance(5) { Word::Exact(offset) } else { Word::Base(Base::Break, offset) };
                (Call::Brk, words([wanted]))
            }
            67 => (Call::Mincore, two(len)),
            68 => (Call::MincoreInto, words([addr, Word::Exact(len), self.vector()])),
            69..71 => {
                let flags = self.random.below(9) | self.odd_int();
                (Call::Msync, words([addr, Word::Exact(len), Word::Exact(flags)]))
            }
            71..73 => (Call::Mlock, two(self.short_length())),
            73..75 => (Call::Munlock, two(len)),
            75 => {
                let flags = self.random.pick(&[0, 1, 1, 2]) | self.odd_int();
                (Call::Mlock2, words([addr, Word::Exact(self.short_length()), Word::Exact(flags)]))
            }
            76 if self.random.chance(50) => self.mlockall(),
            76 if self.random.chance(60) => (Call::Munlockall, words([])),
            76 | 77 => (Call::Execute, words([self.word_to_read(addr)])),
            78..86 => (Call::Read, words([self.word_to_read(addr)])),
            86..96 => {
                let value = self.word();
                (Call::Write, words([in_word(addr), Word::Exact(value)]))
            }
            _ => {
                let (pages, value) = (1 + self.random.below(24), self.word());
                (Call::Fill, words([in_page(addr), Word::Exact(pages * PAGE), Word::Exact(value)]))
            }
        }
    }
}
