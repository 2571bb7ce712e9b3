//! Folios of a file that is locked in memory (`SHM_LOCK`), on their lists.
//!
//! Such a folio is on the unevictable list because of its file, without a mark of its own. The file is
//! unlocked by a store, a fence, and a look at each folio. Who puts a folio on the unevictable list, or
//! leaves one there whose mark it has cleared, reads the file's word after that and a fence. So one of the
//! two sees the other, and no folio stays on the list.

use super::CachedFile;
use crate::shmem::ShmemState;
use core::fmt;
use quire_arch::{Pfn, Pin, Platform};
use quire_frame::Frames;
use quire_memcg::{Memcgs, UnevictableFolios};
use quire_sync::atomic::raw::{Ordering, fence};

/// A folio, and whether its file says that it stays in memory.
pub struct KeptFolio<'f, P: Platform> {
    file: &'f CachedFile<P>,
    head: Pfn,
}

impl<'f, P: Platform> KeptFolio<'f, P> {
    /// The folio at `head`, of this file. The caller keeps it from being freed.
    #[inline]
    pub const fn new(file: &'f CachedFile<P>, head: Pfn) -> Self {
        Self { file, head }
    }

    /// Whether the folio at `head` stays in memory because of its file. False if it is in the cache of none.
    ///
    /// # Safety
    ///
    /// That of [`CachedFile::of_folio`]; or the caller holds the open file by which the folio was mapped.
    #[inline]
    pub unsafe fn stays(frames: &Frames<P>, head: Pfn) -> bool {
        // SAFETY: the caller's promise; a file that is held stays.
        let file = unsafe { CachedFile::of_folio(frames, head) };
        file.is_some_and(|file| KeptFolio { file, head }.is_kept())
    }

    /// Whether it stays, now.
    #[inline]
    pub fn is_kept(&self) -> bool {
        self.file.shmem().is_some_and(ShmemState::stays_in_memory)
    }

    /// It was just listed: puts it on the unevictable list if it stays.
    #[inline]
    pub fn cull(&self, memcgs: &Memcgs<P>, pin: &Pin<'_, P>) {
        if !self.is_kept() {
            return;
        }
        let folios = UnevictableFolios::of(memcgs.folios());
        folios.cull(pin, self.head);
        // Pairs with that of `ShmemPages::rescue`.
        fence(Ordering::SeqCst);
        if !self.is_kept() {
            folios.rescue(pin, self.head);
        }
    }
}

impl<P: Platform> fmt::Debug for KeptFolio<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptFolio").field("file", &self.file).field("head", &self.head).finish()
    }
}
