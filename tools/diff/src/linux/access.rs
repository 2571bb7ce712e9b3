//! Accesses that may end in a signal.

use super::raw::{SIGACTION, syscall};
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const SIGTRAP: u32 = 5;
const SIGBUS: u32 = 7;
const SIGSEGV: u32 = 11;

static SIGNAL: AtomicU32 = AtomicU32::new(0);
static CODE: AtomicU32 = AtomicU32::new(0);
static RECOVER_AT: AtomicU64 = AtomicU64::new(0);
/// The instruction that is to be executed; 0 once its first trap is over.
static TARGET: AtomicU64 = AtomicU64::new(0);

global_asm!(".globl quire_diff_restorer", "quire_diff_restorer:", "mov eax, 15", "syscall", "ud2");

unsafe extern "C" {
    fn quire_diff_restorer();
}

/// Notes the signal and lets the program go on behind the access.
unsafe extern "C" fn on_signal(signal: i32, info: *const u8, context: *mut u8) {
    const SI_CODE: usize = 8;
    const RIP: usize = 40 + 16 * 8;
    const EFLAGS: usize = 40 + 17 * 8;
    const TRAP_FLAG: u64 = 1 << 8;
    let signal = signal.cast_unsigned();
    // SAFETY: as below.
    let at = unsafe { context.add(RIP).cast::<u64>().read() };
    if signal == SIGTRAP && at == TARGET.swap(0, Ordering::Relaxed) {
        // The jump to the instruction trapped; it itself comes next.
        return;
    }
    // The trap after the instruction is what success looks like.
    SIGNAL.store(if signal == SIGTRAP { 0 } else { signal }, Ordering::Relaxed);
    // SAFETY: the kernel passes a siginfo and a ucontext, in which these fields have these places on x86-64.
    unsafe {
        CODE.store(info.add(SI_CODE).cast::<u32>().read(), Ordering::Relaxed);
        context.add(RIP).cast::<u64>().write(RECOVER_AT.load(Ordering::Relaxed));
        let flags = context.add(EFLAGS).cast::<u64>();
        flags.write(flags.read() & !TRAP_FLAG);
    }
}

/// Installs the handler.
pub(super) fn catch_signals() {
    const SA_SIGINFO: u64 = 4;
    const SA_RESTORER: u64 = 0x0400_0000;
    let handler: [u64; 4] =
        [on_signal as *const () as u64, SA_SIGINFO | SA_RESTORER, quire_diff_restorer as *const () as u64, 0];
    for signal in [SIGTRAP, SIGBUS, SIGSEGV] {
        // SAFETY: the layout is the kernel's `struct sigaction`; the handler keeps all registers but the
        // address.
        unsafe { syscall(SIGACTION, [u64::from(signal), handler.as_ptr().addr() as u64, 0, 8, 0, 0]) };
    }
}

/// What an access came to: its value, and the signal with its code (0 without one).
pub(super) struct Accessed {
    pub(super) value: u64,
    pub(super) signal: u32,
    pub(super) code: u32,
}

fn accessed(value: u64) -> Accessed {
    Accessed { value, signal: SIGNAL.load(Ordering::Relaxed), code: CODE.load(Ordering::Relaxed) }
}

/// Reads 8 bytes at `addr`.
///
/// # Safety
///
/// `addr` is nothing that Rust code uses, and the handler is installed. The same goes for the functions
/// below.
pub(super) unsafe fn read(addr: u64) -> Accessed {
    SIGNAL.store(0, Ordering::Relaxed);
    let mut value = 0u64;
    // SAFETY: the caller's promise; on a fault the handler continues at the label with all registers kept.
    unsafe {
        asm!("lea {tmp}, [rip + 2f]", "mov [{slot}], {tmp}", "mov {value}, [{addr}]", "2:",
            tmp = out(reg) _, slot = in(reg) RECOVER_AT.as_ptr(), addr = in(reg) addr, value = inout(reg) value);
    }
    accessed(value)
}

/// Writes 8 bytes at `addr`.
///
/// # Safety
///
/// As [`read`].
pub(super) unsafe fn write(addr: u64, value: u64) -> Accessed {
    SIGNAL.store(0, Ordering::Relaxed);
    // SAFETY: as in `read`.
    unsafe {
        asm!("lea {tmp}, [rip + 2f]", "mov [{slot}], {tmp}", "mov [{addr}], {value}", "2:",
            tmp = out(reg) _, slot = in(reg) RECOVER_AT.as_ptr(), addr = in(reg) addr, value = in(reg) value);
    }
    accessed(value)
}

/// Executes the one instruction at `addr`, under the trap flag. Programs only write words that begin with a
/// `nop`, and what zeros stand for adds to the byte at `rax`.
///
/// # Safety
///
/// As [`read`].
pub(super) unsafe fn execute(addr: u64) -> Accessed {
    SIGNAL.store(0, Ordering::Relaxed);
    TARGET.store(addr, Ordering::Relaxed);
    let mut ground = 0u64;
    // SAFETY: as in `read`; the trap after one instruction, or the fault, leads to the label. The flags are
    // pushed below the red zone.
    unsafe {
        asm!("lea {tmp}, [rip + 2f]", "mov [{slot}], {tmp}",
            "lea rsp, [rsp - 128]", "pushfq", "or qword ptr [rsp], 256", "popfq", "jmp {addr}",
            "2:", "lea rsp, [rsp + 128]",
            tmp = out(reg) _, slot = in(reg) RECOVER_AT.as_ptr(), addr = in(reg) addr,
            inout("rax") core::ptr::from_mut(&mut ground) => _);
    }
    accessed(0)
}
