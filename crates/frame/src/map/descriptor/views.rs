//! Typed views of a frame's words.
//!
//! A descriptor has the same words for every kind of frame, and each kind gives them its own meaning. So the
//! words are private, and are accessed through the view of one kind. A word keeps its value when the frame is
//! freed; a user sets it before relying on it.
//!
//! What is stored as the owner of a folio is odd where it names an anon_vma ([`OwnerWord`]); the views of all
//! other kinds store even numbers there. So an rmap walker that finds a frame between two uses never mistakes
//! another owner for an anon_vma. A file is even, too: its kind says that it is one.
//!
//! Loads and stores are relaxed where nothing else is said: the lock of the object that the frame belongs to
//! orders them.

use super::Frame;
use crate::kind::Kind;
use quire_arch::{Execution, Level, LockClass, PAGE_SIZE, Pfn, VirtAddr};
use quire_sync::atomic::Ordering;

/// The word by which a page names what owns it: an anon_vma, a file whose cache it is in, or nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnerWord(u64);

impl OwnerWord {
    /// Neither: a page of a file that has left its cache or never was in one, or one that is not mapped yet.
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

    /// The word of the file at `address`, which is even and not 0, in whose cache the page is.
    ///
    /// # Safety
    ///
    /// A file lies there for as long as pages that the word is given to are in its cache.
    #[inline]
    pub const unsafe fn of_file(address: usize) -> Self {
        Self(address as u64 & !1)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }
}

/// A frame number as a word that is even, and 0 for none.
fn link(pfn: Option<Pfn>) -> u64 {
    pfn.map_or(0, |pfn| (pfn.0 + 1) << 1)
}

fn linked(word: u64) -> Option<Pfn> {
    (word >> 1).checked_sub(1).map(Pfn)
}

/// Declares a view: its numbers and its links to other frames, each with what reads it, what writes it, and
/// its word.
macro_rules! view {
    (
        $(#[$doc:meta])*
        $view:ident { $($(#[$of_number:meta])* $number:ident, $set_number:ident: $type:ty = $in:ident;)* }
        links { $($(#[$of_link:meta])* $link:ident, $set_link:ident = $at:ident;)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $view<'f>(&'f Frame);

        impl $view<'_> {
            $(
                $(#[$of_number])*
                #[inline]
                pub fn $number(self) -> $type {
                    self.0.$in().load(Ordering::Relaxed)
                }

                #[doc = concat!("Changes [`", stringify!($number), "`](Self::", stringify!($number), ").")]
                #[inline]
                pub fn $set_number(self, value: $type) {
                    self.0.$in().store(value, Ordering::Relaxed);
                }
            )*
            $(
                $(#[$of_link])*
                #[inline]
                pub fn $link(self) -> Option<Pfn> {
                    linked(self.0.$at().load(Ordering::Relaxed))
                }

                #[doc = concat!("Changes [`", stringify!($link), "`](Self::", stringify!($link), ").")]
                #[inline]
                pub fn $set_link(self, to: Option<Pfn>) {
                    self.0.$at().store(link(to), Ordering::Relaxed);
                }
            )*
        }
    };
}

view! {
    /// The first descriptor of a folio ([`Kind::Anonymous`], [`Kind::File`]).
    FolioFrame {
        /// The page offset of its first page in what it belongs to.
        index, set_index: u64 = index;
        /// PMD entries that map the folio whole.
        whole_maps, set_whole_maps: u32 = live;
        /// The slot of its first page while it is in the swap cache, as quire-swap numbers slots.
        slot, set_slot: u64 = private;
        /// The memcg that it is charged to, and a bit of quire-memcg's; 0 for none. Zero whenever the frame
        /// is freed.
        memcg, set_memcg: u16 = memcg;
        /// The LRU list that it is on while it has [`FrameFlags::LRU`](crate::FrameFlags::LRU); defined by
        /// quire-memcg.
        list_label, set_list_label: u16 = list;
    } links {}
}

impl FolioFrame<'_> {
    /// Base pages that page-table entries map, each as often as it is mapped (see [`Folio`](crate::Folio)).
    /// Acquire: pairs with the release in [`set_maps`](Self::set_maps); a walker that sees that the page is
    /// mapped sees its owner.
    #[inline]
    pub fn maps(self) -> u32 {
        self.0.map_count().load(Ordering::Acquire)
    }

    /// Changes [`memcg`](Self::memcg) from `old` to `new`, if it still is `old`.
    #[inline]
    pub fn replace_memcg(self, old: u16, new: u16) -> bool {
        self.0.memcg().compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Sets the number of maps of a folio that no other thread counts.
    #[inline]
    pub fn set_maps(self, maps: u32) {
        self.0.map_count().store(maps, Ordering::Release);
    }

    /// The address of the anon_vma that owns it, if one does. Acquire: pairs with the release in
    /// [`set_owner`](Self::set_owner).
    #[inline]
    pub fn anon_vma(self) -> Option<usize> {
        let owner = self.0.owner().load(Ordering::Acquire);
        if owner & 1 == 0 { None } else { Some((owner & !1) as usize) }
    }

    /// The address of the file in whose cache it is, if it is in one. Acquire: as
    /// [`anon_vma`](Self::anon_vma).
    #[inline]
    pub fn file(self) -> Option<usize> {
        let owner = self.0.owner().load(Ordering::Acquire);
        if owner & 1 != 0 || owner == 0 { None } else { Some(owner as usize) }
    }

    /// Sets its owner, before it is mapped or becomes private. Release: a walker that finds the anon_vma here
    /// sees it filled in.
    #[inline]
    pub fn set_owner(self, owner: OwnerWord) {
        self.0.owner().store(owner.0, Ordering::Release);
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
}

view! {
    /// The second descriptor of a large folio: its words link folios that wait to be split.
    DeferredLink {} links {
        /// The folio after this one.
        next, set_next = owner;
        /// The folio before this one.
        previous, set_previous = private;
    }
}

view! {
    /// A page table ([`Kind::Table`]).
    TableFrame {
        /// Entries in use, as the owner of the table counts them.
        live, set_live: u32 = live;
    } links {
        /// The next unlinked table; shares the word of its space.
        next_unlinked, set_next_unlinked = owner;
        /// Of a PMD table, the first table that is deposited behind it; of a deposited table, the next.
        deposit, set_deposit = private;
    }
}

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

    /// Sets the space that it belongs to.
    #[inline]
    pub fn set_space(self, space: u64) {
        self.0.owner().store(space << 1, Ordering::Relaxed);
    }
}

view! {
    /// The first frame of a slab ([`Kind::Slab`]).
    SlabFrame {
        /// The first free object, as the cache numbers them.
        first_free, set_first_free: u64 = private;
        /// Free objects.
        free, set_free: u32 = live;
    } links {}
}

impl SlabFrame<'_> {
    /// The address of its cache, which is even.
    #[inline]
    pub fn cache(self) -> u64 {
        self.0.owner().load(Ordering::Relaxed)
    }

    /// Sets the cache that it belongs to.
    #[inline]
    pub fn set_cache(self, cache: u64) {
        self.0.owner().store(cache & !1, Ordering::Relaxed);
    }
}

view! {
    /// A frame of a zspage ([`Kind::Swap`]): frames that hold compressed pages together.
    ZspageFrame {
        /// What the pool notes about the frame.
        note, set_note: u64 = index;
        /// Objects in use, in the first frame.
        live, set_live: u32 = live;
    } links {
        /// The first frame of the zspage.
        head, set_head = owner;
        /// The frame after this one.
        next, set_next = private;
    }
}

impl Frame {
    /// As the first frame of a folio. Unless the caller keeps it, it may have been freed or reused: then the
    /// view is stale, or another folio's.
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
