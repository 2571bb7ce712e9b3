//! System calls without a library: the process that makes the calls of a program has none.

use core::arch::asm;
use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// A raw system call. Failures are small negative numbers.
///
/// # Safety
///
/// What the call does to this process's memory must be what the caller may do.
#[inline(always)]
pub(crate) unsafe fn syscall(number: i64, args: [u64; 6]) -> i64 {
    let result;
    // SAFETY: the convention of x86-64 Linux; what the call does is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

/// Calls whose arguments are numbers: they read and write no memory of the process.
#[derive(Clone, Copy)]
#[repr(i64)]
pub(super) enum Plain {
    Close = libc::SYS_close,
    Dup2 = libc::SYS_dup2,
    ExitGroup = libc::SYS_exit_group,
    Getpid = libc::SYS_getpid,
    Ftruncate = libc::SYS_ftruncate,
    Kill = libc::SYS_kill,
    Lseek = libc::SYS_lseek,
    PidfdOpen = libc::SYS_pidfd_open,
    PkeyAlloc = libc::SYS_pkey_alloc,
    Setpgid = libc::SYS_setpgid,
    Unshare = libc::SYS_unshare,
}

/// Makes one of them.
#[inline(always)]
pub(super) fn plain(call: Plain, first: u64, second: u64) -> i64 {
    // SAFETY: no argument is taken for an address.
    unsafe { syscall(call as i64, [first, second, 0, 0, 0, 0]) }
}

/// `PR_SET_MEMORY_MERGE`, which libc does not have yet.
const PR_SET_MEMORY_MERGE: i32 = 67;

/// Settings of a process that are numbers.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum Setting {
    ChildSubreaper = libc::PR_SET_CHILD_SUBREAPER,
    DeathSignal = libc::PR_SET_PDEATHSIG,
    MergesPages = PR_SET_MEMORY_MERGE,
    NoLargeFolios = libc::PR_SET_THP_DISABLE,
}

/// Gives the calling process a setting.
#[inline(always)]
pub(super) fn set(setting: Setting, value: u64) {
    // SAFETY: these settings take no address.
    unsafe { syscall(libc::SYS_prctl, [setting as u64, value, 0, 0, 0, 0]) };
}

/// Opens the file at `path` as `descriptor`. Returns a negative number on failure. What is made by it is its
/// owner's to read and write.
pub(super) fn open_as(path: &CStr, flags: c_int, descriptor: u32) -> i64 {
    const MODE: u64 = 0o600;
    let path = path.as_ptr().addr() as u64;
    // SAFETY: the kernel reads the path.
    let opened = unsafe { syscall(libc::SYS_open, [path, flags as u64, MODE, 0, 0, 0]) };
    renumber(opened, descriptor);
    opened
}

/// Gives what was opened the number `descriptor`, unless `opened` is an error.
#[inline(always)]
fn renumber(opened: i64, descriptor: u32) {
    if opened >= 0 {
        plain(Plain::Dup2, opened.cast_unsigned(), descriptor.into());
        plain(Plain::Close, opened.cast_unsigned(), 0);
    }
}

/// Opens a pidfd of the process `pid` as `descriptor`. Returns a negative number on failure.
pub(super) fn open_process_as(pid: u32, descriptor: u32) -> i64 {
    let opened = plain(Plain::PidfdOpen, pid.into(), 0);
    renumber(opened, descriptor);
    opened
}

/// Whether the process of a pidfd has ended, whether or not its parent has waited for it.
#[inline(always)]
pub(super) fn has_ended(pidfd: u32) -> bool {
    // The kernel's `struct pollfd`: the descriptor, what is asked for, and what it finds.
    let request = AtomicU64::new(u64::from(pidfd) | (libc::POLLIN as u64) << 32);
    // SAFETY: the kernel reads the one request, writes what it found to its upper half, and does not wait.
    unsafe { syscall(libc::SYS_poll, [request.as_ptr().addr() as u64, 1, 0, 0, 0, 0]) > 0 }
}

/// Ends the calling process.
pub(crate) fn exit() -> ! {
    loop {
        plain(Plain::ExitGroup, 0, 0);
    }
}

/// Sleeps while `word` is `value`, for a second at most. May wake without a cause.
#[inline(always)]
pub(super) fn futex_wait(word: &AtomicU32, value: u32) {
    futex(word, libc::FUTEX_WAIT, value);
}

/// Wakes all that sleep on `word`, in any process.
#[inline(always)]
pub(super) fn futex_wake(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE, u32::MAX >> 1);
}

#[inline(always)]
fn futex(word: &AtomicU32, operation: c_int, value: u32) {
    let second: [u64; 2] = [1, 0];
    let (word, time) = (core::ptr::from_ref(word).addr() as u64, second.as_ptr().addr() as u64);
    // SAFETY: the call reads the word and the time, and changes no memory.
    unsafe { syscall(libc::SYS_futex, [word, operation as u64, value.into(), time, 0, 0]) };
}
