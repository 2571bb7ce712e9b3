//! The requests of a device for a folio of the swap cache, as bits of the state word.
//!
//! Safe code implements devices, so a report is believed only as far as these bits allow. READING or
//! WRITEBACK says that a folio is under I/O, and the cache keeps it until then. ASKED says that a device may
//! have the request: without it no report ends the I/O. COMPLETING is the claim of a thread that was told of
//! an end. Each step is one exchange of the word, so a report is claimed before a compressed cache takes the
//! request in hand, or after it has given it back, and by one thread at a time.

use super::Frame;
use crate::map::{FrameFlags, FrameState};
use quire_arch::Execution;

/// Whether a compressed cache can work at a folio itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InHand {
    /// Until it is [given back](FolioIo::give_back) no report ends its I/O.
    Taken,
    /// It is a folio of the swap cache that no device is asked for, or whose I/O has ended.
    NotAsked,
    /// It is no folio of the swap cache: no report of it counts.
    NotOfSwap,
}

fn is_folio_of(word: FrameState, pages: u64, flags: FrameFlags) -> bool {
    let wanted = flags.union(FrameFlags::SWAP_CACHE);
    word.kind().is_swap_backed() && word.flags().contains(wanted) && word.order().pages() == pages
}

/// A folio of the swap cache whose contents a device reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct FolioIo<'f>(&'f Frame);

impl FolioIo<'_> {
    /// A device is about to be asked to read or write the folio: `marks` says which, and from now on it may
    /// report the end of that.
    #[inline]
    pub fn begin(self, marks: FrameFlags) {
        self.0.set_flags(marks.union(FrameFlags::ASKED));
    }

    /// Claims the folio of a request for `pages` pages that a device reports as completed, if one that is
    /// `under_way` has been asked for: then it stays as it is until [`end`](Self::end), and other
    /// threads that are told of it wait. The caller is pinned, so they do not wait long.
    pub fn claim<E: Execution>(self, pages: u64, under_way: FrameFlags) -> bool {
        let is_asked = |word| is_folio_of(word, pages, under_way.union(FrameFlags::ASKED));
        self.change_when_unclaimed::<E>(FrameFlags::COMPLETING, FrameFlags::empty(), is_asked)
    }

    /// The end of a request that the caller has claimed: sets `set`, and clears `clear` with the claim.
    /// `None` if one of the flags `unless` is set: then nothing has changed.
    pub fn end(self, set: FrameFlags, clear: FrameFlags, unless: FrameFlags) -> Option<FrameFlags> {
        let clear = clear.union(FrameFlags::ASKED).union(FrameFlags::COMPLETING);
        let ended = |word: FrameState| {
            if word.flags().intersects(unless) { None } else { word.change_flags(set, clear) }
        };
        self.0.update(|word| ended(word).ok_or(())).ok().map(FrameState::flags)
    }

    /// The request that the caller has claimed is not the one that was reported.
    pub fn unclaim(self) {
        self.0.clear_flags(FrameFlags::COMPLETING);
    }

    /// A compressed cache, which was given a request for `pages` pages, works at the folio itself.
    pub fn take_in_hand<E: Execution>(self, pages: u64) -> InHand {
        let is_asked = |word| is_folio_of(word, pages, FrameFlags::ASKED);
        let taken = self.change_when_unclaimed::<E>(FrameFlags::empty(), FrameFlags::ASKED, is_asked);
        match taken {
            true => InHand::Taken,
            false if is_folio_of(self.0.word(), pages, FrameFlags::empty()) => InHand::NotAsked,
            false => InHand::NotOfSwap,
        }
    }

    /// The cache hands the request on, or reports it.
    pub fn give_back(self) {
        self.0.set_flags(FrameFlags::ASKED);
    }

    /// Changes flags where the state is as `wanted`, when no thread has a claim. Returns whether it was.
    fn change_when_unclaimed<E: Execution>(
        self,
        set: FrameFlags,
        clear: FrameFlags,
        wanted: impl Fn(FrameState) -> bool,
    ) -> bool {
        let is_claimed = |word: FrameState| word.flags().contains(FrameFlags::COMPLETING);
        let mut attempt = 0;
        loop {
            if self.0.change_flags_if(set, clear, |word| wanted(word) && !is_claimed(word)) {
                return true;
            }
            if !wanted(self.0.word()) {
                return false;
            }
            E::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }
}

impl Frame {
    /// The I/O of the folio of the swap cache that starts here.
    #[inline]
    pub fn io(&self) -> FolioIo<'_> {
        FolioIo(self)
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::kind::Kind;
    use crate::map::Migratetype;
    use crate::zone_id::ZoneId;
    use loom::sync::Arc;
    use loom::thread;
    use quire_arch::Order;
    use quire_sync::Watched;

    const NONE: FrameFlags = FrameFlags::empty();

    struct Loom;

    impl Execution for Loom {
        fn relax(_attempt: u32) {
            thread::yield_now();
        }
    }

    fn given_out() -> FrameState {
        FrameState::given_out(Kind::Anonymous, Order::ZERO, Migratetype::Movable)
    }

    /// A page of the swap cache that a device was asked to read or write.
    struct Page {
        frame: Frame,
        contents: Watched<u64>,
    }

    impl Page {
        fn new(marks: FrameFlags) -> Arc<Self> {
            let frame = Frame::new(Kind::Tail, ZoneId::default());
            frame.set_word(given_out());
            frame.set_flags(FrameFlags::SWAP_CACHE);
            frame.io().begin(marks);
            Arc::new(Self { frame, contents: Watched::new(0) })
        }

        /// A device reports the end of its request. Returns whether that ends it.
        fn report(&self, under_way: FrameFlags, failed: FrameFlags) -> bool {
            self.frame.io().claim::<Loom>(1, under_way)
                && self.frame.io().end(failed, under_way, NONE).is_some()
        }
    }

    /// Two CPUs are told of the end of one write, once with an error. The page is freed as soon as it is
    /// clean, and another owner's by the time that the second one is through: it has no mark of the first
    /// owner's.
    #[test]
    fn loom_two_reports_of_one_request_end_it_once() {
        loom::model(|| {
            let page = Page::new(FrameFlags::WRITEBACK);
            let other = {
                let page = Arc::clone(&page);
                thread::spawn(move || page.report(FrameFlags::WRITEBACK, FrameFlags::DIRTY))
            };
            let ended = page.report(FrameFlags::WRITEBACK, NONE);
            let evicted = page.frame.freeze(1, FrameFlags::DIRTY.union(FrameFlags::WRITEBACK));
            if evicted {
                page.frame.set_word(given_out());
            }
            assert_ne!(ended, other.join().unwrap(), "one of them ends it");
            let left = if ended { NONE } else { FrameFlags::DIRTY };
            let kept = if evicted { NONE } else { FrameFlags::SWAP_CACHE.union(left) };
            assert_eq!(page.frame.word().flags(), kept);
            assert_eq!(evicted, ended);
        });
    }

    /// A compressed cache decompresses a page while the device behind it reports it. Who finds it read may
    /// use it: loom finds accesses that nothing orders.
    #[test]
    fn loom_a_report_ends_no_request_that_a_cache_has_in_hand() {
        loom::model(|| {
            let page = Page::new(FrameFlags::READING);
            let reported = {
                let page = Arc::clone(&page);
                thread::spawn(move || {
                    let ended = page.report(FrameFlags::READING, NONE);
                    ended.then(|| page.contents.get())
                })
            };
            let in_hand = page.frame.io().take_in_hand::<Loom>(1);
            if in_hand == InHand::Taken {
                page.contents.set(7);
                page.frame.io().give_back();
            }
            let seen = reported.join().unwrap();
            if seen.is_none() {
                assert!(page.report(FrameFlags::READING, NONE), "it can end when the cache is through");
            }
            assert_eq!(seen == Some(0), in_hand == InHand::NotAsked, "{seen:?}");
        });
    }
}
