//! The end of openings and files.

use super::{PageCache, Wait};
use crate::file_core::{FileCore, Mapping, let_go};
use crate::index::IndexRange;
use crate::open_file::OpenFile;
use crate::opening::Opening;
use crate::store::Tag;
use crate::users::NoUsers;
use core::ptr::{self, NonNull};
use quire_arch::Platform;
use quire_sync::atomic::raw::Ordering;

impl<P: Platform, V: Mapping> PageCache<'_, P, V> {
    /// Closes an opening. With the last one of a file its dirty folios are written, and it is forgotten:
    /// where writing fails and no opening learned of it, that is counted. May sleep; nothing is held.
    ///
    /// # Safety
    ///
    /// The opening is one of these files, and was [let go](Opening::let_go) for the last time.
    pub unsafe fn close(self, opening: NonNull<Opening<V>>) {
        let place = ptr::with_exposed_provenance_mut::<OpenFile<P, V>>(opening.addr().get());
        let Some(place) = NonNull::new(place) else { return };
        // SAFETY: it is one that these files made (caller), and the caller's alone.
        let open = unsafe { place.as_ref() };
        let core = open.file_place();
        open.file().access.end(open.counted());
        // SAFETY: nothing holds it any more (caller).
        unsafe { self.files.free_opening(self.frames(), place) };
        // SAFETY: the file counts this opening.
        unsafe { self.close_one(core) };
    }

    /// # Safety
    ///
    /// The file counts an opening that is the caller's.
    pub(super) unsafe fn close_one(self, core: NonNull<FileCore<P, V>>) {
        // SAFETY: the file lives as long as it has openings.
        if unsafe { let_go(core) } {
            // SAFETY: this was the last one.
            unsafe { self.end(core) };
        }
    }

    /// Ends what files are left of a machine that ends, whose handles were leaked: waits for what is under
    /// way, and drops the backings. What is dirty is lost. May sleep; nothing is held.
    ///
    /// # Safety
    ///
    /// Nothing uses the files any more, or will.
    pub unsafe fn end_all(self) {
        // They are on the list of all, too.
        while self.files.take_left(self.frames()).is_some() {}
        while let Some(core) = self.files.take_first(self.frames()) {
            // SAFETY: it was on the list until here, so it lives.
            let file = unsafe { core.as_ref() };
            let unwinding = AbortsIfUnwound;
            self.transfers(file).wait_idle();
            core::mem::forget(unwinding);
            // SAFETY: nothing uses the file any more (caller), and no request is under way.
            unsafe { self.files.drop_backing_of(self.frames(), core) };
        }
    }

    /// # Safety
    ///
    /// No opening of the file is left.
    pub(super) unsafe fn end(self, core: NonNull<FileCore<P, V>>) {
        // SAFETY: files live until they are freed below.
        let file = unsafe { core.as_ref() };
        debug_assert!(file.mappings().is_empty(), "{file:?} is closed and mapped");
        // VMAs hold openings, so nothing maps it.
        self.write_tagged(file, IndexRange::ALL, Tag::Dirty, (Wait::Yes, &NoUsers));
        self.wait_written(file, IndexRange::ALL);
        // Reads whose threads have panicked.
        self.transfers(file).wait_idle();
        if file.errors.unseen().is_some() {
            file.memory().lost_errors.fetch_add(1, Ordering::Relaxed);
        }
        self.remove_range(file, IndexRange::ALL, &NoUsers);
        // SAFETY: no opening is left (caller), and the cache is empty.
        unsafe { self.files.free_file(self.frames(), core) };
    }
}

/// A panic of a backing ends the process: its machine's RAM would be unmapped while the backing may have
/// frames of it.
struct AbortsIfUnwound;

impl Drop for AbortsIfUnwound {
    fn drop(&mut self) {
        panic!("a backing panics as its machine ends, with requests under way");
    }
}
