//! Reading and writing pages of one file by its backing.
//!
//! A read is waited for. A write is begun: its folios have WRITEBACK, in their flags and in the store, until
//! some thread has reaped the end. Such a folio stays in the cache, and the cache holds a reference.

use crate::backing::{FileError, FileIo, IoLimits, IoToken, Transferred};
use crate::cached_file::{CachedFile, Turn};
use crate::entry::Entry;
use crate::file_memory::new_token;
use crate::index::{IndexRange, PageIndex};
use crate::locked_folio::zero_bytes;
use crate::requests::{Extent, Outcome, Request};
use crate::store::{Filter, Tag};
use core::fmt;
use quire_arch::{Order, PAGE_SHIFT, PAGE_SIZE, Pfn, PfnRange, Platform};
use quire_frame::{FailClass, FailSite, FrameFlags, Frames};
use quire_swap::{DeviceMemory, Direction, Submitted};
use quire_sync::atomic::raw::Ordering;

/// The site of reads and writes in fail plans.
const SITE: FailSite = FailSite::new("file_io");

/// The frames of a request.
type RunFrames = arrayvec::ArrayVec<PfnRange, { IoLimits::MOST_SEGMENTS as usize }>;

/// Consecutive pages that have been marked as being written, for one request. Where a backing panics before
/// it has that, they are treated as those of a request that failed.
pub(crate) struct Run<'m, P: Platform> {
    transfers: Transfers<'m, P>,
    limits: IoLimits,
    first: u64,
    frames: RunFrames,
    pages: u32,
}

impl<'m, P: Platform> Run<'m, P> {
    pub(crate) fn new(transfers: Transfers<'m, P>) -> Self {
        Self::within(transfers, transfers.file.limits())
    }

    const fn within(transfers: Transfers<'m, P>, limits: IoLimits) -> Self {
        Self { transfers, limits, first: 0, frames: RunFrames::new_const(), pages: 0 }
    }

    /// Adds the folio at `head`, which has these pages. If it does not fit in, what there was before is
    /// written.
    pub(crate) fn add(&mut self, pages: IndexRange, head: Pfn) {
        if self.push(pages, head) {
            return;
        }
        let mut full = core::mem::replace(self, Self::within(self.transfers, self.limits));
        let fits = self.push(pages, head);
        debug_assert!(fits, "a request has no room for a folio of {pages:?}");
        full.write();
    }

    /// Adds a folio, unless the request would have more than the limits allow, or a gap.
    fn push(&mut self, pages: IndexRange, head: Pfn) -> bool {
        if self.pages == 0 {
            self.first = pages.start();
        }
        let most = self.limits.pages.clamp(1, IoLimits::MOST_PAGES);
        // No folio has more pages than a request may have.
        let with = self.pages + pages.pages() as u32;
        if pages.start() != self.first + u64::from(self.pages) || with > most {
            return false;
        }
        let segments = self.frames.len();
        let end = head.offset(pages.pages());
        match self.frames.last_mut() {
            Some(last) if last.end() == head => *last = PfnRange::new(last.start(), end),
            _ if segments >= self.limits.segments.clamp(1, IoLimits::MOST_SEGMENTS) as usize => return false,
            _ => self.frames.push(PfnRange::new(head, end)),
        }
        self.pages = with;
        true
    }

    /// Begins to write it. May sleep.
    pub(crate) fn write(&mut self) {
        if self.pages == 0 {
            return;
        }
        let offset = self.first << PAGE_SHIFT;
        let all = u64::from(self.pages) << PAGE_SHIFT;
        // A thread that makes the file smaller meanwhile waits for these folios, and drops them then.
        let bytes = self.transfers.file.size().saturating_sub(offset).min(all);
        let (request, token) = self.transfers.begin(Extent { bytes, ..self.extent() });
        // From here on the request has the pages.
        self.pages = 0;
        let frames = core::mem::take(&mut self.frames);
        let io = FileIo { direction: Direction::Write, offset, bytes, frames: &frames, token };
        // SAFETY: folios that are being written stay in the cache, which has a reference.
        unsafe { self.transfers.submit(request, &io) };
    }

    fn extent(&self) -> Extent {
        Extent { first: self.first, written: self.pages, bytes: 0 }
    }
}

impl<P: Platform> Drop for Run<'_, P> {
    fn drop(&mut self) {
        if self.pages > 0 {
            self.transfers.written(self.extent(), Err(FileError::Io));
            self.transfers.wake();
        }
    }
}

/// The transfers of one file.
pub(crate) struct Transfers<'m, P: Platform> {
    frames: &'m Frames<P>,
    file: &'m CachedFile<P>,
}

impl<P: Platform> Clone for Transfers<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Transfers<'_, P> {}

impl<'m, P: Platform> Transfers<'m, P> {
    pub(crate) const fn new(frames: &'m Frames<P>, file: &'m CachedFile<P>) -> Self {
        Self { frames, file }
    }

    /// Fills the block of `order` at `head` with what the file has from page `index` on. May sleep.
    ///
    /// # Errors
    ///
    /// The backing's, or one of the fail plan. The block may have anything then.
    ///
    /// # Safety
    ///
    /// The block lies in a folio that the caller has locked, and no other thread looks at its contents. If
    /// this panics, as a backing may, the folio is not used for anything else.
    pub(crate) unsafe fn read_block(
        self,
        index: PageIndex,
        (head, order): (Pfn, Order),
    ) -> Result<(), FileError> {
        let platform = self.frames.platform();
        let offset = index.get() << PAGE_SHIFT;
        let bytes = self.file.size().saturating_sub(offset).min(order.bytes());
        // SAFETY: the block is the caller's.
        unsafe { platform.fill_user(head, order) };
        let extent = Extent { first: index.get(), written: 0, bytes };
        let (request, token) = self.begin(extent);
        // As many pages as the bytes need.
        let pages = bytes.div_ceil(PAGE_SIZE).max(1);
        let run = [PfnRange::new(head, head.offset(pages))];
        let unfetched = Unfetched { transfers: self, request, token };
        // SAFETY: the block is the caller's, which waits for the end.
        unsafe {
            self.submit(request, &FileIo { direction: Direction::Read, offset, bytes, frames: &run, token });
        }
        let outcome = self.wait_read(request, token);
        core::mem::forget(unfetched);
        let valid = outcome?;
        if valid == 0 {
            // SAFETY: as above, and the request has ended.
            unsafe { platform.zero_user(head, order) };
        } else {
            // SAFETY: as above; the bytes are those of the block behind the first `valid`.
            unsafe { zero_bytes(platform, head, valid, order.bytes()) };
        }
        Ok(())
    }

    /// Room for a request, once there is some.
    fn begin(self, extent: Extent) -> (&'m Request, IoToken) {
        let backing = self.file.backing();
        let most = self.file.limits().in_flight;
        let token = new_token();
        loop {
            if let Some(request) = self.file.requests.begin(token, most, extent) {
                return (request, IoToken::new(token));
            }
            self.reap();
            self.frames
                .platform()
                .park(backing.wait_key(), &mut || !self.file.requests.has_room(most) && !backing.has_done());
        }
    }

    /// Passes a request to the backing.
    ///
    /// # Safety
    ///
    /// As for [`FileBacking::submit`](crate::FileBacking::submit).
    unsafe fn submit(self, request: &'m Request, io: &FileIo<'_>) {
        let class = match io.direction {
            Direction::Read => FailClass::DeviceRead,
            Direction::Write => FailClass::DeviceWrite,
        };
        let struck = self.frames.fail_points().strikes(class, SITE);
        if struck || io.bytes == 0 {
            // Without bytes the file ends before it by now.
            request.ask(io.token);
            return self.complete(io.token, if struck { Err(FileError::Io) } else { Ok(Transferred::All) });
        }
        let backing = self.file.backing();
        let mut unsubmitted = Unsubmitted { transfers: self, request, token: io.token, is_asked: false };
        loop {
            // First: what ends a request after this counts a reap after this.
            let (reaps, progress) = (self.file.reaps.load(Ordering::Acquire), backing.progress());
            request.ask(io.token);
            unsubmitted.is_asked = true;
            // SAFETY: the caller's promise.
            match unsafe { backing.submit(self.memory(), io) } {
                Submitted::Done(result) => {
                    core::mem::forget(unsubmitted);
                    return self.complete(io.token, result);
                }
                Submitted::Begun => return core::mem::forget(unsubmitted),
                // Reported though it was not taken: it has ended.
                Submitted::QueueFull if !request.take_back(io.token) => {
                    return core::mem::forget(unsubmitted);
                }
                Submitted::QueueFull => {
                    unsubmitted.is_asked = false;
                    self.reap();
                    self.frames.platform().park(backing.wait_key(), &mut || {
                        self.file.reaps.load(Ordering::Acquire) == reaps
                            && backing.progress() == progress
                            && !backing.has_done()
                    });
                }
            }
        }
    }

    fn memory(self) -> DeviceMemory<'m, P> {
        DeviceMemory::new(self.frames)
    }

    /// The end of a request, if there is one of that token.
    fn complete(self, token: IoToken, result: Result<Transferred, FileError>) {
        let Some(request) = self.file.requests.claim(token) else {
            if self.file.requests.end_lost(token) {
                self.wake();
            }
            return;
        };
        let (extent, outcome) = (request.extent(), request.outcome(result));
        if extent.written == 0 {
            request.end(token, outcome);
        } else {
            self.written(extent, outcome);
            request.clear();
        }
        self.wake();
    }

    /// Wakes all threads that wait for a request of the file.
    fn wake(self) {
        self.frames.platform().unpark(self.file.backing().wait_key());
    }

    /// Pages are written, or could not be: as in Linux they are clean then, too, and the openings are told.
    fn written(self, extent: Extent, outcome: Outcome) {
        if let Err(error) = outcome {
            self.file.errors.add(error);
            self.file.failed_writes.fetch_add(1, Ordering::Relaxed);
        }
        let pages = IndexRange::new(extent.first, extent.first + u64::from(extent.written));
        self.file.with_store(self.frames, |store| {
            let mut rest = pages;
            while let Some(stored) = store.next(rest, Filter::Tagged(Tag::Writeback)) {
                rest = IndexRange::new(stored.range().end(), pages.end());
                if let Entry::Folio(head) = stored.entry {
                    self.file.turn(self.frames, store, (stored.start, head), Tag::Writeback, Turn::Off);
                }
            }
        });
    }

    /// Reaps the completions of the file, and wakes all threads that wait for one.
    pub(crate) fn reap(self) {
        let mut any = false;
        self.file.backing().reap(self.memory(), &mut |token, result| {
            any = true;
            self.complete(token, result);
        });
        if any {
            // Release: pairs with the loads of the threads that wait for a full queue.
            self.file.reaps.fetch_add(1, Ordering::Release);
            self.wake();
        }
    }

    fn wait_read(self, request: &Request, token: IoToken) -> Outcome {
        let backing = self.file.backing();
        loop {
            if let Some(outcome) = request.fetch(token) {
                // There is room for another one.
                self.frames.platform().unpark(backing.wait_key());
                return outcome;
            }
            self.reap();
            self.frames
                .platform()
                .park(backing.wait_key(), &mut || !request.has_ended(token) && !backing.has_done());
        }
    }

    /// Sleeps until no request is under way. No new one is begun.
    pub(crate) fn wait_idle(self) {
        let backing = self.file.backing();
        let busy = || !self.file.requests.is_idle();
        while busy() {
            self.reap();
            self.frames.platform().park(backing.wait_key(), &mut || busy() && !backing.has_done());
        }
    }

    /// Sleeps until the folio at `head`, to which the caller has a reference, is not being written.
    pub(crate) fn wait_written(self, head: Pfn) {
        let backing = self.file.backing();
        let frame = self.frames.known(head);
        let busy = || frame.word().flags().contains(FrameFlags::WRITEBACK);
        while busy() {
            self.reap();
            self.frames.platform().park(backing.wait_key(), &mut || busy() && !backing.has_done());
        }
    }
}

/// A read whose outcome is to be fetched, unless the backing panics.
struct Unfetched<'m, P: Platform> {
    transfers: Transfers<'m, P>,
    request: &'m Request,
    token: IoToken,
}

impl<P: Platform> Drop for Unfetched<'_, P> {
    fn drop(&mut self) {
        self.request.lose(self.token);
        // There may be room for another one.
        self.transfers.wake();
    }
}

/// A request that the backing may not have, unless it panics: then it has not, or it has completed it.
struct Unsubmitted<'m, P: Platform> {
    transfers: Transfers<'m, P>,
    request: &'m Request,
    token: IoToken,
    /// Whether another thread may have reported its end.
    is_asked: bool,
}

impl<P: Platform> Drop for Unsubmitted<'_, P> {
    fn drop(&mut self) {
        if self.is_asked && !self.request.take_back(self.token) {
            return;
        }
        let extent = self.request.extent();
        if extent.written != 0 {
            self.transfers.written(extent, Err(FileError::Io));
        }
        self.request.clear();
        self.transfers.wake();
    }
}

impl<P: Platform> fmt::Debug for Transfers<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.file, f)
    }
}
