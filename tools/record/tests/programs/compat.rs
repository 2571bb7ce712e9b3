//! Calls of the 32-bit table, from 64-bit mode and from 32-bit mode.

use crate::{PAGE, READ_WRITE, end, make_process, wait_for};

/// `getppid` and `brk` of the i386 table.
pub(crate) const GETPPID: u32 = 64;
pub(crate) const BRK: u32 = 45;

/// Where the code lies that changes the mode: 32-bit mode reaches the lowest 4 GiB.
const LOW: usize = 0x1000_0000;
const START: *const u8 = (&raw const quire_compat_start).cast();

unsafe extern "C" {
    static quire_compat_start: u8;
    static quire_compat_end: u8;
}

// `extern "C" fn(u32) -> u64`: jumps to the 32-bit code segment, makes the call without arguments, and jumps
// back. In between only the low halves of registers are sure to be kept. It is a copy at `LOW` that runs.
std::arch::global_asm!(
    ".pushsection .text",
    "quire_compat_start:",
    "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15",
    "mov [rip + 5f], rsp",
    "mov eax, edi", "xor ebx, ebx", "xor ecx, ecx", "xor edx, edx",
    // A far jump through the six bytes that come next.
    ".byte 0xff, 0x2d, 0, 0, 0, 0",
    ".long {low} + (3f - quire_compat_start)", ".word 0x23",
    // The bytes are the same in both modes.
    "3: int 0x80",
    ".byte 0xea", ".long {low} + (4f - quire_compat_start)", ".word 0x33",
    "4: mov rsp, [rip + 5f]",
    "pop r15", "pop r14", "pop r13", "pop r12", "pop rbp", "pop rbx",
    "ret",
    "5: .quad 0",
    "quire_compat_end:",
    ".popsection",
    low = const LOW,
);

/// Maps the code. Returns whether this machine can run it: the kernel may have no 32-bit table.
pub(crate) fn is_there() -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let low = std::ptr::without_provenance_mut(LOW);
    // SAFETY: a new mapping, where there is none.
    let to = unsafe { libc::mmap(low, PAGE, READ_WRITE | libc::PROT_EXEC, flags, -1, 0) };
    if to.addr() != LOW {
        return false;
    }
    // SAFETY: the code between the two labels, which is shorter than the page.
    unsafe {
        let len = (&raw const quire_compat_end).addr() - START.addr();
        std::ptr::copy_nonoverlapping(START, to.cast(), len);
    }
    let status = wait_for(make_process(|| {
        let parent = rustix::process::getppid().map_or(0, rustix::process::Pid::as_raw_pid);
        end(i32::from(call(GETPPID) != parent));
    }));
    status == 0
}

/// Makes a call without arguments in 32-bit mode. `is_there` was true.
pub(crate) fn call(number: u32) -> i32 {
    // SAFETY: the code is mapped there, and keeps what its caller relies on.
    let code: extern "C" fn(u32) -> u64 =
        unsafe { std::mem::transmute(std::ptr::with_exposed_provenance::<u8>(LOW)) };
    code(number) as i32
}

/// Makes a call without arguments of the 32-bit table from 64-bit mode.
pub(crate) fn call_from_64_bit_mode(number: u32) -> i32 {
    // SAFETY: the calls above change no memory.
    unsafe { call_with(number, [0, 0]).0 }
}

/// Makes a call of the 32-bit table with two arguments from 64-bit mode. Returns the result, and the first
/// argument's register as it is then.
///
/// # Safety
///
/// The call changes no memory that is in use.
pub(crate) unsafe fn call_with(number: u32, [first, second]: [u64; 2]) -> (i32, u64) {
    let (result, after): (u64, u64);
    // SAFETY: as the caller promises. The compiler's use of rbx is respected by the exchange.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {first}", "int 0x80", "xchg rbx, {first}",
            first = inout(reg) first => after, inout("rax") u64::from(number) => result,
            in("rcx") second, in("rdx") 0, in("rsi") 0, in("rdi") 0,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    (result as i32, after)
}
