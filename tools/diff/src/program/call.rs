//! The calls that programs are made of, and how their arguments are written.

/// What kind of operation a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// A system call about memory.
    Memory,
    /// An access.
    Access,
    /// About the process itself.
    Process,
}

/// How an argument is written and read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    /// An address, a length or another number.
    Number,
    /// A small signed number.
    Signed,
    /// Bits with names.
    Bits(&'static [(u64, &'static str)]),
    /// One of several values with names.
    Value(&'static [(u64, &'static str)]),
}

/// Names of flags and values, and the numbers behind them on x86-64.
pub(crate) mod names {
    /// Tables of names with their numbers, each of which is a constant, too.
    macro_rules! tables {
        ($($table:ident: $($name:ident = $number:expr),+;)+) => {$(
            pub(crate) const $table: &[(u64, &str)] = &[$(($name, stringify!($name))),+];
            $(pub(crate) const $name: u64 = $number;)+
        )+};
    }

    tables! {
        PROTECTION:
            PROT_READ = 1, PROT_WRITE = 2, PROT_EXEC = 4, PROT_SEM = 8, PROT_GROWSDOWN = 1 << 24,
            PROT_GROWSUP = 1 << 25;
        MAP:
            MAP_SHARED = 1, MAP_PRIVATE = 2, MAP_FIXED = 0x10, MAP_ANONYMOUS = 0x20, MAP_32BIT = 0x40,
            MAP_GROWSDOWN = 0x100, MAP_DENYWRITE = 0x800, MAP_EXECUTABLE = 0x1000, MAP_LOCKED = 0x2000,
            MAP_NORESERVE = 0x4000, MAP_POPULATE = 0x8000, MAP_NONBLOCK = 0x1_0000, MAP_STACK = 0x2_0000,
            MAP_HUGETLB = 0x4_0000, MAP_SYNC = 0x8_0000, MAP_FIXED_NOREPLACE = 0x10_0000;
        REMAP:
            MREMAP_MAYMOVE = 1, MREMAP_FIXED = 2, MREMAP_DONTUNMAP = 4;
        ADVICE:
            MADV_NORMAL = 0, MADV_RANDOM = 1, MADV_SEQUENTIAL = 2, MADV_WILLNEED = 3, MADV_DONTNEED = 4,
            MADV_FREE = 8, MADV_REMOVE = 9, MADV_DONTFORK = 10, MADV_DOFORK = 11, MADV_MERGEABLE = 12,
            MADV_UNMERGEABLE = 13, MADV_HUGEPAGE = 14, MADV_NOHUGEPAGE = 15, MADV_DONTDUMP = 16,
            MADV_DODUMP = 17, MADV_WIPEONFORK = 18, MADV_KEEPONFORK = 19, MADV_COLD = 20, MADV_PAGEOUT = 21,
            MADV_POPULATE_READ = 22, MADV_POPULATE_WRITE = 23, MADV_DONTNEED_LOCKED = 24,
            MADV_COLLAPSE = 25, MADV_GUARD_INSTALL = 102, MADV_GUARD_REMOVE = 103;
        SYNC:
            MS_ASYNC = 1, MS_INVALIDATE = 2, MS_SYNC = 4;
        LOCK:
            MLOCK_ONFAULT = 1;
        LOCK_ALL:
            MCL_CURRENT = 1, MCL_FUTURE = 2, MCL_ONFAULT = 4;
        PRIVILEGES:
            CAP_IPC_LOCK = 1 << 14, CAP_IPC_OWNER = 1 << 15, CAP_SYS_RAWIO = 1 << 17;
        OPTION:
            PR_SET_MDWE = 65, PR_GET_MDWE = 66;
        MDWE:
            PR_MDWE_REFUSE_EXEC_GAIN = 1, PR_MDWE_NO_INHERIT = 2;
        FALLOCATE:
            FALLOC_FL_KEEP_SIZE = 1, FALLOC_FL_PUNCH_HOLE = 2, FALLOC_FL_COLLAPSE_RANGE = 8,
            FALLOC_FL_ZERO_RANGE = 0x10, FALLOC_FL_INSERT_RANGE = 0x20, FALLOC_FL_UNSHARE_RANGE = 0x40;
        MEMFD:
            MFD_CLOEXEC = 1, MFD_ALLOW_SEALING = 2, MFD_HUGETLB = 4, MFD_NOEXEC_SEAL = 8, MFD_EXEC = 0x10;
        CONTROL:
            F_ADD_SEALS = 1033, F_GET_SEALS = 1034;
        SEALS:
            F_SEAL_SEAL = 1, F_SEAL_SHRINK = 2, F_SEAL_GROW = 4, F_SEAL_WRITE = 8, F_SEAL_FUTURE_WRITE = 0x10,
            F_SEAL_EXEC = 0x20;
        SEEK:
            SEEK_DATA = 3, SEEK_HOLE = 4;
        ACCESS:
            O_RDONLY = 0, O_WRONLY = 1, O_RDWR = 2;
        SEGMENT:
            IPC_CREAT = 0o1000, IPC_EXCL = 0o2000, SHM_HUGETLB = 0o4000, SHM_NORESERVE = 0o10000;
        ATTACH:
            SHM_RDONLY = 0o10000, SHM_RND = 0o20000, SHM_REMAP = 0o40000, SHM_EXEC = 0o100_000;
        SEGMENT_CONTROL:
            IPC_RMID = 0, IPC_SET = 1, IPC_STAT = 2, SHM_LOCK = 11, SHM_UNLOCK = 12, SHM_STAT = 13, SHM_INFO = 14,
            SHM_STAT_ANY = 15;
        LIMIT:
            RLIMIT_DATA = 2, RLIMIT_STACK = 3, RLIMIT_MEMLOCK = 8, RLIMIT_AS = 9;
    }

    /// The descriptors that programs can map: the file open for both, for reading, for writing, and without
    /// access; a folder; and `/dev/zero`.
    pub(crate) const FILE: u32 = 200;
    pub(crate) const READ_ONLY: u32 = 201;
    pub(crate) const WRITE_ONLY: u32 = 202;
    pub(crate) const PATH_ONLY: u32 = 203;
    pub(crate) const FOLDER: u32 = 204;
    pub(crate) const ZEROS: u32 = 206;
    /// The first of the descriptors that memfds may have.
    pub(crate) const MEMFDS: u32 = 250;
    pub(crate) use crate::observation::MOST_MEMFDS;
    /// How many memfds a program makes at most.
    pub(crate) const MOST_MADE: u32 = 64;
    /// The largest segment of SysV shared memory that a program makes, and the smallest size that is refused
    /// for being too large.
    pub(crate) const MOST_SEGMENT_BYTES: u64 = 4 << 20;
    pub(crate) const REFUSED_SEGMENT_BYTES: u64 = 1 << 48;
    /// Places of segments that are compared.
    pub(crate) const MOST_SEGMENTS: u32 = 24;
    /// Beside the mode that `IPC_SET` sets: the owner is -1.
    pub(crate) const NO_OWNER: u64 = 1 << 16;

    /// The longest name that a program gives one.
    pub(crate) const MOST_NAME: u64 = 4000;

    /// The place of a descriptor, which is an `int`, among those of memfds.
    pub(crate) const fn memfd_at(descriptor: u64) -> Option<usize> {
        let at = (descriptor as u32).wrapping_sub(MEMFDS) as usize;
        if at < MOST_MEMFDS { Some(at) } else { None }
    }

    /// Size of the file at first: 40 pages and a part of one.
    pub(crate) const FILE_BYTES: u64 = (40 << 12) + 0x123;
    /// That of a file with large folios: of 2 MiB, of 1 MiB, of 64 KiB, and a part of a page.
    pub(crate) const LARGE_FILE_BYTES: u64 = (3 << 20) + (16 << 12) + 0x123;
    /// The largest size that random programs set.
    pub(crate) const MOST_FILE_BYTES: u64 = 4 << 20;
    /// The longest range of it that is allocated, moved or made zeros.
    pub(crate) const MOST_RANGE_BYTES: u64 = 16 << 20;

    /// The word of the file's first contents at word `at` of page `page`. It may be executed.
    pub(crate) const fn file_word(page: u64, at: u64) -> u64 {
        (page + 1) << 32 | at << 20 | 0x90
    }
}

use Argument::{Bits, Number, Signed, Value};

/// Further properties of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trait {
    /// The places of its ranges count.
    Range,
    /// Its ranges are to lie across the borders of page tables, too.
    Border,
    /// It is to hit paged-out pages, once there are such pages.
    Swapped,
    /// It can change flags of mappings that only `smaps` shows.
    Flags,
    /// The address that it returns can be used by later operations.
    Area,
    /// The number of a segment that it returns can be used by later operations.
    Segment,
    /// It is about SysV shared memory.
    Ipc,
}

use Trait::{Area, Border, Flags, Ipc, Range, Segment, Swapped};

/// A call with its name, class, number (of Linux, or of the pseudo calls from 10 000 on), arguments and
/// traits.
type Row = (Call, &'static str, Class, u32, &'static [Argument], &'static [Trait]);

macro_rules! calls {
    ($($(#[$doc:meta])* $call:ident = $name:literal, $class:ident, $number:literal, [$($argument:expr),*]
        $(, $trait:ident)*;)*) => {
        /// What an operation does.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Call {
            $($(#[$doc])* $call,)*
        }

        /// In the order of their declaration.
        const CALLS: &[Row] =
            &[$((Call::$call, $name, Class::$class, $number, &[$($argument),*], &[$($trait),*])),*];
    };
}

calls! {
    /// `mmap`.
    Mmap = "mmap", Memory, 9, [Number, Number, Bits(names::PROTECTION), Bits(names::MAP), Signed, Number],
        Range, Border, Flags, Area;
    /// `munmap`.
    Munmap = "munmap", Memory, 11, [Number, Number], Range, Border, Swapped;
    /// `mprotect`.
    Mprotect = "mprotect", Memory, 10, [Number, Number, Bits(names::PROTECTION)],
        Range, Border, Swapped, Flags;
    /// `pkey_mprotect` with key -1.
    PkeyMprotect = "pkey_mprotect", Memory, 329, [Number, Number, Bits(names::PROTECTION), Signed], Flags;
    /// `mremap`.
    Mremap = "mremap", Memory, 25, [Number, Number, Number, Bits(names::REMAP), Number],
        Range, Border, Swapped, Flags, Area;
    /// `madvise`.
    Madvise = "madvise", Memory, 28, [Number, Number, Value(names::ADVICE)], Range, Border, Swapped, Flags;
    /// `brk`.
    Brk = "brk", Memory, 12, [Number];
    /// `mincore` with a vector outside of the program's memory.
    Mincore = "mincore", Memory, 27, [Number, Number], Range, Swapped;
    /// `msync`.
    Msync = "msync", Memory, 26, [Number, Number, Bits(names::SYNC)], Range;
    /// `mlock`.
    Mlock = "mlock", Memory, 149, [Number, Number], Range, Border, Swapped, Flags;
    /// `mlock2`.
    Mlock2 = "mlock2", Memory, 325, [Number, Number, Bits(names::LOCK)], Flags;
    /// `munlock`.
    Munlock = "munlock", Memory, 150, [Number, Number], Range, Border, Swapped, Flags;
    /// `mlockall`.
    Mlockall = "mlockall", Memory, 151, [Bits(names::LOCK_ALL)], Swapped, Flags;
    /// `munlockall`.
    Munlockall = "munlockall", Memory, 152, [], Flags;
    /// Reads a word.
    Read = "read", Access, 10_000, [Number], Swapped;
    /// Writes a word.
    Write = "write", Access, 10_001, [Number, Number], Swapped;
    /// Executes one instruction.
    Execute = "execute", Access, 10_002, [Number];
    /// Writes a word into each page of a range, until one is refused. The value is the number of pages
    /// written.
    Fill = "fill", Access, 10_003, [Number, Number, Number], Range, Border, Swapped;
    /// Creates the process whose number is the argument.
    Fork = "fork", Process, 10_004, [Number], Swapped, Flags;
    /// The process ends.
    Exit = "exit", Process, 10_005, [];
    /// Sets a soft limit of the process.
    Setrlimit = "setrlimit", Process, 10_006, [Value(names::LIMIT), Number];
    /// Keeps only some of the privileges that it began with (`capset`).
    SetPrivileges = "set_privileges", Process, 10_007, [Bits(names::PRIVILEGES)];
    /// `prctl`.
    Prctl = "prctl", Memory, 157, [Value(names::OPTION), Bits(names::MDWE), Number, Number, Number];
    /// `mincore` with a vector that is an argument.
    MincoreInto = "mincore_into", Memory, 10_008, [Number, Number, Number], Range;
    /// Makes mappings without access, in a place of their own, until there is one more than
    /// `vm.max_map_count`, and unmaps as many again as the argument says. The value is how many were made.
    Crowd = "crowd", Memory, 10_009, [Number];
    /// `pread`.
    Pread = "pread", Memory, 17, [Signed, Number, Number, Number];
    /// `pwrite`.
    Pwrite = "pwrite", Memory, 18, [Signed, Number, Number, Number];
    /// `ftruncate`.
    Ftruncate = "ftruncate", Memory, 77, [Signed, Number];
    /// `fallocate`.
    Fallocate = "fallocate", Memory, 285, [Signed, Bits(names::FALLOCATE), Number, Number];
    /// `fsync`.
    Fsync = "fsync", Memory, 74, [Signed];
    /// `memfd_create` with a name of so many bytes, as a descriptor that is the last argument. It is of huge
    /// pages: then there is no descriptor of it. The value is 0.
    MemfdCreate = "memfd_create", Memory, 319, [Number, Bits(names::MEMFD), Signed];
    /// Opens a memfd once more, as another descriptor. The value is 0.
    Reopen = "reopen", Memory, 10_010, [Signed, Signed, Value(names::ACCESS)];
    /// `dup2`.
    Dup2 = "dup2", Memory, 33, [Signed, Signed];
    /// `close`.
    Close = "close", Memory, 3, [Signed];
    /// `fcntl` about seals.
    Fcntl = "fcntl", Memory, 72, [Signed, Value(names::CONTROL), Bits(names::SEALS)];
    /// `shmget`.
    Shmget = "shmget", Memory, 29, [Signed, Number, Bits(names::SEGMENT)], Segment, Ipc;
    /// `shmat`.
    Shmat = "shmat", Memory, 30, [Number, Number, Bits(names::ATTACH)], Flags, Area, Ipc;
    /// `shmdt`.
    Shmdt = "shmdt", Memory, 67, [Number], Ipc;
    /// `shmctl`, whose last argument is the mode that `IPC_SET` sets. The segments are compared after it.
    Shmctl = "shmctl", Memory, 31, [Number, Value(names::SEGMENT_CONTROL), Number], Flags, Ipc;
    /// `lseek` to data or a hole.
    Lseek = "lseek", Memory, 8, [Signed, Number, Value(names::SEEK)];
}

impl Call {
    /// All calls.
    pub fn all() -> impl Iterator<Item = Self> {
        CALLS.iter().map(|row| row.0)
    }

    fn row(self) -> &'static Row {
        &CALLS[self as usize]
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Its class.
    pub fn class(self) -> Class {
        self.row().2
    }

    /// Linux's number of it, or one from 10 000 on for what is no system call.
    pub(crate) fn number(self) -> u32 {
        self.row().3
    }

    pub(crate) fn arguments(self) -> &'static [Argument] {
        self.row().4
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        CALLS.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Whether this is true of it.
    pub(crate) fn has(self, wanted: Trait) -> bool {
        self.row().5.contains(&wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_calls_share_a_name_or_a_number() {
        for (at, row) in CALLS.iter().enumerate() {
            assert_eq!((row.0 as usize, Call::from_name(row.1)), (at, Some(row.0)));
            assert!(CALLS[..at].iter().all(|other| other.3 != row.3 && other.1 != row.1));
        }
    }
}
