//! Using a device while another thread may close it.

use core::sync::atomic::{AtomicBool, Ordering};
use quire_arch::{Pin, Platform};
use quire_frame::{Frames, MachineId};
use quire_sync::EpochGuard;

/// Whether a device has been closed, and the machine in whose RAM it is. The device's memory is accessed only
/// in a [`Section`].
#[derive(Debug)]
pub(super) struct Gate {
    machine: MachineId,
    closed: AtomicBool,
}

/// The device's memory stays while this lives.
pub(super) struct Section<'s, P: Platform> {
    pub(super) frames: &'s Frames<P>,
    pub(super) pin: &'s Pin<'s, P>,
    _epoch: EpochGuard<'s>,
}

impl Gate {
    /// The gate of a device in the RAM of this machine.
    pub(super) fn new<P: Platform>(frames: &Frames<P>) -> Self {
        Self { machine: frames.id(), closed: AtomicBool::new(false) }
    }

    /// Whether this is the machine in whose RAM the device is.
    #[inline]
    pub(super) fn is_of<P: Platform>(&self, frames: &Frames<P>) -> bool {
        frames.id() == self.machine
    }

    /// Begins a section, unless the device is closed or is taken for one of another machine's: its frames
    /// have other owners there.
    #[inline]
    pub(super) fn enter<'s, P: Platform>(
        &self,
        frames: &'s Frames<P>,
        pin: &'s Pin<'s, P>,
    ) -> Option<Section<'s, P>> {
        let epoch = frames.epoch().enter(pin);
        // Entering is a full barrier: either this sees the store in `close`, or `close` sees this section.
        if self.closed.load(Ordering::Relaxed) || !self.is_of(frames) {
            return None;
        }
        Some(Section { frames, pin, _epoch: epoch })
    }

    /// Closes the device, and waits until no thread is in a section. False if it was closed already, or by
    /// another machine, which cannot free its memory.
    pub(super) fn close<P: Platform>(&self, frames: &Frames<P>) -> bool {
        if !self.is_of(frames) || self.closed.swap(true, Ordering::Relaxed) {
            return false;
        }
        let epoch = frames.epoch();
        // Its fence pairs with the barrier in `enter`.
        let stamp = epoch.stamp();
        let mut attempt = 0;
        while !epoch.has_passed(stamp) {
            if !epoch.advance() {
                P::relax(attempt);
                attempt = attempt.saturating_add(1);
            }
        }
        true
    }
}
