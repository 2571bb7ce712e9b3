//! The table of segments: by number, on frames that it takes as it grows.

use super::caller::ShmCaller;
use super::segment::Segment;
use crate::space::Error;
use core::fmt;
use core::mem::size_of;
use core::ptr::NonNull;
use quire_arch::{Order, PAGE_SIZE, Pfn, Platform};
use quire_frame::{AllocError, KernelFrames};

/// The most segments (`SHMMNI`).
const MOST: u32 = 4096;
/// Places that are used in turn, at least.
const LEAST_CYCLE: u32 = 64;
/// A number is a place, and from this bit on how often places were used again.
const SEQUENCE_SHIFT: u32 = 15;
/// How often that is counted.
const SEQUENCES: u32 = 1 << 16;
/// Segments that are looked at in one hold of the lock.
const AT_ONCE: usize = 64;
/// Pointers in the frame of pages.
const PAGES: usize = PAGE_SIZE as usize / size_of::<usize>();

/// Why a segment does not come to a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TableError {
    /// There are as many as can be.
    Full,
    /// Another one has its key.
    KeyInUse,
    /// A frame is needed first.
    NeedsPage,
}

/// A frame for places, which no table has yet.
#[must_use]
pub(super) struct Page<'m, P: Platform>(Option<(KernelFrames<'m, P>, Pfn)>);

impl<P: Platform> Drop for Page<'_, P> {
    fn drop(&mut self) {
        if let Some((frames, pfn)) = self.0.take() {
            free(frames, pfn);
        }
    }
}

/// The segments of a name space.
pub(super) struct Table<'m, P: Platform> {
    frames: KernelFrames<'m, P>,
    /// The frame of pointers to the frames of places. Those that are there come first.
    pages: Pfn,
    page_count: usize,
    used: u32,
    /// Where the search for a free place begins.
    next: u32,
    last: Option<u32>,
    sequence: u32,
}

// SAFETY: the frames are the table's own, and segments are Send.
unsafe impl<P: Platform> Send for Table<'_, P> {}

impl<'m, P: Platform> Table<'m, P> {
    /// Places on a frame.
    const PLACES: usize = PAGE_SIZE as usize / size_of::<Option<Segment<'m, P>>>();

    /// No segment.
    ///
    /// # Errors
    ///
    /// There is no frame.
    pub(super) fn new(frames: KernelFrames<'m, P>) -> Result<Self, AllocError> {
        let pages = frames.allocate_zeroed(Order::ZERO)?;
        Ok(Self { frames, pages, page_count: 0, used: 0, next: 0, last: None, sequence: 0 })
    }

    /// A frame for more places.
    ///
    /// # Errors
    ///
    /// There is none.
    pub(super) fn allocate_page(frames: KernelFrames<'m, P>) -> Result<Page<'m, P>, AllocError> {
        const {
            assert!(Self::PLACES * PAGES >= MOST as usize * 3 / 2, "the table has no room");
            assert!(align_of::<Segment<'m, P>>() <= PAGE_SIZE as usize, "a frame is aligned to a page");
        }
        Ok(Page(Some((frames, frames.allocate(Order::ZERO)?))))
    }

    /// Takes a frame for more places, if there is room for its pointer.
    pub(super) fn give_page(&mut self, mut page: Page<'m, P>) {
        if self.page_count >= PAGES {
            return;
        }
        let Some((_, pfn)) = page.0.take() else { return };
        let places = self.frames.platform().direct_map(pfn).cast::<Option<Segment<'m, P>>>();
        for nth in 0..Self::PLACES {
            // SAFETY: the frame is this table's, and has so many places.
            unsafe { places.add(nth).write(None) };
        }
        // SAFETY: the frame of pointers is this table's, and has PAGES of them.
        unsafe { self.pointers().add(self.page_count).write(pfn.0) };
        self.page_count += 1;
    }

    /// The numbers of the frames of places.
    fn pointers(&self) -> NonNull<u64> {
        self.frames.platform().direct_map(self.pages).cast()
    }

    /// The place with a number, if there is memory for it.
    fn place(&mut self, nth: usize) -> Option<&mut Option<Segment<'m, P>>> {
        let page = nth / Self::PLACES;
        if page >= self.page_count {
            return None;
        }
        // SAFETY: so many were written.
        let pfn = Pfn(unsafe { self.pointers().add(page).read() });
        let places = self.frames.platform().direct_map(pfn).cast::<Option<Segment<'m, P>>>();
        // SAFETY: the frame has so many places, which were written when it came; the table is borrowed.
        Some(unsafe { places.add(nth % Self::PLACES).as_mut() })
    }

    /// Places that there is memory for.
    fn places(&self) -> usize {
        self.page_count * Self::PLACES
    }

    /// How many segments there are.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Puts a segment into a free place, and returns its number. As in Linux places are used in turn.
    ///
    /// # Errors
    ///
    /// [`TableError`]; the segment stays the caller's.
    pub(super) fn insert(&mut self, slot: &mut Option<Segment<'m, P>>) -> Result<i32, TableError> {
        let key = slot.as_ref().map_or(0, Segment::key);
        if key != 0 && self.find_key(key).is_some() {
            return Err(TableError::KeyInUse);
        }
        if self.used >= MOST {
            return Err(TableError::Full);
        }
        let end = (self.used * 3 / 2).max(LEAST_CYCLE);
        let next = self.next;
        let mut is_free = |place: &u32| self.place(*place as usize).is_none_or(|place| place.is_none());
        let found = (next..end).find(&mut is_free).or_else(|| (0..end).find(&mut is_free));
        let at = found.ok_or(TableError::Full)?;
        let sequence = self.sequence + u32::from(self.last.is_some_and(|last| at <= last));
        let id = ((sequence % SEQUENCES) << SEQUENCE_SHIFT | at) as i32;
        let place = self.place(at as usize).ok_or(TableError::NeedsPage)?;
        *place = slot.take();
        if let Some(segment) = place {
            segment.set_id(id);
        }
        self.sequence = sequence % SEQUENCES;
        self.used += 1;
        self.next = at + 1;
        self.last = Some(at);
        Ok(id)
    }

    /// The segment with this number.
    ///
    /// # Errors
    ///
    /// [`Error::NoSegment`].
    pub(super) fn find(&mut self, id: i32) -> Result<&mut Segment<'m, P>, Error> {
        let at = u32::try_from(id).map_err(|_| Error::NoSegment)? & ((1 << SEQUENCE_SHIFT) - 1);
        self.find_at(at).filter(|segment| segment.id() == id).ok_or(Error::NoSegment)
    }

    /// The segment in this place.
    pub(super) fn find_at(&mut self, at: u32) -> Option<&mut Segment<'m, P>> {
        self.place(at as usize)?.as_mut()
    }

    /// The segment with this key.
    pub(super) fn find_key(&mut self, key: i32) -> Option<&mut Segment<'m, P>> {
        let nth = self.position(|segment| segment.key() == key)?;
        self.place(nth)?.as_mut()
    }

    fn position(&mut self, is_wanted: impl Fn(&Segment<'m, P>) -> bool) -> Option<usize> {
        (0..self.places())
            .find(|&nth| self.place(nth).is_some_and(|place| place.as_ref().is_some_and(&is_wanted)))
    }

    fn take_at(&mut self, nth: usize) -> Option<Segment<'m, P>> {
        let taken = self.place(nth)?.take();
        self.used -= u32::from(taken.is_some());
        taken
    }

    /// Takes a segment out that was removed and has lost its last attachment.
    pub(super) fn take_gone(&mut self) -> Option<Segment<'m, P>> {
        if self.used == 0 {
            return None;
        }
        let nth = self.position(Segment::is_gone)?;
        self.take_at(nth)
    }

    /// Takes any segment out.
    pub(super) fn take_any(&mut self) -> Option<Segment<'m, P>> {
        let nth = self.position(|_| true)?;
        self.take_at(nth)
    }

    /// Notes of some segments from place `from` on which have lost attachments. Returns where to go on, and
    /// one that is gone.
    pub(super) fn settle_from(
        &mut self,
        from: usize,
        caller: &ShmCaller<'_>,
    ) -> (Option<usize>, Option<Segment<'m, P>>) {
        let end = self.places().min(from + AT_ONCE);
        for nth in from..end {
            let Some(segment) = self.place(nth).and_then(Option::as_mut) else { continue };
            segment.settle(caller);
            if segment.is_gone() {
                return (Some(nth + 1), self.take_at(nth));
            }
        }
        ((end < self.places() && self.used > 0).then_some(end), None)
    }

    /// The highest place with a segment (what `IPC_INFO` returns).
    pub(super) fn highest(&mut self) -> u32 {
        let mut places = (0..self.places()).rev();
        places.find(|&nth| self.place(nth).is_some_and(|place| place.is_some())).unwrap_or(0) as u32
    }
}

impl<P: Platform> Drop for Table<'_, P> {
    fn drop(&mut self) {
        debug_assert!(self.used == 0, "segments are taken out before");
        for nth in 0..self.page_count {
            // SAFETY: so many were written, and this table is used no longer.
            free(self.frames, Pfn(unsafe { self.pointers().add(nth).read() }));
        }
        free(self.frames, self.pages);
    }
}

fn free<P: Platform>(frames: KernelFrames<'_, P>, pfn: Pfn) {
    // SAFETY: the frame is the caller's own, and nothing uses it any more.
    let freed = unsafe { frames.free(pfn, Order::ZERO) };
    debug_assert!(freed.is_ok(), "a frame of a table can be freed: {freed:?}");
}

impl<P: Platform> fmt::Debug for Table<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("used", &self.used).finish_non_exhaustive()
    }
}
