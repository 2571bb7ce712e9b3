//! Changing the permissions of mapped pages, and looking which pages are there.

use super::{LockedTable, Place, Step, Tables};
use crate::gather::Gather;
use crate::vma::VmFlags;
use core::sync::atomic::Ordering;
use quire_arch::{Entry, Leaf, LeafFlags, Level, PAGE_SIZE, PagingFormat, Platform, VirtAddr, VirtRange};
use quire_frame::Kind;

impl<P: Platform> Tables<'_, P> {
    /// Gives every mapped page in `range` the permissions of a VMA with `flags`. Translations that allowed more are
    /// noted in `gather`.
    pub(crate) fn protect(&self, range: VirtRange, flags: VmFlags, gather: &mut Gather<'_, P>) {
        self.walk(range, &mut |place, part| {
            let pin = self.pin();
            match place {
                Place::Table(table) => {
                    let locked = self.lock(&pin, table, Level::PTE);
                    if locked.is_empty() {
                        return Step::Next;
                    }
                    for (index, addr) in Self::pages(part) {
                        if self.protect_leaf(&locked, (index, Level::PTE), flags) == Some(true) {
                            gather.add_stale(VirtRange::new(addr, VirtAddr(addr.0 + PAGE_SIZE)));
                        }
                    }
                    Step::Next
                }
                Place::Huge(slot) if part != self.slot_range(slot) => Step::Split,
                Place::Huge(slot) => {
                    let locked = self.lock_slot(&pin, slot);
                    match self.protect_leaf(&locked, (slot.index, Level::PMD), flags) {
                        Some(true) => gather.add_stale(part),
                        Some(false) => {}
                        None => return Step::Again,
                    }
                    Step::Next
                }
            }
        });
    }

    /// Gives one leaf the permissions of a VMA with `flags`, and answers whether it allowed more before; `None` if there is
    /// no leaf.
    #[inline]
    fn protect_leaf(
        &self,
        locked: &LockedTable<'_, P>,
        (index, level): (usize, Level),
        flags: VmFlags,
    ) -> Option<bool> {
        let access = LeafFlags::READ | LeafFlags::WRITE | LeafFlags::EXECUTE;
        let slot = &locked.entries[index];
        loop {
            let raw = slot.load(Ordering::Relaxed);
            let Entry::Leaf(leaf) = P::Paging::decode(raw, level) else { return None };
            let mut allowed = flags.leaf_flags();
            if allowed.contains(LeafFlags::WRITE) && !self.is_writable_as_is(leaf, flags) {
                allowed.remove(LeafFlags::WRITE);
            }
            let new = Leaf { pfn: leaf.pfn, flags: (leaf.flags - access) | allowed };
            let encoded = P::Paging::encode(Entry::Leaf(new), level);
            if encoded == raw {
                return Some(false);
            }
            // Compare-exchange: the MMU may be setting accessed and dirty in this very moment.
            if slot.compare_exchange(raw, encoded, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                let was_usable = leaf.flags.contains(LeafFlags::READ);
                return Some(was_usable && !new.flags.contains(leaf.flags & access));
            }
        }
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

    /// Calls `visit` with what every page of `range` maps, in order. A large leaf is one call, with the leaf of its first page,
    /// and so are the pages that a missing table would cover.
    pub(crate) fn look(&self, range: VirtRange, mut visit: impl FnMut(VirtRange, Option<Leaf>)) {
        let mut at = range.start();
        self.walk(range, &mut |place, part| {
            if at < part.start() {
                visit(VirtRange::new(at, part.start()), None);
            }
            let pin = self.pin();
            let table = match place {
                Place::Table(table) => table,
                Place::Huge(slot) => {
                    let leaf = Self::huge_leaf(&self.lock_slot(&pin, slot), slot);
                    let Some(leaf) = leaf else { return Step::Again };
                    let before = (part.start().0 - self.slot_range(slot).start().0) / PAGE_SIZE;
                    visit(part, Some(Leaf { pfn: leaf.pfn.offset(before), ..leaf }));
                    at = part.end();
                    return Step::Next;
                }
            };
            let locked = self.lock(&pin, table, Level::PTE);
            for (index, addr) in Self::pages(part) {
                let leaf = match locked.get(index) {
                    Entry::Leaf(leaf) => Some(leaf),
                    _ => None,
                };
                visit(VirtRange::new(addr, VirtAddr(addr.0 + PAGE_SIZE)), leaf);
            }
            at = part.end();
            Step::Next
        });
        if at < range.end() {
            visit(VirtRange::new(at, range.end()), None);
        }
    }
}
