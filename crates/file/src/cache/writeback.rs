//! Writing dirty folios back.
//!
//! A folio is locked; the entries that map it are made clean; only then it is clean itself, and is being
//! written. So what a program writes later makes it dirty again. Where an entry is in transit the folio stays
//! dirty. Runs of folios are written by one request.
//!
//! A folio that is being written may be one of a run that is not under way yet, whose thread waits for the
//! lock of another folio; and who has that may wait until it is written. That ends: a run has pages before
//! the one whose lock its thread waits for, so of several such threads none waits for the one with the last
//! page. No thread waits for writeback with two folios locked, or for Invalidate or a page with one.

use super::PageCache;
use super::find::after;
use crate::backing::FileError;
use crate::cached_file::{CachedFile, Turn};
use crate::file_core::{FileCore, Mapping};
use crate::index::{IndexRange, PageIndex};
use crate::locked_folio::LockedFolio;
use crate::open_file::OpenFile;
use crate::store::{Filter, Tag};
use crate::transfers::Run;
use crate::users::{Cleaned, FileUsers};
use core::ops::Range;
use quire_arch::{Pfn, Platform};
use quire_frame::FrameFlags;
use quire_sync::atomic::raw::Ordering;

/// Folios that are tagged under one hold of a store's lock.
const AT_ONCE: usize = 16;

/// Whether writeback is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// No: what is in use is left out.
    No,
    /// Until all that was dirty at the call is written.
    Yes,
}

/// What became of a folio that was to be written.
enum Left {
    /// It is being written, or needs not be.
    Done,
    /// It is in use. It is tried again once the run is under way.
    InUse,
}

impl<'m, P: Platform, V: Mapping> PageCache<'m, P, V> {
    /// Writes the dirty folios of these pages. May sleep; no folio is locked.
    ///
    /// # Errors
    ///
    /// With [`Wait::Yes`], the last of the errors since the call. The openings are told in any case.
    pub fn write_back(
        self,
        file: &FileCore<P, V>,
        pages: IndexRange,
        wait: Wait,
        users: &dyn FileUsers<P, V>,
    ) -> Result<(), FileError> {
        if file.is_shmem() {
            return Ok(());
        }
        let before = file.failed_writes.load(Ordering::Relaxed);
        self.write_tagged(file, pages, Tag::Dirty, (wait, users));
        if wait == Wait::No {
            return Ok(());
        }
        self.wait_written(file, pages);
        let failed = file.failed_writes.load(Ordering::Relaxed) != before;
        file.errors.last().filter(|_| failed).map_or(Ok(()), Err)
    }

    /// Writes what is dirty now of these bytes and makes it lasting (`fsync`, `fdatasync`). May sleep; no
    /// folio is locked.
    ///
    /// # Errors
    ///
    /// An error of writeback that this opening has not been told of: each is reported once.
    pub fn sync(
        self,
        open: &OpenFile<P, V>,
        bytes: Range<u64>,
        data_only: bool,
        users: &dyn FileUsers<P, V>,
    ) -> Result<(), FileError> {
        let file = open.file();
        if file.is_shmem() {
            return Ok(());
        }
        let pages = CachedFile::<P>::pages_of(bytes.clone());
        self.tag_for_sync(file, pages);
        self.write_tagged(file, pages, Tag::ToWrite, (Wait::Yes, users));
        self.wait_written(file, pages);
        if let Err(error) = file.backing().sync(bytes, data_only) {
            file.errors.add(error);
        }
        open.report_error()
    }

    /// Tags what is dirty now: what becomes dirty later is not waited for.
    fn tag_for_sync(self, file: &CachedFile<P>, pages: IndexRange) {
        let mut rest = pages;
        while !rest.is_empty() {
            rest = file.with_store(self.frames(), |store| {
                let mut rest = rest;
                for _ in 0..AT_ONCE {
                    let Some(stored) = store.next(rest, Filter::Tagged(Tag::Dirty)) else {
                        return IndexRange::default();
                    };
                    rest = after(&stored, pages);
                    store.set_tag(stored.start, Tag::ToWrite);
                }
                rest
            });
        }
    }

    /// Writes the folios that have the tag.
    pub(super) fn write_tagged(
        self,
        file: &FileCore<P, V>,
        pages: IndexRange,
        tag: Tag,
        (wait, users): (Wait, &dyn FileUsers<P, V>),
    ) {
        let mut run = Run::new(self.transfers(file));
        self.for_each_folio(file, pages, Filter::Tagged(tag), |(index, head)| {
            let _reference = self.hold(head);
            let mut attempt = 0;
            while let Left::InUse = self.write_one(file, (index, head), (wait, users), &mut run) {
                // What others wait for in the meantime is under way.
                run.write();
                self.transfers(file).wait_written(head);
                P::relax(attempt);
                attempt = attempt.saturating_add(1);
            }
        });
        run.write();
    }

    /// Writes the folio at `head`, page `index`, to which the caller has a reference, if it is still dirty.
    fn write_one(
        self,
        file: &FileCore<P, V>,
        at @ (index, head): (PageIndex, Pfn),
        (wait, users): (Wait, &dyn FileUsers<P, V>),
        run: &mut Run<'_, P>,
    ) -> Left {
        let waits = wait == Wait::Yes;
        if !self.frames().known(head).get(1) {
            return Left::Done;
        }
        let Some(folio) = self.lock_found(file, at, waits) else { return Left::Done };
        let flags = folio.frame().word().flags();
        if !flags.contains(FrameFlags::DIRTY) {
            file.with_store(self.frames(), |store| {
                file.turn(self.frames(), store, at, Tag::ToWrite, Turn::Off)
            });
            return Left::Done;
        }
        // A thread that has made the file smaller is about to remove it.
        if file.ends_before(index) {
            return Left::Done;
        }
        let in_use = if waits { Left::InUse } else { Left::Done };
        let is_pinned = self.frames().folio(head).may_be_pinned();
        if flags.contains(FrameFlags::WRITEBACK) || is_pinned && !waits {
            return in_use;
        }
        if self.clean(file, &folio, users) == Cleaned::InTransit {
            return in_use;
        }
        // What a program wrote past the end by a mapping is not written: as on Linux it is zeros from here
        // on. Who makes the file larger waits for the folio.
        let past_end = file.zeros_from(file.size());
        if past_end < folio.bytes().end {
            folio.zero(&(past_end..folio.bytes().end));
        }
        file.with_store(self.frames(), |store| {
            // The device that a pin is for may write to it at any time, and nothing tells of that: it stays
            // dirty.
            if !is_pinned {
                file.turn(self.frames(), store, at, Tag::Dirty, Turn::Off);
            }
            file.turn(self.frames(), store, at, Tag::ToWrite, Turn::Off);
            file.turn(self.frames(), store, at, Tag::Writeback, Turn::On);
        });
        let pages = folio.range();
        drop(folio);
        run.add(pages, head);
        Left::Done
    }

    /// Makes the entries that map a locked folio clean.
    pub(super) fn clean(
        self,
        file: &FileCore<P, V>,
        folio: &LockedFolio<'m, P>,
        users: &dyn FileUsers<P, V>,
    ) -> Cleaned {
        // No other thread maps it while it is locked.
        if folio.frame().as_folio().maps() == 0 {
            return Cleaned::All;
        }
        users.clean(file, folio.head(), folio.range())
    }

    /// Sleeps until the contents of a locked folio may change, for one that is about to be written by a call
    /// or through a mapping: some backings want them to stay while they are being written.
    pub fn wait_stable(self, file: &CachedFile<P>, folio: &LockedFolio<'m, P>) {
        if file.limits().stable_writes {
            self.transfers(file).wait_written(folio.head());
        }
    }

    /// Sleeps until none of these pages is being written.
    pub(super) fn wait_written(self, file: &CachedFile<P>, pages: IndexRange) {
        self.for_each_folio(file, pages, Filter::Tagged(Tag::Writeback), |(_, head)| {
            let _reference = self.hold(head);
            self.transfers(file).wait_written(head);
        });
    }
}
