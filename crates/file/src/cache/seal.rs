//! Adding seals.
//!
//! A seal against writes holds from its call on. So the call first denies new mappings that may write, with
//! the lock of the mappings held; there must be none. What such mappings wrote before may still be under way:
//! by an entry that has left its table and is not flushed, or by a device that has pinned the page. The first
//! is waited for, the second for 150 ms, as in Linux. Calls that write hold Invalidate, and look again.

use super::PageCache;
use crate::file_core::{FileCore, Mapping};
use crate::index::IndexRange;
use crate::seals::{SealError, SealState, Seals};
use crate::store::Filter;
use crate::users::{Cleaned, FileUsers};
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

impl<P: Platform, V: Mapping> PageCache<'_, P, V> {
    /// Adds seals to shared memory. May sleep; nothing is held.
    ///
    /// # Errors
    ///
    /// [`SealError`]; it has the seals that it had.
    pub fn add_seals(
        self,
        file: &FileCore<P, V>,
        seals: Seals,
        users: &dyn FileUsers<P, V>,
    ) -> Result<(), SealError> {
        let state = file.seal_state().ok_or(SealError::NoShmem)?;
        let before = state.get();
        if before.contains(Seals::SEAL) {
            return Err(SealError::Sealed);
        }
        let mut denial = None;
        if (seals - before).contains(Seals::WRITE) {
            denial = Some(self.deny_writers(file, state)?);
            if !self.ends_writes(file, state, users) {
                return Err(SealError::Busy);
            }
        }
        let _alone = file.invalidate.write(self.platform());
        let _mappings = file.mappings().write(self.platform());
        if state.get().contains(Seals::SEAL) {
            return Err(SealError::Sealed);
        }
        state.set(seals);
        drop(denial);
        Ok(())
    }

    fn deny_writers<'f>(self, file: &FileCore<P, V>, state: &'f SealState) -> Result<Denial<'f>, SealError> {
        let _mappings = file.mappings().write(self.platform());
        // In this order: one that is not counted as entering any more is among the writers.
        if state.entering() != 0 || file.mappings().writers() != 0 || !state.deny_writers() {
            return Err(SealError::Busy);
        }
        Ok(Denial(state))
    }

    /// Waits until nothing writes to the file by what was a mapping before. Returns false if a page of it is
    /// pinned for too long.
    fn ends_writes(self, file: &FileCore<P, V>, state: &SealState, users: &dyn FileUsers<P, V>) -> bool {
        for wait in WAITS {
            if !self.has_pinned(file, users) {
                return true;
            }
            let (began, key) = (self.platform().now(), ptr::from_ref(state).addr());
            let left = || wait.saturating_sub(self.platform().now().saturating_sub(began));
            for _ in 0..WAKES {
                match left() {
                    0 => break,
                    left => self.platform().park_for(key, left, &mut || true),
                }
            }
        }
        !self.has_pinned(file, users)
    }

    /// Whether a page of the file is pinned, once no entry of a mapping that has gone is left for any.
    fn has_pinned(self, file: &FileCore<P, V>, users: &dyn FileUsers<P, V>) -> bool {
        let mut is_pinned = false;
        self.for_each_folio(file, IndexRange::ALL, Filter::All, |at| {
            let Some(folio) = self.lock_found(file, at, true) else { return };
            let mut attempt = 0;
            while self.clean(file, &folio, users) == Cleaned::InTransit {
                P::relax(attempt);
                attempt = attempt.saturating_add(1);
            }
            is_pinned |= self.frames().folio(folio.head()).may_be_pinned();
        });
        is_pinned
    }
}
