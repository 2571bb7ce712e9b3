//! The most that there is of shared memory, in pages and where it comes in large folios.

use super::file_pages::PlannedFiles;
use super::spare::FOLIOS;
use quire_arch::{Order, OrderSet};
use quire_mm::file::{ShmemEnabled, ShmemHuge, ShmemSizeEnabled};

/// The most so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SharedPeak {
    /// Pages that touches and calls brought in.
    pages: u64,
    /// Pages where all of it comes in folios of 2 MiB.
    large: u64,
    /// A file is mapped of a file system in memory whose folios may be large.
    pub(super) large_mounts: bool,
}

impl SharedPeak {
    /// These files need what they need now.
    pub(super) fn note(&mut self, files: &PlannedFiles) {
        self.pages = self.pages.max(files.shared());
        self.large = self.large.max(files.pages_of_large());
    }

    /// Bytes in pages, and in large folios.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.pages * 4096, self.large * 4096)
    }

    /// Pages that a machine with this setting needs more, with room for a few beside all others, as for large
    /// folios of anonymous memory.
    pub(super) fn pages_of_large(&self, shmem: ShmemHuge) -> u64 {
        let is_wanted = self.large > 0 && (self.large_mounts || comes_large(shmem));
        if is_wanted { self.large.saturating_add(FOLIOS << Order::PMD.get()) } else { 0 }
    }
}

/// Whether there can be a large folio of shared memory under this setting.
fn comes_large(shmem: ShmemHuge) -> bool {
    let is_word = |order| !matches!(shmem.size(order), ShmemSizeEnabled::Never | ShmemSizeEnabled::Inherit);
    let is_common = !matches!(shmem.enabled(), ShmemEnabled::Never | ShmemEnabled::Deny);
    is_common || shmem.enabled() != ShmemEnabled::Deny && OrderSet::SHMEM.iter().any(is_word)
}
