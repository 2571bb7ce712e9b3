//! What a program without std needs itself: an entry point, system calls, a panic handler, and the
//! functions that the compiler calls by itself.

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};

global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {entry}",
    "ud2",
    entry = sym crate::entry,
);

global_asm!(
    // Takes the top of the new stack, what runs on it, and a word that the kernel clears when the thread has
    // ended. The new thread shares all with the old one.
    ".globl new_thread",
    "new_thread:",
    "mov r9, rsi",
    "mov r10, rdx",
    "mov rsi, rdi",
    "mov edi, {flags}",
    "xor edx, edx",
    "xor r8d, r8d",
    "mov eax, {clone}",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "ret",
    "2:",
    "xor ebp, ebp",
    "call r9",
    "ud2",
    clone = const SYS_CLONE,
    // CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM and CHILD_CLEARTID.
    flags = const 0x250f00,
);

unsafe extern "C" {
    fn new_thread(stack: *mut u8, run: extern "C" fn() -> !, used: *mut u32) -> isize;
}

const SYS_WRITE: usize = 1;
const SYS_SCHED_YIELD: usize = 24;
const SYS_CLONE: usize = 56;
const SYS_EXIT: usize = 60;
const SYS_ARCH_PRCTL: usize = 158;
const ARCH_SET_FS: usize = 0x1002;
const SYS_EXIT_GROUP: usize = 231;

/// Makes a system call with up to three arguments.
///
/// # Safety
///
/// The kernel may do what the call does.
unsafe fn syscall(number: usize, arguments: [usize; 3]) -> isize {
    let result;
    // SAFETY: the instruction changes what is named here; the rest is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Ends the program.
pub(crate) fn exit(code: usize) -> ! {
    loop {
        // SAFETY: ends the process and touches no memory.
        unsafe { syscall(SYS_EXIT_GROUP, [code, 0, 0]) };
    }
}

/// Ends the calling thread.
pub(crate) fn exit_thread() -> ! {
    loop {
        // SAFETY: ends the thread and touches no memory.
        unsafe { syscall(SYS_EXIT, [0; 3]) };
    }
}

/// Lets other threads run.
pub(crate) fn yield_now() {
    // SAFETY: touches no memory.
    unsafe { syscall(SYS_SCHED_YIELD, [0; 3]) };
}

/// Sets what [`thread_pointer`] returns.
///
/// # Safety
///
/// At `data` lies a pointer to itself, for as long as the thread runs.
pub(crate) unsafe fn set_thread_pointer(data: *const ()) {
    // SAFETY: changes a register that nothing else uses.
    let result = unsafe { syscall(SYS_ARCH_PRCTL, [ARCH_SET_FS, data.addr(), 0]) };
    assert_eq!(result, 0, "arch_prctl");
}

/// What was set for this thread.
pub(crate) fn thread_pointer() -> *const () {
    let data;
    // SAFETY: a pointer to itself lies there (`set_thread_pointer`).
    unsafe { asm!("mov {}, fs:0", out(reg) data, options(nostack, pure, readonly)) };
    data
}

#[repr(align(16))]
struct Stack(UnsafeCell<[u8; 256 << 10]>);

// SAFETY: one thread at a time runs on it (`STACK_USED`).
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([0; 256 << 10]));
/// Whether a thread runs on the stack. The kernel clears it once the thread will not return to user mode;
/// what a thread stores itself, it stores while it is still on its stack.
static STACK_USED: AtomicU32 = AtomicU32::new(0);

/// Starts a thread that runs `run`. Waits until the one before has ended: there is one stack.
pub(crate) fn spawn(run: extern "C" fn() -> !) {
    // Acquire: what the thread before left on the stack is overwritten after it.
    while STACK_USED.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        yield_now();
    }
    // SAFETY: the end of the stack, which no thread runs on: the kernel has cleared the word, and this thread
    // has set it. The kernel clears a word that stays.
    let result = unsafe { new_thread(STACK.0.get().cast::<u8>().add(256 << 10), run, STACK_USED.as_ptr()) };
    assert!(result > 0, "clone: {result}");
}

/// An open descriptor as a place for text.
pub(crate) struct Output(pub(crate) usize);

impl Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            // SAFETY: the kernel reads the bytes of a live slice.
            let done = unsafe { syscall(SYS_WRITE, [self.0, rest.as_ptr().addr(), rest.len()]) };
            let done = usize::try_from(done).map_err(|_| fmt::Error)?;
            rest = rest.get(done..).ok_or(fmt::Error)?;
        }
        Ok(())
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    // A failed write cannot be reported.
    let _ = writeln!(Output(2), "no-std-link: {info}");
    exit(1)
}

/// The prebuilt libcore was compiled for unwinding and names this. With `panic = "abort"` it is not called.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// The prebuilt libcore names this too; with `panic = "abort"` it is not called.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    exit(1)
}

/// Copies forwards.
///
/// # Safety
///
/// As C's `memcpy`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the direction flag is clear, as the ABI says. In assembly, since the
    // compiler would turn a loop into a call of this function.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
    to
}

/// Copies in the direction in which nothing is overwritten before it is read.
///
/// # Safety
///
/// As C's `memmove`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if to.addr().wrapping_sub(from.addr()) >= count {
        // SAFETY: the caller's promise, and no byte is written before it was read.
        return unsafe { memcpy(to, from, count) };
    }
    // SAFETY: the caller's promise; from the last byte down, no byte is written before it was read. The
    // direction flag is cleared again.
    unsafe {
        asm!(
            "std",
            "rep movsb",
            "cld",
            inout("rcx") count => _,
            inout("rdi") to.wrapping_add(count).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(count).wrapping_sub(1) => _,
            options(nostack),
        );
    }
    to
}

/// Fills.
///
/// # Safety
///
/// As C's `memset`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the direction flag is clear.
    unsafe {
        asm!(
            "rep stosb",
            inout("rcx") count => _, inout("rdi") to => _, in("al") byte as u8,
            options(nostack, preserves_flags),
        );
    }
    to
}

/// Compares.
///
/// # Safety
///
/// As C's `memcmp`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    for index in 0..count {
        // SAFETY: the caller's promise. Volatile, so that the loop is not turned into a call of this
        // function.
        let (left, right) = unsafe { (left.add(index).read_volatile(), right.add(index).read_volatile()) };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
    }
    0
}

/// Compares for equality.
///
/// # Safety
///
/// As C's `bcmp`.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { memcmp(left, right, count) }
}
