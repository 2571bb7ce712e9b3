//! The contents of `/proc/PID/pagemap`.

use super::SpaceMappings;
use quire_arch::paging::PteMarker;
use quire_arch::{Entry, LeafFlags, Platform, VirtRange};
use quire_frame::Kind;
use quire_pagetable::Walker;
use quire_swap::{DeviceId, SlotId};

/// The state of a page of an address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PageState {
    /// The zero page.
    Zero,
    /// An anonymous page.
    Anonymous,
    /// A page of a file or of shared memory.
    File,
    /// A swapped-out page. It may still be in memory, in the swap cache.
    Swapped {
        /// The device.
        device: DeviceId,
        /// Its number there.
        slot: u64,
    },
    /// A guard page.
    Guard,
}

impl<P: Platform> SpaceMappings<'_, P> {
    /// Calls `visit` with the pages in `range` that are in memory, swapped out or guards, lowest first: the
    /// pages of one table entry at a time, so several pages at once are those of a PMD entry. `visit` is
    /// called with the lock of a table held: it takes no lock, and does not access a program's memory.
    #[doc(hidden)]
    pub fn pagemap(self, range: VirtRange, mut visit: impl FnMut(VirtRange, PageState)) {
        let core = self.space.core();
        let frames = self.space.spaces.frames();
        let mappings = core.read_mappings(self.space.spaces.platform());
        // The others are not looked at: a reader asks for a little at a time.
        for vma in mappings.iter_from(range.start()).take_while(|vma| vma.range().start() < range.end()) {
            let part = vma.range().intersect(range);
            if part.is_empty() {
                continue;
            }
            Walker::new(&self.space.caller().tables()).look(part, |pages, entry| {
                let leaf = match entry {
                    Entry::Marker(PteMarker::Guard) => return visit(pages, PageState::Guard),
                    Entry::Leaf(leaf) if leaf.flags.contains(LeafFlags::GUARD) => {
                        return visit(pages, PageState::Guard);
                    }
                    Entry::Leaf(leaf) => leaf,
                    Entry::Swap(entry) => {
                        let slot = SlotId::of(entry);
                        return visit(
                            pages,
                            PageState::Swapped { device: slot.device(), slot: slot.number() },
                        );
                    }
                    _ => return,
                };
                let state = if leaf.flags.contains(LeafFlags::SPECIAL) {
                    PageState::Zero
                } else if frames.folio(leaf.pfn).kind() == Kind::Anonymous {
                    PageState::Anonymous
                } else {
                    PageState::File
                };
                visit(pages, state);
            });
        }
    }
}
