//! Splitting a folio into smaller ones in place.
//!
//! With the head lock held no entry that maps the folio comes or goes, so its mappings can be counted page by
//! page. The counts are kept in the pages' descriptors, where the parts will need them. If they add up to the
//! head's count, and only the mappings and the caller hold references, each part gets its own state; else
//! nothing changes. No entry changes: it names a frame, and the descriptor says which folio that is in.
//!
//! A folio on an LRU list stays on it: it is the first part then. The other mapped parts go to the same list
//! if the owner of the lists does the split and holds the list's lock ([`FolioSplit::finish_with`]); else
//! they are on none, and a caller that has isolated the folio may keep a reference to each. Each is charged
//! to the folio's memcg. Unmapped parts are not: the caller uncharges them.

use super::FrameFolios;
use crate::chain::FrameChain;
use crate::folio::{Folio, HeadGuard};
use crate::frames::Frames;
use crate::kind::Kind;
use crate::map::{Frame, FrameFlags};
use core::fmt;
use quire_arch::{Order, Pfn, Platform};
use quire_sync::atomic::Ordering;

/// Why a folio was not split. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SplitError {
    /// It is not anonymous memory.
    #[error("the folio is not anonymous memory")]
    NotAnonymous,
    /// It is not larger than what it was to be split into.
    #[error("the folio is not larger than its parts were to be")]
    NotLarger,
    /// Another thread holds a reference to it, pages are being mapped or unmapped, or it is just being freed.
    #[error("the folio is in use just now")]
    Busy,
    /// Each of its pages is mapped, and the caller asked to split only if some is not.
    #[error("every page of the folio is mapped")]
    Mapped,
}

/// What becomes of a mapped part of a folio that is split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartIs {
    /// It is on no list.
    Unlisted,
    /// It was put on a list, and gets [`FrameFlags::LRU`].
    Listed,
    /// It is on no list, and the caller gets a reference to it.
    Held,
}

/// Parts of one folio that was split. A reference to each belongs to the owner of the set.
#[derive(Debug, Default)]
#[must_use = "the references have to be dropped"]
pub struct HeldParts {
    /// The first frame of the aligned block of the PMD's order that has the folio.
    block: Pfn,
    /// By the place in the block.
    held: [u64; (Order::PMD.pages() / 64) as usize],
}

impl HeldParts {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the reference to the last of them.
    pub fn pop(&mut self) -> Option<Pfn> {
        let (word, held) = self.held.iter_mut().enumerate().rev().find(|(_, held)| **held != 0)?;
        let bit = held.ilog2();
        *held &= !(1 << bit);
        Some(self.block.offset(word as u64 * 64 + u64::from(bit)))
    }

    /// Calls `keep` with each of them, and forgets those for which it returns false: that took the reference.
    pub fn retain(&mut self, mut keep: impl FnMut(Pfn) -> bool) {
        for nth in 0..Order::PMD.pages() {
            let (held, bit) = (&mut self.held[(nth / 64) as usize], 1 << (nth % 64));
            if *held & bit != 0 && !keep(self.block.offset(nth)) {
                *held &= !bit;
            }
        }
    }

    /// Adds `part`, to which the owner gets a reference: to a set that has none yet, or only some of the same
    /// folio. Returns false, and adds nothing, if it is none that can be added.
    pub fn add(&mut self, part: Pfn) -> bool {
        let block = part.block_start(Order::PMD);
        if self.held == [0; _] {
            self.block = block;
        }
        let nth = part.0 - block.0;
        let Some(held) = self.held.get_mut((nth / 64) as usize).filter(|_| self.block == block) else {
            return false;
        };
        *held |= 1 << (nth % 64);
        true
    }
}

/// A large folio whose mappings are being counted page by page, under its head lock.
#[must_use]
pub struct FolioSplit<'m, P: Platform> {
    frames: &'m Frames<P>,
    locked: HeadGuard<'m, P>,
    /// Mappings of the first page. Those of the others are counted in their descriptors.
    of_first: u32,
    counted: u32,
}

impl<'f, P: Platform> FrameFolios<'f, P> {
    /// Begins to count the mappings of a large folio.
    pub fn begin_split(self, locked: HeadGuard<'f, P>) -> FolioSplit<'f, P> {
        FolioSplit { frames: self.frames, locked, of_first: 0, counted: 0 }
    }
}

impl<P: Platform> FolioSplit<'_, P> {
    /// The folio.
    pub fn folio(&self) -> Folio<'_> {
        self.locked.folio()
    }

    /// The descriptor of page `nth`.
    fn page(&self, nth: u64) -> &Frame {
        self.frames.known(Pfn(self.locked.folio().head().0 + nth))
    }

    /// An entry maps page `nth` of the folio.
    pub fn count_map(&mut self, nth: u64) {
        if nth == 0 {
            self.of_first += 1;
        } else {
            let count = self.page(nth).map_count();
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        self.counted += 1;
    }

    /// Mappings of page `nth`, as counted.
    fn maps_of(&self, nth: u64) -> u32 {
        if nth == 0 { self.of_first } else { self.page(nth).map_count().load(Ordering::Relaxed) }
    }

    /// Whether the folio can be split into parts of order `to`, as counted.
    fn check(&self, to: Order, unless_mapped: bool) -> Result<(), SplitError> {
        let folio = self.locked.folio();
        if folio.kind() != Kind::Anonymous {
            return Err(SplitError::NotAnonymous);
        }
        if to >= folio.order() {
            return Err(SplitError::NotLarger);
        }
        if self.counted != self.locked.maps() || self.counted == 0 {
            return Err(SplitError::Busy);
        }
        if unless_mapped && (0..folio.order().pages()).all(|nth| self.maps_of(nth) > 0) {
            return Err(SplitError::Mapped);
        }
        Ok(())
    }

    /// Makes every `to`-sized part of the folio one of its own. The caller holds `held` references beside
    /// that of the mappings, and keeps them, on the first part. Unmapped parts enter `unmapped`, except the
    /// first.
    ///
    /// # Errors
    ///
    /// See [`SplitError`]; with `unless_mapped` a folio all of whose pages are mapped is left as it is.
    pub fn finish(
        self,
        to: Order,
        held: u32,
        unless_mapped: bool,
        unmapped: &mut FrameChain,
    ) -> Result<(), SplitError> {
        self.finish_with(to, held, unless_mapped, unmapped, |_| PartIs::Unlisted)
    }

    /// As [`finish`](Self::finish) into single pages, for a caller that has isolated the folio: it gets a
    /// reference to each mapped part but the first in `parts`, which has none yet.
    ///
    /// # Errors
    ///
    /// As for [`finish`](Self::finish); then `parts` has none.
    pub fn finish_held(
        self,
        held: u32,
        unless_mapped: bool,
        unmapped: &mut FrameChain,
        parts: &mut HeldParts,
    ) -> Result<(), SplitError> {
        self.finish_with(Order::ZERO, held, unless_mapped, unmapped, |part| {
            if parts.add(part) { PartIs::Held } else { PartIs::Unlisted }
        })
    }

    /// As [`finish`](Self::finish). `part_is` is called with the first frame of each mapped part but the
    /// first, from the last to the first, before any thread can see that it is one. A thread that sees that
    /// it is listed takes the list's lock, which the caller holds until this returns.
    ///
    /// # Errors
    ///
    /// As for [`finish`](Self::finish); then `part_is` was not called.
    pub fn finish_with(
        mut self,
        to: Order,
        held: u32,
        unless_mapped: bool,
        unmapped: &mut FrameChain,
        mut part_is: impl FnMut(Pfn) -> PartIs,
    ) -> Result<(), SplitError> {
        let folio = self.locked.folio();
        let (head, order, frame) = (folio.head(), folio.order(), folio.frame());
        self.check(to, unless_mapped)?;
        // From here no thread can take a reference, until the head gets its new word.
        if !frame.freeze(held + 1, FrameFlags::empty()) {
            return Err(SplitError::Busy);
        }
        let (owner, index) = (frame.owner().load(Ordering::Relaxed), frame.index().load(Ordering::Relaxed));
        let memcg = frame.memcg().load(Ordering::Relaxed);
        // Flags are changed by a thread that has a reference, and those that say where it is listed also
        // under the list's lock.
        let word = frame.word();
        let mut flags = word.flags() - (FrameFlags::PARTLY_MAPPED | FrameFlags::MAPPED_IN_PART);
        flags.set(
            FrameFlags::ANONYMOUS_EXCLUSIVE,
            to > Order::ZERO && flags.contains(FrameFlags::ANONYMOUS_EXCLUSIVE),
        );
        // From the last part to the first: see `Frames::folio_of_tail`.
        for part in (0..order.pages() >> to.get()).rev() {
            let first = part << to.get();
            let mut maps = 0;
            for nth in first..first + to.pages() {
                maps += self.maps_of(nth);
                if nth > 0 {
                    self.page(nth).map_count().store(0, Ordering::Relaxed);
                }
            }
            let page = self.page(first);
            page.owner().store(owner, Ordering::Relaxed);
            page.index().store(index + first, Ordering::Relaxed);
            page.live().store(0, Ordering::Relaxed);
            page.map_count().store(maps, Ordering::Release);
            let mut flags = flags;
            // A part that nothing maps has none: a thread that found it before it was unmapped, and pins it at this
            // moment, would keep it from being gathered.
            let mut refs = u32::from(maps > 0) + if part == 0 { held } else { 0 };
            if part > 0 {
                flags.remove(FrameFlags::LOCKED | FrameFlags::WAITERS | FrameFlags::LRU);
                if maps > 0 {
                    page.memcg().store(memcg, Ordering::Relaxed);
                    let is = part_is(Pfn(head.0 + first));
                    flags.set(FrameFlags::LRU, is == PartIs::Listed);
                    refs += u32::from(is == PartIs::Held);
                }
            }
            page.set_word(word.part(to, flags, refs));
            if part > 0 && maps == 0 {
                let gathered = self.frames.gather(unmapped, Pfn(head.0 + first), to);
                debug_assert!(gathered.is_ok(), "an unmapped part could not be gathered: {gathered:?}");
            }
        }
        // Nothing is left to restore.
        self.counted = 0;
        Ok(())
    }
}

impl<P: Platform> Drop for FolioSplit<'_, P> {
    fn drop(&mut self) {
        if self.counted > 0 {
            for nth in 1..self.locked.folio().order().pages() {
                self.page(nth).map_count().store(0, Ordering::Relaxed);
            }
        }
    }
}

impl<P: Platform> fmt::Debug for FolioSplit<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolioSplit").field("folio", &self.locked).finish_non_exhaustive()
    }
}
