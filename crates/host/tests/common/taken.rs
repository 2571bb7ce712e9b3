//! An owner of shared memory that counts what it has.

use quire_mm::file::{FileError, ShmemOwner};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Counts what its files have taken.
#[derive(Clone, Default)]
pub(crate) struct Taken(Arc<AtomicI64>);

impl Taken {
    /// Pages that they have now.
    pub(crate) fn pages(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl ShmemOwner for Taken {
    fn take_pages(&self, pages: u64) -> Result<(), FileError> {
        self.0.fetch_add(pages as i64, Ordering::Relaxed);
        Ok(())
    }

    fn give_back_pages(&self, pages: u64) {
        self.0.fetch_sub(pages as i64, Ordering::Relaxed);
    }
}
