//! Changing the permissions of mapped pages, and looking which pages are there.

use super::Tables;
use crate::gather::Gather;
use crate::vma::VmFlags;
use core::sync::atomic::Ordering;
use quire_arch::{Entry, Leaf, LeafFlags, Level, PAGE_SIZE, PagingFormat, Platform, VirtAddr, VirtRange};
use quire_frame::Kind;

impl<P: Platform> Tables<'_, P> {
    /// Gives every mapped page in `range` the permissions of a VMA with `flags`. Translations that allowed more are
    /// noted in `gather`.
    pub(crate) fn protect(&self, range: VirtRange, flags: VmFlags, gather: &mut Gather<'_, P>) {
        let wanted = flags.leaf_flags();
        let access = LeafFlags::READ | LeafFlags::WRITE | LeafFlags::EXECUTE;
        self.for_each_table(range, &mut |table, part| {
            let pin = self.pin();
            let locked = self.lock(&pin, table, Level::PTE);
            if locked.is_empty() {
                return;
            }
            for (index, addr) in Self::pages(part) {
                let slot = &locked.entries[index];
                loop {
                    let raw = slot.load(Ordering::Relaxed);
                    let Entry::Leaf(leaf) = P::Paging::decode(raw, Level::PTE) else { break };
                    let mut allowed = wanted;
                    if allowed.contains(LeafFlags::WRITE) && !self.is_writable_as_is(leaf, flags) {
                        allowed.remove(LeafFlags::WRITE);
                    }
                    let new = Leaf { pfn: leaf.pfn, flags: (leaf.flags - access) | allowed };
                    let encoded = P::Paging::encode(Entry::Leaf(new), Level::PTE);
                    if encoded == raw {
                        break;
                    }
                    // Compare-exchange: the MMU may be setting accessed and dirty in this very moment.
                    if slot.compare_exchange(raw, encoded, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                        if leaf.flags.contains(LeafFlags::READ) && !new.flags.contains(leaf.flags & access) {
                            gather.add_stale(VirtRange::new(addr, VirtAddr(addr.0 + PAGE_SIZE)));
                        }
                        break;
                    }
                }
            }
        });
    }

    /// Whether a leaf may be made writable without a fault: not the zero page, and of private memory only a page that is
    /// the program's own and nobody else's. The table is locked.
    fn is_writable_as_is(&self, leaf: Leaf, flags: VmFlags) -> bool {
        if leaf.flags.contains(LeafFlags::SPECIAL) {
            return false;
        }
        let frames = self.spaces.frames();
        flags.contains(VmFlags::SHARED) || {
            let folio = frames.folio(leaf.pfn);
            folio.kind() == Kind::Anonymous && frames.lock_folio(leaf.pfn).is_exclusive()
        }
    }

    /// Calls `visit` with what every page of `range` maps, in order. Tables that are missing are skipped with one
    /// call for the pages that they would cover.
    pub(crate) fn look(&self, range: VirtRange, mut visit: impl FnMut(VirtRange, Option<Leaf>)) {
        let mut at = range.start();
        self.for_each_table(range, &mut |table, part| {
            if at < part.start() {
                visit(VirtRange::new(at, part.start()), None);
            }
            let pin = self.pin();
            let locked = self.lock(&pin, table, Level::PTE);
            for (index, addr) in Self::pages(part) {
                let leaf = match locked.get(index) {
                    Entry::Leaf(leaf) => Some(leaf),
                    _ => None,
                };
                visit(VirtRange::new(addr, VirtAddr(addr.0 + PAGE_SIZE)), leaf);
            }
            at = part.end();
        });
        if at < range.end() {
            visit(VirtRange::new(at, range.end()), None);
        }
    }
}
