//! Folios that are in the cache before their contents are good.

use super::PageCache;
use crate::backing::{FileError, READAHEAD};
use crate::cached_file::CachedFile;
use crate::file_core::Mapping;
use crate::locked_folio::LockedFolio;
use arrayvec::ArrayVec;
use quire_arch::{Order, Platform};
use quire_frame::FrameFlags;

/// A locked folio that was just put into the cache, whose contents are not good yet. When this is dropped the
/// folio leaves the cache, and if it was to be read all that wait for its lock get an error: also where a
/// backing, or the program's side of a call, panics.
pub(super) struct Unfilled<'c, 'm, P: Platform, V: Mapping> {
    cache: PageCache<'m, P, V>,
    file: &'c CachedFile<P>,
    folio: &'c LockedFolio<'m, P>,
    is_good: bool,
    /// Whether those that wait for it get an error if it is not.
    tells: bool,
    /// Whether the backing may be writing to it.
    in_transfer: bool,
}

impl<'c, 'm, P: Platform, V: Mapping> Unfilled<'c, 'm, P, V> {
    pub(super) const fn new(
        cache: PageCache<'m, P, V>,
        file: &'c CachedFile<P>,
        folio: &'c LockedFolio<'m, P>,
    ) -> Self {
        Self { cache, file, folio, is_good: false, tells: true, in_transfer: false }
    }

    /// Reads the first pages of it, a block of `order`.
    ///
    /// # Errors
    ///
    /// The backing's.
    pub(super) fn read(&mut self, order: Order) -> Result<(), FileError> {
        debug_assert!(order <= self.folio.order());
        self.in_transfer = true;
        let transfers = self.cache.transfers(self.file);
        // SAFETY: the folio is new and locked, and is never freed if this panics.
        let read = unsafe { transfers.read_blocks(self.folio.start(), &[(self.folio.head(), order)]) };
        self.in_transfer = false;
        read
    }

    /// Reads these folios, which continue each other, by one request.
    ///
    /// # Errors
    ///
    /// The backing's.
    pub(super) fn read_run(run: &mut [Self]) -> Result<(), FileError> {
        let Some(first) = run.first() else { return Ok(()) };
        let (transfers, start) = (first.cache.transfers(first.file), first.folio.start());
        let blocks: ArrayVec<_, READAHEAD> =
            run.iter().map(|one| (one.folio.head(), one.folio.order())).collect();
        run.iter_mut().for_each(|one| one.in_transfer = true);
        // SAFETY: the folios are new and locked, and are never freed if this panics.
        let read = unsafe { transfers.read_blocks(start, &blocks) };
        run.iter_mut().for_each(|one| one.in_transfer = false);
        read
    }

    /// The folio.
    pub(super) const fn folio(&self) -> &'c LockedFolio<'m, P> {
        self.folio
    }

    /// It could not be read, and the file may have it all the same: who waits for it reads it.
    pub(super) fn given_up(mut self) {
        self.tells = false;
    }

    /// Its contents are good.
    pub(super) fn filled(mut self) {
        self.folio.frame().clear_flags(FrameFlags::READING);
        self.is_good = true;
    }
}

impl<P: Platform, V: Mapping> Drop for Unfilled<'_, '_, P, V> {
    fn drop(&mut self) {
        if self.is_good {
            return;
        }
        let frame = self.folio.frame();
        if self.tells && frame.word().flags().contains(FrameFlags::READING) {
            frame.change_flags(FrameFlags::READ_FAILED, FrameFlags::READING);
        }
        self.cache.remove(self.file, self.folio);
        frame.clear_flags(FrameFlags::READING);
        if self.in_transfer {
            // The backing has panicked, and nothing says that it is done with the frames, which are never
            // freed.
            frame.get(1);
        }
    }
}
