//! The host's policy of large folios, and what may interfere.

use quire_host::HostPlatform;
use quire_mm::Memory;
use quire_mm::proc::HugeFile;
use std::collections::BTreeMap;
use std::fs;

const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

/// The files that say how the host is set at this moment, as far as it has and shows them.
fn policy() -> Vec<(HugeFile, String)> {
    let files = HugeFile::all().filter(|file| file.is_writable());
    files.filter_map(|file| Some((file, fs::read_to_string(format!("{FOLDER}/{file}")).ok()?))).collect()
}

/// What would have to be written for a file to read so.
fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text, |(word, _)| word)
}

/// Counters of `/proc/vmstat` that begin so count what Linux does on its own account, or for want of memory:
/// to any process, and never because a program of the comparison asked for it.
const FOREIGN: &[&str] = &[
    "allocstall_",
    "balloon_",
    "compact_",
    "cow_ksm",
    "drop_",
    "kswapd_",
    "ksm_",
    "numa_hint_faults",
    "numa_huge_pte_updates",
    "numa_pages_migrated",
    "numa_pte_updates",
    "oom_kill",
    "pageoutrun",
    "pgmigrate_",
    "pgscan_",
    "pgsteal_",
    "slabs_scanned",
    "thp_collapse_alloc_failed",
    "thp_fault_fallback",
    "thp_migration_",
    "thp_split_page_failed",
    "thp_underused_split_page",
    "thp_zero_page_alloc_failed",
    "zone_reclaim_",
];
/// Those that programs of the comparison change too: no reason to run a program again, but reported.
const SHARED: &[&str] =
    &["pswpin", "pswpout", "thp_deferred_split_page", "thp_split_", "thp_zero_page_alloc"];

/// What others than the program decide of what it sees: the policy, and how often Linux did something on its
/// own account. All is about the whole host, and read without privilege.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Interference {
    policy: Vec<(HugeFile, String)>,
    /// What only others move, by name.
    foreign: BTreeMap<String, u64>,
    /// What programs move, too.
    shared: BTreeMap<String, u64>,
}

/// The counters of a text of `/proc/vmstat` whose names begin with one of `beginnings`.
fn counters(vmstat: &str, beginnings: &[&str]) -> BTreeMap<String, u64> {
    let lines = vmstat.lines().filter(|line| beginnings.iter().any(|beginning| line.starts_with(beginning)));
    lines
        .filter_map(|line| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.parse().ok()?))
        })
        .collect()
}

impl Interference {
    /// At this moment.
    pub(crate) fn now() -> Self {
        let number = |path: String| -> u64 {
            fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        let vmstat = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        let mut foreign = counters(&vmstat, FOREIGN);
        let mut shared = counters(&vmstat, SHARED);
        shared.retain(|name, _| !foreign.contains_key(name));
        let sizes = HugeFile::all().filter(|file| file.to_string().ends_with("/anon_fault_fallback"));
        foreign.extend(sizes.map(|file| (file.to_string(), number(format!("{FOLDER}/{file}")))));
        let collapsed = "khugepaged/pages_collapsed";
        foreign.insert(collapsed.to_owned(), number(format!("{FOLDER}/{collapsed}")));
        Self { policy: policy(), foreign, shared }
    }

    /// Whether the host's policy was changed since `before`, or Linux did something that no program here
    /// asked for.
    pub(crate) fn disturbs_since(&self, before: &Self) -> bool {
        (&self.policy, &self.foreign) != (&before.policy, &before.foreign)
    }

    /// What Linux did since `before`, in words; empty for nothing.
    pub(crate) fn told_since(&self, before: &Self) -> String {
        let all = self.foreign.iter().chain(&self.shared);
        let moved = all.filter_map(|(name, now)| {
            let was = before.foreign.get(name).or_else(|| before.shared.get(name)).copied().unwrap_or(0);
            let more = now.saturating_sub(was);
            (more > 0).then(|| format!("{name} +{more}"))
        });
        let mut told: Vec<String> = moved.collect();
        if self.policy != before.policy {
            told.push("another policy of huge pages".to_owned());
        }
        told.join(", ")
    }

    /// Gives `memory` the host's policy.
    pub(crate) fn set_policy(&self, memory: &Memory<HostPlatform>) {
        for (file, text) in &self.policy {
            // Words that Quire does not know are of a Linux that is newer than what is compared.
            let _ = file.write(memory, chosen(text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_in_brackets_is_the_one_that_holds() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen("511\n"), "511\n");
    }

    #[test]
    fn what_only_others_do_disturbs_and_all_is_told() {
        let at = |text: &str| {
            let foreign = counters(text, FOREIGN);
            let mut shared = counters(text, SHARED);
            shared.retain(|name, _| !foreign.contains_key(name));
            Interference { policy: Vec::new(), foreign, shared }
        };
        let before = at("pgfault 1\npgsteal_kswapd 7\nthp_split_page 3\nthp_split_page_failed 0\n");
        let split = at("pgfault 9\npgsteal_kswapd 7\nthp_split_page 5\nthp_split_page_failed 0\n");
        assert!(!split.disturbs_since(&before), "programs split pages themselves");
        assert_eq!(split.told_since(&before), "thp_split_page +2");
        let reclaimed = at("pgfault 9\npgsteal_kswapd 8\nthp_split_page 3\nthp_split_page_failed 1\n");
        assert!(reclaimed.disturbs_since(&before));
        assert_eq!(reclaimed.told_since(&before), "pgsteal_kswapd +1, thp_split_page_failed +1");
        assert_eq!(before.told_since(&before), "");
    }
}
