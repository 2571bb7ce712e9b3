//! Listing new folios, and draining the CPUs' batches to the lists of memcgs and nodes.

use super::MemcgFolios;
use crate::lists::{Label, LruList, NodeLists};
use quire_arch::{CpuId, Pfn, Pin, Platform};
use quire_frame::{FrameFlags, VmEvent};

/// Folios that are moved under one hold of the locks, and under one pin.
const CHUNK: u32 = 32;

impl<P: Platform> MemcgFolios<'_, P> {
    /// Puts a folio that was just mapped on the LRU list of its memcg, if anything can be reclaimed on this
    /// machine. The caller is in the section of the epoch in which it mapped the folio
    /// ([`lists_anonymous`](Self::lists_anonymous)).
    #[inline]
    pub fn list_new(self, pin: &Pin<'_, P>, head: Pfn, locked: bool) {
        debug_assert!(self.tree.frames().epoch().is_entered(pin), "a folio is mapped outside the epoch");
        if self.lists_anonymous() {
            self.list_mapped(pin, head, locked);
        }
    }

    #[inline(never)]
    fn list_mapped(self, pin: &Pin<'_, P>, head: Pfn, locked: bool) {
        if locked {
            self.list_mlocked(pin, head);
        } else {
            self.list_folio(pin, head, LruList::InactiveAnon);
        }
    }

    #[cold]
    #[inline(never)]
    fn list_mlocked(self, pin: &Pin<'_, P>, head: Pfn) {
        let frames = self.tree.frames();
        frames.known(head).set_flags(FrameFlags::MLOCKED);
        let pages = frames.folio(head).order().pages();
        frames.events().add(pin, VmEvent::UnevictablePgsMlocked, pages);
        frames.events().add(pin, VmEvent::UnevictablePgsCulled, pages);
        self.list_folio(pin, head, LruList::Unevictable);
    }

    /// Moves the folios that `cpu`, or every CPU, has listed to the lists of their memcgs and nodes, oldest
    /// first. Folios listed meanwhile may stay. There may be any number, so the caller is not pinned: each
    /// few are moved under a pin of their own.
    pub fn take_in(self, cpu: Option<CpuId>) {
        match cpu {
            Some(cpu) => self.take_in_from(cpu),
            None => {
                let cpus = self.tree.frames.platform().cpu_count();
                (0..cpus).filter_map(CpuId::new).for_each(|cpu| self.take_in_from(cpu));
            }
        }
    }

    fn take_in_from(self, cpu: CpuId) {
        let Some(incoming) = self.tree.incoming.get(cpu) else { return };
        let map = self.tree.frames.map();
        let mut left = None;
        loop {
            let _pin = self.tree.frames.platform().pin();
            // The lists' lock comes first, and which lists these are the oldest folio says.
            let (lists, there) = {
                let incoming = incoming.lock();
                let oldest = incoming.folios.last(map);
                (oldest.and_then(|head| self.lists_of(map.known(head))), incoming.folios.folios())
            };
            let left = left.get_or_insert(there);
            let Some(lists) = lists.filter(|_| *left > 0) else { return };
            // None means that another CPU has taken the folio off meanwhile.
            *left -= self.take_in_chunk(lists, cpu, CHUNK.min(*left)).max(1);
        }
    }

    /// Moves what belongs to `lists` from the end of what `cpu` has, up to `most` folios, and returns how
    /// many.
    fn take_in_chunk(self, lists: &NodeLists<P>, cpu: CpuId, most: u32) -> u32 {
        let Some(incoming) = self.tree.incoming.get(cpu) else { return 0 };
        let map = self.tree.frames.map();
        let mut to = lists.lock();
        let mut from = incoming.lock();
        let mut moved = 0;
        while moved < most
            && let Some(head) = from.folios.last(map)
            && self.lists_of(map.known(head)).is_some_and(|own| core::ptr::eq(own, lists))
        {
            from.folios.remove(map, head);
            let label = Label::of(map.known(head));
            lists.insert(&mut to, map, head, (Label::main(label.list(), label.order()), true));
            moved += 1;
        }
        moved
    }

    /// Folios that CPUs have listed and that are not taken in yet.
    pub fn incoming_folios(self, _pin: &Pin<'_, P>) -> u64 {
        self.tree.incoming.iter().map(|incoming| u64::from(incoming.lock().folios.folios())).sum()
    }
}
