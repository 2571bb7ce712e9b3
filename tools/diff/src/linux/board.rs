//! The memory that the oracle's processes share with the one that compares.
//!
//! A program goes in, a slot for each operation comes out. There are few slots, used in turns: the writer
//! waits until the slot has been read. Everything is atomic because the other side is another process;
//! besides the words that say so, all accesses are relaxed and ordered by [`Board::ready`] and
//! [`Board::turn`].

use super::shared::Atomics;
use crate::program::names::{MOST_MADE, MOST_MEMFDS, MOST_SEGMENTS};
use crate::program::{MOST_OPS, MOST_PROCESSES, Store};
use core::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64};

/// Slots in turn.
pub(super) const SLOTS: u32 = 32;
/// How many slots are filled or emptied before the other side is woken.
pub(super) const WAKE_EVERY: u32 = 8;

/// Most of what a slot holds; what goes beyond is cut off and counted.
pub(super) const MOST_VMAS: usize = 1024;
pub(super) const MOST_RUNS: usize = 4096;
pub(super) const MOST_SUMS: usize = 8192;
pub(super) const STATUS_BYTES: usize = 4096;
/// Most pages of the file of which there are sums.
pub(crate) const MOST_FILE_PAGES: usize = 64;
/// Also the most pages of one `mincore`, whose vector takes the same place.
pub(crate) const TEXT_BYTES: usize = 256 << 10;

/// Stretches of address space that belong to the process itself.
pub(super) const MOST_OWN: usize = 16;

/// An operation as the child reads it: each word is a number, or an offset into the area `areas - 1`.
#[repr(C)]
pub(super) struct RawOp {
    pub(super) number: AtomicU32,
    pub(super) process: AtomicU32,
    pub(super) words: [AtomicU64; 6],
    pub(super) areas: [AtomicU32; 6],
    pub(super) id: AtomicU32,
    /// [`MAKES_AREA`], [`MAKES_SEGMENT`] or 0.
    pub(super) makes: AtomicU32,
    /// What of `WANT_*` is to be observed afterwards.
    pub(super) want: AtomicU32,
    /// Whether it is not made on this host.
    pub(super) left_out: AtomicU32,
}

/// The result is the address of an area.
pub(super) const MAKES_AREA: u32 = 1;
/// The result is the number of a segment.
pub(super) const MAKES_SEGMENT: u32 = 2;

/// The full text of `smaps`.
pub(super) const WANT_ALL_TEXT: u32 = 1;
/// The text of `smaps`, up to the end of the window at least, if the call did anything.
pub(super) const WANT_TEXT: u32 = 2;
/// The text of `status`.
pub(super) const WANT_STATUS: u32 = 4;
/// Checksums of all pages in memory.
pub(super) const WANT_SUMS: u32 = 8;

/// The operation was made.
pub(super) const DONE: u32 = 0;
/// Its process does not exist.
pub(super) const NO_PROCESS: u32 = 1;
/// An area that it names does not exist.
pub(super) const NO_AREA: u32 = 2;
/// It would hit memory of the process itself.
pub(super) const UNSAFE: u32 = 3;
/// It cannot be compared on this host.
pub(super) const LEFT_OUT: u32 = 4;

/// Most stretches of data of a memfd, and most pages of it of which there are sums.
pub(crate) const MOST_DATA: usize = 32;
pub(crate) const MOST_MEMFD_PAGES: usize = 96;

/// What is behind a descriptor of a memfd.
#[repr(C)]
pub(super) struct RawMemfd {
    /// Whether there is anything.
    pub(super) is_open: AtomicU32,
    pub(super) data_count: AtomicU32,
    pub(super) sum_count: AtomicU32,
    pub(super) seals: AtomicI64,
    pub(super) size: AtomicU64,
    /// In blocks of 512 bytes.
    pub(super) blocks: AtomicU64,
    /// Start and end.
    pub(super) data: [[AtomicU64; 2]; MOST_DATA],
    /// Offset and sum.
    pub(super) sums: [[AtomicU64; 2]; MOST_MEMFD_PAGES],
}

/// A segment: its number, key, mode, creator, size, attachments, and whether it was ever attached.
pub(super) const SEGMENT_WORDS: usize = 7;

/// The result of one operation, and the state after it.
#[repr(C)]
pub(super) struct Slot {
    pub(super) state: AtomicU32,
    /// The signal that ended the access, or 0.
    pub(super) signal: AtomicU32,
    pub(super) code: AtomicU32,
    /// Whether something did not fit.
    pub(super) cut: AtomicU32,
    pub(super) value: AtomicI64,
    /// Whether anything was observed.
    pub(super) observed: AtomicU32,
    pub(super) vma_count: AtomicU32,
    pub(super) run_count: AtomicU32,
    pub(super) sum_count: AtomicU32,
    /// Size of the file, and how many of its pages were summed up.
    pub(super) file_size: AtomicI64,
    pub(super) file_count: AtomicU32,
    pub(super) status_len: AtomicU32,
    pub(super) text_len: AtomicU32,
    /// Start, end, flags and offset.
    pub(super) vmas: [[AtomicU64; 4]; MOST_VMAS],
    /// Start, end and categories, as the kernel writes them.
    pub(super) runs: [[AtomicU64; 3]; MOST_RUNS],
    /// Address and sum.
    pub(super) sums: [[AtomicU64; 2]; MOST_SUMS],
    /// Of the file's pages.
    pub(super) file_sums: [AtomicU64; MOST_FILE_PAGES],
    pub(super) memfds: [RawMemfd; MOST_MEMFDS],
    pub(super) segment_count: AtomicU32,
    pub(super) segments: [[AtomicI64; SEGMENT_WORDS]; MOST_SEGMENTS as usize],
    pub(super) status: [AtomicU8; STATUS_BYTES],
    pub(super) text: [AtomicU8; TEXT_BYTES],
}

/// The child's own layout, before the first program.
#[repr(C)]
pub(super) struct Facts {
    /// Where the program break starts.
    pub(super) brk: AtomicU64,
    /// Where an unguided mapping of one page lands.
    pub(super) highest: AtomicU64,
    /// Where a mapping begins that is too large to lie below `highest`, or 0 if there is no room for one.
    pub(super) upwards: AtomicU64,
    /// Where a hint below everything lands.
    pub(super) lowest: AtomicU64,
    /// Whether a process may have a name space of SysV shared memory of its own.
    pub(super) has_ipc: AtomicU32,
    /// Not zero: the step of the preparation that failed, and its error below.
    pub(super) failed_step: AtomicU32,
    pub(super) error: AtomicI64,
    /// The inode and the device of each file that programs map.
    pub(super) files: [[AtomicU64; 2]; Store::ALL.len()],
}

/// The whole of it.
#[repr(C)]
pub(super) struct Board {
    /// Counts the programs (and the order to end); written by the comparing side, read by the template.
    pub(super) command: AtomicU32,
    /// The last finished command; in the other direction.
    pub(super) over: AtomicU32,
    /// The next operation, counted from 0; a process makes it when it is its own.
    pub(super) turn: AtomicU32,
    /// Operations whose slots are filled. Release when written, acquire when read by the comparing side.
    pub(super) ready: AtomicU32,
    /// Operations whose slots have been read. The other way.
    pub(super) consumed: AtomicU32,
    /// The comparing side wants no more of this program.
    pub(super) stop: AtomicU32,
    /// Not zero: a process died, with this wait status.
    pub(super) died: AtomicU32,
    /// Ends the template.
    pub(super) quit: AtomicU32,
    /// A bit for each process that lives.
    pub(super) alive: AtomicU32,
    pub(super) op_count: AtomicU32,
    /// The comparing process.
    pub(super) parent: AtomicU32,
    pub(super) own_count: AtomicU32,
    /// Mappings below this end are of interest in every text.
    pub(super) window_end: AtomicU64,
    /// The executable's own mappings, kept by the child.
    pub(super) image: [AtomicU64; 2],
    /// Which of the files the program has: its place in `Store::ALL`.
    pub(super) store: AtomicU32,
    /// The file's contents could not be written before the program, for this error.
    pub(super) file_error: AtomicI64,
    pub(super) facts: Facts,
    /// The inodes of the memfds that the program has made, in their order.
    pub(super) made: [AtomicU64; MOST_MADE as usize],
    pub(super) made_count: AtomicU32,
    /// Whether the program has SysV shared memory.
    pub(super) uses_ipc: AtomicU32,
    /// The numbers that Linux has for the program's processes.
    pub(super) pids: [AtomicI64; MOST_PROCESSES as usize],
    /// Start and end of what belongs to the process itself, sorted and disjoint.
    pub(super) own: [[AtomicU64; 2]; MOST_OWN],
    /// For what the kernel reads and writes.
    pub(super) scratch: [AtomicU64; 64],
    /// A page of the file.
    pub(super) page: [AtomicU64; 512],
    /// Results of operations that made areas, and one more than those that made segments, by number; 0 is
    /// none.
    pub(super) areas: [AtomicU64; MOST_OPS],
    pub(super) ops: [RawOp; MOST_OPS],
    pub(super) slots: [Slot; SLOTS as usize],
}

// SAFETY: all of it is atomics.
unsafe impl Atomics for Board {}
