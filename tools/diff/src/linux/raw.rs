//! System calls without a library: the process that makes the calls of a program has none.

use core::arch::asm;
use core::sync::atomic::AtomicU32;

pub(super) const READ: u32 = 0;
pub(super) const OPEN: u32 = 2;
pub(super) const CLOSE: u32 = 3;
pub(super) const LSEEK: u32 = 8;
pub(super) const MMAP: u32 = 9;
pub(super) const MUNMAP: u32 = 11;
pub(super) const BRK: u32 = 12;
pub(super) const SIGACTION: u32 = 13;
pub(super) const IOCTL: u32 = 16;
pub(super) const MREMAP: u32 = 25;
pub(super) const MADVISE: u32 = 28;
pub(super) const DUP2: u32 = 33;
pub(super) const FORK: u32 = 57;
pub(super) const WAIT4: u32 = 61;
pub(super) const KILL: u32 = 62;
pub(super) const FTRUNCATE: u32 = 77;
pub(super) const SETPGID: u32 = 109;
pub(super) const CAPGET: u32 = 125;
pub(super) const CAPSET: u32 = 126;
pub(super) const PRCTL: u32 = 157;
pub(super) const ARCH_PRCTL: u32 = 158;
pub(super) const FUTEX: u32 = 202;
pub(super) const SCHED_SETAFFINITY: u32 = 203;
pub(super) const SCHED_GETAFFINITY: u32 = 204;
pub(super) const EXIT_GROUP: u32 = 231;
pub(super) const PRLIMIT64: u32 = 302;
pub(super) const MEMFD_CREATE: u32 = 319;
pub(super) const PKEY_ALLOC: u32 = 330;

/// A raw system call. Failures are small negative numbers.
///
/// # Safety
///
/// What the call does to this process's memory must be what the caller may do.
#[inline(always)]
pub(super) unsafe fn syscall(number: u32, args: [u64; 6]) -> i64 {
    let result;
    // SAFETY: the convention of x86-64 Linux; what the call does is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") i64::from(number) => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

/// Sleeps while `word` is `value`, for a second at most. May wake without a cause.
#[inline(always)]
pub(super) fn futex_wait(word: &AtomicU32, value: u32) {
    let second: [u64; 2] = [1, 0];
    let word = core::ptr::from_ref(word).addr() as u64;
    // SAFETY: the call reads the word and the time, and changes no memory.
    unsafe { syscall(FUTEX, [word, 0, u64::from(value), second.as_ptr().addr() as u64, 0, 0]) };
}

/// Wakes all that sleep on `word`, in any process.
#[inline(always)]
pub(super) fn futex_wake(word: &AtomicU32) {
    let word = core::ptr::from_ref(word).addr() as u64;
    // SAFETY: the call changes no memory.
    unsafe { syscall(FUTEX, [word, 1, u64::from(u32::MAX >> 1), 0, 0, 0]) };
}
