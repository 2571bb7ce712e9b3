//! Accesses that may be refused: each returns the signal's code instead of ending the process.

use core::arch::global_asm;
use core::ffi::{c_int, c_void};
use core::ptr;
use std::sync::OnceLock;

// One instruction each may fault. The handler then puts the signal's code into rdx and goes on behind it.
// Nothing is kept anywhere else, so that any number of threads, and children, can do this at once.
global_asm!(
    ".globl quire_threads_read",
    "quire_threads_read:",
    "xor edx, edx",
    "quire_threads_read_at:",
    "mov rax, [rdi]",
    "quire_threads_read_end:",
    "ret",
    ".globl quire_threads_write",
    "quire_threads_write:",
    "xor edx, edx",
    "quire_threads_write_at:",
    "mov [rdi], rsi",
    "quire_threads_write_end:",
    "ret",
    ".globl quire_threads_read_at, quire_threads_read_end, quire_threads_write_at, quire_threads_write_end",
);

/// What an access came to, as the two registers of a result.
#[derive(Clone, Copy)]
#[repr(C)]
struct AccessResult {
    value: u64,
    /// `si_code` of the signal, or 0.
    code: u64,
}

unsafe extern "C" {
    fn quire_threads_read(addr: u64) -> AccessResult;
    fn quire_threads_write(addr: u64, value: u64) -> AccessResult;
    safe fn quire_threads_read_at();
    safe fn quire_threads_read_end();
    safe fn quire_threads_write_at();
    safe fn quire_threads_write_end();
}

/// The instructions that may fault, with those behind them.
fn places() -> [(i64, i64); 2] {
    [
        (quire_threads_read_at as *const () as i64, quire_threads_read_end as *const () as i64),
        (quire_threads_write_at as *const () as i64, quire_threads_write_end as *const () as i64),
    ]
}

/// What was done with the signal before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

extern "C" fn on_fault(_signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a siginfo and a ucontext that are this handler's while it runs.
    let (code, registers) =
        unsafe { ((*info).si_code, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs) };
    let at = registers[libc::REG_RIP as usize];
    match places().into_iter().find(|place| place.0 == at) {
        Some((_, behind)) => {
            registers[libc::REG_RIP as usize] = behind;
            registers[libc::REG_RDX as usize] = i64::from(code);
        }
        None => {
            // Not ours: as it was before, and the instruction faults again.
            if let Some(before) = BEFORE.get() {
                // SAFETY: an action that was installed before.
                unsafe { libc::sigaction(libc::SIGSEGV, before, ptr::null_mut()) };
            }
        }
    }
}

/// Installs the handler, once for the life of the process.
pub(super) fn catch_faults() {
    BEFORE.get_or_init(|| {
        // SAFETY: an all-zero sigaction is a valid one; the handler has the form that SA_SIGINFO asks for,
        // and does nothing but what a handler may do. The stack of the thread serves: SA_ONSTACK keeps to one
        // where there is one, which std has for each thread.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            let mut before: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before), 0, "no handler");
            before
        }
    });
}

fn result(returned: AccessResult) -> Result<u64, i32> {
    match returned.code {
        0 => Ok(returned.value),
        code => Err(code as i32),
    }
}

/// Reads the word at `addr`, or returns the code of the SIGSEGV.
///
/// # Safety
///
/// [`catch_faults`] was called, and `addr` is nothing that Rust code uses.
pub(super) unsafe fn read(addr: u64) -> Result<u64, i32> {
    // SAFETY: the caller's promise; the function keeps to the C convention, with the two registers of a
    // result.
    result(unsafe { quire_threads_read(addr) })
}

/// Writes the word at `addr`, or returns the code of the SIGSEGV.
///
/// # Safety
///
/// As for [`read`].
pub(super) unsafe fn write(addr: u64, value: u64) -> Result<(), i32> {
    // SAFETY: as in `read`.
    result(unsafe { quire_threads_write(addr, value) }).map(|_| ())
}
