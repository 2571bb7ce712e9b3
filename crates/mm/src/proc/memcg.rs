//! The files of memcgs.

use crate::memory::Memory;
use core::fmt;
use quire_arch::Platform;
use quire_memcg::MemcgError;

/// Writes the file of a memcg at `path`, below the folder where Linux has the tree: `memory.stat` is
/// the root's, `a/b/memory.current` that of the memcg `b` in `a`.
///
/// # Errors
///
/// [`MemcgError::NoMemcg`], [`MemcgError::NoFile`] (Linux has few at the root), [`MemcgError::WriteOnly`],
/// and [`MemcgError::Output`] for those of `out`.
pub fn memcg_file<P: Platform>(
    memory: &Memory<P>,
    path: &str,
    out: &mut dyn fmt::Write,
) -> Result<(), MemcgError> {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let memcg = memory.parts().memcgs().find(folder).ok_or(MemcgError::NoMemcg)?;
    memory.parts().memcgs().read(memcg, file, out)
}
