//! The files that programs map: one in memory, two in the folder for temporary files. A program has one of
//! them, with the same contents at its start each time.

use super::board::{Board, MOST_FILE_PAGES, Slot};
use super::preparation::{Preparation, fail};
use super::raw::{Plain, open_as, plain, syscall};
use super::texts::{Files, next_vma, query};
use crate::program::Store;
use crate::program::names::{
    FILE, FILE_BYTES, LARGE_FILE_BYTES, MOST_FILE_BYTES, MOST_RANGE_BYTES, PATH_ONLY, READ_ONLY, WRITE_ONLY,
    file_word,
};
use crate::sum::Sum;
use core::ffi::CStr;
use core::sync::atomic::Ordering::Relaxed;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::os::fd::AsRawFd as _;

const PAGE: u64 = 4096;
/// What a program has as its descriptors, for each of the files.
pub(super) const KEPT: [[u32; 4]; Store::ALL.len()] =
    [[210, 211, 212, 213], [220, 221, 222, 223], [240, 241, 242, 243]];
const AS: [u32; 4] = [FILE, READ_ONLY, WRITE_ONLY, PATH_ONLY];
/// How the file is opened again for those but the first.
const AGAIN: [i32; 3] = [libc::O_RDONLY, libc::O_WRONLY, libc::O_PATH];
/// Names of the first of each.
const OWN: [&CStr; KEPT.len()] = [c"/proc/self/fd/210", c"/proc/self/fd/220", c"/proc/self/fd/240"];

/// Opens the files, those that are not in memory in `folder`, where they have no names.
pub(super) fn open(board: &Board, folder: &CStr) {
    match memfd_create(c"quire-diff", MFdFlags::empty()) {
        Ok(file) => plain(Plain::Dup2, file.as_raw_fd() as u64, KEPT[0][0].into()),
        Err(error) => fail(board, Preparation::File, -(error as i64)),
    };
    for kept in &KEPT[1..] {
        let opened = open_as(folder, libc::O_TMPFILE | libc::O_RDWR, kept[0]);
        if opened < 0 {
            fail(board, Preparation::Disk, opened);
        }
    }
    for (kept, own) in KEPT.iter().zip(OWN) {
        match plain(Plain::Ftruncate, kept[0].into(), MOST_FILE_BYTES) {
            0 => {}
            error if error == -i64::from(libc::EFBIG) => fail(board, Preparation::FileSize, error),
            error => fail(board, Preparation::File, error),
        }
        for (descriptor, flags) in kept[1..].iter().zip(AGAIN) {
            let opened = open_as(own, flags, *descriptor);
            if opened < 0 {
                fail(board, Preparation::File, opened);
            }
        }
    }
}

/// Finds out what mappings of the files look like.
pub(super) fn measure(board: &Board, files: &Files) {
    let words = &board.scratch[32..45];
    let mut at = 0;
    while at < KEPT.len() {
        // SAFETY: a new mapping of a page (PROT_READ, MAP_SHARED), and its end.
        unsafe {
            let addr = syscall(libc::SYS_mmap, [0, PAGE, 1, 1, KEPT[at][0].into(), 0]);
            if addr < 0 {
                fail(board, Preparation::File, addr);
            }
            next_vma(board, files.maps, addr.cast_unsigned());
            syscall(libc::SYS_munmap, [addr.cast_unsigned(), PAGE, 0, 0, 0, 0]);
        }
        board.facts.files[at][0].store(words[query::INODE].load(Relaxed), Relaxed);
        board.facts.files[at][1].store(words[query::DEVICE].load(Relaxed), Relaxed);
        at += 1;
    }
}

/// Whether the mapping that was asked for last shows the program's file.
pub(super) fn is_shown(board: &Board) -> bool {
    let words = &board.scratch[32..45];
    let [inode, device] = &board.facts.files[store(board)];
    words[query::INODE].load(Relaxed) == inode.load(Relaxed)
        && words[query::DEVICE].load(Relaxed) == device.load(Relaxed)
}

/// Whether the mapping that was asked for last shows memory that a memfd can be.
pub(super) fn is_in_memory(board: &Board) -> bool {
    let words = &board.scratch[32..45];
    let [_, device] = &board.facts.files[Store::Memory as usize];
    words[query::DEVICE].load(Relaxed) == device.load(Relaxed)
}

/// The place of the program's file among those that are kept.
fn store(board: &Board) -> usize {
    let store = board.store.load(Relaxed) as usize;
    if store < KEPT.len() { store } else { 0 }
}

/// Pages of the file with large folios.
const LARGE_PAGES: usize = LARGE_FILE_BYTES.div_ceil(PAGE) as usize;

/// Writes all of a file with large folios by one call, which makes them: the board's page as often as it
/// takes. Returns how many bytes it has then, or an error.
fn write_at_once(board: &Board) -> i64 {
    let mut parts = [[board.page.as_ptr().addr() as u64, PAGE]; LARGE_PAGES];
    parts[LARGE_PAGES - 1][1] = LARGE_FILE_BYTES % PAGE;
    // SAFETY: the kernel reads the page, and the list of parts.
    unsafe {
        let parts = [FILE.into(), parts.as_ptr().addr() as u64, LARGE_PAGES as u64, 0, 0, 0];
        syscall(libc::SYS_pwritev, parts)
    }
}

/// Reads or writes bytes of the file: those of the board's page. Returns how many, or an error.
fn transfer(board: &Board, call: i64, at: u64, bytes: u64) -> i64 {
    let page = board.page.as_ptr().addr() as u64;
    // SAFETY: the kernel reads or writes no more than the page.
    unsafe { syscall(call, [FILE.into(), page, bytes, at, 0, 0]) }
}

/// Gives the program that is about to begin its file. Nothing of the files is mapped in any process.
pub(super) fn renew(board: &Board) {
    let kept = &KEPT[store(board)];
    let file_bytes = if store(board) == Store::Large as usize { LARGE_FILE_BYTES } else { FILE_BYTES };
    let mut at = 0;
    while at < kept.len() {
        plain(Plain::Dup2, kept[at].into(), AS[at].into());
        at += 1;
    }
    plain(Plain::Ftruncate, FILE.into(), 0);
    board.file_error.store(0, Relaxed);
    if file_bytes == LARGE_FILE_BYTES && write_at_once(board) != file_bytes.cast_signed() {
        board.file_error.store(-1, Relaxed);
    }
    let mut page = 0;
    while page * PAGE < file_bytes {
        let mut word = 0;
        while word < 512 {
            board.page[word].store(file_word(page, word as u64), Relaxed);
            word += 1;
        }
        let rest = file_bytes - page * PAGE;
        let bytes = if rest < PAGE { rest } else { PAGE };
        let written = transfer(board, libc::SYS_pwrite64, page * PAGE, bytes);
        if written != bytes.cast_signed() {
            board.file_error.store(if written < 0 { written } else { -1 }, Relaxed);
        }
        page += 1;
    }
}

/// Reads all of the file into the page cache.
pub(super) fn bring_in(board: &Board) {
    let mut at = 0;
    while transfer(board, libc::SYS_pread64, at, PAGE) > 0 && at < MOST_RANGE_BYTES {
        at += PAGE;
    }
}

/// The sum of a page, with zeros past the end of the file; none where it may not be read.
pub(super) fn sum_of_page(board: &Board, descriptor: u64, offset: u64) -> Option<u64> {
    let mut word = 0;
    while word < 512 {
        board.page[word].store(0, Relaxed);
        word += 1;
    }
    let page = board.page.as_ptr().addr() as u64;
    // SAFETY: the kernel writes no more than the board's page.
    let read = unsafe { syscall(libc::SYS_pread64, [descriptor, page, PAGE, offset, 0, 0]) };
    if read <= 0 {
        return None;
    }
    let mut sum = Sum::new();
    let mut at = 0;
    while at < 512 {
        let word = |at: usize| board.page[at].load(Relaxed);
        sum.add([word(at), word(at + 1), word(at + 2), word(at + 3)]);
        at += 4;
    }
    Some(sum.finish())
}

/// Notes the size of the file and the sums of its pages, with zeros past its end.
pub(super) fn sum_up(board: &Board, slot: &Slot) {
    // SAFETY: moves the descriptor's position, which nothing uses, to the end.
    let size = unsafe { syscall(libc::SYS_lseek, [FILE.into(), 0, libc::SEEK_END as u64, 0, 0, 0]) };
    slot.file_size.store(size, Relaxed);
    let mut count = 0;
    while count < MOST_FILE_PAGES && (count as u64 * PAGE).cast_signed() < size {
        let Some(sum) = sum_of_page(board, FILE.into(), count as u64 * PAGE) else { break };
        slot.file_sums[count].store(sum, Relaxed);
        count += 1;
    }
    slot.file_count.store(count as u32, Relaxed);
}
