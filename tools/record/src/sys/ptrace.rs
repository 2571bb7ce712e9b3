//! ptrace.

use super::{Tid, check};
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;
use std::io;
use std::mem::offset_of;

/// `PTRACE_GET_RSEQ_CONFIGURATION`, which libc does not have yet.
const GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
/// `PTRACE_EVENT_STOP`: a group stop, or the first stop of a new thread.
pub(crate) const EVENT_STOP: i32 = 128;
/// `__USER_CS`: the code segment of 64-bit mode.
const USER_CS: u64 = 0x33;
/// Stops at new threads and processes, and at calls.
const FOLLOW: Options = Options::PTRACE_O_TRACEFORK
    .union(Options::PTRACE_O_TRACEVFORK)
    .union(Options::PTRACE_O_TRACECLONE)
    .union(Options::PTRACE_O_TRACESECCOMP);

/// How to resume a stopped thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resume {
    /// Until its next event.
    Continue,
    /// Also until it enters or leaves a system call.
    Syscall,
    /// It stays in its group stop, but the end of that is reported.
    Listen,
}

/// Where in a system call a stopped thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyscallStop {
    /// It is about to make this call.
    Entry { arch: u32, number: u64, args: [u64; 6] },
    /// It is about to make this call, which a filter reports; `told` is what the filter tells the tracer.
    Filtered { told: u32, arch: u32, number: u64, args: [u64; 6] },
    /// It has made it, with this raw result.
    Exit { result: i64 },
    /// It is in none.
    None,
}

/// A request that nix lacks, or supports only for the signals that it has names for.
fn request(op: libc::c_uint, tid: Tid, addr: usize, data: usize) -> io::Result<()> {
    // SAFETY: the requests below pass in `data` either a number or a pointer to a live local of the size that
    // the request writes; ptrace touches no other memory of this process.
    check(unsafe { libc::ptrace(op, tid, addr, data) }).map(drop)
}

/// Seizes a process, which continues to run. It is killed if the recorder dies.
pub(crate) fn seize(tid: Tid) -> io::Result<()> {
    let more = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_TRACEEXIT
        | Options::PTRACE_O_EXITKILL;
    Ok(ptrace::seize(Pid::from_raw(tid), FOLLOW | more)?)
}

/// Seizes a thread because of its seccomp filter. It continues to run, also if the tracer dies.
pub(crate) fn seize_to_pass_on(tid: Tid) -> io::Result<()> {
    Ok(ptrace::seize(Pid::from_raw(tid), FOLLOW)?)
}

/// Resumes a stopped thread, with a signal or with 0.
pub(crate) fn resume(tid: Tid, how: Resume, signal: i32) -> io::Result<()> {
    let op = match how {
        Resume::Continue => libc::PTRACE_CONT,
        Resume::Syscall => libc::PTRACE_SYSCALL,
        Resume::Listen => libc::PTRACE_LISTEN,
    };
    request(op, tid, 0, signal as usize)
}

/// Stops a running thread.
pub(crate) fn interrupt(tid: Tid) -> io::Result<()> {
    Ok(ptrace::interrupt(Pid::from_raw(tid))?)
}

/// Detaches from a stopped thread, which continues to run.
pub(crate) fn detach(tid: Tid) -> io::Result<()> {
    Ok(ptrace::detach(Pid::from_raw(tid), None)?)
}

/// The message of the event at which a thread stopped. `None` if it is no longer in that stop: it was
/// killed, and may be in its exit stop, whose message is another.
pub(crate) fn event_message(tid: Tid, event: i32) -> Option<u64> {
    let message = ptrace::getevent(Pid::from_raw(tid)).ok()?;
    // Checked afterwards: it does not return to this stop once it has left it.
    let (code, _) = fault_signal(tid).ok()?;
    (code == event << 8 | libc::SIGTRAP).then_some(message.cast_unsigned())
}

/// The signal at which a thread stopped: its code and, for faults, the address.
pub(crate) fn fault_signal(tid: Tid) -> io::Result<(i32, u64)> {
    let info = ptrace::getsiginfo(Pid::from_raw(tid))?;
    // SAFETY: `si_addr` reads the union at the place that faults use; every bit pattern is a pointer.
    let addr = unsafe { info.si_addr() };
    Ok((info.si_code, addr.addr() as u64))
}

/// Where in a system call a stopped thread is.
pub(crate) fn syscall_stop(tid: Tid) -> io::Result<SyscallStop> {
    let info = ptrace::syscall_info(Pid::from_raw(tid))?;
    // SAFETY: `op` says which member of the union the kernel filled; all are plain numbers.
    Ok(unsafe {
        match info.op {
            libc::PTRACE_SYSCALL_INFO_ENTRY => {
                SyscallStop::Entry { arch: info.arch, number: info.u.entry.nr, args: info.u.entry.args }
            }
            libc::PTRACE_SYSCALL_INFO_SECCOMP => {
                let (arch, call) = (info.arch, info.u.seccomp);
                SyscallStop::Filtered { told: call.ret_data, arch, number: call.nr, args: call.args }
            }
            libc::PTRACE_SYSCALL_INFO_EXIT => SyscallStop::Exit { result: info.u.exit.sval },
            _ => SyscallStop::None,
        }
    })
}

/// The instruction and the stack pointer of a thread that is stopped at a system call.
pub(crate) fn call_site(tid: Tid) -> io::Result<(u64, u64)> {
    let info = ptrace::syscall_info(Pid::from_raw(tid))?;
    Ok((info.instruction_pointer, info.stack_pointer))
}

/// The general registers of a stopped thread; `None` if it is not in 64-bit mode.
pub(crate) fn registers(tid: Tid) -> io::Result<Option<libc::user_regs_struct>> {
    let regs = ptrace::getregs(Pid::from_raw(tid))?;
    Ok((regs.cs == USER_CS).then_some(regs))
}

/// Sets the general registers of a stopped 64-bit thread.
pub(crate) fn set_registers(tid: Tid, regs: libc::user_regs_struct) -> io::Result<()> {
    Ok(ptrace::setregs(Pid::from_raw(tid), regs)?)
}

/// Has Linux skip the call that a thread is about to make, in any mode, which then has this result. An error
/// means that the thread was killed.
pub(crate) fn skip_call(tid: Tid, result: i64) -> io::Result<()> {
    /// The number of a call that Linux skips.
    const SKIPPED: usize = usize::MAX;
    // Not all registers: those of another mode need not be ones that 64-bit mode can have.
    request(libc::PTRACE_POKEUSER, tid, offset_of!(libc::user, regs.rax), result as usize)?;
    request(libc::PTRACE_POKEUSER, tid, offset_of!(libc::user, regs.orig_rax), SKIPPED)
}

/// The signals that a stopped thread blocks.
pub(crate) fn signal_mask(tid: Tid) -> io::Result<u64> {
    let mut mask = 0_u64;
    request(libc::PTRACE_GETSIGMASK, tid, size_of::<u64>(), (&raw mut mask).expose_provenance())?;
    Ok(mask)
}

/// Sets the signals that a stopped thread blocks.
pub(crate) fn set_signal_mask(tid: Tid, mask: u64) -> io::Result<()> {
    request(libc::PTRACE_SETSIGMASK, tid, size_of::<u64>(), (&raw const mask).expose_provenance())
}

/// Writes a 64-bit word of a stopped thread's memory.
pub(crate) fn write_u64(tid: Tid, addr: u64, word: u64) -> io::Result<()> {
    let addr = std::ptr::without_provenance_mut(addr as usize);
    Ok(ptrace::write(Pid::from_raw(tid), addr, word.cast_signed())?)
}

/// Where a thread has its restartable-sequences area, if it registered one.
pub(crate) fn rseq_area(tid: Tid) -> Option<u64> {
    // The area's address, then its size and signature, then flags.
    let mut configuration = [0_u64; 3];
    let into = (&raw mut configuration).expose_provenance();
    request(GET_RSEQ_CONFIGURATION, tid, size_of_val(&configuration), into).ok()?;
    Some(configuration[0]).filter(|area| *area != 0)
}
