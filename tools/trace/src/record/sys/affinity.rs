//! The CPUs that threads may run on.

use super::{Tid, check};
use std::io;
use std::mem::MaybeUninit;

/// A set of CPUs: as many as libc's type holds. On a machine with more, reading one fails.
#[derive(Clone, Copy)]
pub(crate) struct CpuSet(libc::cpu_set_t);

impl CpuSet {
    /// One CPU alone. `None` for a CPU that a set does not hold.
    pub(crate) fn only(cpu: u32) -> Option<Self> {
        if cpu >= libc::CPU_SETSIZE as u32 {
            return None;
        }
        // SAFETY: the set is plain numbers, for which zeros are valid.
        let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: `set` is a live local, and the CPU lies within it.
        unsafe { libc::CPU_SET(cpu as usize, &mut set) };
        Some(Self(set))
    }

    /// Those of a thread; 0 is the calling one.
    pub(crate) fn of(tid: Tid) -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: `set` is a live local of the size that is told.
        let result = unsafe { libc::sched_getaffinity(tid, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) };
        check(i64::from(result))?;
        // SAFETY: it was zeroed before the kernel filled it, and zeros are valid.
        Ok(Self(unsafe { set.assume_init() }))
    }

    /// Gives these to a thread; 0 is the calling one.
    pub(crate) fn set(&self, tid: Tid) -> io::Result<()> {
        // SAFETY: the set is live and of the size that is told; the kernel only reads it.
        let result = unsafe { libc::sched_setaffinity(tid, size_of::<libc::cpu_set_t>(), &raw const self.0) };
        check(i64::from(result)).map(drop)
    }

    pub(crate) fn contains(&self, cpu: u32) -> bool {
        // SAFETY: the set is live, and the CPU lies within it.
        cpu < libc::CPU_SETSIZE as u32 && unsafe { libc::CPU_ISSET(cpu as usize, &self.0) }
    }

    pub(crate) fn count(&self) -> u32 {
        // SAFETY: the set is live.
        unsafe { libc::CPU_COUNT(&self.0) as u32 }
    }
}

/// The CPU that the calling thread runs on.
pub(crate) fn current_cpu() -> Option<u32> {
    // SAFETY: sched_getcpu has no preconditions.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}
