//! The host's counters of huge pages.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::flat_keyed::field;
use crate::settings::TRANSPARENT_HUGE_PAGES;

/// The huge-page counters of the whole host: of the measured program, and all others that ran at the
/// time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCounters {
    /// Huge pages (2 MiB) that page faults allocated: `thp_fault_alloc`.
    pub huge_faults: u64,
    /// Page faults that found no huge page: `thp_fault_fallback`.
    pub huge_fallbacks: u64,
    /// Huge pages that khugepaged or `MADV_COLLAPSE` allocated: `thp_collapse_alloc`.
    pub collapses: u64,
    /// Huge pages that khugepaged made: `khugepaged/pages_collapsed`.
    pub khugepaged: u64,
    /// Page faults that allocated a folio of this size in bytes: `hugepages-*kB/stats/anon_fault_alloc`.
    pub faults_by_size: BTreeMap<u64, u64>,
    /// Page faults that found no folio of this size in bytes: `hugepages-*kB/stats/anon_fault_fallback`.
    pub fallbacks_by_size: BTreeMap<u64, u64>,
}

impl HostCounters {
    /// The counters since the host started. What this kernel does not count is zero.
    pub fn now() -> Self {
        let vmstat = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        let count = |name| field(&vmstat, name);
        let mut counters = Self {
            huge_faults: count("thp_fault_alloc"),
            huge_fallbacks: count("thp_fault_fallback"),
            collapses: count("thp_collapse_alloc"),
            khugepaged: number(&Path::new(TRANSPARENT_HUGE_PAGES).join("khugepaged/pages_collapsed")),
            ..Self::default()
        };
        for size in folio_sizes() {
            let stats = Path::new(TRANSPARENT_HUGE_PAGES).join(format!("hugepages-{}kB/stats", size >> 10));
            counters.faults_by_size.insert(size, number(&stats.join("anon_fault_alloc")));
            counters.fallbacks_by_size.insert(size, number(&stats.join("anon_fault_fallback")));
        }
        counters
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |now: &BTreeMap<u64, u64>, then: &BTreeMap<u64, u64>| {
            let then = |size| then.get(size).copied().unwrap_or(0);
            now.iter().map(|(size, count)| (*size, count.saturating_sub(then(size)))).collect()
        };
        Self {
            huge_faults: self.huge_faults.saturating_sub(earlier.huge_faults),
            huge_fallbacks: self.huge_fallbacks.saturating_sub(earlier.huge_fallbacks),
            collapses: self.collapses.saturating_sub(earlier.collapses),
            khugepaged: self.khugepaged.saturating_sub(earlier.khugepaged),
            faults_by_size: less(&self.faults_by_size, &earlier.faults_by_size),
            fallbacks_by_size: less(&self.fallbacks_by_size, &earlier.fallbacks_by_size),
        }
    }
}

/// The sizes of folios of anonymous memory, in bytes, that this kernel has settings for, the smallest first.
pub fn folio_sizes() -> Vec<u64> {
    let entries = fs::read_dir(TRANSPARENT_HUGE_PAGES).into_iter().flatten().flatten();
    let size = |name: String| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok();
    let mut sizes: Vec<u64> = entries
        // Those of shared memory only have no such file.
        .filter(|entry| entry.path().join("enabled").exists())
        .filter_map(|entry| size(entry.file_name().into_string().ok()?))
        .map(|kilobytes| kilobytes << 10)
        .collect();
    sizes.sort_unstable();
    sizes
}

fn number(file: &Path) -> u64 {
    fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
