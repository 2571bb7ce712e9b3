//! Calls that read and write a file through the cache.
//!
//! The program's memory is made accessible first, with nothing held. Then a page is locked and copied without
//! faults; what is missing after that is tried again. So a program may write a file from a mapping of the
//! same page, and no thread faults with a folio locked.

use super::PageCache;
use super::obtain::{Came, Fill, Unfilled};
use crate::cached_file::{MAX_FILE_BYTES, Prepared};
use crate::error::PageError;
use crate::file_core::{FileCore, Mapping};
use crate::index::PageIndex;
use crate::locked_folio::LockedFolio;
use crate::transfers::zero_bytes;
use crate::user_copy::{PageBytes, UserCopy};
use crate::users::{Cleaned, FileUsers};
use quire_arch::{Order, PAGE_SHIFT, PAGE_SIZE, Platform};
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

/// A part of a call: bytes of one page.
#[derive(Clone, Copy)]
struct Part {
    index: PageIndex,
    /// Where in the page.
    from: u64,
    bytes: u64,
}

impl Part {
    /// The part that begins at byte `at`, of at most `bytes`.
    fn new(at: u64, bytes: u64) -> Option<Self> {
        let (index, from) = (PageIndex::new(at >> PAGE_SHIFT)?, at & (PAGE_SIZE - 1));
        Some(Self { index, from, bytes: bytes.min(PAGE_SIZE - from) })
    }

    /// The first byte of its page.
    fn page_start(self) -> u64 {
        self.index.get() << PAGE_SHIFT
    }

    /// Whether the first `copied` bytes of it are all that its page has, in a file of `size` bytes.
    fn is_all(self, copied: u64, size: u64) -> bool {
        let start = self.page_start();
        size <= start || self.from == 0 && start + copied >= size.min(start + PAGE_SIZE)
    }
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
        let mut done = 0;
        loop {
            match self.read_part(file, at.saturating_add(done), to, program) {
                Ok(0) => return Transfer { bytes: done, stopped: None },
                Ok(bytes) => done += bytes,
                Err(error) => return Transfer { bytes: done, stopped: Some(error) },
            }
        }
    }

    /// Reads bytes of one page: none at the end.
    #[cfg_attr(debug_assertions, track_caller)]
    fn read_part(
        self,
        file: &FileCore<P, V>,
        at: u64,
        to: &mut dyn UserCopy,
        program: &Membership,
    ) -> Result<u64, PageError> {
        loop {
            let wanted = to.left().min(file.size().saturating_sub(at));
            let Some(part) = Part::new(at, wanted).filter(|part| part.bytes > 0) else { return Ok(0) };
            let ready = to.fault_in(part.bytes as usize) as u64;
            if ready == 0 {
                return Err(PageError::BadAddress);
            }
            let folio = match self.page_in(file, part.index, program) {
                Ok(page) => page.folio,
                // It was made smaller since.
                Err(PageError::PastEnd) => return Ok(0),
                Err(error) => return Err(error),
            };
            // After the folio was locked: what is past the end is not shown.
            let bytes = ready.min(part.bytes).min(file.size().saturating_sub(at));
            let copied = copy(self.platform(), &folio, Part { bytes, ..part }, to, false);
            drop(folio);
            if copied > 0 {
                to.advance(copied as usize);
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
        let mut done = 0;
        while from.left() > 0 {
            match self.write_part(file, at.saturating_add(done), from, (program, users)) {
                Ok(bytes) => done += bytes,
                Err(error) => return Transfer { bytes: done, stopped: Some(error) },
            }
        }
        Transfer { bytes: done, stopped: None }
    }

    /// Writes bytes of one page: at least one.
    #[cfg_attr(debug_assertions, track_caller)]
    fn write_part(
        self,
        file: &FileCore<P, V>,
        at: u64,
        from: &mut dyn UserCopy,
        (program, users): (&Membership, &dyn FileUsers<P, V>),
    ) -> Result<u64, PageError> {
        loop {
            let room = MAX_FILE_BYTES.saturating_sub(at);
            let part = Part::new(at, from.left().min(room)).filter(|part| part.bytes > 0);
            let part = part.ok_or(PageError::TooLarge)?;
            let ready = (from.fault_in(part.bytes as usize) as u64).min(part.bytes);
            if ready == 0 {
                return Err(PageError::BadAddress);
            }
            let part = Part { bytes: ready, ..part };
            let prepared = file.prepare_write(part.index)?;
            // What the page has besides is read first, unless all of it is written, or the file ends before.
            let size = file.size();
            let fill = if part.is_all(part.bytes, size) { Fill::ByCaller } else { Fill::Read };
            let copied = self.obtain(file, part.index, program, fill, |folio, came| {
                self.write_folio(file, (folio, came), (part, prepared), (from, users))
            })?;
            if copied > 0 {
                from.advance(copied as usize);
                return Ok(copied);
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
    ) -> u64 {
        let at = part.page_start() + part.from;
        let new = (came == Came::Empty).then(|| Unfilled::new(self, file, (part.index, &folio)));
        if !file.is_prepared(prepared) {
            return 0;
        }
        self.wait_stable(file, &folio);
        let size = file.size();
        let zeroes = !file.backing().limits().tail_stays;
        if zeroes && came != Came::Empty && at > size && size > part.page_start() {
            // Between the end of the file and the bytes there may be what a program wrote by a mapping.
            if self.clean(file, &folio, part.index, users) == Cleaned::InTransit {
                return 0;
            }
            // SAFETY: the folio is locked, and the bytes are in its page.
            unsafe { zero_bytes(self.platform(), folio.head(), size - part.page_start(), part.from) };
        }
        let copied = copy(self.platform(), &folio, part, from, true);
        let is_good = came != Came::Empty || part.is_all(copied, size);
        if copied == 0 && came == Came::Empty || !is_good {
            // It was not read, and has bytes that are not the file's. It leaves the cache, and is read the
            // next time.
            return 0;
        }
        if new.is_some() {
            // SAFETY: the folio is locked and new, and the bytes are in its page.
            unsafe {
                zero_bytes(self.platform(), folio.head(), 0, part.from);
                zero_bytes(self.platform(), folio.head(), part.from + copied, PAGE_SIZE);
            }
        }
        new.into_iter().for_each(Unfilled::filled);
        if copied > 0 {
            file.mark_dirty(self.frames(), folio.head());
        }
        let end = at + copied;
        if end <= size {
            return copied;
        }
        if size > part.page_start() {
            // The end was in this page, which is locked, or at its start.
            file.size.fetch_max(end, Ordering::Release);
        } else {
            drop(folio);
            self.extend(file, end, users);
        }
        copied
    }
}

/// Copies bytes between a locked folio and a program.
fn copy<P: Platform>(
    platform: &P,
    folio: &LockedFolio<'_, P>,
    part: Part,
    user: &mut dyn UserCopy,
    to_file: bool,
) -> u64 {
    if to_file {
        // SAFETY: the page is locked. Where a machine has no bytes this says that it is not zeros any more.
        unsafe { platform.fill_user(folio.head(), Order::ZERO) };
    }
    // SAFETY: the bytes are in the page, which stays while the folio is locked; no reference leads there.
    let page = unsafe {
        PageBytes::new(
            platform.direct_map(folio.head()).add(part.from as usize),
            part.bytes as usize,
            to_file,
        )
    };
    (user.copy(page) as u64).min(part.bytes)
}
