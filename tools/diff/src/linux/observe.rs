//! The observations of an oracle process after an operation.

use super::board::{
    Board, MOST_RUNS, MOST_SUMS, MOST_VMAS, STATUS_BYTES, Slot, TEXT_BYTES, WANT_ALL_TEXT, WANT_STATUS,
    WANT_SUMS, WANT_TEXT,
};
use super::file;
use super::ipc;
use super::memfd;
use super::raw::{Plain, plain, syscall};
use super::texts::{Files, next_vma, query};
use crate::sum::Sum;
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;

const PAGE: u64 = 4096;
/// The error of calls that may have done part of their work.
const ENOMEM: i64 = 12;
/// The end of user space.
const TOP: u64 = (1 << 47) - PAGE;

/// Access and sharing as `PROCMAP_QUERY` returns them.
pub(crate) const VMA_READABLE: u64 = 1;
pub(crate) const VMA_WRITABLE: u64 = 2;
pub(crate) const VMA_EXECUTABLE: u64 = 4;
pub(crate) const VMA_SHARED: u64 = 8;
/// Ours, beside those: it shows the programs' file. (Shared anonymous memory has an inode, too.)
pub(crate) const VMA_FILE: u64 = 1 << 32;
/// From this bit on: which memfd it shows.
pub(crate) const VMA_MEMFD_SHIFT: u32 = 40;

/// Categories of pages as `PAGEMAP_SCAN` returns them.
pub(crate) const PAGE_IS_FILE: u64 = 1 << 2;
pub(crate) const PAGE_IS_PRESENT: u64 = 1 << 3;
pub(crate) const PAGE_IS_SWAPPED: u64 = 1 << 4;
pub(crate) const PAGE_IS_PFNZERO: u64 = 1 << 5;
pub(crate) const PAGE_IS_HUGE: u64 = 1 << 6;
pub(crate) const PAGE_IS_GUARD: u64 = 1 << 8;
/// `-EINVAL`, of a kernel that does not know one of them.
const INVALID: i64 = -22;

/// Calls `visit` with the start and the end of each stretch between what is the process's own.
#[inline(always)]
pub(super) fn for_each_gap(board: &Board, visit: impl Fn(u64, u64)) {
    let mut start = 0;
    let mut at = 0;
    let count = board.own_count.load(Relaxed) as usize;
    while at < count {
        visit(start, board.own[at][0].load(Relaxed));
        start = board.own[at][1].load(Relaxed);
        at += 1;
    }
    visit(start, TOP);
}

/// Writes what is wanted into the slot.
pub(super) fn observe(board: &Board, slot: &Slot, files: &Files, want: u32) {
    slot.vma_count.store(0, Relaxed);
    slot.run_count.store(0, Relaxed);
    slot.sum_count.store(0, Relaxed);
    slot.file_count.store(0, Relaxed);
    memfd::forget(slot);
    slot.segment_count.store(0, Relaxed);
    slot.status_len.store(0, Relaxed);
    for_each_gap(board, |start, end| {
        list_vmas(board, slot, files, start, end);
        list_pages(board, slot, files, start, end);
    });
    if want & WANT_SUMS != 0 {
        sum_pages(slot);
        file::sum_up(board, slot);
        memfd::sum_up(board, slot);
        ipc::list(board, slot);
    }
    if want & WANT_STATUS != 0 {
        let len = read_text(files.status, &slot.status[..STATUS_BYTES]);
        slot.status_len.store(len, Relaxed);
    }
    let changed = slot.value.load(Relaxed) >= 0 || slot.value.load(Relaxed) == -ENOMEM;
    if want & WANT_ALL_TEXT != 0 || (want & WANT_TEXT != 0 && changed) {
        let most = if want & WANT_ALL_TEXT != 0 { TEXT_BYTES } else { bytes_up_to_window(board, slot) };
        let len = read_text(files.smaps, &slot.text[..most]);
        slot.text_len.store(len, Relaxed);
    } else {
        slot.text_len.store(0, Relaxed);
    }
    slot.observed.store(1, Relaxed);
}

fn list_vmas(board: &Board, slot: &Slot, files: &Files, start: u64, end: u64) {
    let words = &board.scratch[32..45];
    let mut addr = start;
    while addr < end && next_vma(board, files.maps, addr) {
        let (from, to) = (words[query::START].load(Relaxed), words[query::END].load(Relaxed));
        if from >= end {
            return;
        }
        let count = slot.vma_count.load(Relaxed) as usize;
        if count >= MOST_VMAS {
            slot.cut.store(1, Relaxed);
            return;
        }
        let file = if file::is_shown(board) { VMA_FILE } else { 0 };
        let clipped = if from < start { start } else { from };
        let vma = &slot.vmas[count];
        vma[0].store(clipped, Relaxed);
        vma[1].store(if to > end { end } else { to }, Relaxed);
        let memfd = memfd::shown(board) << VMA_MEMFD_SHIFT;
        vma[2].store(words[query::FLAGS].load(Relaxed) | file | memfd, Relaxed);
        vma[3].store(words[query::OFFSET].load(Relaxed) + (clipped - from), Relaxed);
        slot.vma_count.store(count as u32 + 1, Relaxed);
        addr = to;
    }
}

fn list_pages(board: &Board, slot: &Slot, files: &Files, start: u64, end: u64) {
    let count = slot.run_count.load(Relaxed) as usize;
    let words = &board.scratch[32..44];
    let categories = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;
    let returned = categories | PAGE_IS_FILE | PAGE_IS_PFNZERO | PAGE_IS_HUGE;
    let vector = slot.runs[count..].as_ptr().addr() as u64;
    let argument = [
        96,
        0,
        start,
        end,
        0,
        vector,
        (MOST_RUNS - count) as u64,
        0,
        0,
        0,
        categories,
        returned | PAGE_IS_GUARD,
    ];
    let mut at = 0;
    while at < words.len() {
        words[at].store(argument[at], Relaxed);
        at += 1;
    }
    let mut found = query::ask(files.pagemap, query::SCAN, words);
    if found == INVALID {
        words[11].store(returned, Relaxed);
        found = query::ask(files.pagemap, query::SCAN, words);
    }
    if found < 0 || words[4].load(Relaxed) < end {
        slot.cut.store(1, Relaxed);
    }
    if found > 0 {
        slot.run_count.store((count as i64 + found) as u32, Relaxed);
    }
}

/// Sums up every page in memory that may be read. Pages of zeros that are no page's own need no sum.
fn sum_pages(slot: &Slot) {
    let mut vma = 0;
    let mut at = 0;
    let mut sums = 0;
    while at < slot.run_count.load(Relaxed) as usize {
        let run = &slot.runs[at];
        let categories = run[2].load(Relaxed);
        let mut addr = run[0].load(Relaxed);
        while addr < run[1].load(Relaxed)
            && categories & (PAGE_IS_PRESENT | PAGE_IS_PFNZERO) == PAGE_IS_PRESENT
        {
            while vma < slot.vma_count.load(Relaxed) as usize && slot.vmas[vma][1].load(Relaxed) <= addr {
                vma += 1;
            }
            if vma >= slot.vma_count.load(Relaxed) as usize || sums >= MOST_SUMS {
                slot.cut.store(1, Relaxed);
                slot.sum_count.store(sums as u32, Relaxed);
                return;
            }
            if slot.vmas[vma][2].load(Relaxed) & (VMA_READABLE | VMA_WRITABLE) != 0 {
                // SAFETY: the page is in memory and may be read, and this process does nothing else
                // meanwhile.
                let sum = unsafe { sum_of(addr) };
                slot.sums[sums][0].store(addr, Relaxed);
                slot.sums[sums][1].store(sum, Relaxed);
                sums += 1;
            }
            addr += PAGE;
        }
        at += 1;
    }
    slot.sum_count.store(sums as u32, Relaxed);
}

/// # Safety
///
/// A page that may be read is mapped at `addr`.
unsafe fn sum_of(addr: u64) -> u64 {
    let words = core::ptr::with_exposed_provenance::<u64>(addr as usize);
    // SAFETY: the caller's promise, for words below 512. Volatile: the page is not Rust's.
    let word = |at| unsafe { words.add(at).read_volatile() };
    let mut sum = Sum::new();
    let mut at = 0;
    while at < 512 {
        sum.add([word(at), word(at + 1), word(at + 2), word(at + 3)]);
        at += 4;
    }
    sum.finish()
}

/// More bytes than `smaps` has for one of the mappings up to the window: about 780, and 30 where there are
/// protection keys.
const SMAPS_BYTES: usize = 1024;

/// Bytes that hold the text of all mappings up to the end of the window. The rest of the text need not be
/// made.
fn bytes_up_to_window(board: &Board, slot: &Slot) -> usize {
    let mut mappings = 0;
    let mut at = 0;
    while at < slot.vma_count.load(Relaxed) as usize
        && slot.vmas[at][0].load(Relaxed) < board.window_end.load(Relaxed)
    {
        mappings += 1;
        at += 1;
    }
    let bytes = mappings * SMAPS_BYTES;
    if bytes < TEXT_BYTES { bytes } else { TEXT_BYTES }
}

/// Reads a text of /proc from its start.
fn read_text(file: u64, into: &[AtomicU8]) -> u32 {
    plain(Plain::Lseek, file, 0);
    let mut len = 0;
    while len < into.len() {
        let at = into[len..].as_ptr().addr() as u64;
        // SAFETY: the kernel writes into the slot, which this process has for itself at the moment.
        let read = unsafe { syscall(libc::SYS_read, [file, at, (into.len() - len) as u64, 0, 0, 0]) };
        if read <= 0 {
            break;
        }
        len += read as usize;
    }
    len as u32
}
