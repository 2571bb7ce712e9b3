//! Freeing folios: off the LRU lists, uncharged from their memcg, to the page-frame allocator.

use super::MemcgFolios;
use crate::charge::MemcgCharges;
use crate::counters::MemcgCounters;
use crate::id::MemcgId;
use crate::stat::MemcgStat;
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_frame::{FolioCounter, Frame, FrameChain, FreeError};

/// In the descriptor of a folio beside its memcg: it is counted as a page of a file. Its kind does not say so
/// any more when its last reference is gone.
pub(crate) const FILE: u16 = MemcgId::COUNT as u16;

impl<P: Platform> MemcgFolios<'_, P> {
    /// A new page of a file was charged to the memcg: it belongs to it, and counts as a page of a file.
    pub fn own_file_page(self, pin: &Pin<'_, P>, page: &Frame, memcg: MemcgId) {
        page.as_folio().set_memcg(memcg.get() | FILE);
        MemcgCounters::new(self.tree).add_stat(
            pin,
            memcg,
            MemcgStat::File,
            page.word().order().pages() as i64,
        );
    }

    /// The page does not count as one of a file any more: its program made it its own. The program maps it,
    /// and other threads may hold it.
    pub fn disown_file_page(self, pin: &Pin<'_, P>, page: &Frame) {
        if page.as_folio().memcg() & FILE == 0 {
            // Most are the root's. None is made one of a file now.
            return;
        }
        // Its memcg may be removed at this moment, and is not before this section ends.
        let _section = self.tree.frames().epoch().enter(pin);
        let mut word = page.as_folio().memcg();
        while word & FILE != 0 {
            if page.as_folio().replace_memcg(word, word & !FILE) {
                let pages = page.word().order().pages() as i64;
                MemcgCounters::new(self.tree).add_stat(
                    pin,
                    MemcgId::from_bits(word),
                    MemcgStat::File,
                    -pages,
                );
                return;
            }
            word = page.as_folio().memcg();
        }
    }

    /// Drops a reference to the folio of `order` at `head`. If it was the last one the folio enters `chain`,
    /// and the result is true. The caller holds no lock of class Lru or later.
    #[inline]
    pub fn put_folio(self, chain: &mut FrameChain, head: Pfn, order: Order) -> bool {
        if order > Order::ZERO {
            return self.put_large_folio(chain, head, order);
        }
        self.put_uncounted(chain, head, Order::ZERO)
    }

    /// The same for a large folio. Most pages are of folios with one page, which need no counter.
    #[inline(never)]
    fn put_large_folio(self, chain: &mut FrameChain, head: Pfn, order: Order) -> bool {
        let is_counted = self.is_counted(head, order);
        let gone = self.put_uncounted(chain, head, order);
        if gone && is_counted {
            self.count_large_folio_gone(order);
        }
        gone
    }

    /// Drops a reference to the folio that starts at `head`, and frees it if that was the last one.
    pub fn release_folio(self, head: Pfn) {
        if self.tree.frames().known(head).put_unless_last() {
            return;
        }
        let pin = self.tree.frames().platform().pin();
        let mut chain = FrameChain::new();
        self.put_folio(&mut chain, head, self.tree.frames().folio(head).order());
        self.tree.frames().free_chain(&pin, chain);
    }

    /// Frees a folio or a table that never became visible, or whose users are all gone.
    pub fn release_unused(self, pin: &Pin<'_, P>, pfn: Pfn, order: Order) {
        self.tree.frames().known(pfn).as_folio().set_maps(0);
        let mut chain = FrameChain::new();
        let is_counted = self.is_counted(pfn, order);
        let put = self.put_uncounted(&mut chain, pfn, order);
        if !put && is_counted {
            // Another thread pinned it by mistake, for a moment, and subtracts it when it drops the pin.
            self.tree.frames().events().count_folio(pin, order, FolioCounter::NrAnon, 1);
        }
        self.tree.frames().free_chain(pin, chain);
    }

    /// Whether it is counted that the folio at `head`, of which the caller has a reference, is freed: a large
    /// one that is of no file. Its kind does not say so any more when its last reference is gone.
    #[inline]
    fn is_counted(self, head: Pfn, order: Order) -> bool {
        order > Order::ZERO && !self.tree.frames().known(head).kind().is_of_file()
    }

    #[inline]
    fn count_large_folio_gone(self, order: Order) {
        let pin = self.tree.frames().platform().pin();
        self.tree.frames().events().count_folio(&pin, order, FolioCounter::NrAnon, -1);
    }

    /// As [`put_folio`](Self::put_folio), for a caller that counts the large folios that go.
    // As a call of its own it costs each run that is unmapped twenty instructions.
    #[inline(always)]
    pub fn put_uncounted(self, chain: &mut FrameChain, head: Pfn, order: Order) -> bool {
        let mut put = self.tree.frames().folios().put_folio(chain, head, order);
        while put == Err(FreeError::Listed) {
            put = self.put_listed(chain, head, order);
        }
        debug_assert!(put.is_ok(), "a folio could not be given back: {put:?}");
        let gone = put == Ok(true);
        // What it is charged as is read only now. Before, the program could still make it anonymous.
        if gone && self.is_charged(head) {
            self.uncharge_folio(head, order);
        }
        gone
    }

    /// The same for a folio that only the caller uses: it enters `chain`, or the error says why not.
    ///
    /// # Errors
    ///
    /// As for [`Frames::gather`](quire_frame::Frames::gather).
    #[inline]
    pub fn gather_folio(self, chain: &mut FrameChain, head: Pfn, order: Order) -> Result<(), FreeError> {
        let is_counted = self.is_counted(head, order);
        let mut gathered = self.tree.frames().gather(chain, head, order);
        while gathered == Err(FreeError::Listed) {
            self.unlist(head);
            gathered = self.tree.frames().gather(chain, head, order);
        }
        if gathered.is_ok() {
            if is_counted {
                self.count_large_folio_gone(order);
            }
            if self.is_charged(head) {
                self.uncharge_folio(head, order);
            }
        }
        gathered
    }

    /// Takes a folio that left the swap cache with its references frozen into `chain`.
    pub fn free_frozen(self, head: Pfn, chain: &mut FrameChain) {
        let order = self.tree.frames().folio(head).order();
        let gathered = self.gather_folio(chain, head, order);
        debug_assert!(gathered.is_ok(), "a frozen folio could not be freed: {gathered:?}");
    }

    /// Whether a folio that is in a chain is charged to a memcg.
    #[inline]
    fn is_charged(self, head: Pfn) -> bool {
        self.tree.frames().known(head).as_folio().memcg() != MemcgId::ROOT.get()
    }

    /// The folio is on a list, and the caller has the last reference to it, or has dropped it.
    #[cold]
    fn put_listed(self, chain: &mut FrameChain, head: Pfn, order: Order) -> Result<bool, FreeError> {
        self.unlist(head);
        // A CPU that looked at the list before may have taken a reference, unless there was none any more.
        if self.tree.frames().known(head).refs() == 0 {
            self.tree.frames().gather(chain, head, order).map(|()| true)
        } else {
            self.tree.frames().folios().put_folio(chain, head, order)
        }
    }

    #[cold]
    fn unlist(self, head: Pfn) {
        let pin = self.tree.frames().platform().pin();
        self.unlist_folio(&pin, head);
    }

    /// Uncharges a folio that is in a chain from its memcg.
    #[cold]
    fn uncharge_folio(self, head: Pfn, order: Order) {
        let pin = self.tree.frames().platform().pin();
        let frame = self.tree.frames().known(head).as_folio();
        let word = frame.memcg();
        let memcg = MemcgId::from_bits(word);
        frame.set_memcg(MemcgId::ROOT.get());
        if word & FILE != 0 {
            MemcgCounters::new(self.tree).add_stat(&pin, memcg, MemcgStat::File, -(order.pages() as i64));
        }
        MemcgCharges::new(self.tree).uncharge(&pin, memcg, order.pages());
    }
}
