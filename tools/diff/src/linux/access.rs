//! Accesses that may end in a signal: it is returned instead of ending the process.
//!
//! Nothing but registers is used to read and to write, so that any number of threads and processes can do it
//! at once, also where there is no library.

use super::raw::syscall;
use core::arch::global_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};

// One instruction each may fault; the handler puts the signal with its code into rdx and resumes after it.
// An instruction of the program's is executed under the trap flag. Programs only write words that begin with
// a `nop`, and what zeros stand for adds to the byte at rax, which is on the stack.
global_asm!(
    ".globl quire_diff_read, quire_diff_read_at, quire_diff_read_end",
    "quire_diff_read:",
    "xor eax, eax",
    "xor edx, edx",
    "quire_diff_read_at:",
    "mov rax, [rdi]",
    "quire_diff_read_end:",
    "ret",
    ".globl quire_diff_write, quire_diff_write_at, quire_diff_write_end",
    "quire_diff_write:",
    "mov rax, rsi",
    "xor edx, edx",
    "quire_diff_write_at:",
    "mov [rdi], rsi",
    "quire_diff_write_end:",
    "ret",
    ".globl quire_diff_execute, quire_diff_execute_end",
    "quire_diff_execute:",
    "push 0",
    "mov rax, rsp",
    "pushfq",
    "or qword ptr [rsp], 256",
    "popfq",
    "jmp rdi",
    "quire_diff_execute_end:",
    "pop rax",
    "xor eax, eax",
    "ret",
    ".globl quire_diff_restorer",
    "quire_diff_restorer:",
    "mov eax, 15",
    "syscall",
    "ud2",
);

/// The result of an access: its value, and the signal with its code (0 without one). In the two registers
/// of a result.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Accessed {
    pub(crate) value: u64,
    pub(crate) signal: u32,
    pub(crate) code: u32,
}

unsafe extern "C" {
    /// Reads 8 bytes at `addr`.
    ///
    /// # Safety
    ///
    /// `addr` is nothing that Rust code uses, and the handler is installed. The same goes for the functions
    /// below.
    #[link_name = "quire_diff_read"]
    pub(crate) fn read(addr: u64) -> Accessed;
    /// Writes 8 bytes at `addr`, and returns them.
    #[link_name = "quire_diff_write"]
    pub(crate) fn write(addr: u64, value: u64) -> Accessed;
    fn quire_diff_execute(addr: u64) -> Accessed;
    safe fn quire_diff_read_at();
    safe fn quire_diff_read_end();
    safe fn quire_diff_write_at();
    safe fn quire_diff_write_end();
    safe fn quire_diff_execute_end();
    safe fn quire_diff_restorer();
}

/// The instruction that is to be executed; 0 once its first trap is over.
static TARGET: AtomicU64 = AtomicU64::new(0);
/// An instruction is being executed, by the only thread of the process.
static EXECUTES: AtomicBool = AtomicBool::new(false);

const SIGNALS: [c_int; 3] = [libc::SIGTRAP, libc::SIGBUS, libc::SIGSEGV];
/// The previous dispositions of the signals, in the kernel's form.
static BEFORE: [[AtomicU64; 4]; 3] = [const { [const { AtomicU64::new(0) }; 4] }; 3];

/// Where to resume after a fault at `at`, if it is an expected one.
fn behind(at: u64) -> Option<*const ()> {
    if at == quire_diff_read_at as *const () as u64 {
        Some(quire_diff_read_end as *const ())
    } else if at == quire_diff_write_at as *const () as u64 {
        Some(quire_diff_write_end as *const ())
    } else {
        EXECUTES.load(Relaxed).then_some(quire_diff_execute_end as *const ())
    }
}

/// Records the signal and resumes the program after the access.
extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    const TRAP_FLAG: i64 = 1 << 8;
    // SAFETY: the kernel passes a siginfo and a ucontext that are this handler's while it runs.
    let (code, registers) =
        unsafe { ((*info).si_code, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs) };
    let at = registers[libc::REG_RIP as usize].cast_unsigned();
    if signal == libc::SIGTRAP && at == TARGET.swap(0, Relaxed) {
        // The jump to the instruction trapped; it itself comes next.
        return;
    }
    let Some(behind) = behind(at) else {
        // Not ours: as it was before, and the instruction faults again.
        for (number, before) in SIGNALS.iter().zip(&BEFORE) {
            set_action(*number, before);
        }
        return;
    };
    // The trap after the instruction is what success looks like.
    let told = if signal == libc::SIGTRAP { 0 } else { i64::from(code) << 32 | i64::from(signal) };
    registers[libc::REG_RDX as usize] = told;
    registers[libc::REG_RIP as usize] = behind as i64;
    registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
}

/// Gives a signal an action, as the words of the kernel's `struct sigaction`, and returns the one before.
fn set_action(signal: c_int, action: &[AtomicU64; 4]) -> [AtomicU64; 4] {
    let before = [const { AtomicU64::new(0) }; 4];
    let (new, old) = (action.as_ptr().addr() as u64, before.as_ptr().addr() as u64);
    // SAFETY: the actions are the handler here, which has the form that SA_SIGINFO asks for and does nothing
    // but what a handler may do, and those that were there before it.
    unsafe { syscall(libc::SYS_rt_sigaction, [signal as u64, new, old, 8, 0, 0]) };
    before
}

/// Installs the handler, with `flags` in addition to those that it needs. The previous disposition is
/// restored when a signal is not about an access.
pub(crate) fn catch_signals(flags: c_int) {
    const SA_RESTORER: c_int = 0x0400_0000;
    let flags = flags | libc::SA_SIGINFO | SA_RESTORER;
    let handler = [on_signal as *const () as u64, flags as u64, quire_diff_restorer as *const () as u64, 0];
    let handler = handler.map(AtomicU64::new);
    for (number, kept) in SIGNALS.iter().zip(&BEFORE) {
        for (kept, before) in kept.iter().zip(&set_action(*number, &handler)) {
            kept.store(before.load(Relaxed), Relaxed);
        }
    }
}

/// Executes the one instruction at `addr`. For processes with a single thread.
///
/// # Safety
///
/// As [`read`].
pub(super) unsafe fn execute(addr: u64) -> Accessed {
    TARGET.store(addr, Relaxed);
    EXECUTES.store(true, Relaxed);
    // SAFETY: as in `read`; the trap after one instruction, or the fault, leads to the end of the function.
    let accessed = unsafe { quire_diff_execute(addr) };
    EXECUTES.store(false, Relaxed);
    accessed
}
