//! The callers that the plan counted: a table that debug builds keep.

use super::plan::Operation;
use core::panic::Location;
use core::ptr::{self, NonNull};
use core::slice;
use core::str;
// Counts decide nothing, so no model has to see them.
use core::sync::atomic::AtomicU64 as Count;
use quire_sync::atomic::raw::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Callers that a machine can tell apart. Release builds keep no table.
const ROWS: usize = if cfg!(debug_assertions) { 128 } else { 0 };

/// A call site that asked the fail points, and its counts since the plan was set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FailCaller {
    /// The call of the allocator.
    pub location: &'static Location<'static>,
    /// The name of the site that it asked for.
    pub site: &'static str,
    /// Operations that the plan counted.
    pub seen: u64,
    /// Of these, those that it made fail.
    pub failed: u64,
}

/// A row belongs to one caller and one site from its first operation on, for the life of the machine: only
/// the counts are reset with a new plan.
#[derive(Debug)]
struct Row {
    /// Identifies the row's owner; 0 while it is free.
    key: AtomicU64,
    location: AtomicPtr<Location<'static>>,
    name: AtomicPtr<u8>,
    name_len: AtomicUsize,
    seen: Count,
    failed: Count,
}

impl Row {
    const fn free() -> Self {
        Self {
            key: AtomicU64::new(0),
            location: AtomicPtr::new(ptr::null_mut()),
            name: AtomicPtr::new(ptr::null_mut()),
            name_len: AtomicUsize::new(0),
            seen: Count::new(0),
            failed: Count::new(0),
        }
    }

    /// Whether the row belongs to `key`, after taking it if it is free.
    fn belongs_to(&self, key: u64, caller: &'static Location<'static>, name: &'static str) -> bool {
        match self.key.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                self.name.store(name.as_ptr().cast_mut(), Ordering::Relaxed);
                self.name_len.store(name.len(), Ordering::Relaxed);
                // Release: the row is complete. Pairs with the load in `caller`.
                self.location.store(ptr::from_ref(caller).cast_mut(), Ordering::Release);
                true
            }
            Err(owner) => owner == key,
        }
    }

    fn caller(&self) -> Option<FailCaller> {
        let location = NonNull::new(self.location.load(Ordering::Acquire))?;
        let (name, len) = (self.name.load(Ordering::Relaxed), self.name_len.load(Ordering::Relaxed));
        // SAFETY: a row is filled once, by the one call that took it and from references that live forever,
        // the location last; and the bytes of the name are those of a `str`.
        let (location, site) =
            unsafe { (location.as_ref(), str::from_utf8_unchecked(slice::from_raw_parts(name, len))) };
        let (seen, failed) = (self.seen.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed));
        Some(FailCaller { location, site, seen, failed })
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Callers {
    rows: [Row; ROWS],
    lost: Count,
}

impl Callers {
    pub(super) const fn new() -> Self {
        Self { rows: [const { Row::free() }; ROWS], lost: Count::new(0) }
    }

    /// Starts all counts at zero.
    pub(super) fn reset(&self) {
        for row in &self.rows {
            row.seen.store(0, Ordering::Relaxed);
            row.failed.store(0, Ordering::Relaxed);
        }
        self.lost.store(0, Ordering::Relaxed);
    }

    /// Notes that the plan counted `operation`.
    pub(super) fn note(&self, operation: &Operation, failed: bool) {
        let Some(caller) = operation.caller else { return };
        let key = operation.key(caller);
        match self.rows.iter().find(|row| row.belongs_to(key, caller, operation.site.name())) {
            Some(row) => {
                row.seen.fetch_add(1, Ordering::Relaxed);
                row.failed.fetch_add(u64::from(failed), Ordering::Relaxed);
            }
            None => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = FailCaller> {
        self.rows.iter().filter_map(Row::caller).filter(|caller| caller.seen > 0)
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}
