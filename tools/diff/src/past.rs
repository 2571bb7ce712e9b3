//! Which known difference there is, by what a program did before.

use crate::known::{KnownCounts, KnownDifference};
use crate::linux::probes;
use crate::observation::{LARGE, Observation, Region};
use crate::program::names::*;
use crate::program::{Call, Outcome, Store};
use quire_arch::PAGE_SIZE;
use quire_mm::space::PageState;

mod differing;
mod file;

use differing::{
    cut, has_all_private, has_folio_from_swap, has_more_cached, has_private, has_whole_from_swap, joined,
    kept_more, maps_more_only, maps_written, overlapping, split_more, touches,
};
use file::PastFile;

/// Advice about guard pages.
const GUARDS: [u64; 2] = [MADV_GUARD_INSTALL, MADV_GUARD_REMOVE];

/// Bytes that are mapped around a fault.
const AROUND: u64 = 64 << 10;

/// The swap devices of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Swap {
    None,
    /// One, which both sides have.
    Compared,
    /// Others, too.
    Foreign,
}

/// The part of a program's history that decides what may differ.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    /// Processes that were forked.
    forks: u32,
    /// Ranges that were kept from children.
    kept_from_children: Vec<(u64, u64)>,
    file: PastFile,
    /// Whose swap device the host has, if it has one.
    swap: Swap,
    /// Pages of shared memory may be on the swap device, which are holes on Linux if nothing wrote to them.
    may_have_swapped_zeros: bool,
    /// Pages were moved.
    moved: bool,
    /// Ranges whose tables Linux freed while their mappings stayed.
    without_tables: Vec<(u64, u64)>,
    /// Ranges whose pages went while tables may have stayed.
    emptied: Vec<(u64, u64)>,
    /// Ranges of large folios that were lazily freed as a whole, without what was written to since, or is
    /// something else by now.
    lazy: Vec<(u64, u64)>,
    counts: KnownCounts,
}

impl Past {
    /// Of a program that begins.
    pub(crate) fn new(swap: Swap, store: Store) -> Self {
        Self {
            forks: 0,
            kept_from_children: Vec::new(),
            file: PastFile::new(store),
            swap,
            may_have_swapped_zeros: false,
            moved: false,
            without_tables: Vec::new(),
            emptied: Vec::new(),
            lazy: Vec::new(),
            counts: KnownCounts::new(),
        }
    }

    /// Whether an operation is known to end differently, with Quire's mappings as they are before it. The
    /// program cannot continue after it: the sides are no longer alike.
    pub(crate) fn parts_ways(
        &mut self,
        call: Call,
        args: [u64; 6],
        before: &[Region],
    ) -> Option<KnownDifference> {
        let [addr, len, third, fourth, ..] = args;
        let known = match call {
            Call::Mmap if fourth & MAP_HUGETLB != 0 && probes::has_huge_pages() => {
                Some(KnownDifference::NotBuilt)
            }
            Call::Shmget if third & (SHM_HUGETLB | SHM_NORESERVE) == SHM_HUGETLB | SHM_NORESERVE => {
                Some(KnownDifference::NotBuilt)
            }
            // What it writes is not the same.
            Call::MincoreInto => {
                let seen = || overlapping(before, addr, len);
                if self.may_have_swapped_zeros && seen().any(Region::is_cached) {
                    Some(KnownDifference::PageOut)
                } else {
                    seen().any(|region| self.residency(region)).then_some(KnownDifference::FilePages)
                }
            }
            Call::Madvise if GUARDS.contains(&third) && !probes::marks_guards() => {
                Some(KnownDifference::GuardPages)
            }
            Call::Madvise if third == MADV_PAGEOUT => {
                let differs = |region: &Region| match self.swap {
                    Swap::None => region.is_cached(),
                    Swap::Compared => region.file && self.file.is_on_disk(),
                    Swap::Foreign => true,
                };
                let known = self.swap == Swap::Foreign || overlapping(before, addr, len).any(differs);
                known.then_some(KnownDifference::PageOut)
            }
            _ => None,
        };
        known.inspect(|&known| self.count(known))
    }

    /// Whether other pages of shared memory are mapped on Linux after an operation, in any process.
    pub(crate) fn parts_memory(&mut self, call: Call, args: [u64; 6], outcome: Outcome) -> bool {
        let [descriptor, mode, offset, len, ..] = args;
        let in_memory = memfd_at(descriptor).is_some() || !self.file.is_on_disk();
        let known = call == Call::Fallocate
            && outcome == Outcome::Value(0)
            && in_memory
            && mode & FALLOC_FL_PUNCH_HOLE != 0
            && offset + len < PAGE_SIZE;
        if known {
            self.count(KnownDifference::FirstPageHole);
        }
        known
    }

    /// Notes an operation that was made.
    pub(crate) fn note(&mut self, call: Call, args: [u64; 6], outcome: Outcome, before: &Observation) {
        const DONTNEED: [u64; 2] = [MADV_DONTNEED, MADV_DONTNEED_LOCKED];
        const KEPT_FROM_CHILDREN: [u64; 2] = [MADV_DONTFORK, MADV_WIPEONFORK];
        let [addr, len, third, ..] = args;
        let makes_hole = call == Call::Madvise
            && third == MADV_REMOVE
            && overlapping(&before.regions, addr, len).any(|region| region.file);
        self.file.note(call, args, outcome, makes_hole);
        self.forks += u32::from(call == Call::Fork && outcome == Outcome::Value(0));
        if call == Call::Madvise && KEPT_FROM_CHILDREN.contains(&third) {
            self.kept_from_children.push((addr, addr.saturating_add(len)));
        }
        let empties = match call {
            Call::Madvise => DONTNEED.contains(&third) || GUARDS.contains(&third),
            Call::Mmap => args[3] & MAP_FIXED != 0,
            _ => matches!(call, Call::Munmap | Call::Mremap),
        };
        let end = addr.saturating_add(len);
        if empties {
            self.emptied.push((addr, end));
            // A move does not change the contents.
            if call != Call::Mremap {
                cut(&mut self.lazy, addr, end);
            }
        }
        self.may_have_swapped_zeros |= call == Call::Madvise
            && third == MADV_PAGEOUT
            && overlapping(&before.regions, addr, len).any(Region::is_cached);
        if call == Call::Madvise && third == MADV_FREE {
            for run in before.pages.iter().filter(|run| run.large) {
                let blocks = (run.start..run.end).step_by(LARGE as usize);
                let whole = blocks.filter(|&block| addr <= block && block + LARGE <= end);
                self.lazy.extend(whole.map(|block| (block, block + LARGE)));
            }
        }
        if call == Call::Mremap
            && let Outcome::Value(to @ 0..) = outcome
        {
            self.moved = true;
            let to = (to.cast_unsigned(), to.cast_unsigned().saturating_add(third));
            if touches(&self.without_tables, addr, len) {
                self.without_tables.push(to);
            }
            self.emptied.push(to);
            let moved = cut(&mut self.lazy, addr, end);
            cut(&mut self.lazy, to.0, to.1);
            self.lazy.extend(moved.iter().map(|(start, end)| (start - addr + to.0, end - addr + to.0)));
            if args[3] & MREMAP_DONTUNMAP != 0 {
                self.without_tables.push((addr, end));
            }
        }
        if call == Call::Madvise && DONTNEED.contains(&third) {
            for region in overlapping(&before.regions, addr, len) {
                let (mut from, end) = (region.start.max(addr), region.end.min(end));
                // What a PMD entry maps has no table to be freed.
                for large in before.pages.iter().filter(|run| run.large && run.start < end) {
                    self.without_tables.push((from, large.start));
                    from = from.max(large.end);
                }
                self.without_tables.push((from, end));
            }
        }
        let written = match call {
            Call::Write => 8,
            Call::Fill => len,
            _ => return,
        };
        let behind = addr.saturating_add(written).checked_next_multiple_of(PAGE_SIZE);
        cut(&mut self.lazy, addr & !(PAGE_SIZE - 1), behind.unwrap_or(u64::MAX));
    }

    /// Whether Linux's count of locked memory is wrong from now on.
    pub(crate) fn miscounts_locked(
        &mut self,
        call: Call,
        args: [u64; 6],
        linux: &Observation,
        quire: &Observation,
    ) -> bool {
        const INT_PAGES_KIB: u64 = 1 << 33;
        let (Some(linux), Some(quire)) = (linux.figures, quire.figures) else { return false };
        let known = if quire.locked >= INT_PAGES_KIB {
            KnownDifference::LockedOverflow
        } else if call == Call::Mremap && args[3] & MREMAP_DONTUNMAP != 0 && linux.locked > quire.locked {
            KnownDifference::LockedDontUnmap
        } else {
            return false;
        };
        self.count(known);
        true
    }

    /// Whether the sides differ only in how a call that failed left the mappings split.
    pub(crate) fn left_split(
        &mut self,
        call: Call,
        outcome: Outcome,
        linux: &Observation,
        quire: &Observation,
    ) -> bool {
        const EAGAIN: i64 = -11;
        const ENOMEM: i64 = -12;
        const EINVAL: i64 = -22;
        let splits = matches!(
            call,
            Call::Mmap
                | Call::Munmap
                | Call::Mremap
                | Call::Shmat
                | Call::Mprotect
                | Call::PkeyMprotect
                | Call::Madvise
                | Call::Mlock
                | Call::Mlock2
                | Call::Munlock
        );
        let is_known = splits
            && matches!(outcome, Outcome::Value(EAGAIN | ENOMEM | EINVAL))
            && linux.regions.len() > quire.regions.len()
            && joined(&linux.regions) == joined(&quire.regions);
        if is_known {
            self.count(KnownDifference::FailedSplit);
        }
        is_known
    }

    /// Whether the sides differ in pages in a way that is known.
    pub(crate) fn pages_part(
        &mut self,
        call: Call,
        args: [u64; 6],
        linux: &Observation,
        quire: &Observation,
    ) -> bool {
        // Where the call, or the access, takes a fault.
        let at = if matches!(call, Call::Pread | Call::Pwrite) { args[1] } else { args[0] };
        let known = if linux.pages == quire.pages {
            return false;
        } else if self.forks > 0
            && touches(&self.kept_from_children, args[0], args[1])
            && kept_more(call, args, linux, quire)
        {
            KnownDifference::PartShared
        } else if self.forks > 1 && kept_more(call, args, linux, quire) {
            KnownDifference::ThirdSharer
        } else if self.forks > 0 && self.moved && split_more(call, args, linux, quire) {
            KnownDifference::MovedPart
        } else if self.kept_lazy(linux, quire) {
            KnownDifference::LazySplit
        } else if has_whole_from_swap(linux, quire)
            || has_folio_from_swap(linux, quire) && !probes::reads_large_folios()
        {
            KnownDifference::SwapInWhole
        } else if self.has_other_table(linux, quire) || self.maps_around(at, linux, quire) {
            KnownDifference::PageTables
        } else if self.file.is_on_disk() && maps_written(call, args, linux, quire) {
            KnownDifference::FilePages
        } else if self.may_have_swapped_zeros && has_more_cached(quire, linux) {
            KnownDifference::PageOut
        } else {
            return false;
        };
        self.count(known);
        true
    }

    /// Whether the only difference is that Linux kept pages that were lazily freed and not written to since.
    fn kept_lazy(&self, linux: &Observation, quire: &Observation) -> bool {
        let private = linux.pages.iter().filter(|run| run.state == PageState::Anonymous);
        let pages = private.flat_map(|run| (run.start..run.end).step_by(PAGE_SIZE as usize));
        let mut kept = pages.filter(|&page| !has_private(quire, page)).peekable();
        kept.peek().is_some()
            && has_all_private(linux, quire)
            && kept.all(|page| touches(&self.lazy, page, PAGE_SIZE))
    }

    /// Whether a PMD entry maps a block on one side only because only one of them has a table for it.
    fn has_other_table(&self, linux: &Observation, quire: &Observation) -> bool {
        // Linux frees those that one call covers, Quire also those that several have emptied.
        let other = |block: u64| {
            let covers = |(start, end): &(u64, u64)| *start <= block && block + LARGE <= *end;
            self.without_tables.iter().any(covers) || touches(&self.emptied, block, LARGE)
        };
        linux.large_blocks().any(|block| !quire.maps_large(block) && other(block))
            || quire.large_blocks().any(|block| !linux.maps_large(block) && other(block))
    }

    /// Whether Linux has mapped more pages around a fault only because it has a table there: without one it
    /// does not around the last page of a file with large folios, nor past its end.
    fn maps_around(&self, addr: u64, linux: &Observation, quire: &Observation) -> bool {
        let around = (addr & !(AROUND - 1), addr | (AROUND - 1));
        let is_at_end = overlapping(&linux.regions, addr, 1)
            .any(|region| region.file && self.file.is_at_end(region.offset + (addr - region.start)));
        is_at_end
            && touches(&self.emptied, addr & !(LARGE - 1), LARGE)
            && maps_more_only(linux, quire, |page| touches(&[around], page, PAGE_SIZE))
    }

    /// Whether different outcomes of an operation that leaves the sides alike are known.
    pub(crate) fn outcome(&mut self, call: Call, args: [u64; 6]) -> Option<KnownDifference> {
        let known = match call {
            Call::Madvise if args[2] == MADV_COLLAPSE => {
                let ranges = [&self.without_tables, &self.emptied];
                let other = ranges.into_iter().any(|ranges| touches(ranges, args[0], args[1]));
                other.then_some(KnownDifference::PageTables)
            }
            _ => None,
        };
        known.inspect(|&known| self.count(known))
    }

    /// Whether the residency of a mapping's pages may differ.
    pub(crate) fn residency(&self, region: &Region) -> bool {
        region.file && self.file.residency(region)
    }

    /// Whether what is a hole of shared memory on Linux may be a page of zeros on Quire.
    pub(crate) fn has_uncertain_holes(&self) -> bool {
        self.may_have_swapped_zeros
    }

    /// Whether a page of such a mapping may be in memory on Quire only.
    pub(crate) fn may_be_hole(&mut self, region: &Region) -> bool {
        let known = self.may_have_swapped_zeros && region.is_cached();
        if known {
            self.count(KnownDifference::PageOut);
        }
        known
    }

    /// Whether other pages of the file may be in memory on Linux.
    pub(crate) fn has_uncertain_file(&self) -> bool {
        self.file.is_uncertain()
    }

    pub(crate) fn count(&mut self, known: KnownDifference) {
        *self.counts.entry(known).or_default() += 1;
    }

    pub(crate) fn into_counts(self) -> KnownCounts {
        self.counts
    }
}
