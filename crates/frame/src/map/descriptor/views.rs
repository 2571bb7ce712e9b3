//! Typed views of a frame's words.
//!
//! A descriptor has the same words whatever its frame is, and each kind of frame gives them a meaning of its
//! own. So the words are private, and are read and written through the view of one kind. A word stays as it was
//! when a frame is given back; a user sets it before it relies on it.
//!
//! What is stored as the owner of a folio is odd where it names an anon_vma ([`OwnerWord`]); the views of all other
//! kinds store even numbers there. So a walker of the rmap that finds a frame between two uses takes nothing for
//! an anon_vma that is none.
//!
//! Loads and stores are relaxed where nothing else is said: the lock of the object that the frame belongs to orders
//! them.

use super::Frame;
use crate::kind::Kind;
use quire_arch::{Execution, Level, LockClass, PAGE_SIZE, Pfn, VirtAddr};
use quire_sync::atomic::Ordering;

/// The word by which a mapped page names the anon_vma that owns it, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnerWord(u64);

impl OwnerWord {
    /// No anon_vma: a page of a file, or of shared memory, or one that is not mapped yet.
    pub const NONE: Self = Self(0);

    /// The word of the anon_vma at `address`, which is even.
    ///
    /// # Safety
    ///
    /// An anon_vma lies there for as long as pages that the word is given to are mapped.
    #[inline]
    pub const unsafe fn of_anon_vma(address: usize) -> Self {
        Self(address as u64 | 1)
    }
}

/// A frame number as a word that is even, and 0 for none.
fn link(pfn: Option<Pfn>) -> u64 {
    pfn.map_or(0, |pfn| (pfn.0 + 1) << 1)
}

fn linked(word: u64) -> Option<Pfn> {
    (word >> 1).checked_sub(1).map(Pfn)
}

/// The first descriptor of a folio ([`Kind::Anonymous`], [`Kind::File`]).
#[derive(Clone, Copy, Debug)]
pub struct FolioFrame<'f>(&'f Frame);

impl FolioFrame<'_> {
    /// Base pages that page-table entries map, each as often as it is mapped (see [`Folio`](crate::Folio)).
    /// Acquire: pairs with the release in [`set_maps`](Self::set_maps); a walker that sees that the page is
    /// mapped sees its owner.
    #[inline]
    pub fn maps(self) -> u32 {
        self.0.map_count().load(Ordering::Acquire)
    }

    /// Sets the number of maps of a folio that no other thread counts.
    #[inline]
    pub fn set_maps(self, maps: u32) {
        self.0.map_count().store(maps, Ordering::Release);
    }

    /// The page offset of its first page in what it belongs to.
    #[inline]
    pub fn index(self) -> u64 {
        self.0.index().load(Ordering::Relaxed)
    }

    /// Sets the page offset.
    #[inline]
    pub fn set_index(self, index: u64) {
        self.0.index().store(index, Ordering::Relaxed);
    }

    /// The address of the anon_vma that owns it, if one does. Acquire: pairs with the release in
    /// [`set_owner`](Self::set_owner).
    #[inline]
    pub fn anon_vma(self) -> Option<usize> {
        let owner = self.0.owner().load(Ordering::Acquire);
        if owner & 1 == 0 { None } else { Some((owner & !1) as usize) }
    }

    /// Says whose it is, before it is mapped or becomes private. Release: a walker that finds the anon_vma here
    /// sees it filled in.
    #[inline]
    pub fn set_owner(self, owner: OwnerWord) {
        self.0.owner().store(owner.0, Ordering::Release);
    }

    /// PMD entries that map the folio whole.
    #[inline]
    pub fn whole_maps(self) -> u32 {
        self.0.live().load(Ordering::Relaxed)
    }

    /// No PMD entry maps the new folio whole.
    #[inline]
    pub fn clear_whole_maps(self) {
        self.0.live().store(0, Ordering::Relaxed);
    }

    /// Counts one more PMD entry that maps it whole. Returns how many there were.
    #[inline]
    pub fn add_whole_map(self) -> u32 {
        self.0.live().fetch_add(1, Ordering::Relaxed)
    }

    /// Counts one fewer. Returns how many there were.
    #[inline]
    pub fn remove_whole_map(self) -> u32 {
        self.0.live().fetch_sub(1, Ordering::Relaxed)
    }

    /// The slot of its first page while it is in the swap cache, as quire-swap numbers slots.
    #[inline]
    pub fn slot(self) -> u64 {
        self.0.private().load(Ordering::Relaxed)
    }

    /// Sets the slot.
    #[inline]
    pub fn set_slot(self, slot: u64) {
        self.0.private().store(slot, Ordering::Relaxed);
    }

    /// The memcg that it is charged to; 0 for none. Zero whenever the frame is given back.
    #[inline]
    pub fn memcg(self) -> u16 {
        self.0.memcg().load(Ordering::Relaxed)
    }

    /// Notes the memcg that it is charged to.
    #[inline]
    pub fn set_memcg(self, memcg: u16) {
        self.0.memcg().store(memcg, Ordering::Relaxed);
    }

    /// Which list it is on while it has [`FrameFlags::LRU`](crate::FrameFlags::LRU): the meaning is that of
    /// quire-memcg.
    #[inline]
    pub fn list_label(self) -> u16 {
        self.0.list().load(Ordering::Relaxed)
    }

    /// Notes the list.
    #[inline]
    pub fn set_list_label(self, label: u16) {
        self.0.list().store(label, Ordering::Relaxed);
    }
}

/// The second descriptor of a large folio: its words link folios that wait to be split.
#[derive(Clone, Copy, Debug)]
pub struct DeferredLink<'f>(&'f Frame);

impl DeferredLink<'_> {
    /// The folio after this one.
    pub fn next(self) -> Option<Pfn> {
        linked(self.0.owner().load(Ordering::Relaxed))
    }

    /// The folio before this one.
    pub fn previous(self) -> Option<Pfn> {
        linked(self.0.private().load(Ordering::Relaxed))
    }

    /// Changes the folio after this one.
    pub fn set_next(self, next: Option<Pfn>) {
        self.0.owner().store(link(next), Ordering::Relaxed);
    }

    /// Changes the folio before this one.
    pub fn set_previous(self, previous: Option<Pfn>) {
        self.0.private().store(link(previous), Ordering::Relaxed);
    }
}

/// A page table ([`Kind::Table`]).
#[derive(Clone, Copy, Debug)]
pub struct TableFrame<'f>(&'f Frame);

impl TableFrame<'_> {
    /// Takes the table's lock.
    #[inline]
    pub fn lock<E: Execution>(self, class: LockClass) {
        self.0.lock_word().lock::<E>(class);
    }

    /// Releases it.
    ///
    /// # Safety
    ///
    /// The caller took it, with the same class.
    #[inline]
    pub unsafe fn unlock<E: Execution>(self, class: LockClass) {
        // SAFETY: the caller's promise.
        unsafe { self.0.lock_word().unlock::<E>(class) };
    }

    /// Entries in use, as the owner of the table counts them.
    #[inline]
    pub fn live(self) -> u32 {
        self.0.live().load(Ordering::Relaxed)
    }

    /// Sets the number of entries in use.
    #[inline]
    pub fn set_live(self, live: u32) {
        self.0.live().store(live, Ordering::Relaxed);
    }

    /// Its level.
    #[inline]
    pub fn level(self) -> Level {
        Level((self.0.index().load(Ordering::Relaxed) & (PAGE_SIZE - 1)) as u8)
    }

    /// The first address that it covers.
    #[inline]
    pub fn start(self) -> VirtAddr {
        VirtAddr(self.0.index().load(Ordering::Relaxed) & !(PAGE_SIZE - 1))
    }

    /// Sets its level and the first address that it covers.
    #[inline]
    pub fn set_place(self, level: Level, start: VirtAddr) {
        // Addresses of tables are page aligned, so the level fits below.
        self.0.index().store(start.page_start().0 | u64::from(level.0), Ordering::Relaxed);
    }

    /// The number of the space that it belongs to.
    #[inline]
    pub fn space(self) -> u64 {
        self.0.owner().load(Ordering::Relaxed) >> 1
    }

    /// Says which space it belongs to.
    #[inline]
    pub fn set_space(self, space: u64) {
        self.0.owner().store(space << 1, Ordering::Relaxed);
    }

    /// The next of the tables that were unhooked, in the place of its space.
    #[inline]
    pub fn next_unhooked(self) -> Option<Pfn> {
        linked(self.0.owner().load(Ordering::Relaxed))
    }

    /// Links it before the table `next` that was unhooked before it.
    #[inline]
    pub fn set_next_unhooked(self, next: Option<Pfn>) {
        self.0.owner().store(link(next), Ordering::Relaxed);
    }

    /// Of a PMD table, the first table that is deposited behind it; of a deposited table, the next.
    #[inline]
    pub fn deposit(self) -> Option<Pfn> {
        linked(self.0.private().load(Ordering::Relaxed))
    }

    /// Changes that.
    #[inline]
    pub fn set_deposit(self, deposit: Option<Pfn>) {
        self.0.private().store(link(deposit), Ordering::Relaxed);
    }
}

/// The first frame of a slab ([`Kind::Slab`]).
#[derive(Clone, Copy, Debug)]
pub struct SlabFrame<'f>(&'f Frame);

impl SlabFrame<'_> {
    /// The address of its cache, which is even.
    #[inline]
    pub fn cache(self) -> u64 {
        self.0.owner().load(Ordering::Relaxed)
    }

    /// Says which cache it belongs to.
    #[inline]
    pub fn set_cache(self, cache: u64) {
        self.0.owner().store(cache & !1, Ordering::Relaxed);
    }

    /// The first free object, as the cache numbers them.
    #[inline]
    pub fn first_free(self) -> u64 {
        self.0.private().load(Ordering::Relaxed)
    }

    /// Sets the first free object.
    #[inline]
    pub fn set_first_free(self, first: u64) {
        self.0.private().store(first, Ordering::Relaxed);
    }

    /// Free objects.
    #[inline]
    pub fn free(self) -> u32 {
        self.0.live().load(Ordering::Relaxed)
    }

    /// Sets the number of free objects.
    #[inline]
    pub fn set_free(self, free: u32) {
        self.0.live().store(free, Ordering::Relaxed);
    }
}

/// A frame of a zspage ([`Kind::Swap`]): frames that hold compressed pages together.
#[derive(Clone, Copy, Debug)]
pub struct ZspageFrame<'f>(&'f Frame);

impl ZspageFrame<'_> {
    /// The first frame of the zspage.
    #[inline]
    pub fn head(self) -> Option<Pfn> {
        linked(self.0.owner().load(Ordering::Relaxed))
    }

    /// Sets the first frame.
    #[inline]
    pub fn set_head(self, head: Pfn) {
        self.0.owner().store(link(Some(head)), Ordering::Relaxed);
    }

    /// The frame after this one.
    #[inline]
    pub fn next(self) -> Option<Pfn> {
        linked(self.0.private().load(Ordering::Relaxed))
    }

    /// Sets the frame after this one.
    #[inline]
    pub fn set_next(self, next: Option<Pfn>) {
        self.0.private().store(link(next), Ordering::Relaxed);
    }

    /// What the pool notes about the frame.
    #[inline]
    pub fn note(self) -> u64 {
        self.0.index().load(Ordering::Relaxed)
    }

    /// Notes it.
    #[inline]
    pub fn set_note(self, note: u64) {
        self.0.index().store(note, Ordering::Relaxed);
    }

    /// Objects in use, in the first frame.
    #[inline]
    pub fn live(self) -> u32 {
        self.0.live().load(Ordering::Relaxed)
    }

    /// Sets the number of objects in use.
    #[inline]
    pub fn set_live(self, live: u32) {
        self.0.live().store(live, Ordering::Relaxed);
    }
}

impl Frame {
    /// As the first frame of a folio. It may have been given back, or be used anew, if the caller does not keep
    /// it: then what it says is old, or another folio's.
    #[inline]
    pub fn as_folio(&self) -> FolioFrame<'_> {
        FolioFrame(self)
    }

    /// As the second frame of a large folio.
    #[inline]
    pub fn as_deferred_link(&self) -> DeferredLink<'_> {
        debug_assert_eq!(self.kind(), Kind::Tail, "a link of a folio of one page");
        DeferredLink(self)
    }

    /// As a page table, perhaps one that is being freed.
    #[inline]
    pub fn as_table(&self) -> TableFrame<'_> {
        debug_assert!(
            matches!(self.kind(), Kind::Table | Kind::Gathered | Kind::Limbo),
            "{:?} is taken for a table",
            self.kind()
        );
        TableFrame(self)
    }

    /// As the first frame of a slab.
    #[inline]
    pub fn as_slab(&self) -> SlabFrame<'_> {
        SlabFrame(self)
    }

    /// As a frame of a zspage.
    #[inline]
    pub fn as_zspage(&self) -> ZspageFrame<'_> {
        debug_assert_eq!(self.kind(), Kind::Swap, "a frame is taken for a part of a zspage");
        ZspageFrame(self)
    }
}
