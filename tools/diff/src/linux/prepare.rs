//! How a fork of the comparing process becomes the template.

use super::access;
use super::board::{Board, MOST_OWN};
use super::file;
use super::ipc;
use super::memfd;
use super::preparation::{Preparation, fail};
use super::raw::{Plain, Setting, open_as, open_process_as, plain, set, syscall};
use super::texts::{Files, next_vma, query};
use crate::program::names::{FOLDER, MADV_COLD, MADV_HUGEPAGE, ZEROS};
use core::arch::asm;
use core::ffi::CStr;
use core::sync::atomic::Ordering::Relaxed;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

const PAGE: u64 = 4096;
/// The stack and the board lie above every window: then the texts of /proc begin with what is of interest.
const STACK_AT: u64 = 0x2000_0000_0000;
const STACK_BYTES: u64 = 256 << 10;
const BOARD_AT: u64 = 0x6000_0000_0000;
/// Where [`Crowd`](crate::program::Call::Crowd) makes its mappings, every second page one. What lies there is
/// looked at on neither side: only how many there are counts.
pub(crate) const CROWD_AT: u64 = STACK_AT + (1 << 30);
/// Most mappings of it. Where a program may have more, it is left out.
pub(crate) const MOST_CROWD: u64 = 1 << 17;
const CROWD_END: u64 = CROWD_AT + 2 * PAGE * MOST_CROWD;

/// A pidfd of the process that compares. Programs do not map it.
pub(super) const COMPARING_PIDFD: u32 = 205;

/// The main loop of the template.
pub(super) type Template = unsafe extern "C" fn(board: *const Board) -> !;

/// Continues as the template, in `template`. `board` has `len` bytes. Programs run on `cpus`, which is one:
/// pages in a CPU's LRU batches could not be paged out by another CPU. One of the files of programs is in
/// `folder`.
pub(super) fn become_template(
    board: &Board,
    len: u64,
    (cpus, folder): (&CpuSet, &CStr),
    template: Template,
) -> ! {
    set(Setting::DeathSignal, libc::SIGKILL as u64);
    // It may have ended by now.
    let opened = open_process_as(board.parent.load(Relaxed), COMPARING_PIDFD);
    if opened < 0 {
        fail(board, Preparation::Pidfd, opened);
    }
    // On any CPU it would still be correct, only less deterministic.
    let _ = sched_setaffinity(Pid::from_raw(0), cpus);
    allow_large_folios(false);
    // What starts this process may have marked all memory of all that it starts (`MemoryKSM=` of systemd).
    set(Setting::MergesPages, 0);
    take_protection_keys();
    // Orphaned processes of a program are reparented to the template.
    set(Setting::ChildSubreaper, 1);
    access::catch_signals(0);
    open_files(board, folder);
    // SAFETY: a new private mapping (MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_FIXED_NOREPLACE).
    let stack = unsafe { syscall(libc::SYS_mmap, [STACK_AT, STACK_BYTES, 3, 0x10_8022, u64::MAX, 0]) };
    if stack != STACK_AT.cast_signed() {
        fail(board, Preparation::Stack, stack);
    }
    // SAFETY: moves the board (MREMAP_MAYMOVE | MREMAP_FIXED) to where nothing is: only the new place is used
    // below.
    let moved = unsafe {
        let at = core::ptr::from_ref(board).addr() as u64;
        syscall(libc::SYS_mremap, [at, len, len, 3, BOARD_AT, 0])
    };
    if moved != BOARD_AT.cast_signed() {
        fail(board, Preparation::Board, moved);
    }
    // SAFETY: the new stack is mapped and empty; `template` does not return and uses nothing of the old one.
    unsafe {
        asm!("mov rsp, {stack}", "xor ebp, ebp", "call {go}", "ud2",
            stack = in(reg) STACK_AT + STACK_BYTES, go = in(reg) template, in("rdi") BOARD_AT, options(noreturn));
    }
}

/// Enables or disables large folios for the calling process and its children. The template has none.
pub(super) fn allow_large_folios(allow: bool) {
    set(Setting::NoLargeFolios, u64::from(!allow));
}

/// Allocates every protection key that the processor has, for the calling process and its children. Linux
/// uses a free one for execute-only memory, which then cannot be read; without one it can, as on processors
/// that have no keys.
fn take_protection_keys() {
    while plain(Plain::PkeyAlloc, 0, 0) > 0 {}
}

/// Makes Linux drain the CPU's LRU batches of pages that were lazily freed or made cold. Until then it has
/// references to them, which decide whether a write copies, and the next page-out would depend on how many
/// pages others freed.
pub(super) fn drain_batches() {
    // SAFETY: advice about the own stack, which nothing compares.
    unsafe { syscall(libc::SYS_madvise, [STACK_AT, PAGE, MADV_COLD, 0, 0, 0]) };
}

/// Puts the calling process on khugepaged's list. While there is one process on it, khugepaged sleeps
/// between its rounds; otherwise each program that asks for large folios would wake it.
fn occupy_khugepaged() {
    const BYTES: u64 = 4 << 20;
    allow_large_folios(true);
    // SAFETY: a new private mapping (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE),
    // and its end.
    unsafe {
        let addr = syscall(libc::SYS_mmap, [0, BYTES, 3, 0x4022, u64::MAX, 0]);
        if addr > 0 {
            syscall(libc::SYS_madvise, [addr.cast_unsigned(), BYTES, MADV_HUGEPAGE, 0, 0, 0]);
            syscall(libc::SYS_munmap, [addr.cast_unsigned(), BYTES, 0, 0, 0, 0]);
        }
    }
    allow_large_folios(false);
}

fn open_files(board: &Board, folder: &CStr) {
    file::open(board, folder);
    memfd::close_all();
    for (path, flags, descriptor) in
        [(c"/", libc::O_RDONLY | libc::O_DIRECTORY, FOLDER), (c"/dev/zero", libc::O_RDWR, ZEROS)]
    {
        let opened = open_as(path, flags, descriptor);
        if opened < 0 {
            fail(board, Preparation::File, opened);
        }
    }
}

/// Unmaps all memory but its own, and finds out where mappings and the heap begin. Runs on the new stack.
pub(super) fn measure(board: &Board) {
    const ARCH_GET_FS: u64 = 0x1003;
    let files = Files::open();
    let thread = &board.scratch[1];
    // SAFETY: the kernel writes the thread pointer to the scratch word, and takes the whole heap, which is
    // unused.
    unsafe {
        syscall(libc::SYS_arch_prctl, [ARCH_GET_FS, thread.as_ptr().addr() as u64, 0, 0, 0, 0]);
        syscall(libc::SYS_brk, [board.facts.brk.load(Relaxed), 0, 0, 0, 0, 0]);
    }
    // The kernel writes to the area that the C library registered near the thread pointer (rseq) whenever it
    // switches.
    let thread = thread.load(Relaxed) & !(PAGE - 1);
    let kept = [
        (STACK_AT, STACK_AT + STACK_BYTES),
        (BOARD_AT, BOARD_AT + ((size_of::<Board>() as u64).next_multiple_of(PAGE))),
        (board.image[0].load(Relaxed), board.image[1].load(Relaxed)),
        (thread - PAGE, thread + 2 * PAGE),
    ];
    give_up_all_but(board, &files, &kept);
    set_apart(thread - PAGE, thread + 2 * PAGE);
    occupy_khugepaged();
    list_own(board, &files);
    file::measure(board, &files);
    ipc::try_one(board);
    let facts = &board.facts;
    // SAFETY: asks where the program break is.
    facts.brk.store(unsafe { syscall(libc::SYS_brk, [0; 6]) }.cast_unsigned(), Relaxed);
    let highest = lands_at(0, PAGE);
    facts.highest.store(highest, Relaxed);
    // Not a multiple of 2 MiB, so that it is not aligned for huge pages.
    facts.upwards.store(lands_at(0, (highest & !0x1f_ffff) + 0x20_1000), Relaxed);
    facts.lowest.store(lands_at(PAGE, PAGE), Relaxed);
}

/// Where a new mapping would be, with this hint; 0 if there is no space for it.
fn lands_at(hint: u64, len: u64) -> u64 {
    // SAFETY: a mapping without access (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE), and its end.
    unsafe {
        let addr = syscall(libc::SYS_mmap, [hint, len, 0, 0x4022, u64::MAX, 0]);
        if addr < 0 {
            return 0;
        }
        syscall(libc::SYS_munmap, [addr.cast_unsigned(), len, 0, 0, 0, 0]);
        addr.cast_unsigned()
    }
}

fn give_up_all_but(board: &Board, files: &Files, kept: &[(u64, u64); 4]) {
    let words = &board.scratch[32..45];
    let mut addr = 0;
    while next_vma(board, files.maps, addr) {
        let (start, end) = (words[query::START].load(Relaxed), words[query::END].load(Relaxed));
        addr = if start > addr { start } else { addr };
        // The part up to the next thing that is kept, or past that thing.
        let mut stop = end;
        let mut skip = false;
        let mut at = 0;
        while at < kept.len() {
            let (from, to) = kept[at];
            if from <= addr && addr < to {
                stop = if to < end { to } else { end };
                skip = true;
            } else if addr < from && from < stop && !skip {
                stop = from;
            }
            at += 1;
        }
        if !skip {
            // SAFETY: nothing that this process still uses: it runs without libraries, on its own stack.
            unsafe { syscall(libc::SYS_munmap, [addr, stop - addr, 0, 0, 0, 0]) };
        }
        addr = stop;
    }
}

/// Puts a page of shared memory at both ends of the range, where no mapping is. Whether Linux merges a
/// program's mapping with one of this process's depends on how often that was forked before.
fn set_apart(start: u64, end: u64) {
    for addr in [start - PAGE, end] {
        // SAFETY: a new mapping without access where there is none (MAP_SHARED | MAP_ANONYMOUS |
        // MAP_NORESERVE | MAP_FIXED_NOREPLACE).
        unsafe { syscall(libc::SYS_mmap, [addr, PAGE, 0, 0x10_4021, u64::MAX, 0]) };
    }
}

fn list_own(board: &Board, files: &Files) {
    let words = &board.scratch[32..45];
    let mut count = 0;
    let mut addr = 0;
    while next_vma(board, files.maps, addr) {
        let (start, end) = (words[query::START].load(Relaxed), words[query::END].load(Relaxed));
        if end <= addr {
            break;
        }
        // The place of the crowd is above the stack, so there is one before it.
        if start >= CROWD_END && addr < CROWD_END && count < MOST_OWN {
            board.own[count][0].store(CROWD_AT, Relaxed);
            board.own[count][1].store(CROWD_END, Relaxed);
            count += 1;
        }
        addr = end;
        if count > 0 && board.own[count - 1][1].load(Relaxed) == start {
            board.own[count - 1][1].store(end, Relaxed);
            continue;
        }
        if count == MOST_OWN {
            fail(board, Preparation::TooMany, 0);
        }
        board.own[count][0].store(start, Relaxed);
        board.own[count][1].store(end, Relaxed);
        count += 1;
    }
    if count == 0 {
        // The kernel does not know the query.
        fail(board, Preparation::Query, 0);
    }
    board.own_count.store(count as u32, Relaxed);
}
