//! Programs: what each thread does, to which pages.

use core::fmt;
use core::ops::Range;
use quire_arch::{PAGE_SIZE, VirtAddr};

/// Most threads of a program.
pub const MAX_THREADS: usize = 4;
/// Most pages of a window.
pub const MAX_PAGES: u8 = 16;
/// Most operations of one thread.
pub const MAX_STEPS: usize = 40;

/// The middle of every window. Tables of every level meet here, and no process of Linux maps anything near
/// it.
const BORDER: u64 = 1 << 44;

/// Pages in a row, counted from the start of the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first.
    pub first: u8,
    /// How many.
    pub count: u8,
}

impl Span {
    /// The pages.
    pub fn pages(self) -> Range<u8> {
        self.first..self.first + self.count
    }

    /// Whether the two share a page.
    pub fn overlaps(self, other: Self) -> bool {
        self.first < other.pages().end && other.first < self.pages().end
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "{}", self.first),
            _ => write!(f, "{}..{}", self.first, self.pages().end),
        }
    }
}

/// What a program may do with a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rights {
    /// Nothing.
    None,
    /// Read.
    Read,
    /// Read and write.
    Write,
}

impl Rights {
    pub(super) const ALL: [Self; 3] = [Self::None, Self::Read, Self::Write];

    /// Whether an access is allowed.
    pub(super) fn allow(self, write: bool) -> bool {
        self >= if write { Self::Write } else { Self::Read }
    }

    /// The `PROT_` bits.
    fn bits(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Read => 1,
            Self::Write => 3,
        }
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "--",
            Self::Read => "r-",
            Self::Write => "rw",
        })
    }
}

/// One operation. Accesses are to the first word of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Reads a page's word.
    Read {
        /// The page.
        page: u8,
    },
    /// Writes a page's word.
    Write {
        /// The page.
        page: u8,
        /// Which of the program's writes this is, from 1; no two write the same.
        value: u8,
    },
    /// `mmap` FIXED of private anonymous memory.
    Map {
        /// Where.
        span: Span,
        /// With which protection.
        rights: Rights,
        /// With `MAP_POPULATE`.
        populate: bool,
    },
    /// `munmap`.
    Unmap {
        /// What.
        span: Span,
    },
    /// `mprotect`.
    Protect {
        /// What.
        span: Span,
        /// To which protection.
        rights: Rights,
    },
    /// `madvise` DONTNEED.
    Drop {
        /// What.
        span: Span,
    },
    /// `madvise` POPULATE_READ or POPULATE_WRITE.
    Populate {
        /// What.
        span: Span,
        /// For writing.
        write: bool,
    },
    /// `mremap` FIXED without a change of size.
    Move {
        /// What.
        from: Span,
        /// The first page of the new place.
        to: u8,
    },
    /// `mlock`.
    Lock {
        /// What.
        span: Span,
    },
    /// `munlock`.
    Unlock {
        /// What.
        span: Span,
    },
    /// `fork`; the child reads and writes every page, and is gone when the operation is over.
    Fork,
}

impl Op {
    /// A short name of the operation's kind.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Map { .. } => "mmap",
            Self::Unmap { .. } => "munmap",
            Self::Protect { .. } => "mprotect",
            Self::Drop { .. } => "dontneed",
            Self::Populate { .. } => "populate",
            Self::Move { .. } => "mremap",
            Self::Lock { .. } => "mlock",
            Self::Unlock { .. } => "munlock",
            Self::Fork => "fork",
        }
    }

    /// The page that an access is to; `None` for calls.
    pub(super) fn accessed(&self) -> Option<u8> {
        match *self {
            Self::Read { page } | Self::Write { page, .. } => Some(page),
            _ => None,
        }
    }

    /// The new place of a move.
    pub(super) fn target(from: Span, to: u8) -> Span {
        Span { first: to, count: from.count }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match *self {
            Self::Read { page } => write!(f, " {page}"),
            Self::Write { page, value } => write!(f, " {page} value {value}"),
            Self::Map { span, rights, populate } => {
                write!(f, " {span} {rights}{}", if populate { " populated" } else { "" })
            }
            Self::Protect { span, rights } => write!(f, " {span} {rights}"),
            Self::Populate { span, write } => {
                write!(f, " {span} for {}", if write { "writing" } else { "reading" })
            }
            Self::Move { from, to } => write!(f, " {from} to {}", Self::target(from, to)),
            Self::Unmap { span } | Self::Drop { span } | Self::Lock { span } | Self::Unlock { span } => {
                write!(f, " {span}")
            }
            Self::Fork => Ok(()),
        }
    }
}

/// How a thread waits before an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pause {
    /// For some turns of an empty loop.
    Turns(u16),
    /// It lets other threads run.
    Yield,
}

/// An operation of a thread, and the wait before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// The wait.
    pub pause: Pause,
    /// The operation.
    pub op: Op,
}

/// A program: threads that work on one address space.
///
/// Thread 0 first makes the operations of `setup` alone; then all threads start together; when they are done
/// thread 0 reads and writes every page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// Tells its values from those of other programs.
    pub serial: u64,
    /// Pages of the window.
    pub pages: u8,
    /// What thread 0 does before the others start.
    pub setup: Vec<Op>,
    /// What each thread does.
    pub threads: Vec<Vec<Turn>>,
}

impl Program {
    /// Value number of the first of the closing writes.
    pub(super) const CLOSING: u8 = 0xe0;

    /// What thread 0 does when the others are done: what a page holds and allows shows then.
    pub(super) fn closing(&self) -> impl Iterator<Item = Op> {
        (0..self.pages).flat_map(|page| [Op::Read { page }, Op::Write { page, value: Self::CLOSING + page }])
    }

    /// Where the program's pages are and how its values look.
    pub(super) fn window(&self) -> Window {
        Window { pages: self.pages, serial: self.serial }
    }

    /// All operations but the closing ones.
    pub fn len(&self) -> usize {
        self.setup.len() + self.threads.iter().map(Vec::len).sum::<usize>()
    }

    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a word of memory says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// Nothing was written.
    Zero,
    /// The program's write with this number.
    Written(u8),
    /// Nothing that the program wrote to its space.
    Foreign(u64),
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => f.write_str("zero"),
            Self::Written(value) => write!(f, "value {value}"),
            Self::Foreign(word) => write!(f, "{word:#x}, which was not written"),
        }
    }
}

/// The addresses of a program's pages, and the words that stand for its values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) pages: u8,
    serial: u64,
}

impl Window {
    /// The value that children write. It must never be seen in the parent.
    pub(super) const CHILD: u8 = 0xff;

    /// First address and length of a range that holds every window.
    pub(super) const fn largest() -> (u64, u64) {
        let len = MAX_PAGES as u64 * PAGE_SIZE;
        (BORDER - len, 2 * len)
    }

    /// The address of a page's word.
    pub(super) fn addr(self, page: u8) -> VirtAddr {
        let first = BORDER - u64::from(self.pages / 2) * PAGE_SIZE;
        VirtAddr(first + u64::from(page) * PAGE_SIZE)
    }

    /// The word that is `value`.
    pub(super) fn word(self, value: u8) -> u64 {
        (self.serial + 1) << 8 | u64::from(value)
    }

    /// What `word` says.
    pub(super) fn decode(self, word: u64) -> Word {
        match word {
            0 => Word::Zero,
            _ if word >> 8 == self.serial + 1 && word as u8 != Self::CHILD => Word::Written(word as u8),
            _ => Word::Foreign(word),
        }
    }

    /// The system call that `op` is, with the value that it returns when it succeeds. `None` for what is
    /// none.
    pub(super) fn call(self, op: Op) -> Option<Call> {
        use crate::program::{Call as C, names::*};
        let at = |span: Span| (self.addr(span.first).0, u64::from(span.count) * PAGE_SIZE);
        let on = |call: C, span: Span, third| {
            let (addr, len) = at(span);
            Call { number: call.number(), args: [addr, len, third, 0, 0, 0], result: 0 }
        };
        Some(match op {
            Op::Read { .. } | Op::Write { .. } | Op::Fork => return None,
            Op::Map { span, rights, populate } => {
                let (addr, len) = at(span);
                let flags = MAP_ANONYMOUS | MAP_PRIVATE | MAP_FIXED;
                let flags = flags | if populate { MAP_POPULATE } else { 0 };
                Call {
                    number: C::Mmap.number(),
                    args: [addr, len, rights.bits(), flags, u64::MAX, 0],
                    result: addr,
                }
            }
            Op::Unmap { span } => on(C::Munmap, span, 0),
            Op::Protect { span, rights } => on(C::Mprotect, span, rights.bits()),
            Op::Drop { span } => on(C::Madvise, span, MADV_DONTNEED),
            Op::Populate { span, write } => on(C::Madvise, span, MADV_POPULATE_READ + u64::from(write)),
            Op::Move { from, to } => {
                let ((addr, len), target) = (at(from), self.addr(to).0);
                Call {
                    number: C::Mremap.number(),
                    args: [addr, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, target, 0],
                    result: target,
                }
            }
            Op::Lock { span } => on(C::Mlock, span, 0),
            Op::Unlock { span } => on(C::Munlock, span, 0),
        })
    }
}

/// A system call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) number: u32,
    pub(super) args: [u64; 6],
    /// What it returns when it succeeds.
    pub(super) result: u64,
}
