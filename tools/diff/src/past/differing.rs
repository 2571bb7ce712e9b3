//! What differs between two observations.

use crate::observation::{LARGE, Observation, Pages, Region};
use crate::program::Call;
use crate::program::names::*;
use quire_arch::PAGE_SIZE;
use quire_mm::space::PageState;

/// The regions with those made one that continue each other.
pub(super) fn joined(regions: &[Region]) -> Vec<Region> {
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
pub(super) fn kept_more(call: Call, args: [u64; 6], linux: &Observation, quire: &Observation) -> bool {
    call == Call::Madvise
        && [MADV_FREE, MADV_COLD, MADV_PAGEOUT].contains(&args[2])
        && has_all_private(linux, quire)
        && !has_all_private(quire, linux)
}

/// Whether such a call split a large folio on Linux only: the pages of it that nothing was written to are
/// shared zeros there.
pub(super) fn split_more(call: Call, args: [u64; 6], linux: &Observation, quire: &Observation) -> bool {
    let differ = |run: &&Pages| {
        run.state == PageState::Zero
            && (run.start..run.end).step_by(PAGE_SIZE as usize).any(|page| has_private(quire, page))
    };
    call == Call::Madvise
        && [MADV_FREE, MADV_COLD, MADV_PAGEOUT].contains(&args[2])
        && linux.pages.iter().any(|run| differ(&run))
        && has_all_private(quire, linux)
}

/// Whether Linux has mapped, around a fault on the memory that a call wrote to the file from, the page that
/// it wrote: it makes that page before it looks at the memory.
pub(super) fn maps_written(call: Call, args: [u64; 6], linux: &Observation, quire: &Observation) -> bool {
    let [descriptor, _, len, offset, ..] = args;
    let end = offset.saturating_add(len);
    let written = offset & !(PAGE_SIZE - 1)..end.checked_next_multiple_of(PAGE_SIZE).unwrap_or(end);
    let is_written = |page: u64| {
        let place = |region: &Region| region.offset.wrapping_add(page - region.start);
        let shows = |region: &&Region| region.file;
        overlapping(&linux.regions, page, 1).filter(shows).any(|region| written.contains(&place(region)))
    };
    // It is not mapped while the call has it locked.
    call == Call::Pwrite && memfd_at(descriptor).is_none() && maps_more_only(linux, quire, is_written)
}

/// Whether all pages of files and shared memory that `few` maps are mapped in `many` too, which differs in
/// nothing else.
pub(super) fn has_more_cached(many: &Observation, few: &Observation) -> bool {
    let (many_pages, few_pages) = (many.cached_pages(), few.cached_pages());
    each_page(&few_pages).all(|page| touches(&many_pages, page, PAGE_SIZE))
        && many.own_pages().eq(few.own_pages())
}

/// Whether the only difference is that Linux maps more pages of files and shared memory, all of them such.
pub(super) fn maps_more_only(linux: &Observation, quire: &Observation, such: impl Fn(u64) -> bool) -> bool {
    let (there, here) = (linux.cached_pages(), quire.cached_pages());
    let mut more = each_page(&there).filter(|&page| !touches(&here, page, PAGE_SIZE)).peekable();
    more.peek().is_some()
        && more.all(such)
        && each_page(&here).all(|page| touches(&there, page, PAGE_SIZE))
        && linux.own_pages().eq(quire.own_pages())
}

/// Whether all private pages of `few` are in `many` too.
pub(super) fn has_all_private(many: &Observation, few: &Observation) -> bool {
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
pub(super) fn has_whole_from_swap(linux: &Observation, quire: &Observation) -> bool {
    let whole = |block: u64| quire.pages.iter().any(|run| run.start <= block && block + LARGE <= run.end);
    linux.swapped.iter().any(|(start, end)| (start & !(LARGE - 1)..*end).step_by(LARGE as usize).any(whole))
}

/// Whether a block that may have been one folio below 2 MiB is partly on the swap device and partly in memory
/// on Linux, and in memory as a whole on Quire.
pub(super) fn has_folio_from_swap(linux: &Observation, quire: &Observation) -> bool {
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
pub(super) fn cut(ranges: &mut Vec<(u64, u64)>, from: u64, to: u64) -> Vec<(u64, u64)> {
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
pub(super) fn has_private(side: &Observation, addr: u64) -> bool {
    let holds = |run: &Pages| run.state == PageState::Anonymous && run.start <= addr && addr < run.end;
    side.pages.iter().any(holds)
}

pub(super) fn each_page(ranges: &[(u64, u64)]) -> impl Iterator<Item = u64> {
    ranges.iter().flat_map(|&(start, end)| (start..end).step_by(PAGE_SIZE as usize))
}

pub(super) fn touches(ranges: &[(u64, u64)], addr: u64, len: u64) -> bool {
    ranges.iter().any(|(start, end)| *start < addr.saturating_add(len) && addr < *end)
}

pub(super) fn overlapping(regions: &[Region], addr: u64, len: u64) -> impl Iterator<Item = &Region> {
    let end = addr.saturating_add(len.max(1));
    regions.iter().filter(move |region| region.start < end && addr < region.end)
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
