//! The contents of `/proc/PID/smaps`.

use super::SpaceMappings;
use crate::mapping::Mapping;
use quire_arch::{Entry, Leaf, LeafFlags, PAGE_SIZE, Platform, VirtAddr, VirtRange};
use quire_frame::{FrameFlags, Kind};
use quire_pagetable::{Tables, Walker};
use quire_swap::SlotId;
use quire_thp::HugeUse;
use quire_vma::VmFlags;

/// A mapping and the pages in it, in bytes. What is called shared here is mapped more than once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappingFigures {
    /// The mapping.
    pub mapping: Mapping,
    /// Resident; the zero page does not count here or below.
    pub resident: u64,
    /// Of that, this mapping's proportional share: each page divided by its map count.
    pub share: u64,
    /// The dirty part of the share.
    pub share_dirty: u64,
    /// Shared clean pages.
    pub shared_clean: u64,
    /// Shared dirty pages.
    pub shared_dirty: u64,
    /// Private clean pages.
    pub private_clean: u64,
    /// Private dirty pages.
    pub private_dirty: u64,
    /// Pages referenced since the accessed bits were last cleared.
    pub referenced: u64,
    /// Anonymous pages.
    pub anonymous: u64,
    /// Pages marked by MADV_FREE and not written to since.
    pub lazy_free: u64,
    /// Anonymous pages that PMD entries map.
    pub anonymous_huge: u64,
    /// Pages of files that PMD entries map.
    pub file_huge: u64,
    /// In leaves of a PMD entry, of folios of shared memory.
    pub shmem_huge: u64,
    /// Swapped-out pages.
    pub swapped: u64,
    /// Of those, this mapping's share.
    pub swapped_share: u64,
    /// Whether a large folio could be mapped here.
    pub huge_eligible: bool,
}

/// Fractional bits of a share while it is summed.
const SHARE_SHIFT: u32 = 12;

impl MappingFigures {
    /// The share, if the mapping is mlocked.
    pub fn locked_share(&self) -> u64 {
        if self.mapping.flags.contains(VmFlags::LOCKED) { self.share } else { 0 }
    }

    fn new(mapping: Mapping, huge_eligible: bool) -> Self {
        Self {
            mapping,
            resident: 0,
            share: 0,
            share_dirty: 0,
            shared_clean: 0,
            shared_dirty: 0,
            private_clean: 0,
            private_dirty: 0,
            referenced: 0,
            anonymous: 0,
            lazy_free: 0,
            anonymous_huge: 0,
            file_huge: 0,
            shmem_huge: 0,
            swapped: 0,
            swapped_share: 0,
            huge_eligible,
        }
    }

    /// Sums the pages of `range`. Until [`finish`](Self::finish) shares have fractional bits.
    fn count<P: Platform>(&mut self, tables: &Tables<'_, P>, range: VirtRange) {
        Walker::new(tables).look(range, |pages, entry| match entry {
            Entry::Leaf(leaf) => self.add(tables, pages, leaf),
            Entry::Swap(entry) => {
                let names = tables.memory().swap().counts().count(SlotId::of(entry)).max(1);
                self.swapped += PAGE_SIZE;
                self.swapped_share += (PAGE_SIZE << SHARE_SHIFT) / u64::from(names);
            }
            _ => {}
        });
    }

    fn add<P: Platform>(&mut self, tables: &Tables<'_, P>, pages: VirtRange, leaf: Leaf) {
        if leaf.flags.contains(LeafFlags::SPECIAL) {
            return;
        }
        let bytes = pages.len();
        let folio = tables.memory().frames().folio(leaf.pfn);
        let flags = folio.frame().word().flags();
        let maps = u64::from(folio.frame().as_folio().maps());
        let mapped = maps.div_ceil(folio.order().pages()).max(1);
        let share = (bytes << SHARE_SHIFT) / mapped;
        self.resident += bytes;
        self.share += share;
        let is_dirty = leaf.flags.contains(LeafFlags::DIRTY) || flags.contains(FrameFlags::DIRTY);
        if is_dirty {
            self.share_dirty += share;
        }
        *match (mapped > 1, is_dirty) {
            (true, false) => &mut self.shared_clean,
            (true, true) => &mut self.shared_dirty,
            (false, false) => &mut self.private_clean,
            (false, true) => &mut self.private_dirty,
        } += bytes;
        if leaf.flags.contains(LeafFlags::ACCESSED) || flags.contains(FrameFlags::REFERENCED) {
            self.referenced += bytes;
        }
        if folio.kind() == Kind::Anonymous {
            self.anonymous += bytes;
            self.lazy_free += if flags.contains(FrameFlags::LAZY_FREE) && !is_dirty { bytes } else { 0 };
            self.anonymous_huge += if bytes > PAGE_SIZE { bytes } else { 0 };
        } else if bytes > PAGE_SIZE {
            let is_shmem = folio.kind() == Kind::Shmem;
            *(if is_shmem { &mut self.shmem_huge } else { &mut self.file_huge }) += bytes;
        }
    }

    fn finish(&mut self) {
        for share in [&mut self.share, &mut self.share_dirty, &mut self.swapped_share] {
            *share >>= SHARE_SHIFT;
        }
    }
}

impl<P: Platform> SpaceMappings<'_, P> {
    /// Calls `visit` with each mapping, lowest first, and its pages at this moment. No lock is held then, as
    /// for [`for_each`](Self::for_each).
    #[doc(hidden)]
    pub fn for_each_figures(self, mut visit: impl FnMut(&MappingFigures)) {
        let mut at = VirtAddr(0);
        while let Some(figures) = self.figures_from(at) {
            visit(&figures);
            at = figures.mapping.range.end();
        }
    }

    /// The lowest mapping that ends after `addr`, and its pages.
    fn figures_from(self, addr: VirtAddr) -> Option<MappingFigures> {
        let core = self.space.core();
        let mappings = core.read_mappings(self.space.spaces.platform());
        let snapshot = mappings.first_ending_after(addr)?.snapshot();
        let eligible = !self.orders_in(HugeUse::Smaps, snapshot.range.start(), &snapshot).is_empty();
        // SAFETY: the VMA is in the tree, whose lock is held.
        let mapping = unsafe { Mapping::of::<P>(&snapshot) };
        let mut figures = MappingFigures::new(mapping, eligible);
        figures.count(&self.space.caller().tables(), snapshot.range);
        figures.finish();
        Some(figures)
    }

    /// Calls `visit` with the anonymous pages of every mapping, lowest first, and whether they are in memory
    /// or swapped out: the pages of one entry at a time. The zero page is excluded. `visit` is called with
    /// the lock of a table held: it takes no lock, and does not access a program's memory.
    #[doc(hidden)]
    pub fn for_each_anonymous(self, mut visit: impl FnMut(VirtRange, AnonymousPlace)) {
        let tables = self.space.caller().tables();
        let is_anonymous = |leaf: Leaf| {
            !leaf.flags.contains(LeafFlags::SPECIAL)
                && tables.memory().frames().folio(leaf.pfn).kind() == Kind::Anonymous
        };
        let mappings = self.space.core().read_mappings(self.space.spaces.platform());
        for vma in mappings.iter() {
            Walker::new(&tables).look(vma.range(), |pages, entry| match entry {
                Entry::Swap(_) => visit(pages, AnonymousPlace::Swap),
                Entry::Leaf(leaf) if is_anonymous(leaf) => visit(pages, AnonymousPlace::Memory),
                _ => {}
            });
        }
    }
}

/// Where anonymous pages are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnonymousPlace {
    /// In memory, and mapped.
    Memory,
    /// Swapped out: swap entries name them.
    Swap,
}
