//! Calls that read and write a file through the cache.
//!
//! A page is locked and copied without faults. The program's memory is made accessible with nothing held:
//! before that, but for writes to shared memory, and where something is missing after it. So a program may
//! write a file from a mapping of the same page, and no thread faults with a folio locked.

use super::PageCache;
use super::new_folio::{Fill, LargeOrders};
use super::obtain::{Came, Wanted};
use super::seal::check_write;
use super::unfilled::Unfilled;
use crate::cached_file::{CachedFile, MAX_FILE_BYTES, NewFolioOrders, Prepared, UnusedPages};
use crate::error::PageError;
use crate::file_core::{FileCore, Mapping};
use crate::index::{IndexRange, PageIndex};
use crate::locked_folio::LockedFolio;
use crate::user_copy::{PageBytes, UserCopy};
use crate::users::{Cleaned, FileUsers};
use core::ops::Range;
use core::ptr::NonNull;
use quire_arch::{Order, OrderSet, PAGE_SHIFT, PAGE_SIZE, Platform};
use quire_memcg::Membership;
use quire_sync::atomic::raw::Ordering;

/// How far a call came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a shortage of memory is to be dealt with, and the call continued"]
pub struct Transfer {
    /// Bytes that were copied.
    pub bytes: u64,
    /// What kept it from going on, if it was not the end.
    pub stopped: Option<PageError>,
}

/// A part of a call: bytes of one folio.
#[derive(Clone, Copy)]
struct Part {
    /// The first one.
    at: u64,
    bytes: u64,
}

impl Part {
    /// The part that begins at byte `at`, of at most `bytes`, where folios have `largest` at most.
    fn new(at: u64, bytes: u64, largest: Order) -> Self {
        Self { at, bytes: bytes.min(largest.bytes() - (at & (largest.bytes() - 1))) }
    }

    /// Its first page.
    fn index(self) -> Option<PageIndex> {
        PageIndex::new(self.at >> PAGE_SHIFT)
    }

    /// Its pages.
    fn pages(self) -> IndexRange {
        IndexRange::new(self.at >> PAGE_SHIFT, (self.at + self.bytes).div_ceil(PAGE_SIZE))
    }

    /// What of it is in a folio.
    fn within(self, folio: &Range<u64>) -> Self {
        Self { bytes: self.bytes.min(folio.end - self.at), ..self }
    }

    /// The order of a folio that is made for a call which writes it, as Linux has it: one that the call
    /// fills.
    fn order(self) -> Order {
        let pages = (self.bytes >> PAGE_SHIFT).max(1);
        let aligned = (self.at >> PAGE_SHIFT).trailing_zeros().min(pages.ilog2());
        Order::new(aligned as u8).unwrap_or(Order::ZERO)
    }

    /// Whether the first `copied` bytes of it are all that the folio has in a file of `size` bytes.
    fn is_all(self, copied: u64, folio: &Range<u64>, size: u64) -> bool {
        size <= folio.start || self.at == folio.start && self.at + copied >= size.min(folio.end)
    }
}

/// The program's side of a call, and how much of it was made accessible.
struct Side<'u> {
    user: &'u mut dyn UserCopy,
    /// Bytes that are accessible from the position on, if they were not paged out since.
    ready: u64,
    /// The most that are made accessible at once.
    most: u64,
}

impl<'u> Side<'u> {
    fn new(user: &'u mut dyn UserCopy) -> Self {
        Self { user, ready: 0, most: u64::MAX }
    }

    fn left(&self) -> u64 {
        self.user.left()
    }

    /// How many of the next `bytes` bytes were made accessible before.
    fn ready_before(&self, bytes: u64) -> u64 {
        self.ready.min(bytes)
    }

    /// How many of the next `bytes` bytes are accessible. Nothing is locked.
    fn ready(&mut self, bytes: u64) -> u64 {
        if self.ready == 0 {
            self.ready = self.user.fault_in(bytes.min(self.most) as usize) as u64;
        }
        self.ready.min(bytes)
    }

    /// So many bytes were copied, of those that were `wanted`. Where they are fewer, memory may be too short
    /// for all of it to be accessible: as Linux, from then on half as much at a time.
    fn copied(&mut self, bytes: u64, wanted: u64) {
        if bytes > 0 {
            self.user.advance(bytes as usize);
        }
        self.ready = self.ready.saturating_sub(bytes);
        if bytes < wanted {
            self.ready = 0;
            self.most = (wanted / 2).max(PAGE_SIZE);
        }
    }
}

/// How far the copy of a part came.
#[derive(Clone, Copy)]
struct Copied {
    /// Bytes that are in the file.
    bytes: u64,
    /// Bytes of the part that could have been.
    wanted: u64,
}

impl Copied {
    /// The folio was not fit for it, or has to be prepared.
    const NOT_TRIED: Self = Self { bytes: 0, wanted: 0 };
}

impl<'m, P: Platform, V: Mapping> PageCache<'m, P, V> {
    /// Reads a file from byte `at` on: until its end, or that of `to`. May sleep; nothing is held. `program`
    /// pays for what is brought into the cache.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(
        self,
        file: &FileCore<P, V>,
        at: u64,
        to: &mut dyn UserCopy,
        program: &Membership,
    ) -> Transfer {
        let (mut done, mut side) = (0, Side::new(to));
        loop {
            match self.read_part(file, at.saturating_add(done), &mut side, program) {
                Ok(0) => return Transfer { bytes: done, stopped: None },
                Ok(bytes) => done += bytes,
                Err(error) => return Transfer { bytes: done, stopped: Some(error) },
            }
        }
    }

    /// Reads bytes of one folio: none at the end.
    #[cfg_attr(debug_assertions, track_caller)]
    fn read_part(
        self,
        file: &FileCore<P, V>,
        at: u64,
        to: &mut Side<'_>,
        program: &Membership,
    ) -> Result<u64, PageError> {
        loop {
            let wanted = to.left().min(file.size().saturating_sub(at));
            let part = Part::new(at, wanted, file.largest_order());
            let Some(index) = part.index().filter(|_| part.bytes > 0) else { return Ok(0) };
            let ready = to.ready(part.bytes);
            if ready == 0 {
                return Err(PageError::BadAddress);
            }
            if file.is_shmem()
                && (file.is_hole(self.frames(), index) || UnusedPages::of(file).has(self.frames(), index))
            {
                // It stays so: no page comes to exist.
                let page = IndexRange::block(index, Order::ZERO).bytes();
                let part = Part { bytes: ready.min(part.bytes), ..part }.within(&page);
                let copied = copy_zeros(part, to.user);
                to.copied(copied, part.bytes);
                if copied > 0 {
                    return Ok(copied);
                }
                continue;
            }
            let folio = match self.page_in(file, (index, LargeOrders::NONE), IndexRange::ALL, program) {
                Ok(page) => page.folio,
                // It was made smaller since.
                Err(PageError::PastEnd) => return Ok(0),
                Err(error) => return Err(error),
            };
            // After the folio was locked: what is past the end is not shown.
            let bytes = ready.min(part.bytes).min(file.size().saturating_sub(at));
            let part = Part { bytes, ..part }.within(&folio.bytes());
            let copied = copy(self.platform(), &folio, part, to.user, false);
            drop(folio);
            to.copied(copied, part.bytes);
            if copied > 0 {
                return Ok(copied);
            }
        }
    }

    /// Writes a file from byte `at` on, and makes it larger as far as that needs. The caller keeps other
    /// calls away that write to the file or change its size. May sleep; nothing else is held. `program` pays
    /// for what is brought into the cache.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(
        self,
        file: &FileCore<P, V>,
        at: u64,
        from: &mut dyn UserCopy,
        program: &Membership,
        users: &dyn FileUsers<P, V>,
    ) -> Transfer {
        let (mut done, mut side) = (0, Side::new(from));
        while side.left() > 0 {
            match self.write_part(file, at.saturating_add(done), &mut side, (program, users)) {
                Ok(bytes) => done += bytes,
                Err(error) => return Transfer { bytes: done, stopped: Some(error) },
            }
        }
        Transfer { bytes: done, stopped: None }
    }

    /// Writes bytes of one folio: at least one.
    #[cfg_attr(debug_assertions, track_caller)]
    fn write_part(
        self,
        file: &FileCore<P, V>,
        at: u64,
        from: &mut Side<'_>,
        (program, users): (&Membership, &dyn FileUsers<P, V>),
    ) -> Result<u64, PageError> {
        let (mut folio_pages, mut was_tried) = (IndexRange::default(), false);
        loop {
            let room = MAX_FILE_BYTES.saturating_sub(at);
            let (part, shmem) = next_part(file, at, from.left().min(room));
            let index = part.index().filter(|_| part.bytes > 0).ok_or(PageError::TooLarge)?;
            // As Linux, all of a part: up to the end of the file nothing of it is written.
            let wanted_end = part.at + part.bytes;
            check_write(file, wanted_end)?;
            let mut ready = from.ready_before(part.bytes);
            let is_first = ready == 0 && shmem.is_some() && !was_tried;
            if is_first {
                // As in Linux shared memory is there before the program's memory is looked at.
                ready = part.bytes;
            } else if ready == 0 {
                ready = from.ready(part.bytes);
            }
            if ready == 0 {
                return Err(PageError::BadAddress);
            }
            let part = Part { bytes: ready, ..part };
            let orders = shmem.unwrap_or(OrderSet::ALL.up_to(part.order()));
            let is_large = orders.most() > Order::ZERO;
            // With all that the folio has besides, once there is one: it is dirty as a whole.
            let prepared = file.prepare_write(part.pages().with(folio_pages))?;
            // What a page has besides is read first, unless all of it is written, or the file ends before. Of
            // a larger folio, all but the start of its first page is written.
            let page = IndexRange::block(index, Order::ZERO).bytes();
            let in_page = part.bytes.min(page.end - at);
            let fill = match part.is_all(in_page, &page, file.size()) || is_large {
                true => Fill::ByCaller,
                false => Fill::Read,
            };
            let wanted = Wanted { index, large: LargeOrders::of(orders), fill };
            let copied = self.obtain(file, wanted, program, |folio, came| {
                check_write(file, wanted_end)?;
                folio_pages = folio.range();
                self.write_folio(file, (folio, came), (part, prepared), (&mut *from.user, users))
            })?;
            was_tried |= copied.wanted > 0;
            // What was not made accessible says nothing of how much can be.
            from.copied(copied.bytes, if is_first { copied.bytes } else { copied.wanted });
            if copied.bytes > 0 {
                return Ok(copied.bytes);
            }
        }
    }

    /// Copies to a locked folio, with Invalidate held, and returns how many bytes: none if it is to be tried
    /// again.
    fn write_folio(
        self,
        file: &FileCore<P, V>,
        (folio, came): (LockedFolio<'m, P>, Came),
        (part, prepared): (Part, Prepared),
        (from, users): (&mut dyn UserCopy, &dyn FileUsers<P, V>),
    ) -> Result<Copied, PageError> {
        let bytes = folio.bytes();
        let part = part.within(&bytes);
        let mut new = (came == Came::Empty).then(|| Unfilled::new(self, file, &folio));
        if !file.is_prepared(prepared, folio.range()) {
            return Ok(Copied::NOT_TRIED);
        }
        self.wait_stable(file, &folio);
        let size = file.size();
        let past_end = file.zeros_from(size);
        if came != Came::Empty && part.at > past_end && size > bytes.start {
            // Between the end of the file and the bytes there may be what a program wrote by a mapping.
            if self.clean(file, &folio, users) == Cleaned::InTransit {
                return Ok(Copied::NOT_TRIED);
            }
            folio.zero(&(past_end..part.at));
        }
        let is_large = folio.order() > Order::ZERO;
        let is_partly_old = came == Came::Empty && !part.is_all(part.bytes, &bytes, size);
        if let Some(new) = new.as_mut().filter(|_| is_partly_old) {
            // The page where the bytes begin: behind that they fill a large folio.
            new.read(Order::ZERO)?;
        }
        let copied = copy(self.platform(), &folio, part, from, true);
        let is_good = match came {
            Came::Empty if is_large => part.at + copied == bytes.end,
            Came::Empty => is_partly_old || copied > 0 && part.is_all(copied, &bytes, size),
            Came::Before | Came::Read | Came::Zeros => true,
        };
        if !is_good {
            // It was not read, and has bytes that are not the file's. It leaves the cache, and is read the
            // next time, or filled by less.
            return Ok(Copied { bytes: 0, wanted: part.bytes });
        }
        if new.is_some() && !is_partly_old {
            folio.zero(&(bytes.start..part.at));
            folio.zero(&(part.at + copied..bytes.end));
        }
        new.into_iter().for_each(Unfilled::filled);
        if copied > 0 || file.is_shmem() {
            file.mark_dirty(self.frames(), folio.head());
            UnusedPages::of(file).note_use(self.frames(), folio.start());
        }
        // As in Linux shared memory goes on up to where it was to be written.
        let end = part.at + copied;
        if copied == 0 && !file.is_shmem() || end <= size {
            return Ok(Copied { bytes: copied, wanted: part.bytes });
        }
        if size > bytes.start || file.is_shmem() {
            // The end was in this folio, which is locked, or at its start. Of shared memory nothing is done
            // with the folio where the end was, and a split of this one would drop what is past the end.
            file.size.fetch_max(end, Ordering::Release);
        } else {
            drop(folio);
            self.extend(file, end, users);
        }
        Ok(Copied { bytes: copied, wanted: part.bytes })
    }
}

/// What a call writes of so many bytes from byte `at` on to one folio, and of shared memory the orders of a
/// folio that is made for it. As Linux, which takes no more than a folio of the PMD's order has.
fn next_part<P: Platform>(file: &CachedFile<P>, at: u64, bytes: u64) -> (Part, Option<OrderSet>) {
    let usual = Part::new(at, bytes, NewFolioOrders::of(file).largest());
    if !file.is_shmem() {
        return (usual, None);
    }
    let part = Part::new(at, bytes, Order::PMD);
    let written = |index| NewFolioOrders::of(file).written(index, part.at + part.bytes);
    let orders = part.index().map_or(OrderSet::EMPTY, written);
    (if orders.is_empty() { usual } else { part }, Some(orders))
}

/// What a hole of shared memory reads as.
static ZEROS: [u8; PAGE_SIZE as usize] = [0; PAGE_SIZE as usize];

/// Copies zeros of one page to a program.
fn copy_zeros(part: Part, user: &mut dyn UserCopy) -> u64 {
    let bytes = part.bytes.min(PAGE_SIZE) as usize;
    // SAFETY: so many zeros there are, and they are not the target.
    let page = unsafe { PageBytes::new(NonNull::from(&ZEROS).cast(), bytes, false) };
    (user.copy(page) as u64).min(part.bytes)
}

/// Copies bytes between a locked folio and a program.
fn copy<P: Platform>(
    platform: &P,
    folio: &LockedFolio<'_, P>,
    part: Part,
    user: &mut dyn UserCopy,
    to_file: bool,
) -> u64 {
    let start = part.at - folio.bytes().start;
    if to_file {
        for nth in start >> PAGE_SHIFT..(start + part.bytes).div_ceil(PAGE_SIZE) {
            // SAFETY: the folio is locked. Where a machine has no bytes this says that the page is not zeros
            // any more.
            unsafe { platform.fill_user(folio.head().offset(nth), Order::ZERO) };
        }
    }
    // SAFETY: the bytes are in the folio, which stays while it is locked; no reference leads there.
    let page = unsafe {
        PageBytes::new(platform.direct_map(folio.head()).add(start as usize), part.bytes as usize, to_file)
    };
    (user.copy(page) as u64).min(part.bytes)
}
