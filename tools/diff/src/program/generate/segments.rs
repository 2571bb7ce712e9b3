//! Random calls about segments of SysV shared memory.

use super::super::names::*;
use super::super::{Call, Word};
use super::arguments::{with_offset, words};
use super::{Generator, PAGE};

/// Keys of segments: few, so that they meet.
const KEYS: &[u64] = &[0, 0, 0, 0x51, 0x51, 0x52, 0x53, 0x8000_0000];

impl Generator {
    /// Whether the program has memory that several mappings show.
    pub(super) fn shares_memory(&self) -> bool {
        self.theme.shared || self.theme.files || self.theme.memfds || self.theme.segments
    }

    pub(super) fn segment_call(&mut self) -> (Call, [Word; 6]) {
        if self.segments.is_empty() && self.random.chance(95) {
            return self.shmget();
        }
        match self.random.below(100) {
            0..20 => self.shmget(),
            20..58 => self.shmat(),
            58..74 => {
                let addr = match self.random.below(10) {
                    0 => self.address(),
                    1 => with_offset(self.attached(), |at| at + PAGE),
                    _ => self.attached(),
                };
                (Call::Shmdt, words([addr]))
            }
            _ => self.shmctl(),
        }
    }

    /// The address of one of the last attachments.
    fn attached(&mut self) -> Word {
        if self.attachments.is_empty() {
            return self.address();
        }
        let from = self.attachments.len().saturating_sub(6);
        Word::Area(self.random.pick(&self.attachments[from..]), 0)
    }

    /// One of the last segments, mostly.
    fn segment(&mut self) -> Word {
        if self.segments.is_empty() || self.random.chance(3) {
            return Word::Exact(self.random.pick(&[0, 1, 0x8000, 77, u64::MAX, 1 << 32]));
        }
        let from = self.segments.len().saturating_sub(5);
        Word::Segment(self.random.pick(&self.segments[from..]))
    }

    fn shmget(&mut self) -> (Call, [Word; 6]) {
        let key = self.random.pick(KEYS);
        let len = match self.random.below(20) {
            0 => self.random.pick(&[0, u64::MAX, u64::MAX - (1 << 24), 1 << 48, 1 << 63]),
            1 => MOST_SEGMENT_BYTES,
            2..5 => self.random.below(16 * PAGE),
            _ => (1 + self.random.below(24)) * PAGE,
        };
        let mut flags = self.random.pick(&[0o600, 0o600, 0o600, 0o644, 0o444, 0o200, 0, 0o777]);
        for (percent, flag) in [
            (85, IPC_CREAT),
            (12, IPC_EXCL),
            (15, SHM_NORESERVE),
            (2, SHM_HUGETLB),
            (1, SHM_HUGETLB | 5 << 26),
            (1, 0x10_0000),
        ] {
            flags |= if self.random.chance(percent) { flag } else { 0 };
        }
        (Call::Shmget, words([key, len, flags | self.odd_int()].map(Word::Exact)))
    }

    fn shmat(&mut self) -> (Call, [Word; 6]) {
        let mut flags = 0;
        for (percent, flag) in
            [(20, SHM_RDONLY), (20, SHM_RND), (30, SHM_REMAP), (8, SHM_EXEC), (2, 0x20_0000)]
        {
            flags |= if self.random.chance(percent) { flag } else { 0 };
        }
        let addr = match self.random.below(20) {
            0 => Word::Exact(self.random.pick(&[
                1,
                4095,
                1 << 47,
                (1 << 47) - PAGE,
                u64::MAX,
                u64::MAX - 4095,
            ])),
            1..8 => Word::Exact(0),
            8 => Word::Window(self.window_page() * PAGE + self.random.below(PAGE)),
            9..12 => self.address(),
            _ => Word::Window(self.window_page() * PAGE),
        };
        (Call::Shmat, words([self.segment(), addr, Word::Exact(flags | self.odd_int())]))
    }

    fn shmctl(&mut self) -> (Call, [Word; 6]) {
        let command = match self.random.below(20) {
            0..5 => IPC_RMID,
            5..8 => IPC_STAT,
            8..12 => IPC_SET,
            // What a user may lock counts all segments of all programs.
            12..14 if !self.theme.limits => SHM_LOCK,
            12..15 => SHM_UNLOCK,
            15..17 => SHM_STAT,
            17 => SHM_STAT_ANY,
            _ => SHM_INFO,
        };
        let id = match command {
            SHM_STAT | SHM_STAT_ANY => Word::Exact(self.random.pick(&[0, 1, 2, 3, 77, u64::MAX, 4096])),
            _ => self.segment(),
        };
        let mode = match self.random.below(12) {
            0 => NO_OWNER | 0o600,
            1 => 0xffff,
            _ => self.random.pick(&[0o600, 0o600, 0o400, 0o200, 0, 0o777]),
        };
        (Call::Shmctl, words([id, Word::Exact(command | self.odd_int()), Word::Exact(mode)]))
    }
}
