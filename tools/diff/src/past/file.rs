//! What a program did to its file.

use super::touches;
use crate::observation::Region;
use crate::program::names::*;
use crate::program::{Call, Outcome, Store};
use quire_arch::PAGE_SIZE;

/// The part of a program's history that decides which pages of its file may differ.
#[derive(Clone, Debug)]
pub(super) struct PastFile {
    /// Where it is.
    store: Store,
    /// It may have pages that were never written, or brought in by what is read ahead.
    changed: bool,
    /// Bytes that a call could not write: on Linux their pages are cached, past the end, too.
    not_written: Vec<(u64, u64)>,
}

impl PastFile {
    pub(super) fn new(store: Store) -> Self {
        Self { store, changed: false, not_written: Vec::new() }
    }

    /// Notes a call that was made, and whether it may have taken pages out of the file by a mapping.
    pub(super) fn note(&mut self, call: Call, args: [u64; 6], outcome: Outcome, makes_hole: bool) {
        let [descriptor, _, third, offset, ..] = args;
        let is_call = matches!(call, Call::Ftruncate | Call::Fallocate | Call::Pwrite);
        if is_call && memfd_at(descriptor).is_some() {
            return;
        }
        // A write that fails makes the file larger.
        self.changed |= makes_hole || is_call;
        // A large folio that is old in part is split on Linux, which unmaps it everywhere.
        self.changed |= self.store == Store::Large
            && call == Call::Madvise
            && matches!(third, MADV_COLD | MADV_PAGEOUT | MADV_FREE);
        if call == Call::Pwrite
            && let Outcome::Value(written) = outcome
            && written < third.cast_signed()
        {
            self.not_written.push((offset & !(PAGE_SIZE - 1), offset.saturating_add(third)));
        }
    }

    /// Whether its pages are written back, and dropped then.
    pub(super) fn is_on_disk(&self) -> bool {
        self.store != Store::Memory
    }

    /// Whether the residency of a mapping's pages may differ.
    pub(super) fn residency(&self, region: &Region) -> bool {
        match self.store {
            // All of it was read before, and no more is cached but what a call wanted to write.
            Store::Disk => touches(&self.not_written, region.offset, region.end - region.start),
            // What a call could not write is cached on both sides.
            Store::Memory => false,
            // A large folio in which the file ends now is cached, on Linux, if its split failed.
            Store::Large => self.changed,
        }
    }

    /// Whether pages of it may be cached that are not here, or others.
    pub(super) fn is_uncertain(&self) -> bool {
        match self.store {
            Store::Memory => !self.not_written.is_empty(),
            Store::Disk | Store::Large => self.changed,
        }
    }

    /// Whether a page is its last one or past the end, and it still has the large folios that it was made
    /// with.
    pub(super) fn is_at_end(&self, offset: u64) -> bool {
        self.store == Store::Large && !self.changed && offset >= self.store.file_bytes() & !(PAGE_SIZE - 1)
    }
}
