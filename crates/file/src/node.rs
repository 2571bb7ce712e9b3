//! Nodes, as readers and as the lock's holder see them.

use crate::level::Level;
use crate::word::{Linked, Word};
use core::fmt;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicU64, Ordering, UnsafeCell};

/// Number of [tags](crate::Tag).
pub(crate) const TAGS: usize = 3;

/// What a node has besides its words.
#[repr(C)]
pub(crate) struct Head {
    // These three do not change while the node is a node.
    level: Level,
    /// Where the digit of its words begins in an index, and the largest digit: a look-up needs no more.
    shift: u8,
    mask: u8,
    counts: UnsafeCell<Counts>,
}

/// What only the holder of the store's lock reads and writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// For each tag, the words whose entries have it, or that link to a node with such words.
    pub(crate) tags: [u64; TAGS],
    /// The node that links to this one; none of the root.
    pub(crate) parent: Option<NonNull<Head>>,
    /// Its neighbours on the list of nodes that have nothing but shadows.
    pub(crate) previous: Option<NonNull<Head>>,
    pub(crate) next: Option<NonNull<Head>>,
    /// The word of the parent that links to this node.
    pub(crate) slot: u8,
    /// Words that are not empty.
    pub(crate) words: u8,
    /// Words of shadows among these.
    pub(crate) shadows: u8,
    /// Whether the node is on that list.
    pub(crate) listed: bool,
}

/// A node with so many words.
#[repr(C)]
pub struct Node<const WORDS: usize> {
    head: Head,
    words: [AtomicU64; WORDS],
}

/// A node of most levels.
pub type Wide = Node<{ Level::MANY }>;

/// A node of the level between pages and huge pages.
pub type Narrow = Node<{ Level::FEW }>;

// A link to a node is a word.
const _: () = assert!(align_of::<Head>() >= align_of::<Linked>());
// A node of either kind is used through its head, and its words are found behind that.
const _: () = assert!(offset_of!(Wide, words) == offset_of!(Narrow, words));
#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Wide>() == 576 && size_of::<Narrow>() == 128);

// SAFETY: what is not atomic is used by the holder of the store's lock only.
unsafe impl<const WORDS: usize> Send for Node<WORDS> {}
// SAFETY: as for `Send`.
unsafe impl<const WORDS: usize> Sync for Node<WORDS> {}

impl<const WORDS: usize> Node<WORDS> {
    /// Makes an empty node of `level` of memory that is for one.
    ///
    /// # Safety
    ///
    /// The memory is valid and aligned for such a node and the caller's alone, and nodes of `level` have so
    /// many words.
    pub(crate) unsafe fn make<'n>(memory: NonNull<Self>, level: Level) -> HeldNode<'n> {
        debug_assert_eq!(level.words(), WORDS);
        let words = core::array::from_fn(|_| AtomicU64::new(Word::NONE.raw()));
        let (shift, mask) = (level.shift() as u8, level.words() as u8 - 1);
        let head = Head { level, shift, mask, counts: UnsafeCell::new(Counts::default()) };
        // SAFETY: the caller's promise.
        unsafe { memory.write(Self { head, words }) };
        HeldNode(NodeRef { head: memory.cast(), node: PhantomData })
    }
}

impl<const WORDS: usize> fmt::Debug for Node<WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("level", &self.head.level).finish_non_exhaustive()
    }
}

/// A node that stays readable during `'n`.
#[derive(Clone, Copy)]
pub(crate) struct NodeRef<'n> {
    /// Derived from a pointer to the whole node.
    head: NonNull<Head>,
    node: PhantomData<&'n Head>,
}

impl<'n> NodeRef<'n> {
    /// The node that a link of a store leads to.
    ///
    /// # Safety
    ///
    /// During `'n` either the caller holds the store's lock and does not use the node after it has left the
    /// store, or it read the link in a section of the epoch that is still open.
    #[inline]
    pub(crate) unsafe fn new(link: NonNull<Linked>) -> Self {
        Self { head: link.cast(), node: PhantomData }
    }

    #[inline]
    pub(crate) fn level(self) -> Level {
        // SAFETY: the node is readable, and its level does not change.
        unsafe { (*self.head.as_ptr()).level }
    }

    /// The digit of `index` at this level with those above it, and the largest digit.
    #[inline]
    fn digits(self, index: u64) -> (u64, u64) {
        // SAFETY: the node is readable, and neither changes.
        let (shift, mask) = unsafe { ((*self.head.as_ptr()).shift, (*self.head.as_ptr()).mask) };
        (index >> (shift & 63), mask.into())
    }

    /// The word for `index`, which the node holds.
    #[inline]
    pub(crate) fn slot(self, index: u64) -> usize {
        let (digits, mask) = self.digits(index);
        (digits & mask) as usize
    }

    /// Whether the node, which begins at the first page, holds `index`.
    #[inline]
    pub(crate) fn holds(self, index: u64) -> bool {
        let (digits, mask) = self.digits(index);
        digits <= mask
    }

    /// The word in `slot`, as memory. Slots are below the words of the node's level.
    #[inline]
    pub(crate) fn place(self, slot: usize) -> &'n AtomicU64 {
        debug_assert!(slot < self.level().words());
        // SAFETY: the words lie there in a node of either kind, and there are so many.
        unsafe { self.head.byte_add(offset_of!(Wide, words)).cast::<AtomicU64>().add(slot).as_ref() }
    }
}

/// A node that only the caller changes: it holds the store's lock during `'h`.
#[derive(Clone, Copy)]
pub(crate) struct HeldNode<'h>(NodeRef<'h>);

impl PartialEq for HeldNode<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0.head == other.0.head
    }
}

impl HeldNode<'_> {
    /// The node that a link of a store leads to.
    ///
    /// # Safety
    ///
    /// The caller holds the store's lock during `'h`, and does not use the node after it has left the store.
    #[inline]
    pub(crate) unsafe fn new(head: NonNull<Head>) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { NodeRef::new(head.cast()) })
    }

    #[inline]
    pub(crate) fn level(self) -> Level {
        self.0.level()
    }

    /// A word that links to it.
    #[inline]
    pub(crate) fn link(self) -> Word {
        Word::link(self.0.head.cast())
    }

    #[inline]
    pub(crate) fn head(self) -> NonNull<Head> {
        self.0.head
    }

    /// The word for `index`, which the node holds.
    #[inline]
    pub(crate) fn slot(self, index: u64) -> usize {
        self.0.slot(index)
    }

    /// Whether the node, which begins at the first page, holds `index`.
    #[inline]
    pub(crate) fn holds(self, index: u64) -> bool {
        self.0.holds(index)
    }

    #[inline]
    pub(crate) fn word(self, slot: usize) -> Word {
        // Relaxed: words change under the lock only.
        Word::from_raw(self.0.place(slot).load(Ordering::Relaxed))
    }

    /// Writes a word, and nothing else.
    #[inline]
    pub(crate) fn store(self, slot: usize, word: Word) {
        // Release: a reader that finds a link finds the node as it was made. Pairs with the acquire in
        // `FolioStore::find`.
        self.0.place(slot).store(word.raw(), Ordering::Release);
    }

    /// What is counted of it.
    #[inline]
    pub(crate) fn counts(self) -> Counts {
        // SAFETY: the node is readable, and only the caller writes these.
        unsafe { (*self.0.head.as_ptr()).counts.with(|counts| *counts) }
    }

    /// Changes what is counted of it.
    #[inline]
    pub(crate) fn count(self, change: impl FnOnce(&mut Counts)) {
        // SAFETY: the node is readable, and only the caller uses these; `change` cannot reach them otherwise.
        unsafe { (*self.0.head.as_ptr()).counts.with_mut(|counts| change(&mut *counts)) };
    }

    /// The node that links to this one.
    #[inline]
    pub(crate) fn parent(self) -> Option<Self> {
        // SAFETY: a parent is in the store as long as its children.
        self.counts().parent.map(|parent| unsafe { Self::new(parent) })
    }

    /// The node that the word in `slot` links to.
    #[inline]
    pub(crate) fn child(self, slot: usize) -> Option<Self> {
        // SAFETY: a node that is in the store links to nodes that are.
        self.word(slot).node().map(|link| unsafe { Self::new(link.cast()) })
    }
}

impl fmt::Debug for HeldNode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldNode").field("level", &self.level()).field("counts", &self.counts()).finish()
    }
}
