//! The TLB of one vCPU.
//!
//! Set-associative for base pages, a small fully associative array for large ones, as in current CPUs.
//! Replacement is round-robin, so a run with the same accesses has the same misses.

use quire_arch::{Asid, Leaf, LeafFlags, Level, PAGE_SHIFT, Pfn, TlbFlush, VirtAddr, VirtRange};

const SETS: usize = 64;
const WAYS: usize = 4;
const LARGE: usize = 16;
/// A page number that no address has: the mark of an empty slot.
const EMPTY: u64 = u64::MAX;

/// A cached leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TlbSlot {
    /// The virtual address divided by the size of the page, or [`EMPTY`].
    page: u64,
    pfn: Pfn,
    pub(crate) asid: Asid,
    /// The leaf's flags as the walk left them: with `DIRTY` only if the walk was for a write or found it set.
    pub(crate) flags: LeafFlags,
    pub(crate) level: Level,
    /// Log2 of the size of the page.
    shift: u8,
}

impl TlbSlot {
    const NONE: Self = Self {
        page: EMPTY,
        pfn: Pfn(0),
        asid: Asid::NONE,
        flags: LeafFlags::empty(),
        level: Level::PTE,
        shift: PAGE_SHIFT as u8,
    };

    /// The translation of `addr` in space `asid` by a `leaf` at `level`, whose entries cover `1 << shift`
    /// bytes.
    #[inline]
    pub(crate) fn new(asid: Asid, addr: VirtAddr, level: Level, shift: u32, leaf: Leaf) -> Self {
        Self { page: addr.0 >> shift, pfn: leaf.pfn, asid, flags: leaf.flags, level, shift: shift as u8 }
    }

    #[inline]
    fn is_for(&self, asid: Asid, addr: VirtAddr) -> bool {
        self.page == addr.0 >> self.shift && self.asid == asid
    }

    fn is_empty(&self) -> bool {
        self.page == EMPTY
    }

    /// The frame and the offset in it that `addr`, which this slot is for, translates to.
    #[inline]
    pub(crate) fn translate(&self, addr: VirtAddr) -> (Pfn, u64) {
        let offset = addr.0 & ((1 << self.shift) - 1);
        (self.pfn.offset(offset >> PAGE_SHIFT), addr.page_offset())
    }

    /// The addresses that the slot translates.
    pub(crate) fn range(&self) -> VirtRange {
        let start = VirtAddr(self.page << self.shift);
        VirtRange::new(start, VirtAddr(start.0.saturating_add(1 << self.shift)))
    }

    /// The slot's translation.
    pub(crate) fn leaf(&self) -> Leaf {
        Leaf { pfn: self.pfn, flags: self.flags }
    }

    /// Whether both slots translate the same page.
    pub(crate) fn is_same_page(&self, other: &Self) -> bool {
        (self.asid, self.page, self.shift) == (other.asid, other.page, other.shift)
    }

    /// Whether `flush` has to drop this slot.
    pub(crate) fn is_covered_by(&self, flush: TlbFlush) -> bool {
        !self.is_empty()
            && match flush {
                TlbFlush::All => true,
                TlbFlush::Space { asid } => self.asid == asid,
                TlbFlush::Range { asid, range } => self.asid == asid && self.range().overlaps(range),
            }
    }
}

/// The translations of one vCPU.
#[derive(Debug)]
pub(crate) struct Tlb {
    base: Box<[[TlbSlot; WAYS]; SETS]>,
    /// The way of each set that is replaced next.
    victims: [u8; SETS],
    large: [TlbSlot; LARGE],
    large_victim: u8,
    /// Whether `large` may hold anything: most programs have no large page, and need not look.
    has_large: bool,
}

impl Tlb {
    pub(crate) fn new() -> Self {
        Self {
            base: Box::new([[TlbSlot::NONE; WAYS]; SETS]),
            victims: [0; SETS],
            large: [TlbSlot::NONE; LARGE],
            large_victim: 0,
            has_large: false,
        }
    }

    #[inline]
    fn set(asid: Asid, page: u64) -> usize {
        (page ^ u64::from(asid.0)) as usize % SETS
    }

    /// The translation of `addr`.
    #[inline]
    pub(crate) fn lookup(&self, asid: Asid, addr: VirtAddr) -> Option<&TlbSlot> {
        let page = addr.0 >> PAGE_SHIFT;
        let ways = &self.base[Self::set(asid, page)];
        if let Some(slot) = ways.iter().find(|slot| slot.page == page && slot.asid == asid) {
            return Some(slot);
        }
        if self.has_large { self.large.iter().find(|slot| slot.is_for(asid, addr)) } else { None }
    }

    /// Adds a translation in the place of the one that [`lookup`](Self::lookup) would find for the same
    /// address, or else of an old one.
    pub(crate) fn insert(&mut self, addr: VirtAddr, new: TlbSlot) {
        self.drop_page(new.asid, addr);
        let (ways, victim) = if new.shift == PAGE_SHIFT as u8 {
            let set = Self::set(new.asid, new.page);
            (&mut self.base[set][..], &mut self.victims[set])
        } else {
            self.has_large = true;
            (&mut self.large[..], &mut self.large_victim)
        };
        let way = ways.iter().position(TlbSlot::is_empty).unwrap_or_else(|| {
            let way = usize::from(*victim);
            *victim = ((way + 1) % ways.len()) as u8;
            way
        });
        ways[way] = new;
    }

    /// Drops every translation of `addr`, as a CPU does before it walks again because the cached one does not
    /// allow the access.
    pub(crate) fn drop_page(&mut self, asid: Asid, addr: VirtAddr) {
        let page = addr.0 >> PAGE_SHIFT;
        let large = if self.has_large { &mut self.large[..] } else { &mut [] };
        for slot in self.base[Self::set(asid, page)].iter_mut().chain(large) {
            if slot.is_for(asid, addr) {
                *slot = TlbSlot::NONE;
            }
        }
    }

    /// Drops what `flush` covers.
    pub(crate) fn flush(&mut self, flush: TlbFlush) {
        match flush {
            // Up to the number of sets, looking at the sets of the pages is less than looking at all.
            TlbFlush::Range { asid, range } if range.len() <= (SETS as u64) << PAGE_SHIFT => {
                let mut page = range.start().0 >> PAGE_SHIFT;
                let end = range.end().0.div_ceil(1 << PAGE_SHIFT);
                while page < end {
                    for slot in &mut self.base[Self::set(asid, page)] {
                        if slot.page == page && slot.asid == asid {
                            *slot = TlbSlot::NONE;
                        }
                    }
                    page += 1;
                }
            }
            _ => {
                for slot in self.base.as_flattened_mut() {
                    if slot.is_covered_by(flush) {
                        *slot = TlbSlot::NONE;
                    }
                }
            }
        }
        if self.has_large {
            for slot in &mut self.large {
                if slot.is_covered_by(flush) {
                    *slot = TlbSlot::NONE;
                }
            }
            self.has_large = !self.large.iter().all(TlbSlot::is_empty);
        }
    }

    /// Every translation.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &TlbSlot> {
        self.base.as_flattened().iter().chain(&self.large).filter(|slot| !slot.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(asid: u32, addr: u64, shift: u32) -> TlbSlot {
        let leaf = Leaf { pfn: Pfn(addr >> shift << (shift - PAGE_SHIFT)), flags: LeafFlags::READ };
        let level = Level(u8::from(shift > PAGE_SHIFT));
        TlbSlot::new(Asid(asid), VirtAddr(addr), level, shift, leaf)
    }

    #[test]
    fn a_set_replaces_its_oldest_in_turn() {
        let mut tlb = Tlb::new();
        let conflict = |n: u64| (n * SETS as u64) << PAGE_SHIFT;
        for n in 0..=WAYS as u64 {
            tlb.insert(VirtAddr(conflict(n)), slot(0, conflict(n), 12));
        }
        assert!(tlb.lookup(Asid(0), VirtAddr(conflict(0))).is_none());
        for n in 1..=WAYS as u64 {
            assert!(tlb.lookup(Asid(0), VirtAddr(conflict(n))).is_some());
        }
    }

    #[test]
    fn an_address_translates_within_its_large_page() {
        let mut tlb = Tlb::new();
        let addr = VirtAddr((5 << 21) + 0x1_2345);
        tlb.insert(addr, slot(1, addr.0, 21));
        let found = tlb.lookup(Asid(1), addr).expect("just inserted");
        assert_eq!(found.translate(addr), (Pfn((5 << 9) + 0x12), 0x345));
        assert!(tlb.lookup(Asid(2), addr).is_none());
        assert!(tlb.lookup(Asid(1), VirtAddr(6 << 21)).is_none());
    }

    #[derive(Clone, Debug)]
    enum TlbStep {
        Insert { asid: u32, page: u64, large: bool },
        Flush(TlbFlush),
    }

    fn step() -> impl Strategy<Value = TlbStep> {
        let range = (0u32..3, 0u64..1 << 30, 0u64..1 << 23).prop_map(|(asid, start, len)| {
            let range = VirtRange::new(VirtAddr(start), VirtAddr(start + len));
            TlbFlush::Range { asid: Asid(asid), range }
        });
        let space = (0u32..3).prop_map(|asid| TlbFlush::Space { asid: Asid(asid) });
        prop_oneof![
            8 => (0u32..3, 0u64..1 << 18, any::<bool>())
                .prop_map(|(asid, page, large)| TlbStep::Insert { asid, page, large }),
            2 => range.prop_map(TlbStep::Flush),
            1 => space.prop_map(TlbStep::Flush),
            1 => Just(TlbStep::Flush(TlbFlush::All)),
        ]
    }

    proptest! {
        /// Whatever was flushed is gone, and what is there was inserted since: the cache is a subset of a
        /// list from which the flushes are applied one by one.
        #[test]
        fn a_flush_leaves_nothing_that_it_covers(steps in prop::collection::vec(step(), 1..200)) {
            let mut tlb = Tlb::new();
            let mut model: Vec<TlbSlot> = Vec::new();
            for step in steps {
                match step {
                    TlbStep::Insert { asid, page, large } => {
                        let addr = page << PAGE_SHIFT;
                        let new = slot(asid, addr, if large { 21 } else { PAGE_SHIFT });
                        tlb.insert(VirtAddr(addr), new);
                        model.push(new);
                        prop_assert_eq!(tlb.lookup(Asid(asid), VirtAddr(addr)), Some(&new));
                    }
                    TlbStep::Flush(flush) => {
                        let kept: Vec<TlbSlot> =
                            tlb.iter().filter(|slot| !slot.is_covered_by(flush)).copied().collect();
                        tlb.flush(flush);
                        model.retain(|slot| !slot.is_covered_by(flush));
                        prop_assert_eq!(tlb.iter().copied().collect::<Vec<_>>(), kept);
                    }
                }
                prop_assert!(tlb.iter().all(|slot| model.contains(slot)));
            }
        }
    }
}
