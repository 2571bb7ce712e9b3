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

/// Consecutive pages for one request.
struct RunPages {
    limits: IoLimits,
    first: u64,
    frames: RunFrames,
    pages: u32,
}

impl RunPages {
    const fn new(limits: IoLimits) -> Self {
        Self { limits, first: 0, frames: RunFrames::new_const(), pages: 0 }
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
        let segments = self.limits.segments.clamp(1, IoLimits::MOST_SEGMENTS) as usize;
        let added = add_frames(&mut self.frames, PfnRange::new(head, head.offset(pages.pages())), segments);
        if added {
            self.pages = with;
        }
        added
    }
}

/// Adds frames behind others, unless these are more than so many segments then.
fn add_frames(frames: &mut RunFrames, new: PfnRange, most: usize) -> bool {
    let segments = frames.len();
    match frames.last_mut() {
        Some(last) if last.end() == new.start() => *last = PfnRange::new(last.start(), new.end()),
        _ if segments >= most => return false,
        _ => frames.push(new),
    }
    true
}

/// Consecutive pages that have been marked as being written, for one request. Where a backing panics before
/// it has that, they are treated as those of a request that failed.
pub(crate) struct Run<'m, P: Platform> {
    transfers: Transfers<'m, P>,
    run: RunPages,
}

impl<'m, P: Platform> Run<'m, P> {
    pub(crate) fn new(transfers: Transfers<'m, P>) -> Self {
        Self { transfers, run: RunPages::new(transfers.file.limits()) }
    }

    /// Adds the folio at `head`, which has these pages. If it does not fit in, what there was before is
    /// written.
    pub(crate) fn add(&mut self, pages: IndexRange, head: Pfn) {
        if self.run.push(pages, head) {
            return;
        }
        let mut full = core::mem::replace(self, Self::new(self.transfers));
        let fits = self.run.push(pages, head);
        debug_assert!(fits, "a request has no room for a folio of {pages:?}");
        full.write();
    }

    /// Begins to write it. May sleep.
    pub(crate) fn write(&mut self) {
        if self.run.pages == 0 {
            return;
        }
        let offset = self.run.first << PAGE_SHIFT;
        let all = u64::from(self.run.pages) << PAGE_SHIFT;
        // A thread that makes the file smaller meanwhile waits for these folios, and drops them then.
        let bytes = self.transfers.file.size().saturating_sub(offset).min(all);
        let (request, token) = self.transfers.begin(Extent { bytes, ..self.extent() });
        // From here on the request has the pages.
        self.run.pages = 0;
        let frames = core::mem::take(&mut self.run.frames);
        let io = FileIo { direction: Direction::Write, offset, bytes, frames: &frames, token };
        // SAFETY: folios that are being written stay in the cache, which has a reference.
        unsafe { self.transfers.submit(request, &io) };
    }

    fn extent(&self) -> Extent {
        Extent { first: self.run.first, written: self.run.pages, bytes: 0 }
    }
}

impl<P: Platform> Drop for Run<'_, P> {
    fn drop(&mut self) {
        if self.run.pages > 0 {
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

    /// How many of these folios, from the first on, one request may transfer.
    pub(crate) fn fits(self, mut folios: impl Iterator<Item = (IndexRange, Pfn)>) -> usize {
        let mut run = RunPages::new(self.file.limits());
        // One does.
        folios.by_ref().take_while(|&(pages, head)| run.push(pages, head)).count().max(1)
    }

    /// Fills these blocks with what the file has from page `index` on. May sleep.
    ///
    /// # Errors
    ///
    /// The backing's, or one of the fail plan. The blocks may have anything then.
    ///
    /// # Safety
    ///
    /// They lie in folios that the caller has locked, and no other thread looks at their contents; one
    /// request may have all of them. If this panics, as a backing may, the folios are not used for anything else.
    pub(crate) unsafe fn read_blocks(
        self,
        index: PageIndex,
        blocks: &[(Pfn, Order)],
    ) -> Result<(), FileError> {
        let platform = self.frames.platform();
        let offset = index.get() << PAGE_SHIFT;
        let room = blocks.iter().map(|(_, order)| order.bytes()).sum();
        let bytes = self.file.size().saturating_sub(offset).min(room);
        // As many pages as the bytes need.
        let mut pages = bytes.div_ceil(PAGE_SIZE).max(1);
        let mut frames = RunFrames::new();
        for &(head, order) in blocks {
            // SAFETY: the block is the caller's.
            unsafe { platform.fill_user(head, order) };
            let part = pages.min(order.pages());
            pages -= part;
            let added = part == 0
                || add_frames(
                    &mut frames,
                    PfnRange::new(head, head.offset(part)),
                    IoLimits::MOST_SEGMENTS as usize,
                );
            debug_assert!(added, "{} blocks for one request", blocks.len());
        }
        let extent = Extent { first: index.get(), written: 0, bytes };
        let (request, token) = self.begin(extent);
        let unfetched = Unfetched { transfers: self, request, token };
        let io = FileIo { direction: Direction::Read, offset, bytes, frames: &frames, token };
        // SAFETY: the blocks are the caller's, which waits for the end.
        unsafe { self.submit(request, &io) };
        let outcome = self.wait_read(request, token);
        core::mem::forget(unfetched);
        let mut valid = outcome?;
        for &(head, order) in blocks {
            let own = valid.min(order.bytes());
            valid -= own;
            if own == 0 {
                // SAFETY: as above, and the request has ended.
                unsafe { platform.zero_user(head, order) };
            } else {
                // SAFETY: as above; the bytes are those of the block behind the first `own`.
                unsafe { zero_bytes(platform, head, own, order.bytes()) };
            }
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

    /// Sleeps until the folio at `head`, to which the caller has a reference, is not being written by the
    /// backing. One of shared memory never is: a swap device may be writing it, and a thread that changes its
    /// bytes then marks it as dirty.
    pub(crate) fn wait_written(self, head: Pfn) {
        if self.file.is_shmem() {
            return;
        }
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
