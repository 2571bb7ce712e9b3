//! Which VMAs may become one.

use super::{AnonVmaRef, Backing, VmFlags, VmaSnapshot};
use quire_arch::VirtRange;

/// A range as it will be after a call, to be compared with its neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// Its addresses.
    pub range: VirtRange,
    /// Its flags.
    pub flags: VmFlags,
    /// The page offset of its start.
    pub page_offset: u64,
    /// What it maps.
    pub backing: Backing,
    /// Its part in an anon_vma.
    pub anon: AnonVmaRef,
}

/// Which neighbours absorb a proposal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MergeChoice {
    /// The one below.
    pub previous: bool,
    /// The one above.
    pub next: bool,
}

impl Proposal {
    /// Whether the proposal merges with `previous`, which ends where it starts, and with `next`, which starts
    /// where it ends. A neighbour that is not adjacent never merges.
    pub fn merges(&self, previous: Option<&VmaSnapshot>, next: Option<&VmaSnapshot>) -> MergeChoice {
        // What is not divided has no part that a neighbour could have, nor one of a neighbour's.
        if self.flags.intersects(VmFlags::SPECIAL | VmFlags::WHOLE) {
            return MergeChoice { previous: false, next: false };
        }
        let with_previous = previous.filter(|previous| {
            previous.range.end() == self.range.start()
                && self.agrees(previous)
                && previous.page_offset_at(self.range.start()) == self.page_offset
                && compatible(previous.anon, self.anon)
        });
        // Of what becomes one with both neighbours, the one above goes.
        let next = next.filter(|_| with_previous.is_none() || !self.flags.contains(VmFlags::COUNTED));
        let with_next = next.filter(|next| {
            next.range.start() == self.range.end()
                && self.agrees(next)
                && self.page_offset.wrapping_add(self.range.pages()) == next.page_offset
                && compatible(next.anon, self.anon)
                // Both fit the proposal, but that does not yet mean that they fit each other.
                && with_previous.is_none_or(|previous| compatible(previous.anon, next.anon))
        });
        MergeChoice { previous: with_previous.is_some(), next: with_next.is_some() }
    }

    fn agrees(&self, other: &VmaSnapshot) -> bool {
        // The wishes for a place are the file's, and the file is the same.
        let ignored = VmFlags::HUGE_ALIGNED | VmFlags::PLACES_ITSELF | VmFlags::STICKY;
        (self.flags ^ other.flags).difference(ignored).is_empty() && self.backing == other.backing
    }
}

/// Two anon_vmas in one VMA: the same one, or one of them absent, unless pages of the present one may be
/// shared with a parent process.
fn compatible(a: AnonVmaRef, b: AnonVmaRef) -> bool {
    match (a.is_some(), b.is_some()) {
        (true, true) => a == b,
        (true, false) => !a.is_inherited(),
        (false, true) => !b.is_inherited(),
        (false, false) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::{self, NonNull};
    use quire_arch::VirtAddr;

    const RW: VmFlags = VmFlags::READ.union(VmFlags::WRITE);

    /// An anon_vma is a number here: it is never dereferenced.
    fn snapshot(start: u64, end: u64, anon_vma: usize) -> VmaSnapshot {
        VmaSnapshot {
            range: VirtRange::new(VirtAddr(start), VirtAddr(end)),
            flags: RW,
            page_offset: start >> 12,
            backing: Backing::ANONYMOUS,
            anon: NonNull::new(ptr::without_provenance_mut(anon_vma)).map_or(AnonVmaRef::NONE, |anon_vma| {
                // SAFETY: it is only compared.
                unsafe { AnonVmaRef::new(anon_vma) }
            }),
        }
    }

    fn proposal(start: u64, end: u64) -> Proposal {
        let VmaSnapshot { range, flags, page_offset, backing, anon } = snapshot(start, end, 0);
        Proposal { range, flags, page_offset, backing, anon }
    }

    #[test]
    fn a_hole_between_equal_neighbours_closes() {
        let (low, high) = (snapshot(0x1000, 0x2000, 0), snapshot(0x3000, 0x4000, 0));
        let choice = proposal(0x2000, 0x3000).merges(Some(&low), Some(&high));
        assert_eq!(choice, MergeChoice { previous: true, next: true });
    }

    #[test]
    fn neighbours_with_pages_of_two_anon_vmas_do_not_join_across_a_hole() {
        let (low, high) = (snapshot(0x1000, 0x2000, 5), snapshot(0x3000, 0x4000, 6));
        let choice = proposal(0x2000, 0x3000).merges(Some(&low), Some(&high));
        assert_eq!(choice, MergeChoice { previous: true, next: false });
    }

    #[test]
    fn of_two_neighbours_of_a_file_that_counts_its_mappings_none_goes() {
        let counted = |snapshot: VmaSnapshot| VmaSnapshot { flags: RW | VmFlags::COUNTED, ..snapshot };
        let (low, high) = (counted(snapshot(0x1000, 0x2000, 0)), counted(snapshot(0x3000, 0x4000, 0)));
        let between = Proposal { flags: low.flags, ..proposal(0x2000, 0x3000) };
        let choice = between.merges(Some(&low), Some(&high));
        assert_eq!(choice, MergeChoice { previous: true, next: false });
        assert_eq!(between.merges(None, Some(&high)), MergeChoice { previous: false, next: true });
    }

    #[test]
    fn pages_shared_with_a_parent_keep_a_vma_apart() {
        let mut low = snapshot(0x1000, 0x2000, 5);
        low.anon = low.anon.inherited(1);
        assert!(!proposal(0x2000, 0x3000).merges(Some(&low), None).previous);
        // Its own part may merge again, and another VMA's may not, though both are in one anon_vma.
        let mut part = Proposal { anon: low.anon, ..proposal(0x2000, 0x3000) };
        assert!(part.merges(Some(&low), None).previous);
        part.anon = low.anon.inherited(2);
        assert!(!part.merges(Some(&low), None).previous);
    }

    #[test]
    fn moved_memory_keeps_its_offset_and_does_not_merge_where_that_differs() {
        let mut low = snapshot(0x1000, 0x2000, 5);
        low.page_offset = 0x77;
        assert!(!proposal(0x2000, 0x3000).merges(Some(&low), None).previous);
    }

    #[test]
    fn special_and_non_adjacent_mappings_do_not_merge() {
        let low = snapshot(0x1000, 0x2000, 0);
        let mut special = proposal(0x2000, 0x3000);
        special.flags |= VmFlags::IO;
        assert!(!special.merges(Some(&low), None).previous);
        let mut whole = snapshot(0x1000, 0x2000, 0);
        whole.flags |= VmFlags::WHOLE;
        let part = Proposal { flags: whole.flags, ..proposal(0x2000, 0x3000) };
        assert!(!part.merges(Some(&whole), None).previous);
        assert!(!proposal(0x5000, 0x6000).merges(Some(&low), None).previous);
    }
}
