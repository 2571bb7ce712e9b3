//! Random calls, each with its arguments.

use super::super::names::*;
use super::super::{Base, Call, MOST_PROCESSES, Store, Word};
use super::arguments::{in_word, words};
use super::{Generator, MIB2, NONE, PAGE};

/// Advice that both sides know, and some that neither does; what changes pages comes more often.
const ADVICE: &[u64] = &[
    4, 4, 4, 4, 24, 22, 22, 23, 23, 8, 8, 20, 21, 21, 21, 0, 1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
    20, 21, 5, 77, 3, 102, 102, 103,
];
impl Generator {
    /// Huge pages of the program's choice: mostly where and as long as such pages can be.
    pub(super) fn mmap_huge_pages(&mut self) -> (Call, [Word; 6]) {
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

    pub(super) fn mmap(&mut self) -> (Call, [Word; 6]) {
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
        flags |= if self.random.chance(1) { MAP_32BIT } else { 0 };
        let mut protection = self.protection();
        protection |= if self.random.chance(2) { 1 << (3 + self.random.below(20)) } else { 0 };
        let (descriptor, mut offset) = self.backing(&mut flags);
        let (mut addr, is_file) = (addr, flags & MAP_ANONYMOUS == 0 && descriptor != u64::from(ZEROS));
        if self.theme.large_file && is_file && !self.populates && self.random.chance(80) {
            // With the borders of large folios at those of tables.
            let block = self.random.below(2) * MIB2;
            let first = self.random.pick(&[0, 0, 0, PAGE, 16 * PAGE, MIB2 - 8 * PAGE]);
            offset = block + first;
            addr = Word::Window(self.unaligned + self.random.below(4) * MIB2 + first);
            len = self.random.pick(&[MIB2, 2 * MIB2, 3 * MIB2, MIB2 + PAGE, MIB2 - PAGE, 40 * PAGE]);
            flags = flags & !(MAP_FIXED_NOREPLACE | MAP_LOCKED | MAP_POPULATE) | MAP_FIXED;
        }
        let rest = [protection, flags, descriptor, offset].map(Word::Exact);
        (Call::Mmap, words([addr, Word::Exact(len), rest[0], rest[1], rest[2], rest[3]]))
    }

    /// What a mapping shows: mostly nothing.
    pub(super) fn backing(&mut self, flags: &mut u64) -> (u64, u64) {
        let is_usual = matches!(*flags & 0xf, MAP_PRIVATE | MAP_SHARED);
        if self.theme.zeros && is_usual && self.random.chance(40) {
            *flags &= !MAP_ANONYMOUS;
            let offset =
                self.random.pick(&[0, 0, 0, PAGE, 2 * PAGE, MIB2, (1 << 63) - PAGE, u64::MAX - 8 * PAGE + 1]);
            return (ZEROS.into(), offset);
        }
        if self.theme.memfds && is_usual && self.random.chance(50) {
            return self.memfd_backing(flags);
        }
        if !self.theme.files || self.random.chance(50) {
            return (NONE, u64::from(self.random.chance(1)));
        }
        *flags &= !MAP_ANONYMOUS;
        if self.random.chance(30) {
            *flags = *flags & !3 | MAP_SHARED;
        }
        if self.random.chance(3) {
            let sync = if self.theme.store == Store::Memory { MAP_SYNC | 3 } else { 3 };
            *flags = *flags & !3 | self.random.pick(&[0, 3, 3, 4, sync]);
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

    pub(super) fn mremap(&mut self) -> (Call, [Word; 6]) {
        // With old size 0 what is shared is mapped once more.
        let shares = self.shares_memory();
        let doubles = self.random.chance(if shares { 15 } else { 3 });
        let old = if doubles { 0 } else { self.length() };
        let new = match self.random.below(100) {
            0..55 if old > 0 || self.random.chance(10) => old,
            // Locked memory that grows past its limit.
            55..70 if self.theme.limits => old.saturating_add(64 * PAGE),
            _ => self.length(),
        };
        let new = if self.populates { new.min(64 * PAGE) } else { new };
        let flags = self.random.pick(&[0, 1, 1, 1, 3, 3, 3, 3, 5, 5, 7, 7, 2, 4, 6, 8, 1 << 32]);
        let target = match self.random.below(20) {
            0 => Word::Window(self.window_page() * PAGE + 1),
            1 => Word::Exact(self.random.pick(&[0, 0, u64::MAX - 4095])),
            2..6 => self.address(),
            _ => Word::Window(self.window_page() * PAGE),
        };
        let [old, new, flags] = [old, new, flags].map(Word::Exact);
        (Call::Mremap, words([self.address(), old, new, flags, target]))
    }

    pub(super) fn madvise(&mut self, addr: Word) -> (Call, [Word; 6]) {
        let mut advice = self.random.pick(ADVICE);
        let shares = self.shares_memory();
        if self.random.chance(if shares { 4 } else { 0 }) {
            advice = MADV_REMOVE;
        }
        let is_on_disk = self.theme.files && self.theme.store != Store::Memory;
        if advice == MADV_PAGEOUT && is_on_disk && self.random.chance(90) {
            // Paging out what is written back is not alike yet.
            advice = MADV_COLD;
        }
        let ages = matches!(advice, MADV_COLD | MADV_PAGEOUT | MADV_FREE);
        if self.theme.large_file && ages && self.random.chance(90) {
            // Linux splits large folios of files there, which unmaps them.
            advice = MADV_DONTNEED;
        }
        if self.theme.large && advice == MADV_POPULATE_READ && self.random.chance(95) {
            // Huge pages of zeros are not alike yet.
            advice = MADV_DONTNEED;
        }
        let populates = matches!(advice, MADV_POPULATE_READ | MADV_POPULATE_WRITE);
        let mut len = if populates { self.short_length() } else { self.length() };
        if advice == MADV_GUARD_INSTALL && self.random.chance(60) {
            // Few guards are left alone by what comes later, and the rest of the range is used.
            len = len.min((1 + self.random.below(3)) * PAGE);
        }
        // What the comparison has to know of is named as it is.
        advice |=
            if matches!(advice, MADV_RANDOM | MADV_DONTDUMP | MADV_HUGEPAGE) { self.odd_int() } else { 0 };
        (Call::Madvise, words([addr, Word::Exact(len), Word::Exact(advice)]))
    }

    pub(super) fn mlockall(&mut self) -> (Call, [Word; 6]) {
        // Never MCL_CURRENT without MCL_ONFAULT: what else a process has is not to be faulted in.
        let flags = self.random.pick(&[0, 2, 4, 5, 6, 7, 8, 16]);
        self.populates |= flags == 2;
        (Call::Mlockall, words([Word::Exact(flags | self.odd_int())]))
    }

    pub(super) fn fork_or_exit(&mut self) -> (Call, [Word; 6]) {
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
    pub(super) fn mdwe(&mut self) -> (Call, [Word; 6]) {
        let option = self.random.pick(&[65, 65, 65, 66]);
        let bits = if option == 66 { 0 } else { self.random.pick(&[1, 1, 1, 3, 3, 3, 0, 2, 4, 1 << 32]) };
        let mut args = [option | self.odd_int(), bits, 0, 0, 0];
        if self.random.chance(15) {
            args[self.random.pick(&[1, 2, 3, 4])] = 1;
        }
        (Call::Prctl, words(args.map(Word::Exact)))
    }

    pub(super) fn limit(&mut self) -> (Call, [Word; 6]) {
        if self.random.chance(10) {
            let privileges = self.random.pick(&[
                0,
                CAP_IPC_LOCK,
                CAP_SYS_RAWIO,
                CAP_IPC_LOCK | CAP_SYS_RAWIO | CAP_IPC_OWNER,
            ]);
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
