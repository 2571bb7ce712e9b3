//! One mapping, as it is shown and installed.

use quire_arch::VirtRange;
use quire_vma::{VmFlags, VmaSnapshot};

/// One mapping, as `/proc/PID/maps` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its addresses.
    pub range: VirtRange,
    /// Its flags.
    pub flags: VmFlags,
    /// Offset in pages into what it maps.
    pub page_offset: u64,
    /// The embedder's number for the file, if it maps one.
    pub file: Option<u64>,
}

impl Mapping {
    /// The mapping that a VMA stands for.
    pub(crate) fn of(snapshot: &VmaSnapshot) -> Self {
        Self {
            range: snapshot.range,
            flags: snapshot.flags,
            page_offset: snapshot.page_offset,
            file: snapshot.backing.file_id(),
        }
    }
}
