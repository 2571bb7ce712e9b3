//! New pages: what their descriptors say, the memcg that they are charged to, the list that they are put on.

use super::Tables;
use quire_arch::{LeafFlags, Order, Pfn, Pin, Platform};
use quire_frame::{FolioCounter, Frame, FrameFlags, Kind, VmEvent};
use quire_memcg::{LruList, MemcgId, MemcgStat, OverLimit};
use quire_sync::atomic::raw::Ordering;

/// The word by which a mapped page names the anon_vma that owns it, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnerWord(u64);

impl OwnerWord {
    /// No anon_vma: a page of a file, or of shared memory.
    pub const NONE: Self = Self(0);

    /// The word `word`.
    ///
    /// # Safety
    ///
    /// `word` names an anon_vma that lives for as long as pages that it is given to are mapped, or none.
    #[inline]
    pub const unsafe fn new(word: u64) -> Self {
        Self(word)
    }

    /// Says in the descriptor of a page whose it is, before the page is mapped or becomes private.
    #[inline]
    pub fn set(self, frame: &Frame) {
        // Release: a walker of the rmap that finds the anon_vma here sees it filled in.
        frame.owner().store(self.0, Ordering::Release);
    }
}

/// What a page that is about to be mapped gets from its mapping.
#[derive(Clone, Copy, Debug)]
pub struct NewPage {
    /// The permissions of its leaf.
    pub leaf: LeafFlags,
    /// Its page offset in what the mapping shows.
    pub index: u64,
    /// Who owns it, if it is anonymous.
    pub owner: OwnerWord,
    /// Whether the mapping is locked.
    pub locked: bool,
}

impl NewPage {
    /// Says in the descriptor of a page that is about to be mapped once where it belongs.
    #[inline]
    pub fn init_page(&self, frame: &Frame) {
        frame.index().store(self.index, Ordering::Relaxed);
        if frame.kind() == Kind::Anonymous { self.owner } else { OwnerWord::NONE }.set(frame);
        // Release, after the owner: a walker of the rmap that sees that the page is mapped sees its owner.
        frame.map_count().store(1, Ordering::Release);
    }

    /// The same for a new large folio that begins with `frame` and is about to be mapped from here on,
    /// `pages` of it, by one space.
    pub fn init_folio(&self, frame: &Frame, pages: u32) {
        frame.index().store(self.index, Ordering::Relaxed);
        self.owner.set(frame);
        frame.live().store(0, Ordering::Relaxed);
        frame.set_flags(FrameFlags::ANONYMOUS_EXCLUSIVE);
        // Release as above.
        frame.map_count().store(pages, Ordering::Release);
    }
}

impl<P: Platform> Tables<'_, P> {
    /// Charges a new folio to the memcg of the space. If that is at its limit the folio is freed.
    #[inline]
    pub fn charge_new(&self, pin: &Pin<'_, P>, head: Pfn, order: Order) -> Result<(), OverLimit> {
        if self.space.memcg().is_root() { Ok(()) } else { self.charge_memcg(pin, head, order) }
    }

    #[cold]
    fn charge_memcg(&self, pin: &Pin<'_, P>, head: Pfn, order: Order) -> Result<(), OverLimit> {
        let charged = self.with_memcg(pin, |memcg| {
            self.memory.memcgs().try_charge(pin, memcg, order.pages()).map(|()| memcg)
        });
        match charged {
            Ok(memcg) => {
                self.memory.frames().known(head).memcg().store(memcg.get(), Ordering::Relaxed);
                Ok(())
            }
            Err(over) => {
                self.memory.memcgs().release_unused(pin, head, order);
                if order > Order::ZERO {
                    let events = self.memory.frames().events();
                    events.count_folio(pin, order, FolioCounter::AnonFaultFallbackCharge, 1);
                }
                Err(over)
            }
        }
    }

    /// Calls `work` with the memcg of the space. The space may leave it meanwhile, and the memcg may be
    /// removed: its number is not used again before this section ends.
    #[inline]
    fn with_memcg<R>(&self, pin: &Pin<'_, P>, work: impl FnOnce(MemcgId) -> R) -> R {
        let _section = self.memory.frames().epoch().enter(pin);
        work(self.space.memcg())
    }

    /// Counts one more of something for the program's memcg.
    pub fn count_for_memcg(&self, pin: &Pin<'_, P>, stat: MemcgStat) {
        self.with_memcg(pin, |memcg| self.memory.memcgs().add_stat(pin, memcg, stat, 1));
    }

    /// The same for a caller that cannot wait for reclaim: the memcg may be a little over its limit.
    pub fn charge_anyway(&self, pin: &Pin<'_, P>, head: Pfn, order: Order) {
        self.with_memcg(pin, |memcg| {
            if !memcg.is_root() {
                self.memory.memcgs().charge_anyway(pin, memcg, order.pages());
                self.memory.frames().known(head).memcg().store(memcg.get(), Ordering::Relaxed);
            }
        });
    }

    /// Puts a folio that was just mapped on the LRU list of its memcg, if anything can be reclaimed on this
    /// machine.
    #[inline]
    pub fn list_new(&self, pin: &Pin<'_, P>, head: Pfn, locked: bool) {
        if self.memory.memcgs().lists_anonymous() {
            self.list_mapped(pin, head, locked);
        }
    }

    fn list_mapped(&self, pin: &Pin<'_, P>, head: Pfn, locked: bool) {
        let frames = self.memory.frames();
        let list = if locked {
            frames.known(head).set_flags(FrameFlags::MLOCKED);
            let pages = frames.folio(head).order().pages();
            frames.events().add(pin, VmEvent::UnevictablePgsMlocked, pages);
            frames.events().add(pin, VmEvent::UnevictablePgsCulled, pages);
            LruList::Unevictable
        } else {
            LruList::InactiveAnon
        };
        self.memory.memcgs().list_folio(pin, head, list);
    }
}
