//! Loom models of the map count of a folio of one page, which changes without a lock, and of its pins.
//! `scripts/models.sh loom` runs them.

use super::{Folio, MapsLeft, PIN};
use crate::kind::Kind;
use crate::map::{Frame, FrameFlags, FrameState, LockCheck, Migratetype};
use crate::zone_id::ZoneId;
use loom::sync::Arc;
use loom::thread;
use quire_arch::{Execution, LockClass, Order, Pfn};
use quire_sync::Watched;
use quire_sync::atomic::{AtomicU64, Ordering, fence};

/// A page, and what programs write to it: loom finds accesses that nothing orders.
struct Page {
    frame: Frame,
    contents: Watched<u64>,
}

impl Page {
    fn new(maps: u32) -> Arc<Self> {
        let frame = Frame::new(Kind::Tail, ZoneId::default());
        frame.set_word(FrameState::given_out(Kind::Anonymous, Order::ZERO, Migratetype::Movable));
        frame.map_count().store(maps, Ordering::Relaxed);
        Arc::new(Self { frame, contents: Watched::new(7) })
    }

    fn folio(&self) -> Folio<'_> {
        Folio { head: Pfn(1), order: Order::ZERO, frame: &self.frame }
    }

    fn read(&self) {
        assert_eq!(self.contents.get(), 7);
    }

    fn write(&self) {
        self.contents.set(8);
    }
}

/// Two threads remove their mappings: exactly one is the last, and may reuse what the other has read.
#[test]
fn loom_of_two_removers_one_is_the_last() {
    loom::model(|| {
        let page = Page::new(2);
        let go = |page: &Page| {
            page.read();
            let left = page.folio().remove_maps(1);
            if left == MapsLeft::None {
                page.write();
            }
            left
        };
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || go(&page))
        };
        let mut left = [go(&page), other.join().unwrap()];
        left.sort_by_key(|left| *left == MapsLeft::None);
        assert_eq!(left, [MapsLeft::Some, MapsLeft::None]);
        assert_eq!(page.folio().maps(), 0);
    });
}

/// One thread shares the page with a child while another removes its mapping: no count is lost.
#[test]
fn loom_a_share_and_a_removal_are_both_counted() {
    loom::model(|| {
        let page = Page::new(2);
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || page.folio().remove_maps(1))
        };
        assert!(page.folio().add_maps(1));
        assert_eq!(other.join().unwrap(), MapsLeft::Some);
        assert_eq!(page.folio().maps(), 2);
    });
}

/// One thread removes the only mapping of a page in the swap cache while another maps it from there: the
/// mappings' reference is taken as often as it is dropped, plus once for the mapping that is left.
#[test]
fn loom_a_removal_and_a_mapping_by_name_are_both_counted() {
    loom::model(|| {
        let page = Page::new(1);
        page.frame.set_flags(FrameFlags::SWAP_CACHE);
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || page.folio().remove_maps(1) == MapsLeft::None)
        };
        let first = page.folio().add_cached_maps(1);
        assert_eq!(first, other.join().unwrap());
        assert_eq!(page.folio().maps(), 1);
    });
}

/// A thread clears the entry of a page, to put a copy there, while another pins the page without a lock: the
/// first finds the pin, or the second finds the entry changed.
#[test]
fn loom_of_a_fast_pin_and_a_copy_one_sees_the_other() {
    loom::model(|| {
        let state = Arc::new((Page::new(1), AtomicU64::new(1)));
        let copying = {
            let state = Arc::clone(&state);
            thread::spawn(move || {
                let (page, entry) = &*state;
                entry.swap(0, Ordering::AcqRel);
                !page.folio().may_be_pinned_after_unmap()
            })
        };
        let (page, entry) = &*state;
        assert!(page.frame.try_get_mapped(PIN));
        fence(Ordering::SeqCst);
        let pinned = entry.load(Ordering::Acquire) == 1;
        let copied = copying.join().unwrap();
        assert!(!(pinned && copied), "a page that a device has was copied");
    });
}

struct Loom;

impl Execution for Loom {
    fn relax(_attempt: u32) {
        thread::yield_now();
    }
}

/// A folio of two pages, and what its head lock guards.
struct Pair {
    frames: [Frame; 2],
    count: Watched<u64>,
}

impl Pair {
    const ORDER: Order = Order::ALL[1];

    /// One more is counted under the head lock of the folio that the second page lies in, where that is the
    /// pair.
    fn count(&self) -> bool {
        while self.frames[1].kind() == Kind::Tail {
            let folio = Folio { head: Pfn(2), order: Self::ORDER, frame: &self.frames[0] };
            match folio.try_lock_head() {
                Some(true) => {
                    assert_eq!(self.frames[1].kind(), Kind::Tail, "the lock of another owner");
                    self.count.set(self.count.get() + 1);
                    // SAFETY: taken above.
                    unsafe { folio.frame.lock_word().unlock::<Loom>(LockClass::Folio) };
                    return true;
                }
                Some(false) => {}
                None => Loom::relax(0),
            }
        }
        false
    }

    /// As a split, under the head lock: the second page is a folio of its own, then the first one.
    fn split(&self) {
        let folio = Folio { head: Pfn(2), order: Self::ORDER, frame: &self.frames[0] };
        while folio.try_lock_head() != Some(true) {
            Loom::relax(0);
        }
        self.count.set(self.count.get() + 1);
        for frame in self.frames.iter().rev() {
            frame.set_word(FrameState::given_out(Kind::Anonymous, Order::ZERO, Migratetype::Movable));
        }
        // SAFETY: taken above.
        unsafe { folio.frame.lock_word().unlock::<Loom>(LockClass::Folio) };
    }
}

/// A thread looks for the head lock of a folio that is split, and whose first frame is freed and another
/// owner's by then. The frame can be freed though its lock is looked at, the next owner has the lock alone,
/// and the thread does not take that for the one that it wants.
#[test]
fn loom_a_late_head_lock_keeps_no_frame_and_is_no_lock_of_its_next_owner() {
    loom::model(|| {
        let frames = [Kind::Anonymous, Kind::Tail].map(|kind| {
            let frame = Frame::new(Kind::Tail, ZoneId::default());
            if kind == Kind::Anonymous {
                frame.set_word(FrameState::given_out(kind, Pair::ORDER, Migratetype::Movable));
            }
            frame
        });
        let pair = Arc::new(Pair { frames, count: Watched::new(0) });
        let late = {
            let pair = Arc::clone(&pair);
            thread::spawn(move || pair.count())
        };
        pair.split();
        let first = &pair.frames[0];
        assert_eq!(first.release(Order::ZERO, LockCheck::MustBeFree), Ok(()), "a frame is lost");
        // A table's.
        first.set_word(FrameState::given_out(Kind::Table, Order::ZERO, Migratetype::Unmovable));
        first.lock_word().lock::<Loom>(LockClass::PteTable);
        let counted = pair.count.get();
        pair.count.set(counted + 1);
        // SAFETY: taken above.
        unsafe { first.lock_word().unlock::<Loom>(LockClass::PteTable) };
        let was_first = late.join().unwrap();
        assert_eq!(pair.count.get(), 2 + u64::from(was_first));
    });
}
