//! Random calls about memfds: their descriptors, seals and contents.

use super::super::names::*;
use super::super::{Call, Word};
use super::arguments::words;
use super::{Generator, PAGE};

/// Flags of new memfds: mostly such that seals can be added.
const FLAGS: &[u64] = &[
    MFD_ALLOW_SEALING,
    MFD_ALLOW_SEALING,
    MFD_ALLOW_SEALING,
    MFD_ALLOW_SEALING | MFD_CLOEXEC,
    MFD_ALLOW_SEALING | MFD_EXEC,
    MFD_NOEXEC_SEAL,
    MFD_NOEXEC_SEAL | MFD_ALLOW_SEALING,
    0,
    MFD_CLOEXEC,
    MFD_EXEC,
    MFD_HUGETLB,
    MFD_HUGETLB | MFD_ALLOW_SEALING,
    MFD_HUGETLB | 21 << 26,
    MFD_HUGETLB | 30 << 26,
    MFD_HUGETLB | 5 << 26,
    MFD_EXEC | MFD_NOEXEC_SEAL,
    21 << 26,
    0x20,
    0x8000_0000,
];

/// What is added to a memfd, and how often.
const SEALS: &[(u64, usize)] = &[
    (F_SEAL_WRITE, 4),
    (F_SEAL_FUTURE_WRITE, 4),
    (F_SEAL_GROW, 3),
    (F_SEAL_SHRINK, 3),
    (F_SEAL_SHRINK | F_SEAL_GROW, 2),
    (F_SEAL_SEAL, 1),
    (F_SEAL_EXEC, 2),
    (F_SEAL_WRITE | F_SEAL_GROW, 1),
    (0, 1),
    (0x40, 1),
    (1 << 31 | F_SEAL_GROW, 1),
    (0x3f, 1),
];

/// Pages of a memfd that calls are about, mostly.
const MEMFD_PAGES: u64 = 40;

impl Generator {
    /// The first operations: a memfd of some pages.
    pub(super) fn memfd_start(&mut self, id: u32) -> (Call, [Word; 6]) {
        let memfd = u64::from(MEMFDS);
        match id {
            0 => (
                Call::MemfdCreate,
                words(
                    [4, self.random.pick(&[MFD_ALLOW_SEALING, MFD_ALLOW_SEALING, MFD_NOEXEC_SEAL, 0]), memfd]
                        .map(Word::Exact),
                ),
            ),
            1 => (Call::Ftruncate, words([memfd, MEMFD_PAGES * PAGE + 0x123].map(Word::Exact))),
            _ => {
                let flags = MAP_FIXED | self.random.pick(&[MAP_SHARED, MAP_SHARED, MAP_PRIVATE]);
                let rest = [16 * PAGE, 3, flags, memfd, 0].map(Word::Exact);
                let addr = Word::Window(self.window_page() * PAGE);
                (Call::Mmap, words([addr, rest[0], rest[1], rest[2], rest[3], rest[4]]))
            }
        }
    }

    /// A descriptor of a memfd: mostly one that an operation before has opened.
    fn memfd(&mut self) -> u64 {
        if !self.memfds.is_empty() && self.random.chance(85) {
            let from = self.memfds.len().saturating_sub(6);
            return self.random.pick(&self.memfds[from..]);
        }
        self.any_memfd()
    }

    /// Any descriptor of a memfd: mostly the first.
    fn any_memfd(&mut self) -> u64 {
        let at = match self.random.below(20) {
            0..12 => 0,
            12..16 => 1,
            16..18 => 2,
            _ => 3,
        };
        u64::from(MEMFDS) + at
    }

    /// Notes what an operation opens.
    pub(super) fn note_memfd(&mut self, call: Call, args: &[Word; 6]) {
        let opened = match call {
            Call::MemfdCreate => args[2],
            Call::Reopen | Call::Dup2 => args[1],
            _ => return,
        };
        if let Word::Exact(descriptor) = opened {
            self.memfds.push(descriptor);
        }
    }

    pub(super) fn memfd_call(&mut self) -> (Call, [Word; 6]) {
        let memfd = self.memfd();
        let file = Word::Exact(memfd);
        match self.random.below(100) {
            0..7 => {
                let len = match self.random.below(12) {
                    0 => self.random.pick(&[0, 248, 249, 250, MOST_NAME]),
                    _ => 1 + self.random.below(20),
                };
                let flags = self.random.pick(FLAGS) | self.odd_int();
                (Call::MemfdCreate, words([len, flags, self.any_memfd()].map(Word::Exact)))
            }
            7..10 => {
                let access = self.random.pick(&[O_RDONLY, O_RDONLY, O_RDWR, O_WRONLY]);
                (Call::Reopen, words([memfd, self.any_memfd(), access].map(Word::Exact)))
            }
            10..12 => (Call::Dup2, words([memfd, self.any_memfd()].map(Word::Exact))),
            12..13 => (Call::Close, words([file])),
            13..15 if !self.areas.is_empty() => {
                // Mostly what the first operations have mapped.
                let addr = Word::Area(self.areas[0], self.random.below(16) * PAGE);
                (Call::Madvise, words([addr, Word::Exact(PAGE), Word::Exact(MADV_REMOVE)]))
            }
            13..28 => self.transfer(Call::Pread, file),
            28..46 => self.transfer(Call::Pwrite, file),
            46..58 => (Call::Ftruncate, words([memfd, self.memfd_size()].map(Word::Exact))),
            58..74 => self.memfd_allocate(memfd),
            74..82 => {
                let from = match self.random.below(20) {
                    0 => self.random.pick(&[u64::MAX, 1 << 63, (1 << 63) - 1]),
                    _ => self.memfd_offset(),
                };
                let whence = self.random.pick(&[SEEK_DATA, SEEK_HOLE]);
                (Call::Lseek, words([memfd, from, whence].map(Word::Exact)))
            }
            82..98 => self.seal(memfd),
            _ => (Call::Fsync, words([file])),
        }
    }

    fn seal(&mut self, memfd: u64) -> (Call, [Word; 6]) {
        let file = if self.random.chance(15) {
            self.random.pick(&[FILE, READ_ONLY, WRITE_ONLY, PATH_ONLY, FOLDER, ZEROS, 999]).into()
        } else {
            memfd
        };
        let (command, seals) = match self.random.below(10) {
            0..3 => (F_GET_SEALS, 0),
            _ => (F_ADD_SEALS, self.random.weighted(SEALS)),
        };
        (Call::Fcntl, words([file, command | self.odd_int(), seals | self.odd_int()].map(Word::Exact)))
    }

    fn memfd_allocate(&mut self, memfd: u64) -> (Call, [Word; 6]) {
        const PUNCH: u64 = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        let odd =
            [FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE, FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_UNSHARE_RANGE];
        let mode = match self.random.below(20) {
            0..9 => PUNCH,
            9..14 => 0,
            14..19 => FALLOC_FL_KEEP_SIZE,
            _ => self.random.pick(&odd),
        };
        let offset = match self.random.below(40) {
            0 => u64::MAX - self.random.below(2 * PAGE),
            1 => (1 << 63) - 1,
            _ => self.memfd_offset(),
        };
        let len = match self.random.below(20) {
            0 => 0,
            // Past the end.
            1 if mode == PUNCH => MOST_FILE_BYTES,
            2..8 => self.random.below(3 * PAGE),
            _ => (1 + self.random.below(8)) * PAGE,
        };
        // What is left of a word begins as a whole one does.
        let len = if self.theme.executes { len & !7 } else { len };
        let mode = mode | self.odd_int();
        (Call::Fallocate, words([memfd, mode, offset, len].map(Word::Exact)))
    }

    fn memfd_offset(&mut self) -> u64 {
        let page = self.random.below(MEMFD_PAGES + 8) * PAGE;
        match self.random.below(10) {
            0..6 => page,
            _ if self.theme.executes => page + self.random.below(PAGE / 8) * 8,
            _ => page + self.random.below(PAGE),
        }
    }

    fn memfd_size(&mut self) -> u64 {
        match self.random.below(20) {
            0 => 0,
            1 => u64::MAX - self.random.below(PAGE),
            2 => MOST_FILE_BYTES - self.random.below(PAGE),
            3..8 => MEMFD_PAGES * PAGE + 0x123,
            _ => self.memfd_offset(),
        }
    }

    /// What a mapping shows.
    pub(super) fn memfd_backing(&mut self, flags: &mut u64) -> (u64, u64) {
        *flags &= !MAP_ANONYMOUS;
        if self.random.chance(40) {
            *flags = *flags & !3 | MAP_SHARED;
        }
        let offset = match self.random.below(40) {
            0 => 1 + self.random.below(PAGE),
            1 => (1 << 63) - self.random.below(4) * PAGE,
            _ => self.random.below(16) * PAGE,
        };
        (self.memfd(), offset)
    }
}
