//! A store's statistics.

use crate::device::DeviceReport;
use core::fmt;
use quire_arch::PAGE_SIZE;

/// Statistics of a store, with the meanings of the columns of Linux's `/sys/block/zram0/mm_stat`. Exact on a
/// quiet machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreStatistics {
    /// Bytes of the pages that are stored.
    pub orig_data_size: u64,
    /// Their compressed size: nothing for pages of equal words, a page each for incompressible pages.
    pub compr_data_size: u64,
    /// RAM that holds them. The store's own tables are not in it.
    pub mem_used_total: u64,
    /// The most that this may be; none without a limit.
    pub mem_limit: Option<u64>,
    /// The most that it was.
    pub mem_used_max: u64,
    /// Pages all of whose words are equal.
    pub same_pages: u64,
    /// Frames that compaction freed.
    pub pages_compacted: u64,
    /// Incompressible pages, which are stored uncompressed.
    pub huge_pages: u64,
    /// How many of those were stored so far.
    pub huge_pages_since: u64,
}

impl StoreStatistics {
    /// Writes the line that Linux shows in `mm_stat`.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn mm_stat(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(
            out,
            "{:8} {:8} {:8} {:8} {:8} {:8} {:8} {:8} {:8}",
            self.orig_data_size,
            self.compr_data_size,
            self.mem_used_total,
            self.mem_limit.unwrap_or(0),
            self.mem_used_max,
            self.same_pages,
            self.pages_compacted,
            self.huge_pages,
            self.huge_pages_since,
        )
    }

    /// The same as devices report it.
    pub(in crate::device) fn report(&self) -> DeviceReport {
        DeviceReport {
            is_cache: false,
            stored_pages: self.orig_data_size / PAGE_SIZE,
            same_pages: self.same_pages,
            huge_pages: self.huge_pages,
            compressed_bytes: self.compr_data_size,
            used_bytes: self.mem_used_total,
            peak_bytes: self.mem_used_max,
            limit_bytes: self.mem_limit,
            compacted_pages: self.pages_compacted,
            written_back_pages: 0,
        }
    }
}
