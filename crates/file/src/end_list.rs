//! The list of files that have something past their ends (Linux's `shrinklist`).

use crate::file_core::{FileCore, Mapping, Neighbours, hold};
use crate::shmem::ShmemState;
use core::ptr::NonNull;
use quire_arch::Platform;

/// Files that a search looks at under one hold of the lock.
const AT_ONCE: u32 = 32;

/// Files of shared memory in which a large folio came that goes on past the end of the file, the first one
/// first. The list is of the whole machine. (Those that wait for their ends are on one like it.)
pub(crate) struct Ends<P: Platform, V> {
    first: Option<NonNull<FileCore<P, V>>>,
    last: Option<NonNull<FileCore<P, V>>>,
    files: u64,
}

/// A search of that list, which ends when it has passed as many files as there were.
pub(crate) struct EndSearch {
    /// Files of this file system, or of any.
    pub(crate) file_system: Option<usize>,
    pub(crate) left: u64,
}

impl<P: Platform, V> Ends<P, V> {
    pub(crate) const fn new() -> Self {
        Self { first: None, last: None, files: 0 }
    }

    pub(crate) const fn files(&self) -> u64 {
        self.files
    }

    pub(crate) const fn first(&self) -> Option<NonNull<FileCore<P, V>>> {
        self.first
    }

    /// Puts a file at the end of the list, unless it is there.
    ///
    /// # Safety
    ///
    /// The list of files is locked; the file is on that, as all are that are here.
    pub(crate) unsafe fn add(&mut self, core: NonNull<FileCore<P, V>>) {
        // SAFETY: the caller's promise.
        unsafe {
            let place = &mut *core.as_ref().end_place.get();
            if place.is_some() {
                return;
            }
            *place = Some(Neighbours { next: None, previous: self.last });
            match self.last.replace(core).and_then(|last| (*last.as_ref().end_place.get()).as_mut()) {
                Some(last) => last.next = Some(core),
                None => self.first = Some(core),
            }
        }
        self.files += 1;
    }

    /// Takes a file off the list, if it is there.
    ///
    /// # Safety
    ///
    /// As for [`add`](Self::add).
    pub(crate) unsafe fn remove(&mut self, core: NonNull<FileCore<P, V>>) {
        // SAFETY: the caller's promise.
        unsafe {
            let Some(place) = (*core.as_ref().end_place.get()).take() else { return };
            let beside = |core: Option<NonNull<FileCore<P, V>>>| (*core?.as_ref().end_place.get()).as_mut();
            match beside(place.next) {
                Some(next) => next.previous = place.previous,
                None => self.last = place.previous,
            }
            match beside(place.previous) {
                Some(previous) => previous.next = place.next,
                None => self.first = place.next,
            }
        }
        self.files -= 1;
    }
}

impl<P: Platform, V: Mapping> Ends<P, V> {
    /// Takes the next file of a search off the list, and counts an opening of it. `None` if there is none
    /// among the first ones, which are the last then, so that the next call goes on behind them.
    ///
    /// # Safety
    ///
    /// As for [`add`](Self::add).
    pub(crate) unsafe fn hold_next(&mut self, search: &mut EndSearch) -> Option<NonNull<FileCore<P, V>>> {
        for _ in 0..AT_ONCE {
            let Some(core) = self.first.filter(|_| search.left > 0) else {
                search.left = 0;
                return None;
            };
            search.left -= 1;
            // SAFETY: files live while they are on the list, which is locked (caller).
            let file = unsafe { core.as_ref() };
            // SAFETY: as above.
            unsafe { self.remove(core) };
            let own = file.shmem().map(ShmemState::file_system);
            if search.file_system.is_some() && own != search.file_system {
                // SAFETY: as above.
                unsafe { self.add(core) };
            } else if hold(file) {
                return Some(core);
            }
            // It ends, with all that it has.
        }
        None
    }
}
