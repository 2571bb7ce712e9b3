//! Children that are made with CLONE_UNTRACED.
//!
//! Linux does not give such a child to the tracer of its maker. It would run with the filter and without a
//! tracer, so that calls which the filter reports would fail with ENOSYS. So the call is made without the
//! flag. Where that is, in a register (`clone`) or in memory (`clone3`), is as it was before either thread
//! runs on.

use super::Tracer;
use super::state::{Entry, State};
use crate::record::sys::{Tid, memory, ptrace};

/// Whether a call that makes a thread or process has the flag.
pub(super) fn is_untraced(flags: u64) -> bool {
    flags & libc::CLONE_UNTRACED as u64 != 0
}

/// A thread is stopped before such a call: takes the flag out.
pub(super) fn trace_the_child(tid: Tid, entry: &Entry, flags: u64) {
    set_flags(tid, entry, flags & !(libc::CLONE_UNTRACED as u64));
}

/// An error means that the thread was killed.
fn set_flags(tid: Tid, entry: &Entry, flags: u64) {
    match entry.number as i64 {
        libc::SYS_clone => {
            if let Ok(Some(regs)) = ptrace::registers(tid) {
                drop(ptrace::set_registers(tid, libc::user_regs_struct { rdi: flags, ..regs }));
            }
        }
        libc::SYS_clone3 => drop(ptrace::write_u64(tid, entry.args[0], flags)),
        _ => {}
    }
}

impl Tracer<'_> {
    /// A thread is stopped in the call, or at its end.
    pub(super) fn restore_after_clone(&self, tid: Tid) {
        let task = self.tasks.get(&tid);
        if let Some(State::InClone { entry, flags, .. }) = task.map(|task| &task.state)
            && is_untraced(*flags)
        {
            set_flags(tid, entry, *flags);
        }
    }

    /// A thread is in its first stop.
    pub(super) fn restore_what_made(&mut self, tid: Tid) {
        let Some(entry) = self.tasks.get_mut(&tid).and_then(|task| task.made_by.take()) else { return };
        let flags = match entry.number as i64 {
            libc::SYS_clone => entry.args[0],
            _ => memory::read_u64(tid, entry.args[0]).unwrap_or(0) | libc::CLONE_UNTRACED as u64,
        };
        set_flags(tid, &entry, flags);
    }
}
