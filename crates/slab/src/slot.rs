//! Slots: room for one object, and the word that links it while it is free.
//!
//! A typed cache has the word beside the object, so that a retired object stays intact for its readers, and
//! marks it while the object is in use. The heap's caches have it in the object's first bytes: no space is
//! lost, and an object is in use if it is on no list.

use core::cell::UnsafeCell;
use core::iter;
use core::mem::{self, MaybeUninit, offset_of};
use core::ptr::{self, NonNull};
use quire_sync::atomic::raw::{AtomicPtr, Ordering};

/// An object's place in a typed cache. The object comes first, so that a pointer to it is one to the slot.
#[repr(C)]
pub(crate) struct ObjectSlot<T> {
    value: UnsafeCell<MaybeUninit<T>>,
    link: LinkWord,
}

impl<T> ObjectSlot<T> {
    pub(crate) const LINK: usize = offset_of!(Self, link);
}

/// A slot of some cache, by its first byte.
pub(crate) type SlotPtr = NonNull<u8>;

/// The word that links a slot while it is free: it leads to the link word of the next slot.
#[repr(transparent)]
pub(crate) struct LinkWord(AtomicPtr<LinkWord>);

/// What the link beside an object holds while that is in use. No link word lies there.
const LIVE: *mut LinkWord = ptr::without_provenance_mut(1);

/// A slot that its holder owns, by its link word: the object in it is the holder's to free, or it has none.
/// The holder gives it to another list of the same cache, or to a user of the cache, or loses it.
///
/// A slot never meets another cache's code or lists, so no value says which cache it is of.
#[derive(Debug)]
#[must_use = "a slot that is dropped is lost"]
pub(crate) struct Slot(NonNull<LinkWord>);

// SAFETY: a slot is plain memory of the machine that any CPU can reach.
unsafe impl Send for Slot {}

impl Slot {
    /// The slot whose link word lies `offset` bytes behind `base`.
    ///
    /// # Safety
    ///
    /// The word is there, in the block or slot that `base` points into, and the slot is the caller's to hand
    /// over: no other value uses it, and no list has it unless this value stands for that list's.
    #[inline]
    pub(crate) unsafe fn at(base: NonNull<u8>, offset: usize) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { base.add(offset) }.cast())
    }

    /// As [`at`](Self::at), for a slot that has no link word yet.
    ///
    /// # Safety
    ///
    /// The word lies in memory that is the caller's, is aligned, and there is no object.
    #[inline]
    pub(crate) unsafe fn make(base: NonNull<u8>, offset: usize) -> Self {
        // SAFETY: the caller's promise.
        let word = unsafe { base.add(offset) }.cast::<LinkWord>();
        // SAFETY: the caller's promise.
        unsafe { word.write(LinkWord(AtomicPtr::new(ptr::null_mut()))) };
        Self(word)
    }

    /// The slot's first byte. Its link word is `offset` bytes into it.
    ///
    /// # Safety
    ///
    /// The offset is that of the slot's cache.
    #[inline]
    pub(crate) unsafe fn start(&self, offset: usize) -> SlotPtr {
        // SAFETY: the slot begins there.
        unsafe { self.0.cast::<u8>().sub(offset) }
    }

    #[inline]
    fn link(&self) -> &AtomicPtr<LinkWord> {
        // SAFETY: the holder owns the slot, whose link word lies there and was written (`at`).
        &unsafe { self.0.as_ref() }.0
    }

    /// Notes that the slot's object is in use. The word lies beside the object.
    #[inline]
    pub(crate) fn mark_live(&self) {
        self.link().store(LIVE, Ordering::Relaxed);
    }

    /// Whether the slot's object is in use. The word lies beside the object.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.link().load(Ordering::Relaxed) == LIVE
    }

    /// Where its link word lies.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        self.0.addr().get()
    }

    /// The same slot once more, for the list that has it.
    #[inline]
    fn again(&self) -> Self {
        Self(self.0)
    }

    // Relaxed: lists of slots change under locks.

    /// The slot behind this one, which is, or was until now, on a list of the holder's.
    #[inline]
    fn next(&self) -> Option<Self> {
        NonNull::new(self.link().load(Ordering::Relaxed)).map(Self)
    }

    #[inline]
    pub(crate) fn set_next(&self, next: Option<&Self>) {
        let next = next.map_or(ptr::null_mut(), |next| next.0.as_ptr());
        self.link().store(next, Ordering::Relaxed);
    }
}

/// The addresses of the link words in a row, as far as `is_slot` says that a slot's is there: only then it is
/// read.
pub(crate) fn follow(
    first: Option<&Slot>,
    mut is_slot: impl FnMut(usize) -> bool,
) -> impl Iterator<Item = usize> {
    let mut next = first.map(Slot::again);
    iter::from_fn(move || {
        let slot = next.take().filter(|slot| is_slot(slot.address()))?;
        next = slot.next();
        Some(slot.address())
    })
}

/// Slots in a row, through their links. Last in, first out.
#[derive(Debug, Default)]
pub(crate) struct SlotList {
    first: Option<Slot>,
    count: u32,
}

impl SlotList {
    pub(crate) const EMPTY: Self = Self { first: None, count: 0 };

    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<&Slot> {
        self.first.as_ref()
    }

    #[inline]
    pub(crate) fn push(&mut self, slot: Slot) {
        slot.set_next(self.first.as_ref());
        self.first = Some(slot);
        self.count += 1;
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Slot> {
        let first = self.first.take()?;
        self.first = first.next();
        self.count -= 1;
        Some(first)
    }

    /// Takes slots off the row that begins with `first` until the list has `limit`. Returns the rest of the
    /// row.
    #[inline]
    pub(crate) fn fill(&mut self, first: Option<Slot>, limit: u32) -> Option<Slot> {
        let mut next = first;
        while self.count < limit
            && let Some(slot) = next
        {
            next = slot.next();
            self.push(slot);
        }
        next
    }

    /// Takes up to `limit` slots from the front.
    #[inline]
    pub(crate) fn split(&mut self, limit: u32) -> Self {
        if self.count <= limit {
            return mem::take(self);
        }
        let mut taken = Self::EMPTY;
        while taken.count < limit
            && let Some(slot) = self.pop()
        {
            taken.push(slot);
        }
        taken
    }
}

/// A list that also knows its last slot, so that all of it can be moved at once.
#[derive(Debug, Default)]
pub(crate) struct TailedList {
    list: SlotList,
    last: Option<Slot>,
}

impl TailedList {
    #[inline]
    pub(crate) fn list(&self) -> &SlotList {
        &self.list
    }

    #[inline]
    pub(crate) fn push(&mut self, slot: Slot) {
        self.last.get_or_insert_with(|| slot.again());
        self.list.push(slot);
    }

    /// Moves all slots to the front of `to`, in constant time.
    #[inline]
    pub(crate) fn pour(&mut self, to: &mut SlotList) {
        if let Some(last) = self.last.take() {
            let SlotList { first, count } = mem::take(&mut self.list);
            last.set_next(to.first.as_ref());
            to.first = first;
            to.count += count;
        }
    }
}
