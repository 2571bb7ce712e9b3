//! Readahead around a fault.

use super::Faults;
use crate::readahead::swapped_around;
use crate::swap_in::{Ahead, SwapIn};
use crate::vma_hold::VmaHold;
use quire_arch::{OrderSet, PAGE_SHIFT, Pfn, Platform, SwapEntry, VirtAddr};
use quire_frame::{FrameFlags, VmEvent};
use quire_swap::SlotId;
use quire_vma::{READAHEAD_MOST, Vma};

impl<P: Platform> Faults<'_, P> {
    /// Calls `inside` with the mapping of `addr`, if that is possible without the mmap lock.
    fn with_vma<R>(&self, addr: VirtAddr, inside: impl FnOnce(&Vma) -> R) -> Option<R> {
        let pin = self.memory().platform().pin();
        let epoch = self.memory().frames().epoch().enter(&pin);
        let hold = VmaHold::find(self.memory().platform(), self.core, &epoch, addr)?;
        Some(inside(hold.vma()))
    }

    /// Starts readahead after the page at `addr`, whose swap entry is `entry`. Nothing is held.
    #[cold]
    pub fn read_ahead(&self, addr: VirtAddr, entry: SwapEntry) {
        let slot = SlotId::of(entry);
        let swap = self.memory().swap();
        if swap.io().is_synchronous(slot) || swap.counts().is_cached(slot) {
            return;
        }
        let found = self.with_vma(addr, |vma| {
            let window = vma.readahead.window(addr.0 >> PAGE_SHIFT);
            if swap.io().seeks(slot) { None } else { Some(swapped_around(&self.tables(), vma, window, addr)) }
        });
        let ahead = match found {
            None => return,
            Some(Some(ahead)) => ahead,
            // Neighbouring slots, whichever spaces name them.
            Some(None) => {
                let first = slot.number() & !(READAHEAD_MOST - 1);
                (first..first + READAHEAD_MOST).map(|number| SlotId::new(slot.device(), number)).collect()
            }
        };
        for other in ahead {
            let swap_in = SwapIn::new(self.memory(), &self.core.tables.membership);
            if other != slot && swap_in.begin_ahead(other, OrderSet::EMPTY, Ahead::Guessed).is_err() {
                return;
            }
        }
    }

    /// The folio at `head` was swapped in for `addr`: perhaps it had been read ahead.
    pub fn note_read_ahead(&self, addr: VirtAddr, head: Pfn) {
        let frame = self.memory().frames().known(head);
        let before = frame.clear_flags(FrameFlags::READAHEAD);
        if before.is_some_and(|flags| flags.contains(FrameFlags::READAHEAD)) {
            self.memory().frames().events().add(&self.memory().platform().pin(), VmEvent::SwapRaHit, 1);
            self.with_vma(addr, |vma| vma.readahead.hit(addr.0 >> PAGE_SHIFT));
        }
    }
}
