//! The layout that a process begins with after exec.

use super::{ExecGain, Privileges};

/// A process image as Linux made it, before its first instruction ran.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecImage {
    /// The process id in Linux.
    pub pid: u32,
    /// The instruction set and call table of the program.
    pub abi: Abi,
    /// The program's file.
    pub program: Box<[u8]>,
    /// Its command line.
    pub args: Vec<Box<[u8]>>,
    /// Every mapping, by address.
    pub mappings: Vec<Mapping>,
    /// Where the heap of `brk` begins.
    pub start_brk: u64,
    /// The current program break, to the byte.
    pub brk: u64,
    /// The stack pointer that the program begins with.
    pub start_stack: u64,
    /// Start of the argument strings.
    pub arg_start: u64,
    /// End of the argument strings.
    pub arg_end: u64,
    /// Start of the environment strings.
    pub env_start: u64,
    /// End of the environment strings.
    pub env_end: u64,
    /// Where Linux begins to search for free ranges.
    pub mmap_base: Option<MmapBase>,
    /// The resource limits that concern memory.
    pub limits: Limits,
    /// `vm.max_map_count`.
    pub max_map_count: u64,
    /// `vm.overcommit_memory`: 0 heuristic, 1 always, 2 never.
    pub overcommit_memory: u8,
    /// `vm.mmap_min_addr`: below it, mappings with `MAP_FIXED` need [`Privileges::sys_rawio`].
    pub mmap_min_addr: u64,
    /// The lowest address that Linux gives to a mapping without `MAP_FIXED`. It can be higher than
    /// [`mmap_min_addr`](Self::mmap_min_addr) (a security module has a limit of its own), and is probed
    /// since version 3 of the format.
    pub lowest_placed: u64,
    /// The `personality` of the process.
    pub personality: u32,
    /// The privileges of the thread that called exec. Versions 1 and 2 of the format have `CAP_IPC_LOCK`
    /// only; both are then taken to be the same.
    pub privileges: Privileges,
    /// Whether mappings may become executable. Versions 1 and 2 of the format do not have it: allowed.
    pub exec_gain: ExecGain,
    /// Transparent huge pages: `/sys/kernel/mm/transparent_hugepage/enabled`.
    pub thp: ThpMode,
    /// Bytes of page tables (`VmPTE`) that Linux had for this image.
    pub page_tables: u64,
}

/// Which call table a program uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Abi {
    /// 64-bit x86.
    #[default]
    X86_64,
    /// 32-bit x86: the image is recorded, its calls are not.
    I386,
}

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
    /// Loads are allowed.
    pub read: bool,
    /// Stores are allowed.
    pub write: bool,
    /// Instruction fetches are allowed.
    pub execute: bool,
    /// Stores are seen by other mappings of the same file.
    pub shared: bool,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Device number of the file system, 0 for anonymous memory.
    pub device: u64,
    /// Inode number, 0 for anonymous memory.
    pub inode: u64,
    /// The name that Linux shows: a file, `[heap]`, `[stack]`, `[vdso]`, or nothing.
    pub name: Box<[u8]>,
    /// The kernel's flags of the mapping.
    pub flags: VmFlags,
    /// The pages that are present in the page tables.
    pub resident: Vec<PageRun>,
}

/// A run of pages that are present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRun {
    /// Address of the first.
    pub start: u64,
    /// How many pages of 4 KiB.
    pub pages: u64,
    /// They belong to a file or to shared memory; otherwise they are anonymous.
    pub file: bool,
}

/// The two-letter flags of `VmFlags:` in `/proc/PID/smaps`, one bit each in the order of
/// [`VmFlags::LETTERS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VmFlags(pub u64);

impl VmFlags {
    /// The letters that this format knows; bit n of the set is the nth.
    pub const LETTERS: [[u8; 2]; 38] = [
        *b"rd", *b"wr", *b"ex", *b"sh", *b"mr", *b"mw", *b"me", *b"ms", *b"gd", *b"pf", *b"lo", *b"io",
        *b"sr", *b"rr", *b"dc", *b"de", *b"ac", *b"nr", *b"ht", *b"sf", *b"ar", *b"wf", *b"dd", *b"sd",
        *b"mm", *b"hg", *b"nh", *b"mg", *b"bt", *b"mt", *b"um", *b"uw", *b"ss", *b"sl", *b"lf", *b"dp",
        *b"ui", *b"gu",
    ];
    /// Bit of letters that this format does not know (a newer kernel's): at least one such is set.
    pub const UNKNOWN: u64 = 1 << 63;

    /// The set from the words after `VmFlags:`.
    #[must_use]
    pub fn from_words(words: &str) -> Self {
        let mut bits = 0;
        for word in words.split_whitespace() {
            let place = Self::LETTERS.iter().position(|letters| letters == word.as_bytes());
            bits |= place.map_or(Self::UNKNOWN, |n| 1 << n);
        }
        Self(bits)
    }

    /// Whether the flag with these two letters is set.
    #[must_use]
    pub fn has(self, letters: [u8; 2]) -> bool {
        let place = Self::LETTERS.iter().position(|known| *known == letters);
        place.is_some_and(|n| self.0 & (1 << n) != 0)
    }
}

/// Where Linux begins to search for free ranges, and in which direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MmapBase {
    /// Downward: the end of the highest mapping that can be placed. Upward: the start of the lowest.
    pub addr: u64,
    /// Which way.
    pub direction: Direction,
    /// How it was found.
    pub source: BaseSource,
}

/// The direction in which Linux searches for free ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From high to low addresses: the usual layout.
    Down,
    /// From low to high addresses: the legacy layout (unlimited stack, `ADDR_COMPAT_LAYOUT`).
    Up,
}

/// How the base was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BaseSource {
    /// By mapping pages in the new image: exact.
    Probed,
    /// From the place of the loader or the vDSO, because the probe was not possible.
    Inferred,
}

/// The resource limits that concern memory; none by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// `RLIMIT_AS`.
    pub address_space: Rlimit,
    /// `RLIMIT_DATA`.
    pub data: Rlimit,
    /// `RLIMIT_STACK`.
    pub stack: Rlimit,
    /// `RLIMIT_MEMLOCK`.
    pub locked: Rlimit,
}

/// One resource limit; `u64::MAX` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rlimit {
    /// The limit that counts.
    pub soft: u64,
    /// What the soft limit may be raised to.
    pub hard: u64,
}

impl Rlimit {
    /// No limit.
    pub const UNLIMITED: Self = Self { soft: u64::MAX, hard: u64::MAX };
}

impl Default for Rlimit {
    fn default() -> Self {
        Self::UNLIMITED
    }
}

/// When Linux uses transparent huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThpMode {
    /// Wherever they fit.
    Always,
    /// Where `madvise` asks for them.
    Madvise,
    /// Nowhere.
    Never,
    /// The kernel does not say (built without them).
    #[default]
    Unknown,
}
