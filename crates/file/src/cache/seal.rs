//! Adding seals.
//!
//! A seal against writes holds from its call on. So the call first denies new mappings that may write, with
//! the lock of the mappings held; there must be none. What such mappings wrote before may still be under way:
//! by an entry that has left its table and is not flushed, or by a device that has pinned the page. The first
//! is waited for, the second for 150 ms, as in Linux. Calls that write hold Invalidate, and look again.

use super::PageCache;
use crate::cached_file::CachedFile;
use crate::error::PageError;
use crate::file_core::{FileCore, Mapping};
use crate::index::IndexRange;
use crate::seals::{SealError, SealState, Seals};
use crate::shmem::ShmemState;
use crate::store::Filter;
use crate::users::{Cleaned, FileUsers};
use core::cmp;
use core::fmt;
use core::ptr;
use quire_arch::Platform;

/// Waits for pins, in nanoseconds.
const WAITS: [u64; 4] = [10_000_000, 20_000_000, 40_000_000, 80_000_000];

/// Times that a wait goes on after a wake-up: nothing wakes it but the clock.
const WAKES: u32 = 8;

/// New mappings that may write are denied until this is dropped.
struct Denial<'f>(&'f SealState);

impl Drop for Denial<'_> {
    fn drop(&mut self) {
        self.0.admit_writers();
    }
}

/// Refuses to change the size of a file to `size`. Invalidate is held, or it is looked at again.
///
/// # Errors
///
/// [`PageError::Sealed`].
pub(super) fn check_size<P: Platform>(file: &CachedFile<P>, size: u64) -> Result<(), PageError> {
    let against = match size.cmp(&file.size()) {
        cmp::Ordering::Less => Seals::SHRINK,
        cmp::Ordering::Equal => return Ok(()),
        cmp::Ordering::Greater => Seals::GROW,
    };
    if seals_of(file).contains(against) { Err(PageError::Sealed) } else { Ok(()) }
}

/// Refuses to write to a file up to byte `end`, or to make a hole. As [`check_size`].
///
/// # Errors
///
/// [`PageError::Sealed`].
pub(super) fn check_write<P: Platform>(file: &CachedFile<P>, end: u64) -> Result<(), PageError> {
    let seals = seals_of(file);
    let grows = seals.contains(Seals::GROW) && end > file.size();
    if grows || seals.intersects(Seals::NO_WRITES) { Err(PageError::Sealed) } else { Ok(()) }
}

fn seals_of<P: Platform>(file: &CachedFile<P>) -> Seals {
    file.shmem().map_or(Seals::empty(), ShmemState::seals)
}

/// Seals that are added to a file.
pub struct Sealing<'c, 'm, P: Platform, V: Mapping> {
    cache: PageCache<'m, P, V>,
    file: &'c FileCore<P, V>,
    users: &'c dyn FileUsers<P, V>,
}

impl<'c, 'm, P: Platform, V: Mapping> Sealing<'c, 'm, P, V> {
    /// Of a file of this cache.
    pub const fn new(
        cache: PageCache<'m, P, V>,
        file: &'c FileCore<P, V>,
        users: &'c dyn FileUsers<P, V>,
    ) -> Self {
        Self { cache, file, users }
    }

    /// Adds seals to shared memory. May sleep; nothing is held.
    ///
    /// # Errors
    ///
    /// [`SealError`]; it has the seals that it had.
    pub fn add(&self, seals: Seals) -> Result<(), SealError> {
        let (file, platform) = (self.file, self.cache.platform());
        let state = file.shmem().map(ShmemState::seal_state).ok_or(SealError::NoShmem)?;
        let before = state.get();
        if before.contains(Seals::SEAL) {
            return Err(SealError::Sealed);
        }
        let mut denial = None;
        if (seals - before).contains(Seals::WRITE) {
            denial = Some(self.deny_writers(state)?);
            if !self.ends_writes(state) {
                return Err(SealError::Busy);
            }
        }
        let _alone = file.invalidate.write(platform);
        let _mappings = file.mappings().write(platform);
        if state.get().contains(Seals::SEAL) {
            return Err(SealError::Sealed);
        }
        state.set(seals);
        drop(denial);
        Ok(())
    }

    fn deny_writers<'f>(&self, state: &'f SealState) -> Result<Denial<'f>, SealError> {
        let _mappings = self.file.mappings().write(self.cache.platform());
        // In this order: one that is not counted as entering any more is among the writers.
        if state.entering() != 0 || self.file.mappings().writers() != 0 || !state.deny_writers() {
            return Err(SealError::Busy);
        }
        Ok(Denial(state))
    }

    /// Waits until nothing writes to the file by what was a mapping before. Returns false if a page of it is
    /// pinned for too long.
    fn ends_writes(&self, state: &SealState) -> bool {
        for wait in WAITS {
            if !self.has_pinned() {
                return true;
            }
            let (began, key) = (self.cache.platform().now(), ptr::from_ref(state).addr());
            let left = || wait.saturating_sub(self.cache.platform().now().saturating_sub(began));
            for _ in 0..WAKES {
                match left() {
                    0 => break,
                    left => self.cache.platform().park_for(key, left, &mut || true),
                }
            }
        }
        !self.has_pinned()
    }

    /// Whether a page of the file is pinned, once no entry of a mapping that has gone is left for any.
    fn has_pinned(&self) -> bool {
        let Self { cache, file, users } = *self;
        let mut is_pinned = false;
        cache.for_each_folio(file, IndexRange::ALL, Filter::All, |at| {
            let Some(folio) = cache.lock_found(file, at, true) else { return };
            let mut attempt = 0;
            while cache.clean(file, &folio, users) == Cleaned::InTransit {
                P::relax(attempt);
                attempt = attempt.saturating_add(1);
            }
            // A fast pin finds that the entry is gone, or is found here.
            is_pinned |= cache.frames().folio(folio.head()).may_be_pinned_after_unmap();
        });
        is_pinned
    }
}

impl<P: Platform, V: Mapping> fmt::Debug for Sealing<'_, '_, P, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sealing").field(self.file).finish()
    }
}
