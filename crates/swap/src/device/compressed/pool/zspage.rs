//! A chain of frames that holds objects of one class.
//!
//! The frames lie anywhere, so an object may begin in one and end in the next. A chain's state is in its
//! frames' descriptors:
//!
//! | field | of each frame | of the first, besides |
//! |---|---|---|
//! | `owner` | the first frame | |
//! | `private` | the next frame | |
//! | `index` | the class, the place in the chain | the first free object, how many were ever used |
//! | `live` | | objects in use |
//! | links | | of the class's lists |
//!
//! What lies in the descriptor of the first frame besides is guarded by the class's lock; the rest does not
//! change. The first four bytes of an object are its header: whose it is, or that it is free and which one is
//! the next free one. They are guarded by the class's lock too. What comes after belongs to the owner.

use super::class::{CLASSES, Class};
use crate::device::memory::{PAGE, bytes_of};
use crate::device::slots::Location;
use core::ptr::NonNull;
use quire_arch::{Pfn, Platform};
use quire_frame::Frames;
use quire_frame::ZspageFrame;

/// Bytes of an object that are the pool's own.
pub(super) const HEADER: usize = size_of::<u32>();
/// In a header: no object.
const FREE: u32 = 1 << 31;
/// In place of the number of a free object: there is none.
const NO_OBJECT: u32 = 0xffff;

const PLACE_SHIFT: u32 = 8;
const USED_SHIFT: u32 = 16;
const FIRST_FREE_SHIFT: u32 = 32;

/// A chain, by its first frame.
pub(super) struct Zspage<'f, P: Platform> {
    frames: &'f Frames<P>,
    head: Pfn,
}

impl<'f, P: Platform> Zspage<'f, P> {
    /// Makes a chain of `chain`, frames that the caller has just allocated, for objects of the class
    /// `number`.
    pub(super) fn build(frames: &'f Frames<P>, chain: &[Pfn], number: usize) -> Self {
        for (place, &pfn) in chain.iter().enumerate() {
            let frame = frames.known(pfn).as_zspage();
            frame.set_head(Some(chain[0]));
            frame.set_next(chain.get(place + 1).copied());
            let index =
                number as u64 | (place as u64) << PLACE_SHIFT | u64::from(NO_OBJECT) << FIRST_FREE_SHIFT;
            frame.set_note(index);
            frame.set_live(0);
        }
        Self::at(frames, chain[0])
    }

    /// The chain whose first frame is `head`.
    pub(super) fn at(frames: &'f Frames<P>, head: Pfn) -> Self {
        Self { frames, head }
    }

    /// The chain that an object lies in, which is in use.
    pub(super) fn of(frames: &'f Frames<P>, object: Location) -> Self {
        Self::at(frames, frames.known(object.pfn()).as_zspage().head().unwrap_or(object.pfn()))
    }

    /// The first frame.
    pub(super) fn head(&self) -> Pfn {
        self.head
    }

    fn frame(&self) -> ZspageFrame<'f> {
        self.frames.known(self.head).as_zspage()
    }

    /// The number of its class.
    pub(super) fn class_number(&self) -> usize {
        // Every value of the byte that is stored is below the number of classes.
        usize::from(self.frame().note() as u8).min(CLASSES.len() - 1)
    }

    fn class(&self) -> Class {
        CLASSES[self.class_number()]
    }

    /// The frames in their order.
    pub(super) fn chain(&self) -> impl Iterator<Item = Pfn> + use<'f, P> {
        let frames = self.frames;
        let next = move |pfn: &Pfn| frames.known(*pfn).as_zspage().next();
        core::iter::successors(Some(self.head), next).take(self.class().frames as usize)
    }

    /// Objects in use.
    pub(super) fn live(&self) -> u32 {
        self.frame().live()
    }

    fn set_live(&self, live: u32) {
        self.frame().set_live(live);
    }

    fn field(&self, shift: u32) -> u32 {
        u32::from((self.frame().note() >> shift) as u16)
    }

    fn set_field(&self, shift: u32, value: u32) {
        let others = self.frame().note() & !(0xffff << shift);
        self.frame().set_note(others | u64::from(value) << shift);
    }

    /// Objects that were ever used: those behind have no headers yet.
    pub(super) fn ever_used(&self) -> u32 {
        self.field(USED_SHIFT)
    }

    /// Where object `number` begins.
    pub(super) fn location(&self, number: u32) -> Location {
        let offset = (number * self.class().size) as usize;
        let pfn = self.chain().nth(offset / PAGE).unwrap_or(self.head);
        Location::new(pfn, offset % PAGE)
    }

    /// The number of the object that begins at `location`, in this chain.
    fn number_of(&self, location: Location) -> u32 {
        let index = self.frames.known(location.pfn()).as_zspage().note();
        let place = usize::from((index >> PLACE_SHIFT) as u8);
        (place * PAGE + location.offset()) as u32 / self.class().size
    }

    fn header(&self, location: Location) -> NonNull<u32> {
        // SAFETY: an offset is within the page.
        unsafe { bytes_of(self.frames, location.pfn()).add(location.offset()) }.cast()
    }

    fn read_header(&self, location: Location) -> u32 {
        // SAFETY: an object's header is inside of one frame, since objects are aligned to more than it has,
        // and aligned. A thread that is here has the class's lock.
        unsafe { self.header(location).read() }
    }

    fn write_header(&self, location: Location, header: u32) {
        // SAFETY: as in `read_header`.
        unsafe { self.header(location).write(header) };
    }

    /// Whose object `number` is, of those that were ever used; none if it is free.
    pub(super) fn owner(&self, number: u32) -> Option<u32> {
        let header = self.read_header(self.location(number));
        (header & FREE == 0).then_some(header)
    }

    /// Gives an object to `owner`, if one is free.
    pub(super) fn take(&self, owner: u32) -> Option<Location> {
        debug_assert_eq!(owner & FREE, 0);
        let first = self.field(FIRST_FREE_SHIFT);
        let location = if first == NO_OBJECT {
            let fresh = self.ever_used();
            if fresh >= self.class().objects {
                return None;
            }
            self.set_field(USED_SHIFT, fresh + 1);
            self.location(fresh)
        } else {
            let location = self.location(first);
            self.set_field(FIRST_FREE_SHIFT, self.read_header(location) & !FREE);
            location
        };
        self.write_header(location, owner);
        self.set_live(self.live() + 1);
        Some(location)
    }

    /// Frees an object.
    pub(super) fn put(&self, location: Location) {
        debug_assert_eq!(self.read_header(location) & FREE, 0, "an object is freed twice");
        self.write_header(location, FREE | self.field(FIRST_FREE_SHIFT));
        self.set_field(FIRST_FREE_SHIFT, self.number_of(location));
        self.set_live(self.live() - 1);
    }
}

/// The bytes of an object: one piece, or two if it goes on in the next frame of its chain.
#[derive(Clone, Copy)]
pub(super) struct Pieces {
    pub(super) first: (NonNull<u8>, usize),
    pub(super) second: (NonNull<u8>, usize),
}

impl Pieces {
    /// `length` bytes from `skip` bytes into the object that begins at `location`.
    #[inline]
    pub(super) fn of<P: Platform>(
        frames: &Frames<P>,
        location: Location,
        skip: usize,
        length: usize,
    ) -> Self {
        let begin = location.offset() + skip;
        let here = length.min(PAGE - begin);
        // SAFETY: `begin` is inside of the page: `skip` is a header at most, and objects are aligned to more
        // than that.
        let first = unsafe { bytes_of(frames, location.pfn()).add(begin) };
        let second = if here == length {
            NonNull::dangling()
        } else {
            // An object that goes on has a frame after its first.
            let next = frames.known(location.pfn()).as_zspage().next().unwrap_or(location.pfn());
            bytes_of(frames, next)
        };
        Self { first: (first, here), second: (second, length - here) }
    }

    /// Copies the bytes to `to`.
    ///
    /// # Safety
    ///
    /// No thread writes them meanwhile, and `to` has room for them and lies elsewhere.
    pub(super) unsafe fn copy_to(&self, to: NonNull<u8>) {
        // SAFETY: both pieces are inside of their frames (`of`); the caller vouches for the rest.
        unsafe {
            self.first.0.copy_to_nonoverlapping(to, self.first.1);
            self.second.0.copy_to_nonoverlapping(to.add(self.first.1), self.second.1);
        }
    }

    /// What there is in one piece from byte `at` on.
    fn piece(&self, at: usize) -> (NonNull<u8>, usize) {
        let (piece, skip) = match at.checked_sub(self.first.1) {
            None => (self.first, at),
            Some(skip) => (self.second, skip),
        };
        // SAFETY: `at` is at most the number of bytes that there are, so this is at most the end of the
        // piece.
        (unsafe { piece.0.add(skip) }, piece.1 - skip)
    }

    /// Copies the bytes to those of `to`, of which there are as many.
    ///
    /// # Safety
    ///
    /// No thread writes these or looks at those meanwhile, and they do not overlap.
    pub(super) unsafe fn copy_over(&self, to: &Self) {
        let length = self.first.1 + self.second.1;
        let mut done = 0;
        while done < length {
            let ((from, there), (to, room)) = (self.piece(done), to.piece(done));
            let count = there.min(room);
            // SAFETY: both have so many bytes left; the caller vouches for the rest.
            unsafe { from.copy_to_nonoverlapping(to, count) };
            done += count;
        }
    }

    /// Copies as many bytes as there are from `from`.
    ///
    /// # Safety
    ///
    /// No other thread looks at them, and `from` has that many and lies elsewhere.
    pub(super) unsafe fn copy_from(&self, from: NonNull<u8>) {
        // SAFETY: as in `copy_to`.
        unsafe {
            self.first.0.copy_from_nonoverlapping(from, self.first.1);
            self.second.0.copy_from_nonoverlapping(from.add(self.first.1), self.second.1);
        }
    }
}
