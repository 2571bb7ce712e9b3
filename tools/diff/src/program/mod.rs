//! Programs: lists of memory calls and accesses with the same meaning on Linux and on Quire.

mod call;
mod generate;
mod outcome;
mod text;

pub(crate) use call::{Argument, Trait, names};
pub use call::{Call, Class};
pub(crate) use generate::generate;
pub use outcome::Outcome;
pub(crate) use outcome::errno_name;
pub use text::{HEADING, ParseError};

/// Most processes of a program.
pub const MOST_PROCESSES: u32 = 8;
/// Most operations of a program.
pub const MOST_OPS: usize = 4096;

/// An argument of an operation. Values that only a run determines are symbolic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Word {
    /// As it is.
    Exact(u64),
    /// So many bytes from the start of the program's window.
    Window(u64),
    /// So many bytes from the address that the `mmap` or `mremap` with this number returned.
    Area(u32, u64),
    /// So many bytes from what a process has at its start.
    Base(Base, u64),
    /// The number of the segment that the `shmget` with this number returned.
    Segment(u32),
}

/// What a process has at its start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Base {
    /// The program break.
    Break,
    /// The size of all its mappings (`VmSize`).
    Size,
    /// The size of its private writable mappings (`VmData`).
    Data,
}

/// One call or access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// Its number, which it keeps when operations before it are left out.
    pub id: u32,
    /// The process that makes it: 0 is the first, the others are made by [`Call::Fork`].
    pub process: u32,
    /// What it does.
    pub call: Call,
    /// Its arguments; those that the call does not take are zero.
    pub args: [Word; 6],
}

/// Where the file of a program is stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum Store {
    /// In memory (tmpfs).
    Memory = 0,
    /// In the folder for temporary files, on a disk as a rule (ext4).
    Disk,
    /// There, too, and larger: with large folios, since it was written by one call.
    Large,
}

impl Store {
    /// All in order, with their names.
    pub const ALL: [(Self, &str); 3] =
        [(Self::Memory, "memory"), (Self::Disk, "disk"), (Self::Large, "large")];

    /// The size of the file at first.
    pub(crate) const fn file_bytes(self) -> u64 {
        match self {
            Self::Memory | Self::Disk => names::FILE_BYTES,
            Self::Large => names::LARGE_FILE_BYTES,
        }
    }
}

/// A program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// Start of the window of most operations. A multiple of 1 MiB.
    pub window: u64,
    /// Where its file is.
    pub store: Store,
    /// What it does, in the order in which all of its processes together do it. Numbers rise.
    pub ops: Vec<Op>,
}

/// Size of the window in bytes.
pub const WINDOW_BYTES: u64 = 16 << 20;

impl Program {
    /// The random program with number `number` of `seed`, with `len` operations.
    pub fn random(seed: u64, number: u64, len: usize) -> Self {
        Self::random_in(None, seed, number, len)
    }

    /// The same with its file in `store`, if that is given.
    pub(crate) fn random_in(store: Option<Store>, seed: u64, number: u64, len: usize) -> Self {
        generate(store, seed, number, len)
    }
}
