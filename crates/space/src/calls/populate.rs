//! Faulting pages in before they are accessed.

use crate::caller::Caller;
use crate::faults::PopulateError;
use quire_arch::{Access, Platform, VirtAddr, VirtRange};

/// Faults every page of `range` in as `mmap` with POPULATE and `mlock` do: private writable mappings for
/// writing, others for reading; what can not be populated is left out.
pub(crate) fn populate<P: Platform>(caller: Caller<'_, P>, range: VirtRange) {
    if !caller.populates {
        return;
    }
    let mut at = range.start();
    while at < range.end() {
        // The mmap lock is released between VMAs, so that writers get their turn.
        let Some((next, _)) = populate_mapping(caller, VirtRange::new(at, range.end()), None) else {
            return;
        };
        at = next;
    }
}

/// Faults every page of `range` in, for `access` if one is given, else as [`populate`](Self::populate)
/// chooses. Ends at the first page that cannot be faulted in. A hole is such a page only if an access is
/// given: `mlock` has checked that there is none, and what was unmapped since need not be faulted in.
pub(crate) fn populate_all<P: Platform>(
    caller: Caller<'_, P>,
    range: VirtRange,
    access: Option<Access>,
) -> Result<(), PopulateError> {
    // Advice is to bring in, and nothing else.
    if !caller.populates && access.is_none() {
        return Ok(());
    }
    let mut at = range.start();
    while at < range.end() {
        let rest = VirtRange::new(at, range.end());
        let Some((next, result)) = populate_mapping(caller, rest, access) else {
            return if access.is_some() { Err(PopulateError::Hole) } else { Ok(()) };
        };
        result?;
        at = next;
    }
    Ok(())
}

/// Populates the part of `range` that the first mapping in it covers, and returns where it ends. With an
/// access given, a range that does not begin in the mapping is a hole; without, the hole is skipped.
fn populate_mapping<P: Platform>(
    caller: Caller<'_, P>,
    range: VirtRange,
    access: Option<Access>,
) -> Option<(VirtAddr, Result<(), PopulateError>)> {
    let core = caller.core;
    let mappings = core.read_mappings(caller.spaces.platform());
    let vma = mappings.first_ending_after(range.start())?;
    let whole = vma.range();
    if whole.start() >= range.end() || access.is_some() && !whole.contains(range.start()) {
        return None;
    }
    let part = whole.intersect(range);
    Some((part.end(), caller.faults().populate_part(vma, part, access)))
}
