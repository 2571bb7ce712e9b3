//! Settings of the host that decide what Linux does with the memory of any program.

use quire_host::HostPlatform;
use quire_mm::Memory;
use quire_mm::proc::HugeFile;
use std::fs;
use std::path::PathBuf;

/// Where huge pages are set.
pub(super) const HUGE_FOLDER: &str = "sys/kernel/mm/transparent_hugepage";
/// Whether equal pages are merged.
const MERGING: &str = "sys/kernel/mm/ksm/run";
/// What Linux grants of what it may not have.
const OVERCOMMIT: &str = "proc/sys/vm/overcommit_memory";
/// How many mappings a program may have.
const MOST_MAPPINGS: &str = "proc/sys/vm/max_map_count";
/// Which memfds may be executed.
const MEMFD_NOEXEC: &str = "proc/sys/vm/memfd_noexec";
/// Where pages go.
const SWAPS: &str = "proc/swaps";
/// The files beside those of huge pages.
const FILES: [&str; 9] = [
    MERGING,
    OVERCOMMIT,
    SWAPS,
    MOST_MAPPINGS,
    "proc/sys/vm/mmap_min_addr",
    "proc/sys/vm/nr_hugepages",
    "proc/sys/vm/nr_overcommit_hugepages",
    "proc/sys/kernel/numa_balancing",
    MEMFD_NOEXEC,
];

/// Where the host's files are: below `/`, except in tests.
#[derive(Clone, Debug)]
pub(crate) struct Host(PathBuf);

impl Default for Host {
    fn default() -> Self {
        Self(PathBuf::from("/"))
    }
}

impl Host {
    /// One whose files are below a folder.
    #[cfg(test)]
    pub(crate) fn below(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// The text of a file, if it has one that can be read.
    pub(super) fn text(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.0.join(file)).ok()
    }
}

/// What would have to be written for a file to read so.
fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text, |(word, _)| word)
}

/// Where pages go, and how many; how much of it is in use changes all the time.
fn devices(swaps: &str) -> String {
    let rows = swaps.lines().skip(1).map(str::split_ascii_whitespace);
    let named = rows.filter_map(|mut words| Some(format!("{} ({} kB)", words.next()?, words.nth(1)?)));
    named.collect::<Vec<_>>().join(", ")
}

/// The settings at one moment. They are the whole host's, and are read without privilege.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Settings {
    huge: Vec<(HugeFile, String)>,
    /// In the order of [`FILES`]; empty for one that the host has not.
    others: [String; FILES.len()],
}

impl Settings {
    /// Those of `host` now.
    pub(crate) fn of(host: &Host) -> Self {
        let huge = HugeFile::all().filter(|file| file.is_writable());
        let huge = huge.filter_map(|file| Some((file, host.text(&format!("{HUGE_FOLDER}/{file}"))?)));
        let others = FILES.map(|file| {
            let text = host.text(file).unwrap_or_default();
            if file == SWAPS { devices(&text) } else { text.trim().to_owned() }
        });
        Self { huge: huge.collect(), others }
    }

    fn other(&self, name: &str) -> &str {
        FILES.iter().zip(&self.others).find(|(file, _)| **file == name).map_or("", |(_, text)| text)
    }

    /// Whether Linux merges equal pages of memory that is marked `MADV_MERGEABLE`, at moments of its own.
    pub(crate) fn merges_pages(&self) -> bool {
        self.other(MERGING) == "1"
    }

    /// Whether there is a swap device.
    pub(crate) fn swaps(&self) -> bool {
        !self.other(SWAPS).is_empty()
    }

    /// Whether Linux grants no more memory than it has, so that what a program gets depends on all others.
    pub(crate) fn grants_what_there_is(&self) -> bool {
        self.other(OVERCOMMIT) == "2"
    }

    /// Whether a memfd is as its caller says, whose part Quire has.
    pub(crate) fn leaves_memfds_alone(&self) -> bool {
        matches!(self.other(MEMFD_NOEXEC), "" | "0")
    }

    /// How many mappings a program may have; as many as there can be where the host does not say.
    pub(crate) fn most_mappings(&self) -> u64 {
        self.other(MOST_MAPPINGS).parse().unwrap_or(u64::MAX)
    }

    /// Whether both sides have to be started anew: not only huge pages are set otherwise.
    pub(crate) fn needs_new_sides(&self, before: &Self) -> bool {
        self.others != before.others
    }

    /// Gives `memory` the host's policy of huge pages.
    pub(crate) fn set_policy(&self, memory: &Memory<HostPlatform>) {
        for (file, text) in &self.huge {
            // Words that Quire does not know are of a Linux that is newer than what is compared.
            let _ = file.write(memory, chosen(text));
        }
    }

    /// What was changed since `before`, a line for each setting.
    pub(crate) fn changed_since(&self, before: &Self) -> Vec<String> {
        let line = |file: String, (was, is): (&str, &str)| {
            let word = |text: &str| if text.is_empty() { "nothing".to_owned() } else { text.to_owned() };
            format!("the host's setting changed during the run: /{file}, from {} to {}", word(was), word(is))
        };
        let others = FILES.iter().zip(before.others.iter().zip(&self.others));
        let others = others.filter(|(_, (was, is))| was != is);
        let mut lines: Vec<String> =
            others.map(|(file, (was, is))| line((*file).to_owned(), (was, is))).collect();
        let in_huge = |all: &Self, file: &HugeFile| {
            let found = all.huge.iter().find(|(other, _)| other == file);
            found.map(|(_, text)| chosen(text).trim().to_owned()).unwrap_or_default()
        };
        for file in HugeFile::all() {
            let (was, is) = (in_huge(before, &file), in_huge(self, &file));
            if was != is {
                lines.push(line(format!("{HUGE_FOLDER}/{file}"), (&was, &is)));
            }
        }
        lines
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
    fn swap_in_use_is_no_setting() {
        let text = |used: u32| {
            format!("Filename\tType\tSize\tUsed\tPriority\n/dev/zram1   partition\t524284\t{used}\t\t100\n")
        };
        assert_eq!(devices(&text(0)), "/dev/zram1 (524284 kB)");
        assert_eq!(devices(&text(7)), devices(&text(0)));
        assert_eq!(devices("Filename\tType\tSize\tUsed\tPriority\n"), "");
    }

    #[test]
    fn a_setting_that_changes_is_told_in_a_line() {
        let mut before = Settings::default();
        before.others[0] = "0".to_owned();
        let mut now = before.clone();
        assert_eq!(now.changed_since(&before), [""; 0]);
        now.others[0] = "1".to_owned();
        let file = HugeFile::all().find(|file| file.to_string() == "enabled").expect("there is one");
        before.huge.push((file, "always [madvise] never\n".to_owned()));
        now.huge.push((file, "[always] madvise never\n".to_owned()));
        let change = "the host's setting changed during the run:";
        assert_eq!(
            now.changed_since(&before),
            [
                format!("{change} /sys/kernel/mm/ksm/run, from 0 to 1"),
                format!("{change} /sys/kernel/mm/transparent_hugepage/enabled, from madvise to always"),
            ]
        );
    }
}
