//! What Linux does on its own account while programs are compared.

use super::settings::{HUGE_FOLDER, Host, Settings};
use quire_mm::proc::HugeFile;
use std::collections::BTreeMap;

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

/// What others than the program decide of what it sees: the settings, and how often Linux did something on
/// its own account. All is about the whole host, and read without privilege.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Interference {
    pub(crate) settings: Settings,
    /// What only others move, by name.
    foreign: BTreeMap<String, u64>,
    /// What programs move, too.
    shared: BTreeMap<String, u64>,
}

/// How others got in the way of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Disturbance {
    /// They did not.
    None,
    /// Linux did something that no program of the comparison asked for.
    Linux,
    /// A setting of the host was changed.
    Setting,
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
    /// On `host` at this moment.
    pub(crate) fn now(host: &Host) -> Self {
        let number =
            |path: String| -> u64 { host.text(&path).and_then(|text| text.trim().parse().ok()).unwrap_or(0) };
        let vmstat = host.text("proc/vmstat").unwrap_or_default();
        let mut foreign = counters(&vmstat, FOREIGN);
        let mut shared = counters(&vmstat, SHARED);
        shared.retain(|name, _| !foreign.contains_key(name));
        let sizes = HugeFile::all().filter(|file| file.to_string().ends_with("/anon_fault_fallback"));
        foreign.extend(sizes.map(|file| (file.to_string(), number(format!("{HUGE_FOLDER}/{file}")))));
        let collapsed = "khugepaged/pages_collapsed";
        foreign.insert(collapsed.to_owned(), number(format!("{HUGE_FOLDER}/{collapsed}")));
        Self { settings: Settings::of(host), foreign, shared }
    }

    /// Whether a setting was changed since `before`, or Linux did something that no program here asked for.
    pub(crate) fn disturbs_since(&self, before: &Self) -> Disturbance {
        if self.settings != before.settings {
            Disturbance::Setting
        } else if self.foreign != before.foreign {
            Disturbance::Linux
        } else {
            Disturbance::None
        }
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
        told.extend(self.settings.changed_since(&before.settings));
        told.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_others_do_disturbs_and_all_is_told() {
        let at = |text: &str| {
            let foreign = counters(text, FOREIGN);
            let mut shared = counters(text, SHARED);
            shared.retain(|name, _| !foreign.contains_key(name));
            Interference { settings: Settings::default(), foreign, shared }
        };
        let before = at("pgfault 1\npgsteal_kswapd 7\nthp_split_page 3\nthp_split_page_failed 0\n");
        let split = at("pgfault 9\npgsteal_kswapd 7\nthp_split_page 5\nthp_split_page_failed 0\n");
        assert_eq!(split.disturbs_since(&before), Disturbance::None, "programs split pages themselves");
        assert_eq!(split.told_since(&before), "thp_split_page +2");
        let reclaimed = at("pgfault 9\npgsteal_kswapd 8\nthp_split_page 3\nthp_split_page_failed 1\n");
        assert_eq!(reclaimed.disturbs_since(&before), Disturbance::Linux);
        assert_eq!(reclaimed.told_since(&before), "pgsteal_kswapd +1, thp_split_page_failed +1");
        assert_eq!(before.told_since(&before), "");
    }
}
