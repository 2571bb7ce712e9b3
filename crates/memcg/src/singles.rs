//! Single pages of private memory that lose their only mapping. Those on lists leave them, and those that are
//! charged are uncharged, many at a time.

use crate::charge::MemcgCharges;
use crate::counters::MemcgCounters;
use crate::folios::{Held, MemcgFolios};
use crate::id::MemcgId;
use crate::lists::{Label, ListPlace};
use crate::stat::MemcgStat;
use arrayvec::ArrayVec;
use core::fmt;
use quire_arch::{Pfn, Pin, Platform};
use quire_frame::{Frame, FrameChain, FrameFlags, SinglePages, SingleUnmapped};

/// Pages that wait to be taken off their lists: so many share a hold of the lists' lock.
const LISTED: usize = 64;

/// Pages of one memcg that were taken from their user and are charged still.
#[derive(Clone, Copy, Debug)]
struct Charged {
    memcg: MemcgId,
    pages: u64,
}

impl Charged {
    const NONE: Self = Self { memcg: MemcgId::ROOT, pages: 0 };

    /// Notes the charge of a page that was taken. One of another memcg is uncharged with what was noted.
    #[inline]
    fn note<P: Platform>(&mut self, folios: MemcgFolios<'_, P>, pin: &Pin<'_, P>, pfn: Pfn) {
        let folio = folios.tree.frames().known(pfn).as_folio();
        let word = folio.memcg();
        folio.set_memcg(MemcgId::ROOT.get());
        let memcg = MemcgId::from_bits(word);
        if word != memcg.get() {
            // It was made private while it counted as a page of a file.
            MemcgCounters::new(folios.tree).add_stat(pin, memcg, MemcgStat::File, -1);
        }
        if self.memcg != memcg {
            self.settle(folios, pin);
            self.memcg = memcg;
        }
        self.pages += 1;
    }

    fn settle<P: Platform>(&mut self, folios: MemcgFolios<'_, P>, pin: &Pin<'_, P>) {
        let Self { memcg, pages } = core::mem::replace(self, Self::NONE);
        if pages > 0 {
            MemcgCharges::new(folios.tree).uncharge(pin, memcg, pages);
        }
    }
}

/// Takes `pages`, which were on lists a moment ago, off these, and gives each to `take` under the lock of its
/// list. Those that `take` returns false for, and those that moved meanwhile, it gives to `refuse`, with no
/// lock held.
#[inline(always)]
fn take_listed<P: Platform>(
    folios: MemcgFolios<'_, P>,
    pages: &[Pfn],
    mut take: impl FnMut(Pfn) -> bool,
    mut refuse: impl FnMut(Pfn),
) {
    let mut held: Option<(Label, Held<'_, P>)> = None;
    for &pfn in pages {
        let frame = folios.tree.frames().known(pfn);
        let label = Label::of(frame);
        let is_same = match &held {
            // Most often the label is that of the page before.
            Some((own, Held::Incoming(_))) => *own == label || own.place() == label.place(),
            Some((_, Held::Main(lists, _))) => {
                label.place() == ListPlace::Main
                    && folios.lists_of(frame).is_some_and(|now| core::ptr::eq(now, *lists))
            }
            None => false,
        };
        if !is_same {
            // Before the next one is taken: of these locks a thread has one at most.
            drop(held.take());
            held = match label.place() {
                ListPlace::Incoming(cpu) => {
                    folios.tree.incoming.get(cpu).map(|incoming| (label, Held::Incoming(incoming.lock())))
                }
                ListPlace::Main => {
                    folios.lists_of(frame).map(|lists| (label, Held::Main(lists, lists.lock())))
                }
            };
        }
        let is_taken =
            held.as_mut().is_some_and(|(_, held)| take_off(folios, (pfn, frame), label, held, &mut take));
        if !is_taken {
            drop(held.take());
            refuse(pfn);
        }
    }
}

/// Takes one page off the list that is `held`, if it is there, and gives it to `take`. `seen` is its label
/// without the lock.
#[inline(always)]
fn take_off<P: Platform>(
    folios: MemcgFolios<'_, P>,
    (pfn, frame): (Pfn, &Frame),
    seen: Label,
    held: &mut Held<'_, P>,
    take: &mut impl FnMut(Pfn) -> bool,
) -> bool {
    // The flag is read before the label: a CPU that listed it elsewhere has set it after the label.
    let is_listed = frame.word().flags().contains(FrameFlags::LRU);
    let label = Label::of(frame);
    let is_here = match held {
        Held::Incoming(_) => true,
        Held::Main(lists, _) => folios.lists_of(frame).is_some_and(|now| core::ptr::eq(now, *lists)),
    };
    let is_there = label == seen || label.place() == seen.place();
    if !is_listed || !label.is_some() || !is_there || !is_here {
        return false;
    }
    folios.take_off(pfn, label, held);
    Label::NONE.put(frame);
    // Other threads find it listed without a label until now, and look again.
    let is_taken = take(pfn);
    if !is_taken {
        frame.clear_flags(FrameFlags::LRU);
    }
    is_taken
}

/// Those whose mappings are gone from all TLBs: they are freed as soon as there is a batch of them.
#[must_use = "the pages are lost unless they are freed"]
pub struct SinglesToFree<'m, P: Platform> {
    folios: MemcgFolios<'m, P>,
    taken: SinglePages,
    listed: ArrayVec<Pfn, LISTED>,
    charged: Charged,
}

impl<'m, P: Platform> SinglesToFree<'m, P> {
    /// None.
    #[inline]
    pub fn new(folios: MemcgFolios<'m, P>) -> Self {
        Self { folios, taken: SinglePages::new(), listed: ArrayVec::new_const(), charged: Charged::NONE }
    }

    /// Whether they are to be [freed](Self::free) before another is unmapped.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.taken.is_full() || self.listed.is_full()
    }

    /// Mappings of `pages` are gone. Returns how many of them it has unmapped, and how many of those others
    /// map: up to the first that is no single page of private memory, that other threads use, or for which
    /// there is no room. Those on lists are taken once they are off them, and may be refused then.
    #[inline(always)]
    pub fn unmap(&mut self, pin: &Pin<'_, P>, pages: impl Iterator<Item = Pfn>) -> (u64, u64) {
        let (mut unmapped, mut shared) = (0, 0);
        for pfn in pages {
            match self.unmap_one(pin, pfn) {
                SingleUnmapped::Other => break,
                SingleUnmapped::Mapped => shared += 1,
                SingleUnmapped::Taken | SingleUnmapped::TakenCharged | SingleUnmapped::Listed => {}
            }
            unmapped += 1;
        }
        (unmapped, shared)
    }

    #[inline(always)]
    fn unmap_one(&mut self, pin: &Pin<'_, P>, pfn: Pfn) -> SingleUnmapped {
        let unmapped = self.folios.tree.frames().folios().unmap_single(&mut self.taken, pfn);
        match unmapped {
            SingleUnmapped::TakenCharged => self.charged.note(self.folios, pin, pfn),
            SingleUnmapped::Listed if self.listed.try_push(pfn).is_err() => return SingleUnmapped::Other,
            _ => {}
        }
        unmapped
    }

    /// Frees what was taken. Those on lists that other threads use meanwhile go to `refuse`, mapped still.
    pub fn free(&mut self, pin: &Pin<'_, P>, refuse: impl FnMut(Pfn)) {
        let Self { folios, taken, listed, charged } = self;
        let frames = folios.tree.frames();
        frames.folios().free_singles(pin, taken);
        if !listed.is_empty() {
            let take = |pfn| {
                let unmapped = frames.folios().take_listed_single(taken, pfn);
                if unmapped == SingleUnmapped::TakenCharged {
                    charged.note(*folios, pin, pfn);
                }
                unmapped.is_taken()
            };
            take_listed(*folios, listed, take, refuse);
            listed.clear();
            frames.folios().free_singles(pin, taken);
        }
        charged.settle(*folios, pin);
    }
}

impl<P: Platform> fmt::Debug for SinglesToFree<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinglesToFree").field("taken", &self.taken).field("listed", &self.listed).finish()
    }
}

/// Those that TLBs may have still: they enter a chain, which is freed after the flush.
#[must_use = "pages stay on lists, and charged, unless they are settled"]
pub struct SinglesToChain<'m, P: Platform> {
    folios: MemcgFolios<'m, P>,
    listed: ArrayVec<Pfn, LISTED>,
    charged: Charged,
}

impl<'m, P: Platform> SinglesToChain<'m, P> {
    /// None.
    #[inline]
    pub fn new(folios: MemcgFolios<'m, P>) -> Self {
        Self { folios, listed: ArrayVec::new_const(), charged: Charged::NONE }
    }

    /// Whether those on lists are to be [settled](Self::settle) before another is gathered, for a caller with
    /// room for so many that are refused.
    #[inline]
    pub fn is_full(&self, room: usize) -> bool {
        self.listed.len() >= room.min(LISTED)
    }

    /// Whether there is nothing to settle.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.charged.pages == 0
    }

    /// The caller's entry, of a locked table, mapped the page at `pfn` and goes. If that was the only mapping
    /// the page enters `chain`; with [`SingleUnmapped::Listed`] once it is off its list.
    #[inline]
    pub fn gather(&mut self, pin: &Pin<'_, P>, chain: &mut FrameChain, pfn: Pfn) -> SingleUnmapped {
        let gathered = self.folios.tree.frames().folios().gather_single(chain, pfn);
        match gathered {
            SingleUnmapped::TakenCharged => self.charged.note(self.folios, pin, pfn),
            SingleUnmapped::Listed if self.listed.try_push(pfn).is_err() => return SingleUnmapped::Other,
            _ => {}
        }
        gathered
    }

    /// Takes those on lists off them, and uncharges all. Those that other threads use meanwhile go to
    /// `refuse`, mapped still: it must not free.
    pub fn settle(&mut self, pin: &Pin<'_, P>, chain: &mut FrameChain, refuse: impl FnMut(Pfn)) {
        let Self { folios, listed, charged } = self;
        let frames = folios.tree.frames();
        if !listed.is_empty() {
            let take = |pfn| {
                let gathered = frames.folios().gather_listed_single(chain, pfn);
                if gathered == SingleUnmapped::TakenCharged {
                    charged.note(*folios, pin, pfn);
                }
                gathered.is_taken()
            };
            take_listed(*folios, listed, take, refuse);
            listed.clear();
        }
        charged.settle(*folios, pin);
    }
}

impl<P: Platform> fmt::Debug for SinglesToChain<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinglesToChain")
            .field("listed", &self.listed)
            .field("charged", &self.charged)
            .finish()
    }
}
