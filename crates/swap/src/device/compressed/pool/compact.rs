//! Compaction: moving objects together, so that chains become empty.

use super::class::{CLASS_COUNT, CLASSES, Class};
use super::zspage::{HEADER, Pieces, Zspage};
use super::{Chains, Location, Pool};
use core::sync::atomic::Ordering;
use quire_arch::{Pin, Platform};
use quire_frame::Frames;

/// After this many chains that could not be emptied, the class is skipped.
const BUSY_CHAINS: u32 = 8;

/// What empties one chain.
pub(in crate::device::compressed) type EmptyChain<'s, P> =
    dyn FnMut(&Frames<P>, &Pin<'_, P>, &dyn Referrer) + 's;

/// The owner's side of a move: it knows where objects are.
pub(in crate::device::compressed) trait Referrer {
    /// If `owner` has its object at `from` and no thread is using it, calls `copy` and records `to` as its
    /// new location. Otherwise returns false without calling `copy`.
    ///
    /// Called with a lock of the class [`CompressedPool`](quire_arch::LockClass::CompressedPool) held, so it
    /// must not wait.
    fn relocate(&self, owner: u32, from: Location, to: Location, copy: &mut dyn FnMut()) -> bool;
}

impl Chains {
    /// Whether the chains of the class would be fewer if objects lay together.
    pub(super) fn can_shrink(&self, class: Class) -> bool {
        self.count * class.objects - self.live >= class.objects
    }

    /// Takes the chain with the fewest objects off its list.
    fn take_sparsest<'f, P: Platform>(&mut self, frames: &'f Frames<P>) -> Option<Zspage<'f, P>> {
        let list = self.partial.iter_mut().find(|list| !list.is_empty())?;
        Some(Zspage::at(frames, list.pop_back(frames.map())?))
    }

    /// Moves what can be moved from `chain`, which is on no list, to other chains.
    fn evacuate<P: Platform>(
        &mut self,
        frames: &Frames<P>,
        class: Class,
        chain: &Zspage<'_, P>,
        referrer: &dyn Referrer,
    ) {
        for number in 0..chain.ever_used() {
            let Some(owner) = chain.owner(number) else { continue };
            let Some(to) = self.take(frames, class, owner) else { return };
            let from = chain.location(number);
            let length = class.size as usize - HEADER;
            let source = Pieces::of(frames, from, HEADER, length);
            let target = Pieces::of(frames, to, HEADER, length);
            // SAFETY: the owner calls this only while no thread uses the object, and the new one is not known
            // to any thread. They lie in different chains.
            let copy = &mut || unsafe { source.copy_over(&target) };
            if referrer.relocate(owner, from, to, copy) {
                chain.put(from);
                self.live -= 1;
            } else {
                // Another thread is just writing it, reading it or taking it away.
                let emptied = self.put(frames, class, to);
                debug_assert!(emptied.is_none(), "the chain had objects before");
            }
        }
    }
}

impl<P: Platform> Pool<P> {
    /// Compacts class after class until `wanted` frames are free or there are no more, and returns how many
    /// were freed. `step` calls its argument once, and returns whether to go on.
    ///
    /// A step empties one chain: neither is a class's lock held for long, nor the pin that its holder needs.
    pub(in crate::device::compressed) fn compact(
        &self,
        wanted: u64,
        mut step: impl FnMut(&mut EmptyChain<'_, P>) -> bool,
    ) -> u64 {
        let mut freed = 0;
        for number in 0..CLASS_COUNT {
            let mut busy = 0;
            let mut outcome = Some(0);
            while busy < BUSY_CHAINS && outcome.is_some() && freed < wanted {
                let mut one = |frames: &Frames<P>, pin: &Pin<'_, P>, referrer: &dyn Referrer| {
                    outcome = self.compact_one(frames, pin, number, referrer);
                };
                if !step(&mut one) {
                    return freed;
                }
                freed += outcome.unwrap_or(0);
                busy += u32::from(outcome == Some(0));
            }
        }
        freed
    }

    /// Empties the sparsest chain of the class `number`, and returns the number of frames freed: zero if some
    /// of its objects are in use. `None` if that would not reduce the number of chains.
    fn compact_one(
        &self,
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        number: usize,
        referrer: &dyn Referrer,
    ) -> Option<u64> {
        let class = CLASSES[number];
        let mut chains = self.chains(number).lock();
        if !chains.can_shrink(class) {
            return None;
        }
        let chain = chains.take_sparsest(frames)?;
        chains.evacuate(frames, class, &chain, referrer);
        let empty = chain.live() == 0;
        // At the front, where it is tried last if it is not empty.
        chains.enlist(frames, class, &chain);
        drop(chains);
        if !empty {
            return Some(0);
        }
        let freed = self.release_chain(frames, pin, &chain);
        self.compacted.fetch_add(freed, Ordering::Relaxed);
        Some(freed)
    }
}
