//! The settings of the host during a recording.

use super::varint::{Cursor, Malformed};
use super::wire::{Wire, wire};
use crate::event::ThpDisable;

/// The settings of the host, when the recording began, that affect the program's memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostSettings {
    /// The recorder turned transparent huge pages off for the programs, and emulated their own
    /// `PR_SET_THP_DISABLE` calls.
    pub thp_turned_off: bool,
    /// The `PR_SET_THP_DISABLE` setting of the recorder's caller. The program begins with it.
    pub thp_disable: ThpDisable,
    /// Files of `/sys/kernel/mm/transparent_hugepage` by their names there, and their values: of a choice,
    /// the chosen word. In files of versions 1 to 12 none that are named `shmem_enabled`.
    pub thp_files: Vec<(String, String)>,
    /// `kernel.randomize_va_space`: 0 no addresses are random, 1 all but the heap's, 2 all.
    pub randomize_va_space: Option<u64>,
    /// The programs began without random addresses (`ADDR_NO_RANDOMIZE` of their personality).
    pub no_randomize: bool,
}

impl HostSettings {
    /// The value of a file of `/sys/kernel/mm/transparent_hugepage`, e.g. `hugepages-64kB/enabled`.
    #[must_use]
    pub fn thp_file(&self, name: &str) -> Option<&str> {
        self.thp_files.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
    }

    /// Whether, according to `/sys`, no fault of a program could map a huge page of private memory, with any
    /// advice.
    #[must_use]
    pub fn thp_is_never(&self) -> bool {
        let common = self.thp_file("enabled");
        let is_of_size = |name: &str| name.starts_with("hugepages-") && name.ends_with("/enabled");
        let mut sizes = self.thp_files.iter().filter(|(name, _)| is_of_size(name));
        common == Some("never") && sizes.all(|(_, word)| word == "never" || word == "inherit")
    }
}

wire!(HostSettings {
    [thp_turned_off, no_randomize]: "settings of the host use reserved bits",
    thp_disable,
    randomize_va_space,
    thp_files,
});
