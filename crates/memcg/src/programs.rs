//! What a program's new pages are charged to.

use crate::charge::MemcgCharges;
use crate::counters::MemcgCounters;
use crate::error::OverLimit;
use crate::folios::MemcgFolios;
use crate::id::MemcgId;
use crate::membership::Membership;
use crate::stat::MemcgStat;
use crate::tree::MemcgTree;
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_frame::FolioCounter;

quire_arch::part_of! {
    /// The memcgs of programs.
    pub struct MemcgPrograms { pub(crate) tree: MemcgTree }
}

impl<P: Platform> MemcgPrograms<'_, P> {
    /// Charges a new folio to the memcg of the program. If that is at its limit the folio is freed.
    #[inline]
    pub fn charge_new(
        self,
        pin: &Pin<'_, P>,
        program: &Membership,
        head: Pfn,
        order: Order,
    ) -> Result<(), OverLimit> {
        if program.memcg().is_root() { Ok(()) } else { self.charge_to_memcg(pin, program, head, order) }
    }

    #[inline(never)]
    fn charge_to_memcg(
        self,
        pin: &Pin<'_, P>,
        program: &Membership,
        head: Pfn,
        order: Order,
    ) -> Result<(), OverLimit> {
        let charged = self.with_memcg(pin, program, |memcg| {
            MemcgCharges::new(self.tree).try_charge(pin, memcg, order.pages())?;
            let frame = self.tree.frames().known(head);
            match frame.kind() {
                // The program may have gone to the root just now.
                kind if kind.is_of_file() && !memcg.is_root() => {
                    MemcgFolios::new(self.tree).own_file_page(pin, frame, memcg);
                }
                _ => frame.as_folio().set_memcg(memcg.get()),
            }
            Ok(())
        });
        if charged.is_err() {
            self.free_refused(pin, head, order);
        }
        charged
    }

    /// Frees a new folio that was not charged.
    #[cold]
    #[inline(never)]
    fn free_refused(self, pin: &Pin<'_, P>, head: Pfn, order: Order) {
        let is_of_file = self.tree.frames().known(head).kind().is_of_file();
        MemcgFolios::new(self.tree).release_unused(pin, head, order);
        if order > Order::ZERO && !is_of_file {
            let events = self.tree.frames().events();
            events.count_folio(pin, order, FolioCounter::AnonFaultFallbackCharge, 1);
        }
    }

    /// Charges the folio of a collapse, which is no fault. If the memcg of the program is at its limit the
    /// folio stays the caller's.
    pub fn charge_collapsed(
        self,
        pin: &Pin<'_, P>,
        program: &Membership,
        head: Pfn,
        order: Order,
    ) -> Result<(), OverLimit> {
        self.with_memcg(pin, program, |memcg| {
            if !memcg.is_root() {
                MemcgCharges::new(self.tree).try_charge(pin, memcg, order.pages())?;
                let frame = self.tree.frames().known(head);
                if frame.kind().is_of_file() {
                    MemcgFolios::new(self.tree).own_file_page(pin, frame, memcg);
                } else {
                    frame.as_folio().set_memcg(memcg.get());
                }
            }
            Ok(())
        })
    }

    /// Calls `work` with the memcg of the program. The program may leave it meanwhile, and the memcg may be
    /// removed: its number is not used again before this section ends.
    #[inline]
    fn with_memcg<R>(self, pin: &Pin<'_, P>, program: &Membership, work: impl FnOnce(MemcgId) -> R) -> R {
        let _section = self.tree.frames().epoch().enter(pin);
        work(program.memcg())
    }

    /// Counts one more of something for the memcg of the program.
    pub fn count(self, pin: &Pin<'_, P>, program: &Membership, stat: MemcgStat) {
        self.with_memcg(pin, program, |memcg| MemcgCounters::new(self.tree).add_stat(pin, memcg, stat, 1));
    }

    /// Charges a new folio for a caller that cannot wait for reclaim: the memcg may be a little over its
    /// limit.
    pub fn charge_anyway(self, pin: &Pin<'_, P>, program: &Membership, head: Pfn, order: Order) {
        self.with_memcg(pin, program, |memcg| {
            if !memcg.is_root() {
                MemcgCharges::new(self.tree).charge_anyway(pin, memcg, order.pages());
                self.tree.frames().known(head).as_folio().set_memcg(memcg.get());
            }
        });
    }
}
