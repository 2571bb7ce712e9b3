//! What recordings lack, as far as Linux's own figures tell: those of each address space at its end.

use quire_arch::PAGE_SIZE;
use quire_replay::{ProcessReport, ReplayReport, SpaceEnd, SpaceEnds};
use std::collections::BTreeMap;

/// What Linux and a replay differ by in one address space, or in several, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Unexplained {
    /// Anonymous memory that Linux had more.
    less: u64,
    /// Anonymous memory that the replay has more.
    more: u64,
    /// Page tables that Linux had more.
    tables: u64,
}

impl Unexplained {
    /// Of an address space whose figures may be off by `slack`. Where the replay `collapses`, which Linux
    /// refuses while huge pages are off, it has more memory for that.
    fn of(end: &SpaceEnd, slack: u64, collapses: bool) -> Self {
        let beyond = |one: u64, other: u64| one.saturating_sub(other).saturating_sub(slack);
        Self {
            less: beyond(end.linux_anonymous, end.anonymous),
            more: if collapses { 0 } else { beyond(end.anonymous, end.linux_anonymous) },
            tables: end.linux_page_tables.saturating_sub(end.page_tables),
        }
    }

    fn each(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            less: of(self.less, other.less),
            more: of(self.more, other.more),
            tables: of(self.tables, other.tables),
        }
    }
}

/// The most that address spaces which live at the same time differ by together: anonymous memory, more of it
/// or less, and page tables. When in its life a difference arises is not known: each counts for all of it.
/// That of a child of a fork, which has its parent's pages, is what it has beyond its parent's.
fn most_at_once(ends: &SpaceEnds, difference: impl Fn(&SpaceEnd) -> Unexplained) -> [u64; 2] {
    let all: BTreeMap<usize, Unexplained> =
        ends.iter().map(|(number, end)| (*number, difference(end))).collect();
    let mut changes = Vec::new();
    for (number, end) in ends {
        let parent = end.copy_of.and_then(|parent| all.get(&parent)).copied().unwrap_or_default();
        let own = all[number].each(parent, u64::saturating_sub);
        if own != Unexplained::default() {
            // What begins where another one ends does not live with it.
            changes.extend([(end.began, true, own), (end.ended.max(end.began + 1), false, own)]);
        }
    }
    changes.sort_by_key(|&(event, begins, _)| (event, begins));
    let (mut now, mut most) = (Sum::default(), [0_u128; 2]);
    for (_, begins, own) in changes {
        now.change(begins, own);
        most = [most[0].max(now.less).max(now.more), most[1].max(now.tables)];
    }
    most.map(|bytes| u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Differences together.
#[derive(Clone, Copy, Default)]
struct Sum {
    less: u128,
    more: u128,
    tables: u128,
}

impl Sum {
    fn change(&mut self, begins: bool, own: Unexplained) {
        for (sum, bytes) in
            [(&mut self.less, own.less), (&mut self.more, own.more), (&mut self.tables, own.tables)]
        {
            let bytes = u128::from(bytes);
            *sum = if begins { *sum + bytes } else { *sum - bytes };
        }
    }
}

/// What anonymous memory and page tables of processes at their ends differ by from Linux's, of those that
/// live at the same time, in bytes.
pub(crate) fn unexplained(report: &ReplayReport, collapses: bool) -> [u64; 2] {
    let slack = |end: &SpaceEnd| report.processes.get(end.process).map_or(0, |it| slack_of(report, it));
    most_at_once(&report.ends, |end| Unexplained::of(end, slack(end), collapses))
}

/// Shared memory that no event brought in, of the process that had most, in bytes: others may have had the
/// same.
pub(crate) fn unrecorded_shared(report: &ReplayReport) -> u64 {
    let of = |process: &ProcessReport| process.unrecorded_shared.saturating_sub(slack_of(report, process));
    report.processes.iter().map(of).max().unwrap_or(0)
}

/// What Linux's own figures of resident memory may be off by of a process that ran on so many CPUs of the
/// host's, in bytes. From 6.2 to 6.15 they leave out what each CPU has not added yet.
fn counter_slack(kernel: &str, cpus: u32, ran_on: u32) -> u64 {
    let mut numbers = kernel.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    let release: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let batch = u64::from(cpus).saturating_mul(2).max(32);
    let most = u64::from(ran_on.min(cpus));
    let is_off = ((6, 2)..(6, 16)).contains(&release);
    if is_off { most.saturating_mul(batch).saturating_mul(PAGE_SIZE) } else { 0 }
}

fn slack_of(report: &ReplayReport, process: &ProcessReport) -> u64 {
    counter_slack(&report.header.kernel, report.header.cpus, process.cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of(linux: (u64, u64), quire: (u64, u64), collapses: bool) -> [u64; 3] {
        let end = SpaceEnd {
            linux_anonymous: linux.0,
            linux_page_tables: linux.1,
            anonymous: quire.0,
            page_tables: quire.1,
            ..SpaceEnd::default()
        };
        let Unexplained { less, more, tables } = Unexplained::of(&end, 0, collapses);
        [less, more, tables]
    }

    #[test]
    fn page_tables_that_linux_has_more_are_unexplained() {
        assert_eq!(of((8 << 20, 32 << 20), (9 << 20, 1 << 20), false), [0, 1 << 20, 31 << 20]);
        assert_eq!(of((9 << 20, 1 << 20), (8 << 20, 32 << 20), false), [1 << 20, 0, 0]);
    }

    /// MADV_COLLAPSE fails while a program is recorded, and brings memory in when it is replayed.
    #[test]
    fn what_a_collapse_brings_in_is_explained() {
        let (few, many) = ((16 << 20, 0), (64 << 20, 0));
        assert_eq!([true, false].map(|collapses| of(few, many, collapses)[1]), [0, 48 << 20]);
        assert_eq!(of(many, few, true)[0], 48 << 20);
    }

    /// An address space that Linux had so much more of, in MiB; less than 0: the replay.
    fn lacks(mib: i64, lived: std::ops::Range<u64>, copy_of: Option<usize>) -> SpaceEnd {
        let mut end = SpaceEnd { began: lived.start, ended: lived.end, copy_of, ..SpaceEnd::default() };
        (end.linux_anonymous, end.anonymous) = (100 * MIB, (100 - mib) as u64 * MIB);
        end
    }

    fn together(ends: impl IntoIterator<Item = SpaceEnd>) -> u64 {
        let ends = ends.into_iter().enumerate().collect();
        most_at_once(&ends, |end| Unexplained::of(end, 0, false))[0] / MIB
    }

    #[test]
    fn what_processes_lack_at_the_same_time_adds_up() {
        assert_eq!(together((0..64).map(|number| lacks(1, number..100, None))), 64);
        // As of a script: one program after the other.
        assert_eq!(together((0..64).map(|number| lacks(1, number..number + 1, None))), 1);
        assert_eq!(together([lacks(3, 0..10, None), lacks(4, 5..20, None), lacks(5, 15..30, None)]), 9);
        // What one has more makes up for nothing that another one lacks.
        assert_eq!(together([lacks(3, 0..10, None), lacks(-2, 0..10, None)]), 3);
        assert_eq!(together([lacks(-3, 0..10, None), lacks(-2, 0..10, None)]), 5);
        assert_eq!(together([]), 0);
        assert_eq!(together([lacks(3, 7..7, None)]), 3);
    }

    /// They have its pages.
    #[test]
    fn what_a_parent_lacks_is_no_more_in_its_children() {
        let children = (1..64).map(|number| lacks(2, number..100, Some(0)));
        assert_eq!(together([lacks(2, 0..100, None)].into_iter().chain(children)), 2);
        let child = |lacked| lacks(lacked, 5..50, Some(0));
        assert_eq!(together([lacks(2, 0..100, None), child(5), lacks(6, 6..50, Some(1))]), 2 + 3 + 1);
        // Nothing is known of the parent's end.
        assert_eq!(together([lacks(2, 0..100, Some(9))]), 2);
    }

    #[test]
    fn differences_beyond_all_numbers_are_the_largest() {
        let most = SpaceEnd { linux_anonymous: u64::MAX, ended: u64::MAX, ..SpaceEnd::default() };
        let ends = [most; 3].into_iter().enumerate().collect();
        assert_eq!(most_at_once(&ends, |end| Unexplained::of(end, 0, false)), [u64::MAX, 0]);
    }

    /// Only CPUs that it ran on can have something of it. What a header claims is bounded by that, too.
    #[test]
    fn counters_of_each_cpu_are_summed_by_some_kernels_only() {
        assert_eq!(counter_slack("6.8.0-45-generic", 64, 64), 64 * 128 * PAGE_SIZE);
        assert_eq!(counter_slack("6.8.0-45-generic", 64, 3), 3 * 128 * PAGE_SIZE);
        assert_eq!(counter_slack("6.8.0-45-generic", 256, 8), 8 * 512 * PAGE_SIZE);
        assert_eq!(counter_slack("6.15.3", 2, 2), 2 * 32 * PAGE_SIZE);
        assert_eq!(counter_slack("6.8.0", u32::MAX, u32::MAX), u64::MAX);
        assert_eq!(counter_slack("6.8.0", 0, 7), 0);
        for kernel in ["6.18.44-fc", "6.16.0", "6.1.90", "5.15.0", ""] {
            assert_eq!(counter_slack(kernel, 64, 64), 0, "{kernel}");
        }
    }
}
