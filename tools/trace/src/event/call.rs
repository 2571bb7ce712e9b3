//! Memory calls and what they refer to.

use super::TaskId;
use std::sync::Arc;

/// A system call that can change an address space, or that reads its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Its number in the x86-64 table.
    pub number: u32,
    /// Its six raw arguments; those that the call does not have are the contents of the registers.
    pub args: [u64; 6],
    /// Its raw result: a value, or a negative errno.
    pub result: i64,
    /// What the arguments point to, where that is recorded.
    pub detail: CallDetail,
}

impl Call {
    /// The file that the call maps, if it has one. An `mmap` of anonymous memory has none, whatever a trace
    /// says.
    #[must_use]
    pub fn file(&self) -> Option<&FileFacts> {
        const MMAP: u32 = 9;
        const MAP_ANONYMOUS: u64 = 0x20;
        match &self.detail {
            CallDetail::File(file) if self.number != MMAP || self.args[3] & MAP_ANONYMOUS == 0 => Some(file),
            _ => None,
        }
    }

    /// The errno that the call failed with.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        is_error(self.result).then(|| -self.result as i32)
    }
}

/// Prefixes of the file names of C libraries and their loaders: a call from there is attributed to its
/// caller.
pub const C_LIBRARIES: [&str; 5] = ["libc.so", "libc-", "ld-linux", "ld-musl", "libc.musl"];

/// `map_shadow_stack`, which libc does not have yet.
pub const SYS_MAP_SHADOW_STACK: i64 = 453;

/// Whether the raw result of a call is an errno: Linux reserves exactly this range for errors; a larger
/// "negative" value is an address.
#[must_use]
pub fn is_error(result: i64) -> bool {
    (-4095..0).contains(&result)
}

/// What a call's arguments point to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CallDetail {
    /// Nothing beyond the raw arguments.
    #[default]
    None,
    /// `mmap` of a descriptor: the file behind it.
    File(Arc<FileFacts>),
    /// `process_madvise`: its ranges (start, length).
    Ranges(Box<[(u64, u64)]>),
    /// `prctl(PR_SET_VMA_ANON_NAME)`: the name; `None` if the name is removed.
    Name(Option<Box<[u8]>>),
    /// `shmat`: bytes that were mapped. `io_setup`: start and bytes of the ring that the kernel mapped.
    Mapped {
        /// Start of the new mapping.
        start: u64,
        /// Its length.
        bytes: u64,
    },
    /// `mincore`: how many of the pages were resident.
    Resident {
        /// The number of pages.
        pages: u64,
    },
    /// `mmap` of anonymous memory: where it was called. Not in files of versions 1 to 5.
    Site {
        /// The address after the instruction that makes the call.
        instruction: u64,
        /// The word on top of the stack: where a C library's `mmap` returns to. 0 if it cannot be read.
        on_stack: u64,
    },
}

/// What is known of a file when it is mapped.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FileFacts {
    /// The kind of file.
    pub kind: FileKind,
    /// The file system's device number.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
    /// Its length in bytes.
    pub size: u64,
    /// The magic number of its file system (`statfs`'s `f_type`); 0 if it is not known.
    pub file_system: u64,
    /// Its descriptor may be read.
    pub readable: bool,
    /// Its descriptor may be written.
    pub writable: bool,
    /// Its file system is mounted without execution.
    pub no_exec: bool,
    /// Its name, as Linux gives it (bytes: names need not be UTF-8).
    pub name: Box<[u8]>,
    /// The result of an attempt to map it; `None` if none was made, and in files of versions 1 and 2.
    pub trial: Option<MapTrial>,
    /// What it had of memory, of a file in memory. Not in files of versions 1 to 10.
    pub held: Option<HeldInMemory>,
    /// The option `huge` of the mounted file system in memory that it is in. `None`: it is in none, as a
    /// memfd, or that is not known, as in files of versions 1 to 12.
    pub mount_huge: Option<TmpfsHuge>,
}

/// Which folios of a file system in memory (tmpfs) may be large: its option `huge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TmpfsHuge {
    /// None.
    Never,
    /// All.
    Always,
    /// Those that lie in their file as a whole, and those of mappings with MADV_HUGEPAGE.
    WithinSize,
    /// Those of mappings with MADV_HUGEPAGE.
    Advise,
}

impl TmpfsHuge {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Never, Self::Always, Self::WithinSize, Self::Advise];

    /// The word that stands for it among the options of a mount.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Always => "always",
            Self::WithinSize => "within_size",
            Self::Advise => "advise",
        }
    }
}

/// What a file in memory had when it was about to be mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct HeldInMemory {
    /// Bytes of its pages, those that were swapped out among them.
    pub bytes: u64,
    /// It changed since the recording began: its pages may be the program's. Those of a file that was there
    /// before are charged to who wrote it.
    pub changed: bool,
}

/// What a file allows, found by mapping it from another process as the call does (shared or private, offset,
/// length), but with PROT_NONE. Each field is the errno of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MapTrial {
    /// The mapping itself. If that is refused, the others are known only where they are refused differently.
    pub refused: Option<u16>,
    /// A mapping that may be written.
    pub write_refused: Option<u16>,
    /// A mapping that may be executed.
    pub exec_refused: Option<u16>,
}

/// The kind of a mapped file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FileKind {
    /// The descriptor is not open.
    #[default]
    BadDescriptor,
    /// A regular file on a file system.
    Regular,
    /// A directory.
    Directory,
    /// A file in memory: memfd, tmpfs, POSIX or System V shared memory, and a file of an overlay over these.
    /// Linux counts its mapped pages as `RssShmem`.
    Memory,
    /// A file of huge pages.
    HugePages,
    /// `/dev/zero`: mapping it is mapping anonymous memory.
    Zero,
    /// Another character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// Pipe, socket, epoll and the like.
    Other,
    /// The recorder could not find out.
    Unknown,
}

/// A resource limit that changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// A thread of the process whose limit it is.
    pub target: TaskId,
    /// Which limit.
    pub kind: LimitKind,
    /// The limit that counts; `u64::MAX` is no limit.
    pub soft: u64,
    /// What the soft limit may be raised to.
    pub hard: u64,
}

/// The limits that concern memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitKind {
    /// `RLIMIT_AS`: all mappings together.
    AddressSpace,
    /// `RLIMIT_DATA`: private writable mappings.
    Data,
    /// `RLIMIT_STACK`: the growth of the stack.
    Stack,
    /// `RLIMIT_MEMLOCK`: locked memory.
    LockedMemory,
}
