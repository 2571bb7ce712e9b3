//! Random programs.

use super::names::*;
use super::{Base, Call, MOST_PROCESSES, Op, Program, Trait, WINDOW_BYTES, Word};
use crate::linux::{FILE, FOLDER, PATH_ONLY, READ_ONLY, WRITE_ONLY};
use crate::random::Random;
use core::ops::Range;

pub(super) const PAGE: u64 = 4096;
pub(super) const MIB2: u64 = 2 << 20;

pub(super) const PROT_READ_WRITE: u64 = PROT_READ | PROT_WRITE;
pub(super) const NONE: u64 = u64::MAX;

/// Where windows lie: across the border of what one table of the top level covers, of the next, and of the
/// one below that only.
const WINDOWS: [u64; 3] =
    [(1 << 39) - WINDOW_BYTES / 2, (1 << 40) + (3 << 30) - WINDOW_BYTES / 2, (1 << 41) + (5 << 20)];

/// Advice that both sides know, and some that neither does; what changes pages comes more often.
const ADVICE: &[u64] = &[
    4, 4, 4, 4, 24, 22, 22, 23, 23, 8, 8, 20, 21, 21, 21, 0, 1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
    20, 21, 5, 77, 3,
];

/// What a program uses, besides private memory.
struct Theme {
    shared: bool,
    files: bool,
    forks: bool,
    limits: bool,
    /// Memory that may be executed, and `PR_SET_MDWE`.
    executes: bool,
    /// Large folios: whole aligned blocks of 2 MiB, and parts of them.
    large: bool,
}

/// The part of the window for programs that are not about large folios.
const SMALL: Range<u64> = WINDOW_BYTES / 4..WINDOW_BYTES / 4 * 3;

pub(super) struct Generator {
    pub(super) random: Random,
    theme: Theme,
    /// The part of the window that the program uses.
    pub(super) window: Range<u64>,
    /// Words that were written, newest last.
    pub(super) written: Vec<Word>,
    /// The calls whose areas later ones may name, newest last.
    pub(super) areas: Vec<u32>,
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

/// The random program with number `number` of `seed`.
pub(crate) fn generate(seed: u64, number: u64, len: usize) -> Program {
    let mut random = Random::new(seed, number);
    let window = random.pick(&WINDOWS);
    let large = random.chance(15);
    let theme = Theme {
        shared: random.chance(if large { 5 } else { 30 }),
        files: random.chance(if large { 5 } else { 20 }),
        forks: random.chance(if large { 50 } else { 25 }),
        limits: random.chance(if large { 5 } else { 25 }),
        executes: random.chance(10),
        large,
    };
    let mut generator = Generator {
        random,
        theme,
        window: if large { 0..WINDOW_BYTES } else { SMALL },
        written: Vec::new(),
        areas: Vec::new(),
        forked: 0,
        living: vec![0],
        current: 0,
        populates: false,
        paged_out: None,
        locked: None,
    };
    let ops = (0..len).map(|id| generator.op(id as u32)).collect();
    Program { window, ops }
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
        } else if self.theme.large && id < 2 && self.random.chance(80) {
            self.large_start(id)
        } else {
            self.any_call()
        };
        if call.has(Trait::Area) {
            self.areas.push(id);
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
                (Call::PkeyMprotect, words([addr, Word::Exact(len), protection, Word::Exact(NONE)]))
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
                let flags = self.random.below(9);
                (Call::Msync, words([addr, Word::Exact(len), Word::Exact(flags)]))
            }
            71..73 => (Call::Mlock, two(self.short_length())),
            73..75 => (Call::Munlock, two(len)),
            75 => {
                let flags = self.random.pick(&[0, 1, 1, 2]);
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

    /// A word to write. It begins with a `nop`, so that it may be executed.
    pub(super) fn word(&mut self) -> u64 {
        self.random.any() << 20 | 0x90
    }

    /// A page of the window, most often near one of its borders of 2 MiB, so that operations overlap.
    fn window_page(&mut self) -> u64 {
        let Range { start, end } = self.window;
        let border = start / PAGE + self.random.below((end - start) / MIB2) * (MIB2 / PAGE);
        let near = self.random.below(20);
        if self.random.chance(60) { border + near } else { border + MIB2 / PAGE - 1 - near }
    }

    /// A word to read. Programs with large folios read little but what they wrote: a huge page of zeros is a
    /// known difference.
    fn word_to_read(&mut self, addr: Word) -> Word {
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

    fn address(&mut self) -> Word {
        if !self.areas.is_empty() && self.random.chance(30) {
            // Mostly one of the last: the older ones are gone.
            let count = if self.random.chance(80) { 8 } else { self.areas.len() };
            let area = self.recent_area(count);
            return Word::Area(area, self.random.below(12) * PAGE);
        }
        let addr = self.window_page() * PAGE;
        Word::Window(if self.random.chance(2) { addr + self.random.below(PAGE) } else { addr })
    }

    /// Where `mincore` is to write: mostly anywhere in a page of the window, sometimes where no program may
    /// write.
    fn vector(&mut self) -> Word {
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

    fn length(&mut self) -> u64 {
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
    fn absurd_length(&mut self) -> u64 {
        match self.random.below(4) {
            0 => u64::MAX - self.random.below(3 * PAGE),
            1 => u64::MAX - (1 << 41) - self.random.below(2 * PAGE),
            2 => (1 << 47) - self.random.below(3) * PAGE,
            _ => self.random.any() | 1 << 63,
        }
    }

    /// A length of which every page may be populated.
    fn short_length(&mut self) -> u64 {
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

    fn protection(&mut self) -> u64 {
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
    fn odd_protection(&mut self) -> u64 {
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

    /// Huge pages of the program's choice: mostly where and as long as such pages can be.
    fn mmap_huge_pages(&mut self) -> (Call, [Word; 6]) {
        let mut flags = MAP_ANONYMOUS | MAP_HUGETLB;
        flags |= if self.random.chance(5) {
            self.random.pick(&[0, 3, 4, 8])
        } else {
            self.random.pick(&[MAP_SHARED, MAP_PRIVATE])
        };
        flags |= self.random.pick(&[0, 0, 0, 0, 21, 21, 30, 5, 63]) << 26;
        for (percent, flag) in
            [(75, MAP_NORESERVE), (3, MAP_GROWSDOWN), (5, MAP_STACK), (3, MAP_LOCKED), (3, MAP_POPULATE)]
        {
            flags |= if self.random.chance(percent) { flag } else { 0 };
        }
        let len = self.random.pick(&[MIB2, MIB2, MIB2, 2 * MIB2, 2 * MIB2, 1, MIB2 + 1, 0, NONE]);
        let page = self.window_page() * PAGE;
        let addr = Word::Window(if self.random.chance(80) { page & !(MIB2 - 1) } else { page });
        let addr = match self.random.below(10) {
            0..4 => {
                flags |= MAP_FIXED;
                addr
            }
            4 => {
                flags |= MAP_FIXED_NOREPLACE;
                addr
            }
            5..7 => addr,
            _ => Word::Exact(0),
        };
        let descriptor = if self.random.chance(10) {
            flags &= !MAP_ANONYMOUS;
            self.random.pick(&[FILE, FOLDER, PATH_ONLY, 999]).into()
        } else {
            NONE
        };
        let offset = self.random.pick(&[0, 0, 0, 0, 0, MIB2, PAGE, 1, (1 << 63) - PAGE]);
        let rest = [self.protection(), flags, descriptor, offset].map(Word::Exact);
        (Call::Mmap, words([addr, Word::Exact(len), rest[0], rest[1], rest[2], rest[3]]))
    }

    fn mmap(&mut self) -> (Call, [Word; 6]) {
        if self.random.chance(2) {
            return self.mmap_huge_pages();
        }
        let mut flags = MAP_ANONYMOUS;
        flags |= if self.theme.shared && self.random.chance(35) { MAP_SHARED } else { MAP_PRIVATE };
        if self.random.chance(1) {
            // Any type but MAP_DROPPABLE, which is not built.
            flags = MAP_ANONYMOUS | self.random.pick(&[0, 3, 4, 7, 9, 15]);
        }
        for (percent, flag) in [
            (8, MAP_NORESERVE),
            (6, MAP_GROWSDOWN),
            (8, MAP_STACK),
            (if self.theme.limits { 8 } else { 3 }, MAP_LOCKED),
            (2, MAP_NONBLOCK),
            (1, MAP_DENYWRITE),
            (1, MAP_EXECUTABLE),
        ] {
            flags |= if self.random.chance(percent) { flag } else { 0 };
        }
        let mut len = self.length();
        if flags & MAP_LOCKED != 0 || self.populates {
            len = self.short_length();
        } else if self.random.chance(12) {
            flags |= MAP_POPULATE;
            len = self.short_length();
        }
        let addr = match self.random.below(100) {
            0..62 => {
                flags |= MAP_FIXED;
                self.address()
            }
            62..68 => {
                flags |= MAP_FIXED_NOREPLACE;
                self.address()
            }
            68..84 => {
                if self.random.chance(5) && !self.populates {
                    len = self.random.pick(&[1 << 30, 1 << 31, 1 << 45, 1 << 47]);
                    flags = (flags & !MAP_POPULATE & !MAP_LOCKED) | MAP_NORESERVE;
                }
                Word::Exact(0)
            }
            84..98 => self.address(),
            _ => {
                let odd = [0, 1, 4095, 4096, 0xf000, 65536, (1 << 47) - 4096, 1 << 47, u64::MAX - 4095];
                flags |= self.random.pick(&[0, 0, 0, MAP_FIXED, MAP_FIXED_NOREPLACE]);
                Word::Exact(self.random.pick(&odd))
            }
        };
        flags |= if self.random.seldom() { MAP_32BIT } else { 0 };
        let mut protection = self.protection();
        protection |= if self.random.chance(2) { 1 << (3 + self.random.below(20)) } else { 0 };
        let (descriptor, offset) = self.backing(&mut flags);
        let rest = [protection, flags, descriptor, offset].map(Word::Exact);
        (Call::Mmap, words([addr, Word::Exact(len), rest[0], rest[1], rest[2], rest[3]]))
    }

    /// What a mapping shows: mostly nothing.
    fn backing(&mut self, flags: &mut u64) -> (u64, u64) {
        if !self.theme.files || self.random.chance(50) {
            return (NONE, u64::from(self.random.chance(1)));
        }
        *flags &= !MAP_ANONYMOUS;
        if self.random.chance(30) {
            *flags = *flags & !3 | MAP_SHARED;
        }
        if self.random.chance(3) {
            *flags = *flags & !3 | self.random.pick(&[0, 3, 3, 4, 0x8_0003]);
        }
        let files = [FILE, FILE, FILE, FILE, READ_ONLY, READ_ONLY, WRITE_ONLY, FOLDER, PATH_ONLY, 999];
        let offset = match self.random.below(40) {
            0 => 1 + self.random.below(PAGE),
            1 => u64::MAX - PAGE + 1,
            2 => (1 << 63) - self.random.below(4) * PAGE,
            _ => self.random.below(16) * PAGE,
        };
        (self.random.pick(&files).into(), offset)
    }

    fn mremap(&mut self) -> (Call, [Word; 6]) {
        let old = if self.random.chance(3) { 0 } else { self.length() };
        let new = match self.random.below(100) {
            0..55 => old,
            // Locked memory that grows past its limit.
            55..70 if self.theme.limits => old.saturating_add(64 * PAGE),
            _ => self.length(),
        };
        // In programs with shared memory most keep the size: what else they do to it is not alike yet.
        let new = if (self.theme.shared || self.theme.files) && self.random.chance(97) { old } else { new };
        let new = if self.populates { new.min(64 * PAGE) } else { new };
        let mut flags = self.random.pick(&[0, 1, 1, 1, 3, 3, 3, 3, 5, 5, 7, 7, 2, 4, 6, 8, 1 << 32]);
        if flags & 5 == 5 && (self.theme.shared || self.theme.files) && self.random.chance(95) {
            flags &= !4;
        }
        let target = match self.random.below(20) {
            0 => Word::Window(self.window_page() * PAGE + 1),
            1 => Word::Exact(self.random.pick(&[0, 0, u64::MAX - 4095])),
            2..6 => self.address(),
            _ => Word::Window(self.window_page() * PAGE),
        };
        let [old, new, flags] = [old, new, flags].map(Word::Exact);
        (Call::Mremap, words([self.address(), old, new, flags, target]))
    }

    fn madvise(&mut self, addr: Word) -> (Call, [Word; 6]) {
        let mut advice = self.random.pick(ADVICE);
        if self.random.seldom() {
            // It ends the program.
            advice = self.random.pick(NOT_BUILT);
        }
        if advice == MADV_PAGEOUT && (self.theme.shared || self.theme.files) && self.random.chance(90) {
            // Paging out what is cached is not alike yet.
            advice = MADV_COLD;
        }
        if self.theme.large && advice == MADV_POPULATE_READ && self.random.chance(95) {
            // Huge pages of zeros are not alike yet.
            advice = MADV_DONTNEED;
        }
        let populates = matches!(advice, MADV_POPULATE_READ | MADV_POPULATE_WRITE);
        let len = if populates { self.short_length() } else { self.length() };
        (Call::Madvise, words([addr, Word::Exact(len), Word::Exact(advice)]))
    }

    fn mlockall(&mut self) -> (Call, [Word; 6]) {
        // Never MCL_CURRENT without MCL_ONFAULT: what else a process has is not to be faulted in.
        let flags = self.random.pick(&[0, 2, 4, 5, 6, 7, 8, 16]);
        self.populates |= flags == 2;
        (Call::Mlockall, words([Word::Exact(flags)]))
    }

    fn fork_or_exit(&mut self) -> (Call, [Word; 6]) {
        if self.forked + 1 < MOST_PROCESSES && self.random.chance(70) {
            self.forked += 1;
            self.living.push(self.forked);
            return (Call::Fork, words([Word::Exact(self.forked.into())]));
        }
        if self.living.len() > 1 {
            self.living.retain(|process| *process != self.current);
            // The process of the operation is the one that leaves; the next is another.
            let leaving = words([]);
            self.current = self.random.pick(&self.living);
            return (Call::Exit, leaving);
        }
        (Call::Read, words([in_word(self.address())]))
    }

    /// Something about `PR_SET_MDWE`: mostly what succeeds.
    fn mdwe(&mut self) -> (Call, [Word; 6]) {
        let option = self.random.pick(&[65, 65, 65, 66]);
        let bits = if option == 66 { 0 } else { self.random.pick(&[1, 1, 1, 3, 3, 3, 0, 2, 4, 1 << 32]) };
        let mut args = [option, bits, 0, 0, 0];
        if self.random.chance(15) {
            args[self.random.pick(&[1, 2, 3, 4])] = 1;
        }
        (Call::Prctl, words(args.map(Word::Exact)))
    }

    fn limit(&mut self) -> (Call, [Word; 6]) {
        if self.random.chance(10) {
            let privileges =
                self.random.pick(&[0, CAP_IPC_LOCK, CAP_SYS_RAWIO, CAP_IPC_LOCK | CAP_SYS_RAWIO]);
            return (Call::SetPrivileges, words([Word::Exact(privileges)]));
        }
        let pages = self.random.below(1024) * PAGE;
        let (resource, value) = match self.random.below(8) {
            0 => (9, Word::Base(Base::Size, pages * 4)),
            1 => (2, Word::Base(Base::Data, pages)),
            2 | 3 => (8, Word::Exact(if self.random.chance(25) { 0 } else { self.random.below(64) * PAGE })),
            4 => (3, Word::Exact(self.random.below(256) * PAGE)),
            _ => (self.random.pick(&[2, 3, 8, 9]), Word::Exact(u64::MAX)),
        };
        (Call::Setrlimit, words([Word::Exact(resource), value]))
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
    }
}

/// The address made one of a whole word.
pub(super) fn in_word(addr: Word) -> Word {
    with_offset(addr, |offset| offset & !7)
}

/// The address made one that begins a page.
fn in_page(addr: Word) -> Word {
    with_offset(addr, |offset| offset & !(PAGE - 1))
}
