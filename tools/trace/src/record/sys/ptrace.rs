//! ptrace.

use super::{Tid, check};
use std::io;
use std::mem::MaybeUninit;

/// `PTRACE_GET_RSEQ_CONFIGURATION`, which libc does not have yet.
const GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
/// `PTRACE_EVENT_STOP`: a group stop, or the first stop of a new thread.
pub(crate) const EVENT_STOP: i32 = 128;
/// `NT_PRSTATUS`: the general registers.
const NT_PRSTATUS: usize = 1;

/// How to let a stopped thread run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resume {
    /// Until something happens to it.
    Continue,
    /// Also until it enters or leaves a system call.
    Syscall,
    /// Not really: it stays in its group stop, but the end of that is noticed.
    Listen,
}

/// Where in a system call a stopped thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyscallStop {
    /// It is about to make this call.
    Entry { arch: u32, number: u64, args: [u64; 6] },
    /// It has made it, with this raw result.
    Exit { result: i64 },
    /// It is in none.
    None,
}

fn request(op: libc::c_uint, tid: Tid, addr: usize, data: usize) -> io::Result<i64> {
    // SAFETY: the requests below pass in `data` either a number or a pointer to a live local of the size that
    // the request writes; ptrace touches no other memory of this process.
    check(unsafe { libc::ptrace(op, tid, addr, data) })
}

/// Begins to follow a process, which goes on running. It is killed if the recorder dies.
pub(crate) fn seize(tid: Tid) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACEEXIT
        | libc::PTRACE_O_TRACESECCOMP
        | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SEIZE, tid, 0, options as usize).map(drop)
}

/// Begins to follow a thread for the sake of its seccomp filter. It goes on running, also if the tracer dies.
pub(crate) fn seize_to_pass_on(tid: Tid) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACESECCOMP;
    request(libc::PTRACE_SEIZE, tid, 0, options as usize).map(drop)
}

/// Lets a stopped thread run on, with a signal or with 0.
pub(crate) fn resume(tid: Tid, how: Resume, signal: i32) -> io::Result<()> {
    let op = match how {
        Resume::Continue => libc::PTRACE_CONT,
        Resume::Syscall => libc::PTRACE_SYSCALL,
        Resume::Listen => libc::PTRACE_LISTEN,
    };
    request(op, tid, 0, signal as usize).map(drop)
}

/// Stops a running thread.
pub(crate) fn interrupt(tid: Tid) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0).map(drop)
}

/// Ends following a stopped thread, which runs on with a signal or with 0.
pub(crate) fn detach(tid: Tid, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, signal as usize).map(drop)
}

/// The number that belongs to the event a thread stopped for. `None` if it no longer stands there: it was
/// killed, and perhaps stands at its end, whose number is another.
pub(crate) fn event_message(tid: Tid, event: i32) -> Option<u64> {
    let mut message: libc::c_ulong = 0;
    request(libc::PTRACE_GETEVENTMSG, tid, 0, (&raw mut message).addr_exposed()).ok()?;
    // Asked afterwards: it does not come back to this stop once it has left it.
    let (code, _) = fault_signal(tid).ok()?;
    (code == event << 8 | libc::SIGTRAP).then_some(message)
}

/// The facts of the signal that a thread stopped for: its code and, for faults, the address.
pub(crate) fn fault_signal(tid: Tid) -> io::Result<(i32, u64)> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    request(libc::PTRACE_GETSIGINFO, tid, 0, info.as_mut_ptr().addr_exposed())?;
    // SAFETY: the request succeeded, so the kernel filled the structure; its start was zeroed in any case,
    // and every bit pattern is a valid siginfo. `si_addr` reads the union at the place that faults use.
    let (code, addr) = unsafe {
        let info = info.assume_init();
        (info.si_code, info.si_addr())
    };
    Ok((code, addr.addr() as u64))
}

/// Where in a system call a stopped thread is.
pub(crate) fn syscall_stop(tid: Tid) -> io::Result<SyscallStop> {
    let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of::<libc::ptrace_syscall_info>();
    request(libc::PTRACE_GET_SYSCALL_INFO, tid, size, info.as_mut_ptr().addr_exposed())?;
    // SAFETY: zeroed and then filled by the kernel; the structure is plain numbers, so every pattern is
    // valid.
    let info = unsafe { info.assume_init() };
    // SAFETY: `op` says which member of the union the kernel filled; all are plain numbers.
    Ok(unsafe {
        match info.op {
            libc::PTRACE_SYSCALL_INFO_ENTRY => {
                SyscallStop::Entry { arch: info.arch, number: info.u.entry.nr, args: info.u.entry.args }
            }
            libc::PTRACE_SYSCALL_INFO_SECCOMP => {
                SyscallStop::Entry { arch: info.arch, number: info.u.seccomp.nr, args: info.u.seccomp.args }
            }
            libc::PTRACE_SYSCALL_INFO_EXIT => SyscallStop::Exit { result: info.u.exit.sval },
            _ => SyscallStop::None,
        }
    })
}

/// The general registers of a stopped thread; `None` if it is not in 64-bit mode.
pub(crate) fn registers(tid: Tid) -> io::Result<Option<libc::user_regs_struct>> {
    let mut regs = MaybeUninit::<libc::user_regs_struct>::zeroed();
    let mut vector =
        libc::iovec { iov_base: regs.as_mut_ptr().cast(), iov_len: size_of::<libc::user_regs_struct>() };
    request(libc::PTRACE_GETREGSET, tid, NT_PRSTATUS, (&raw mut vector).addr_exposed())?;
    if vector.iov_len != size_of::<libc::user_regs_struct>() {
        return Ok(None);
    }
    // SAFETY: the kernel filled the whole structure, as its length says; it is plain numbers.
    Ok(Some(unsafe { regs.assume_init() }))
}

/// Sets the general registers of a stopped 64-bit thread.
pub(crate) fn set_registers(tid: Tid, regs: &libc::user_regs_struct) -> io::Result<()> {
    let mut vector = libc::iovec {
        iov_base: std::ptr::from_ref(regs).cast_mut().cast(),
        iov_len: size_of::<libc::user_regs_struct>(),
    };
    request(libc::PTRACE_SETREGSET, tid, NT_PRSTATUS, (&raw mut vector).addr_exposed()).map(drop)
}

/// The signals that a stopped thread blocks.
pub(crate) fn signal_mask(tid: Tid) -> io::Result<u64> {
    let mut mask = 0_u64;
    request(libc::PTRACE_GETSIGMASK, tid, size_of::<u64>(), (&raw mut mask).addr_exposed())?;
    Ok(mask)
}

/// Sets the signals that a stopped thread blocks.
pub(crate) fn set_signal_mask(tid: Tid, mask: u64) -> io::Result<()> {
    request(libc::PTRACE_SETSIGMASK, tid, size_of::<u64>(), (&raw const mask).addr_exposed()).map(drop)
}

/// Writes a 64-bit word of a stopped thread's memory.
pub(crate) fn write_u64(tid: Tid, addr: u64, word: u64) -> io::Result<()> {
    request(libc::PTRACE_POKEDATA, tid, addr as usize, word as usize).map(drop)
}

/// Where a thread has its restartable-sequences area, if it registered one.
pub(crate) fn rseq_area(tid: Tid) -> Option<u64> {
    #[repr(C)]
    #[derive(Default)]
    struct Configuration {
        pointer: u64,
        size: u32,
        signature: u32,
        flags: u32,
        pad: u32,
    }
    let mut configuration = Configuration::default();
    let size = size_of::<Configuration>();
    request(GET_RSEQ_CONFIGURATION, tid, size, (&raw mut configuration).addr_exposed()).ok()?;
    (configuration.pointer != 0).then_some(configuration.pointer)
}

/// Pointers go to ptrace as numbers.
trait AddrExposed {
    fn addr_exposed(self) -> usize;
}

impl<T> AddrExposed for *mut T {
    fn addr_exposed(self) -> usize {
        self.expose_provenance()
    }
}

impl<T> AddrExposed for *const T {
    fn addr_exposed(self) -> usize {
        self.expose_provenance()
    }
}
