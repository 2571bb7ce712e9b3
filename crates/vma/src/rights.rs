//! Privileges beyond the limits, and rights that a program gave up for good.

use bitflags::bitflags;
use core::sync::atomic::{AtomicU8, Ordering};

bitflags! {
    /// Privileges that memory calls check: capabilities of the calling thread in the initial user namespace.
    ///
    /// They belong to a handle of a space (`Space::acting_with` of `quire-space`): two threads of
    /// one space may have different ones, and a thread may lose or gain one between two calls.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Rights: u8 {
        /// Memory may be locked beyond [`Limits::locked`](crate::Limits::locked) (`CAP_IPC_LOCK`).
        const LOCK = 1;
        /// Mappings with FIXED may lie below [`Layout::fixed_min`](crate::Layout::fixed_min)
        /// (`CAP_SYS_RAWIO`).
        const MAP_LOW = 2;
    }
}

/// Whether a program may make memory executable that was not, and map memory that is both writable and
/// executable (`prctl(PR_SET_MDWE)`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum ExecGain {
    /// It may.
    #[default]
    Allowed,
    /// It may not, and neither may a child or a new image (`PR_MDWE_REFUSE_EXEC_GAIN`).
    Refused,
    /// It may not, a child or a new image may (with `PR_MDWE_NO_INHERIT`).
    RefusedNotInherited,
}

impl ExecGain {
    const ALL: [Self; 3] = [Self::Allowed, Self::Refused, Self::RefusedNotInherited];

    /// The setting of a child, and of a new image of the same process.
    #[doc(hidden)]
    #[must_use]
    #[inline]
    pub const fn inherited(self) -> Self {
        match self {
            Self::Refused => Self::Refused,
            Self::Allowed | Self::RefusedNotInherited => Self::Allowed,
        }
    }
}

/// An [`ExecGain`] that can be refused once, while calls read it. It orders nothing.
#[derive(Debug, Default)]
pub struct AtomicExecGain(AtomicU8);

impl AtomicExecGain {
    /// The setting at this moment.
    #[inline]
    pub fn load(&self) -> ExecGain {
        ExecGain::ALL[usize::from(self.0.load(Ordering::Relaxed))]
    }

    /// Refuses what `gain` refuses from now on. Returns whether it could: nothing else was refused before.
    #[inline]
    pub fn refuse(&self, gain: ExecGain) -> bool {
        let none = ExecGain::Allowed as u8;
        match self.0.compare_exchange(none, gain as u8, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(found) => found == gain as u8,
        }
    }
}
