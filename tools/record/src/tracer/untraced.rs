//! Children that are made with CLONE_UNTRACED.
//!
//! Linux does not give such a child to the tracer of its maker. It would run with the filter and without a
//! tracer, so that calls which the filter reports would fail with ENOSYS. So the call is made without the
//! flag. Where that is, in a register (`clone`) or in memory (`clone3`), is as it was before either thread
//! runs on.
//!
//! Registers are each thread's own. Memory is restored while its maker is still in the call: later that may
//! use it for something else. Only a copy of it that the child has for itself is restored at the child's
//! first stop.
//!
//! The calls of the i386 table are not recorded, but these two are changed in the same way.

use super::Tracer;
use super::state::{Entry, State};
use crate::calls::{CLONE_IN_32_BIT, CLONE3_IN_32_BIT};
use crate::seccomp::ARCH_X86_64;
use crate::sys::{Tid, memory, ptrace};
use std::io;

/// Whether a call that makes a thread or process has the flag.
pub(super) fn is_untraced(flags: u64) -> bool {
    flags & libc::CLONE_UNTRACED as u64 != 0
}

/// Flags without this one.
fn traced(flags: u64) -> u64 {
    flags & !(libc::CLONE_UNTRACED as u64)
}

/// A call of the i386 table that makes such a thread or process, and its flags.
pub(super) fn untraced_in_32_bit(tid: Tid, arch: u32, number: u64, args: [u64; 6]) -> Option<(Entry, u64)> {
    let (usual, flags) = match u32::try_from(number).ok()? {
        CLONE_IN_32_BIT => (libc::SYS_clone, args[0]),
        CLONE3_IN_32_BIT => (libc::SYS_clone3, memory::read_u64(tid, args[0])?),
        _ => return None,
    };
    let entry = Entry { number: usual as u64, args, is_32_bit: true };
    (arch != ARCH_X86_64 && is_untraced(flags)).then_some((entry, flags))
}

/// The number that such a call has in the i386 table.
pub(super) fn number_in_32_bit(number: u64) -> u64 {
    u64::from(if number == libc::SYS_clone as u64 { CLONE_IN_32_BIT } else { CLONE3_IN_32_BIT })
}

/// Whether the thread has the arguments of the call that made it for itself, and without the flag. Its maker
/// is still in the call, and its own are restored.
pub(super) fn is_to_restore(child: Tid, entry: &Entry, flags: u64) -> bool {
    let mut word = [0; 8];
    is_untraced(flags)
        && (entry.number as i64 != libc::SYS_clone3
            || memory::read(child, entry.args[0], &mut word) == word.len()
                && u64::from_ne_bytes(word) == traced(flags))
}

/// An error means that the thread was killed, or that the memory cannot be written.
fn set_flags(tid: Tid, entry: &Entry, flags: u64) -> io::Result<()> {
    match entry.number as i64 {
        libc::SYS_clone => match ptrace::registers(tid)? {
            Some(regs) if entry.is_32_bit => {
                ptrace::set_registers(tid, libc::user_regs_struct { rbx: flags, ..regs })
            }
            Some(regs) => ptrace::set_registers(tid, libc::user_regs_struct { rdi: flags, ..regs }),
            None => Ok(()),
        },
        libc::SYS_clone3 => ptrace::write_u64(tid, entry.args[0], flags),
        _ => Ok(()),
    }
}

impl Tracer<'_> {
    /// A thread is stopped before such a call: takes the flag out.
    pub(super) fn trace_the_child(&mut self, tid: Tid, entry: &Entry, flags: u64) {
        let done = set_flags(tid, entry, traced(flags));
        let fails = done.is_err_and(|error| error.raw_os_error() != Some(libc::ESRCH));
        if fails && !std::mem::replace(&mut self.warned_of_untraced, true) {
            (self.notify)(
                "the program makes a process with CLONE_UNTRACED, and the arguments are in memory that cannot be \
                 changed: that process is not recorded, and its memory calls fail (ENOSYS)",
            );
        }
    }

    /// A thread is stopped in the call, or at its end.
    pub(super) fn restore_after_clone(&self, tid: Tid) {
        let task = self.tasks.get(&tid);
        if let Some(State::InClone { entry, flags, .. }) = task.map(|task| &task.state)
            && is_untraced(*flags)
        {
            // As before the call; a thread that was killed has no use for it.
            drop(set_flags(tid, entry, *flags));
        }
    }

    /// A thread is in its first stop.
    pub(super) fn restore_what_made(&mut self, tid: Tid) {
        let Some(entry) = self.tasks.get_mut(&tid).and_then(|task| task.made_by.take()) else { return };
        let flags = match entry.number as i64 {
            libc::SYS_clone => entry.args[0],
            _ => memory::read_u64(tid, entry.args[0]).unwrap_or(0) | libc::CLONE_UNTRACED as u64,
        };
        drop(set_flags(tid, &entry, flags));
    }
}
