//! What the host's Linux does with large folios: its policy, and what may come in between.

use quire_host::HostPlatform;
use quire_mm::Memory;
use quire_mm::text::HugeFile;
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

/// What others than the program decide of what it sees: the policy, and how often Linux did something on its own account.
/// All is about the whole host, and read without privilege.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Interference {
    policy: Vec<(HugeFile, String)>,
    /// Page tables that khugepaged collapsed.
    collapsed: u64,
    /// Faults that found no large folio.
    fallbacks: u64,
    /// Folios that were split because memory was short.
    underused: u64,
}

impl Interference {
    /// At this moment.
    pub(crate) fn now() -> Self {
        let number = |path: String| -> u64 {
            fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        let vmstat = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        let event = |name: &str| -> u64 {
            let line = vmstat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|count| count.parse().ok()).unwrap_or(0)
        };
        let sizes = HugeFile::all().filter(|file| file.to_string().ends_with("/anon_fault_fallback"));
        Self {
            policy: policy(),
            collapsed: number(format!("{FOLDER}/khugepaged/pages_collapsed")),
            fallbacks: event("thp_fault_fallback")
                + sizes.map(|file| number(format!("{FOLDER}/{file}"))).sum::<u64>(),
            underused: event("thp_underused_split_page"),
        }
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
}
