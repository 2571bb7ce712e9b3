//! Flushing the translations of a space.

use super::SpaceTables;
use crate::cpus::FlushCause;
use quire_arch::{Pin, Platform, TlbFlush, VirtRange};
use quire_frame::{Frames, VmEvent};

/// Past this many pages a flush drops the whole space's translations instead of naming each page (Linux's
/// `tlb_single_page_flush_ceiling`).
const FLUSH_CEILING: u64 = 33;

impl SpaceTables {
    /// Flushes `range`, whose entries are none, if CPUs may have translations of pages that page-out has
    /// discarded there. A thread that is about to map something else there calls this first: no CPU may still
    /// read the old page once another has read or written the new one. The lock of the table is held.
    #[inline]
    pub fn flush_discarded<P: Platform>(&self, frames: &Frames<P>, pin: &Pin<'_, P>, range: VirtRange) {
        if self.pageouts.is_discarding() {
            self.flush(frames, pin, range, FlushCause::PageOut);
        }
    }

    /// Returns when no CPU can use a translation of `range` that is older than this call.
    pub fn flush<P: Platform>(
        &self,
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        range: VirtRange,
        cause: FlushCause,
    ) {
        let reach = self.cpus.reach(pin.cpu());
        let count = |event, count| frames.events().add(pin, event, count);
        if reach.spared > 0 {
            count(VmEvent::TlbCpuSpared, reach.spared as u64);
        }
        if reach.running.is_empty() {
            return;
        }
        let asid = self.asid();
        let whole = range.pages() > FLUSH_CEILING || cause != FlushCause::Move && self.cpus.is_moving();
        let flush = if whole { TlbFlush::Space { asid } } else { TlbFlush::Range { asid, range } };
        let mut others = reach.running;
        others.remove(pin.cpu());
        if reach.running.contains(pin.cpu()) {
            if whole {
                count(VmEvent::NrTlbLocalFlushAll, 1);
            } else {
                count(VmEvent::NrTlbLocalFlushOne, range.pages());
            }
        }
        if others.is_empty() {
            pin.platform().flush_local(pin, flush);
            return;
        }
        let interrupted = others.len() as u64;
        count(VmEvent::NrTlbRemoteFlush, 1);
        count(VmEvent::NrTlbRemoteFlushReceived, interrupted);
        count(cause.shootdowns(), 1);
        count(cause.interrupts(), interrupted);
        pin.platform().shootdown(pin, &reach.running, flush);
    }
}
