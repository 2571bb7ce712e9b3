//! Threads of a replay, and their privileges.

use quire_host::HostPlatform;
use quire_mm::space::{Limits, Rights, Space};
use std::rc::Rc;

/// A thread.
pub(super) struct Task<'m> {
    pub(super) process: usize,
    /// The number of its address space: they are counted from 0 as the trace makes them.
    pub(super) number: usize,
    /// Threads of one process, and a vfork's child, share it. `None` if no space could be created.
    pub(super) space: Option<Rc<Space<'m, HostPlatform>>>,
    /// The thread's privileges; another one of its process may have others.
    pub(super) rights: Rights,
}

/// A thread's own handle of its space.
pub(super) struct Acting<'t, 'm> {
    shared: &'t Space<'m, HostPlatform>,
    /// Where the thread's privileges differ from those of the handle that it shares.
    own: Option<Space<'m, HostPlatform>>,
}

impl<'m> std::ops::Deref for Acting<'_, 'm> {
    type Target = Space<'m, HostPlatform>;

    fn deref(&self) -> &Self::Target {
        self.own.as_ref().unwrap_or(self.shared)
    }
}

impl<'m> Task<'m> {
    /// The space as this thread uses it, whose process has these limits.
    pub(super) fn acting(&self, limits: &Limits) -> Option<Acting<'_, 'm>> {
        let shared = self.space.as_deref()?;
        // A child of vfork uses the space of another process.
        if shared.limits() != *limits {
            shared.set_limits(*limits);
        }
        let own = (shared.rights() != self.rights).then(|| shared.acting_with(self.rights));
        Some(Acting { shared, own })
    }
}
