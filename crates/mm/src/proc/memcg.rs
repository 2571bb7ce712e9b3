//! The files of memcgs.

use crate::memory::Memory;
use core::fmt;
use quire_arch::{PAGE_SIZE, Platform};
use quire_memcg::{MachinePages, MemcgError, MemcgPeak};

/// Writes the file of a memcg at `path`, below the folder where Linux has the tree: `memory.stat` is
/// the root's, which is of the whole machine, `a/b/memory.current` that of the memcg `b` in `a`. A page that
/// several spaces map counts in the root's `anon` and `file` for each. `since` is what the last write to this
/// open file returned, if it was written to: a peak is read since then.
///
/// # Errors
///
/// [`MemcgError::NoMemcg`], [`MemcgError::NoFile`] (Linux has few at the root), [`MemcgError::WriteOnly`],
/// and [`MemcgError::Output`] for those of `out`.
pub fn memcg_file<P: Platform>(
    memory: &Memory<P>,
    path: &str,
    since: Option<MemcgPeak>,
    out: &mut dyn fmt::Write,
) -> Result<(), MemcgError> {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let memcg = memory.parts().memcgs().tree().find(folder).ok_or(MemcgError::NoMemcg)?;
    let machine = || {
        let files = memory.file_totals();
        let mut pages = MachinePages {
            shmem: files.shmem,
            file_thp: files.huge,
            shmem_thp: files.shmem_huge,
            ..MachinePages::default()
        };
        memory.for_each_resident(|_, resident| {
            pages.anon += resident.anonymous / PAGE_SIZE;
            pages.file += (resident.file + resident.shmem) / PAGE_SIZE;
        });
        pages
    };
    memory.parts().memcgs().files().read(memcg, file, since, machine, out)
}
