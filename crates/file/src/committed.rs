//! Memory that is committed: promised to programs, whether it exists or not (`Committed_AS`).

use crate::backing::FileError;
use core::fmt;
use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// The sums of committed memory of a machine: of private memory, which spaces count, and of shared memory,
/// which files count. Both are read where one of them grows. All changes are sequentially consistent: of two
/// threads that add to different ones, one sees the other.
pub struct Committed {
    private: AtomicU64,
    shared: AtomicU64,
    /// How much both may be where pages of shared memory come one by one.
    limit: AtomicU64,
}

impl Committed {
    /// Nothing, without a limit.
    pub fn new() -> Self {
        Self { private: AtomicU64::new(0), shared: AtomicU64::new(0), limit: AtomicU64::new(u64::MAX) }
    }

    /// From now on pages of shared memory that no promise covers are refused where the sum would be above
    /// `pages`. For the start of a machine.
    pub fn set_limit(&self, pages: u64) {
        self.limit.store(pages, Ordering::Relaxed);
    }

    /// Pages of private memory.
    pub fn private(&self) -> u64 {
        self.private.load(Ordering::Relaxed)
    }

    /// Pages of shared memory.
    pub fn shared(&self) -> u64 {
        self.shared.load(Ordering::Relaxed)
    }

    /// Adds pages of private memory, and returns the sum of all.
    pub fn add_private(&self, pages: u64) -> u64 {
        let private = self.private.fetch_add(pages, Ordering::SeqCst).saturating_add(pages);
        private.saturating_add(self.shared.load(Ordering::SeqCst))
    }

    /// Takes pages of private memory away.
    pub fn drop_private(&self, pages: u64) {
        self.private.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Adds pages of shared memory, and returns the sum of all.
    pub fn add_shared(&self, pages: u64) -> u64 {
        let shared = self.shared.fetch_add(pages, Ordering::SeqCst).saturating_add(pages);
        shared.saturating_add(self.private.load(Ordering::SeqCst))
    }

    /// Takes pages of shared memory away.
    pub fn drop_shared(&self, pages: u64) {
        self.shared.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Adds pages of shared memory that no promise covers.
    ///
    /// # Errors
    ///
    /// [`FileError::NoSpace`], as in Linux, where the sum would be above the limit. Nothing has changed then.
    pub(crate) fn take(&self, pages: u64) -> Result<(), FileError> {
        if self.add_shared(pages) > self.limit.load(Ordering::Relaxed) {
            self.drop_shared(pages);
            return Err(FileError::NoSpace);
        }
        Ok(())
    }
}

impl Default for Committed {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Committed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Committed")
            .field("private", &self.private())
            .field("shared", &self.shared())
            .finish_non_exhaustive()
    }
}
