//! New pages: their descriptors, memcg charge and LRU list.

use super::Tables;
use quire_arch::{LeafFlags, Order, Pfn, Pin, Platform};
use quire_frame::{FolioCounter, Frame, FrameFlags, Kind, OwnerWord, VmEvent};
use quire_memcg::{LruList, MemcgId, MemcgStat, OverLimit};

/// The mapping's attributes for a page that is about to be mapped.
#[derive(Clone, Copy, Debug)]
pub struct NewPage {
    /// The permissions of its leaf.
    pub leaf: LeafFlags,
    /// Its page offset in the mapped object.
    pub index: u64,
    /// The anon_vma that owns it, if it is anonymous.
    pub owner: OwnerWord,
    /// Whether the mapping is mlocked.
    pub locked: bool,
}

impl NewPage {
    /// Sets up the descriptor of a page that is about to be mapped once.
    #[inline]
    pub fn init_page(&self, frame: &Frame) {
        let folio = frame.as_folio();
        folio.set_index(self.index);
        folio.set_owner(if frame.kind() == Kind::Anonymous { self.owner } else { OwnerWord::NONE });
        // After the owner: a walker of the rmap that sees that the page is mapped sees its owner.
        folio.set_maps(1);
    }

    /// The same for a new large folio that begins with `frame` and is about to be mapped from here on,
    /// `pages` of it, by one space.
    pub fn init_folio(&self, frame: &Frame, pages: u32) {
        let folio = frame.as_folio();
        folio.set_index(self.index);
        folio.set_owner(self.owner);
        folio.set_whole_maps(0);
        frame.set_flags(FrameFlags::ANONYMOUS_EXCLUSIVE);
        // As above.
        folio.set_maps(pages);
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
            let memcgs = self.memory.memcgs();
            memcgs.charges().try_charge(pin, memcg, order.pages())?;
            let frame = self.memory.frames().known(head);
            match frame.kind() {
                // The space may have gone to the root just now.
                Kind::File if !memcg.is_root() => memcgs.folios().own_file_page(pin, frame, memcg),
                _ => frame.as_folio().set_memcg(memcg.get()),
            }
            Ok(())
        });
        match charged {
            Ok(()) => Ok(()),
            Err(over) => {
                self.memory.memcgs().folios().release_unused(pin, head, order);
                if order > Order::ZERO {
                    let events = self.memory.frames().events();
                    events.count_folio(pin, order, FolioCounter::AnonFaultFallbackCharge, 1);
                }
                Err(over)
            }
        }
    }

    /// Charges the folio of a collapse, which is no fault. If the memcg of the space is at its limit the
    /// folio stays the caller's.
    pub fn charge_collapsed(&self, pin: &Pin<'_, P>, head: Pfn, order: Order) -> Result<(), OverLimit> {
        self.with_memcg(pin, |memcg| {
            if !memcg.is_root() {
                self.memory.memcgs().charges().try_charge(pin, memcg, order.pages())?;
                self.memory.frames().known(head).as_folio().set_memcg(memcg.get());
            }
            Ok(())
        })
    }

    /// Calls `work` with the memcg of the space. The space may leave it meanwhile, and the memcg may be
    /// removed: its number is not used again before this section ends.
    #[inline]
    fn with_memcg<R>(&self, pin: &Pin<'_, P>, work: impl FnOnce(MemcgId) -> R) -> R {
        let _section = self.memory.frames().epoch().enter(pin);
        work(self.space.memcg())
    }

    /// Counts a page of a private file mapping as anonymous: the program made it its own.
    pub fn file_page_made_anonymous(&self, pin: &Pin<'_, P>, page: &Frame) {
        self.space.residency.file_page_made_anonymous();
        self.memory.memcgs().folios().disown_file_page(pin, page);
    }

    /// Counts one more of something for the program's memcg.
    pub fn count_for_memcg(&self, pin: &Pin<'_, P>, stat: MemcgStat) {
        self.with_memcg(pin, |memcg| self.memory.memcgs().counters().add_stat(pin, memcg, stat, 1));
    }

    /// The same for a caller that cannot wait for reclaim: the memcg may be a little over its limit.
    pub fn charge_anyway(&self, pin: &Pin<'_, P>, head: Pfn, order: Order) {
        self.with_memcg(pin, |memcg| {
            if !memcg.is_root() {
                self.memory.memcgs().charges().charge_anyway(pin, memcg, order.pages());
                self.memory.frames().known(head).as_folio().set_memcg(memcg.get());
            }
        });
    }

    /// Puts a folio that was just mapped on the LRU list of its memcg, if anything can be reclaimed on this
    /// machine. The caller is in the section of the epoch in which it mapped the folio
    /// ([`lists_anonymous`](quire_memcg::MemcgFolios::lists_anonymous)).
    #[inline]
    pub fn list_new(&self, pin: &Pin<'_, P>, head: Pfn, locked: bool) {
        debug_assert!(self.memory.frames().epoch().is_entered(pin), "a folio is mapped outside the epoch");
        if self.memory.memcgs().folios().lists_anonymous() {
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
        self.memory.memcgs().folios().list_folio(pin, head, list);
    }
}
