//! Which known difference there is, by what a program did before.

use crate::known::{KnownCounts, KnownDifference};
use crate::linux::probes;
use crate::observation::{LARGE, Observation, Pages, Region};
use crate::program::names::*;
use crate::program::{Call, Outcome, Store};
use quire_arch::PAGE_SIZE;
use quire_mm::space::PageState;

mod file;
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

/// The regions with those made one that continue each other.
fn joined(regions: &[Region]) -> Vec<Region> {
    let mut all: Vec<Region> = Vec::new();
    for &region in regions {
        match all.last_mut() {
            Some(last)
                if last.end == region.start
                    && (last.flags, last.file, last.memfd) == (region.flags, region.file, region.memfd)
                    && (!last.is_cached() || last.offset + (last.end - last.start) == region.offset) =>
            {
                last.end = region.end;
            }
            _ => all.push(region),
        }
    }
    all
}

/// Whether a call made pages cold or freed them lazily, and the only difference is that Linux kept
/// private pages.
fn kept_more(call: Call, args: [u64; 6], linux: &Observation, quire: &Observation) -> bool {
    call == Call::Madvise
        && [MADV_FREE, MADV_COLD, MADV_PAGEOUT].contains(&args[2])
        && has_all_private(linux, quire)
        && !has_all_private(quire, linux)
}

/// Whether such a call split a large folio on Linux only: the pages of it that nothing was written to are
/// shared zeros there.
fn split_more(call: Call, args: [u64; 6], linux: &Observation, quire: &Observation) -> bool {
    let differ = |run: &&Pages| {
        run.state == PageState::Zero
            && (run.start..run.end).step_by(PAGE_SIZE as usize).any(|page| has_private(quire, page))
    };
    call == Call::Madvise
        && [MADV_FREE, MADV_COLD, MADV_PAGEOUT].contains(&args[2])
        && linux.pages.iter().any(|run| differ(&run))
        && has_all_private(quire, linux)
}

/// Whether Linux has mapped, around a fault on the memory that a call wrote from, the page that it wrote: it
/// makes that page before it looks at the memory.
fn maps_written(call: Call, args: [u64; 6], linux: &Observation, quire: &Observation) -> bool {
    let [descriptor, _, len, offset, ..] = args;
    let written = offset & !(PAGE_SIZE - 1)..offset.saturating_add(len);
    let is_memfd = memfd_at(descriptor).is_some();
    let is_written = |page: u64| {
        let place = |region: &Region| region.offset.wrapping_add(page - region.start);
        let shows = |region: &&Region| if is_memfd { region.memfd != 0 } else { region.file };
        overlapping(&linux.regions, page, 1).filter(shows).any(|region| written.contains(&place(region)))
    };
    call == Call::Pwrite && maps_more_only(linux, quire, is_written)
}

/// Whether all pages of files and shared memory that `few` maps are mapped in `many` too, which differs in
/// nothing else.
fn has_more_cached(many: &Observation, few: &Observation) -> bool {
    let (many_pages, few_pages) = (many.cached_pages(), few.cached_pages());
    each_page(&few_pages).all(|page| touches(&many_pages, page, PAGE_SIZE))
        && many.own_pages().eq(few.own_pages())
}

/// Whether the only difference is that Linux maps more pages of files and shared memory, all of them such.
fn maps_more_only(linux: &Observation, quire: &Observation, such: impl Fn(u64) -> bool) -> bool {
    let (there, here) = (linux.cached_pages(), quire.cached_pages());
    let mut more = each_page(&there).filter(|&page| !touches(&here, page, PAGE_SIZE)).peekable();
    more.peek().is_some()
        && more.all(such)
        && each_page(&here).all(|page| touches(&there, page, PAGE_SIZE))
        && linux.own_pages().eq(quire.own_pages())
}

/// Whether all private pages of `few` are in `many` too.
fn has_all_private(many: &Observation, few: &Observation) -> bool {
    let private = |side: &Observation| -> Vec<Pages> {
        side.pages.iter().copied().filter(|run| run.state == PageState::Anonymous).collect()
    };
    let many = private(many);
    private(few).iter().all(|run| {
        let mut at = run.start;
        for other in &many {
            if other.start <= at && at < other.end {
                at = other.end;
            }
        }
        at >= run.end
    })
}

/// Whether a block that Linux has on the swap device, but for some pages, is in memory as a whole on Quire.
fn has_whole_from_swap(linux: &Observation, quire: &Observation) -> bool {
    let whole = |block: u64| quire.pages.iter().any(|run| run.start <= block && block + LARGE <= run.end);
    linux.swapped.iter().any(|(start, end)| (start & !(LARGE - 1)..*end).step_by(LARGE as usize).any(whole))
}

/// Whether a block that may have been one folio below 2 MiB is partly on the swap device and partly in memory
/// on Linux, and in memory as a whole on Quire.
fn has_folio_from_swap(linux: &Observation, quire: &Observation) -> bool {
    // No anonymous folio has two pages.
    const SMALLEST: u64 = 4 * PAGE_SIZE;
    let came_back = |block: u64, bytes: u64| {
        let came =
            |run: &Pages| run.state == PageState::Anonymous && run.start < block + bytes && block < run.end;
        linux.pages.iter().any(came)
    };
    let whole =
        |block: u64, bytes: u64| quire.pages.iter().any(|run| run.start <= block && block + bytes <= run.end);
    let within = |edge: u64| {
        let sizes = (SMALLEST.trailing_zeros()..LARGE.trailing_zeros()).map(|shift| 1 << shift);
        sizes
            .map(|bytes| (edge & !(bytes - 1), bytes))
            .any(|(block, bytes)| block < edge && whole(block, bytes) && came_back(block, bytes))
    };
    linux.swapped.iter().any(|(start, end)| within(*start) || within(*end))
}

/// Takes `from..to` out of `ranges`, and returns what of it was in them.
fn cut(ranges: &mut Vec<(u64, u64)>, from: u64, to: u64) -> Vec<(u64, u64)> {
    let mut gone = Vec::new();
    let rest = ranges.iter().flat_map(|&(start, end)| {
        let (first, last) = (start.max(from), end.min(to));
        if first < last {
            gone.push((first, last));
            [(start, first), (last, end)]
        } else {
            [(start, end), (end, end)]
        }
    });
    *ranges = rest.filter(|(start, end)| start < end).collect();
    gone
}

/// Whether a page at `addr` is the process's own and in memory.
fn has_private(side: &Observation, addr: u64) -> bool {
    let holds = |run: &Pages| run.state == PageState::Anonymous && run.start <= addr && addr < run.end;
    side.pages.iter().any(holds)
}

fn each_page(ranges: &[(u64, u64)]) -> impl Iterator<Item = u64> {
    ranges.iter().flat_map(|&(start, end)| (start..end).step_by(PAGE_SIZE as usize))
}

fn touches(ranges: &[(u64, u64)], addr: u64, len: u64) -> bool {
    ranges.iter().any(|(start, end)| *start < addr.saturating_add(len) && addr < *end)
}

fn overlapping(regions: &[Region], addr: u64, len: u64) -> impl Iterator<Item = &Region> {
    let end = addr.saturating_add(len.max(1));
    regions.iter().filter(move |region| region.start < end && addr < region.end)
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
            // Linux makes large folios of shared memory whatever its policy is.
            Call::Madvise if third == MADV_COLLAPSE => {
                let has_block = |region: &Region| {
                    let first = region.start.next_multiple_of(LARGE);
                    region.is_shared_memory() && first.saturating_add(LARGE) <= region.end
                };
                overlapping(before, addr, len).any(has_block).then_some(KnownDifference::NotBuilt)
            }
            _ => None,
        };
        known.inspect(|&known| self.count(known))
    }

    /// Whether Linux has unmapped pages at an operation, of any process, that stay mapped on Quire.
    pub(crate) fn has_unmapped_more(&mut self, call: Call, args: [u64; 6], outcome: Outcome) -> bool {
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
        } else if self.has_other_table(linux, quire) || self.maps_around(args[0], linux, quire) {
            KnownDifference::PageTables
        } else if maps_written(call, args, linux, quire) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pages: &[(u64, u64)], swapped: &[(u64, u64)]) -> Observation {
        let run = |&(start, end)| Pages { start, end, state: PageState::Anonymous, large: false };
        let pages = pages.iter().map(run).collect();
        Observation { pages, swapped: swapped.to_vec(), ..Observation::default() }
    }

    #[test]
    fn folio_that_came_back_page_by_page_is_known_in_its_own_block_only() {
        const MIB: u64 = 1 << 20;
        let first = seen(&[(MIB, MIB + PAGE_SIZE)], &[(MIB + PAGE_SIZE, 2 * MIB)]);
        let last = seen(&[(2 * MIB - PAGE_SIZE, 2 * MIB)], &[(MIB, 2 * MIB - PAGE_SIZE)]);
        let whole = seen(&[(MIB, 2 * MIB)], &[]);
        assert!(has_folio_from_swap(&first, &whole) && has_folio_from_swap(&last, &whole));
        // Linux has none of it in memory: Quire brought in what was not touched.
        let swapped = &[(MIB + PAGE_SIZE, 2 * MIB)];
        assert!(!has_folio_from_swap(&seen(&[], swapped), &whole));
        assert!(!has_folio_from_swap(&seen(&[(2 * MIB, 3 * MIB)], swapped), &whole));
        let mut zero = first.clone();
        zero.pages[0].state = PageState::Zero;
        assert!(!has_folio_from_swap(&zero, &whole));
        // The smallest folio has four pages.
        assert!(!has_folio_from_swap(&first, &seen(&[(MIB, MIB + 2 * PAGE_SIZE)], &[])));
        assert!(has_folio_from_swap(&first, &seen(&[(MIB, MIB + 4 * PAGE_SIZE)], &[])));
        // Other pages than the block's neighbours came back.
        let beside = seen(&[(MIB, MIB + PAGE_SIZE)], &[(2 * MIB, 3 * MIB)]);
        assert!(!has_folio_from_swap(&beside, &seen(&[(MIB, 3 * MIB)], &[])));
        // Quire has no block there that is aligned to its own size.
        assert!(!has_folio_from_swap(&first, &seen(&[(MIB + PAGE_SIZE, MIB + 2 * PAGE_SIZE)], &[])));
    }
}
