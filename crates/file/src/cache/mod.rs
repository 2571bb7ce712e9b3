//! The page cache: everything that is done with the folios of files.
//!
//! Lowest first: `find`, `unfilled`, `new_folio`, `ahead`, `split`, `swapped`, `held_folios`, `collapse`,
//! `obtain`, `writeback`, `cut`, `seal`, `hole`, `truncate`, `allocate`, `calls`, `close`, `ends`, `handle`.

mod ahead;
mod allocate;
mod calls;
mod close;
mod collapse;
mod cut;
mod ends;
mod find;
mod handle;
mod held_folios;
mod hole;
mod new_folio;
mod obtain;
mod seal;
mod split;
mod swapped;
mod truncate;
mod unfilled;
mod writeback;

pub use allocate::Allocation;
pub use calls::Transfer;
pub use collapse::{BlockFigures, BlockRefusal, FileBlock, MissingPage, NewBlock};
pub use handle::{FileHandle, HeldFile, KnownFile};
pub use new_folio::LargeOrders;
pub use obtain::PagedIn;
pub use seal::Sealing;
pub use swapped::ShmemPages;
pub use writeback::Wait;

use crate::cached_file::CachedFile;
use crate::file_core::Mapping;
use crate::files::Files;
use crate::transfers::Transfers;
use core::fmt;
use quire_arch::Platform;
use quire_frame::Frames;
use quire_memcg::Memcgs;
use quire_swap::Swap;

/// The page cache of a machine.
///
/// What may sleep says so; all else may be called pinned and with locks up to the class PteTable held.
pub struct PageCache<'m, P: Platform, V> {
    files: &'m Files<P, V>,
    memcgs: &'m Memcgs<P>,
    swap: &'m Swap<P>,
}

impl<P: Platform, V> Clone for PageCache<'_, P, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform, V> Copy for PageCache<'_, P, V> {}

impl<'m, P: Platform, V: Mapping> PageCache<'m, P, V> {
    /// The page cache of these files.
    ///
    /// # Safety
    ///
    /// The files were made on the machine of `swap`.
    pub unsafe fn new(files: &'m Files<P, V>, swap: &'m Swap<P>) -> Self {
        Self { files, memcgs: swap.memcgs(), swap }
    }

    /// The files.
    pub fn files(self) -> &'m Files<P, V> {
        self.files
    }

    /// Shared memory, and what of it is on swap devices.
    pub fn shmem(self) -> ShmemPages<'m, P, V> {
        ShmemPages(self)
    }

    fn frames(self) -> &'m Frames<P> {
        self.memcgs.frames()
    }

    fn platform(self) -> &'m P {
        self.frames().platform()
    }

    fn transfers<'t>(self, file: &'t CachedFile<P>) -> Transfers<'t, P>
    where
        'm: 't,
    {
        Transfers::new(self.memcgs.frames(), file)
    }
}

impl<P: Platform, V> fmt::Debug for PageCache<'_, P, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.files, f)
    }
}
