//! Memory groups, and the lists of folios by age.
//!
//! [`Groups`] is the room of one machine. It owns the frame room, as every room owns the one above it.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

use core::fmt;
use quire_arch::Platform;
use quire_frame::Frames;

/// The memory groups of one machine.
pub struct Groups<P: Platform> {
    frames: Frames<P>,
}

impl<P: Platform> Groups<P> {
    /// The room over `frames`.
    pub fn new(frames: Frames<P>) -> Self {
        Self { frames }
    }

    /// The frames under this room.
    #[inline]
    pub fn frames(&self) -> &Frames<P> {
        &self.frames
    }
}

impl<P: Platform> fmt::Debug for Groups<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups").finish_non_exhaustive()
    }
}
