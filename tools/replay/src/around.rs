//! What Linux maps around a page of a file that is read.

use quire_arch::PAGE_SIZE;
use std::ops::Range;

/// The most that is mapped (`fault_around_bytes`), in bytes, within one page table.
const AROUND: u64 = 16 * PAGE_SIZE;
const TABLE: u64 = 512 * PAGE_SIZE;

/// What Linux maps around `addr` when it is read, as far as it is cached, of a part of an address space in
/// `part`.
pub(super) fn around(addr: u64, part: &Range<u64>) -> Range<u64> {
    let from = (addr - addr % AROUND).max(part.start);
    let table_end = (addr - addr % TABLE).saturating_add(TABLE);
    from..from.saturating_add(AROUND).min(part.end).min(table_end)
}
