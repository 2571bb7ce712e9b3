//! Such devices behind a compressed cache, which report a request while the cache works at it itself.

use super::{Script, Told, UNDER_WAY, assert_read, flags, page_out, read};
use crate::common::machine::{after_all_holds, run_on};
use crate::common::{Machine, Random, folio, swap};
use quire_arch::{LockClass, Order, PAGE_SIZE, Pfn, Platform};
use quire_frame::FrameFlags;
use quire_swap::{
    CompressedCache, DeviceFlags, Direction, Inserted, IoState, PageIo, SlotId, Swap, SwapOnOptions,
    SwapTechnique,
};
use std::sync::Arc;

/// Pages that cannot be compressed, as many as fit into the cache.
const CACHED: u64 = 16;

/// Swap on such a device with such a cache.
struct Front {
    swap: &'static Swap<Machine>,
    script: Arc<Script>,
    random: Random,
}

impl Front {
    fn new() -> Self {
        run_on(0);
        let swap: &'static Swap<Machine> = Box::leak(Box::new(swap(8192, 1, SwapTechnique::All)));
        let script = Arc::<Script>::default();
        assert!(script.swap.set(swap).is_ok());
        let behind = Told(Arc::clone(&script), DeviceFlags::empty());
        let cache = CompressedCache::new(swap.frames(), behind, CACHED * PAGE_SIZE).unwrap();
        swap.devices().swapon(cache, SwapOnOptions::default()).unwrap();
        Self { swap, script, random: Random(7) }
    }

    /// Slots with pages that are not in memory.
    fn out(&mut self, order: Order) -> SlotId {
        let (swap, script) = (self.swap, &self.script);
        let head = folio(swap, order);
        for nth in 0..order.pages() {
            let page = swap.platform().direct_map(head.offset(nth));
            // SAFETY: the frame is the test's.
            unsafe { page.cast().write([(); 512].map(|()| self.random.next())) };
        }
        page_out(swap, script, head)
    }

    /// Four slots, of which the cache has the last two.
    fn partly_out(&mut self) -> SlotId {
        let slot = self.out(Order::new(2).unwrap());
        let is_copy =
            |nth: u64| move |io: &&PageIo| io.direction == Direction::Write && io.slot == slot.number() + nth;
        loop {
            self.out(Order::ZERO);
            let requests = std::mem::take(&mut *self.script.requests.lock().unwrap());
            let copies = [0, 1].map(|nth| requests.iter().find(is_copy(nth)).copied());
            if let [Some(first), Some(second)] = copies {
                self.script.report(first, Ok(()));
                self.script.report(second, Ok(()));
                return slot;
            }
        }
    }

    /// An empty folio that came into the cache of swap for these slots.
    fn inserted(&self, slot: SlotId, order: Order) -> Pfn {
        let back = folio(self.swap, order);
        self.swap.frames().known(back).set_flags(FrameFlags::READING);
        assert!(matches!(self.swap.cache().insert(slot, back), Inserted::Won { .. }));
        back
    }

    /// Makes `call`, which reads the folio. Each time that the cache has looked for a page the device reports
    /// all of it, which it was not asked for: that ends nothing.
    fn reported_early<R>(&self, slot: SlotId, back: Pfn, call: impl FnOnce() -> R) -> R {
        let (swap, script) = (self.swap, Arc::clone(&self.script));
        let pages = swap.frames().known(back).word().order().pages() as u32;
        let whole = PageIo { direction: Direction::Read, slot: slot.number(), pfn: back, pages };
        let reports = move |dropped| {
            if dropped == LockClass::CompressedSlot {
                script.report(whole, Ok(()));
                assert!(flags(swap, back).contains(FrameFlags::READING), "the cache works at it");
                assert!(swap.frames().folios().try_lock_folio(back).is_none(), "it has its lock still");
            }
        };
        after_all_holds(reports, call)
    }

    /// The device reports the pages that it was asked for.
    fn report_parts(&self) {
        let is_part = |io: &PageIo| io.direction == Direction::Read && io.pages == 1;
        let parts: Vec<_> = std::mem::take(&mut *self.script.requests.lock().unwrap());
        for part in parts.into_iter().filter(is_part) {
            self.script.report(part, Ok(()));
        }
    }
}

/// Hazard: a folio counts as read, and its lock is released, while the cache decompresses its page.
#[test]
fn a_page_that_the_cache_decompresses_is_not_read_yet() {
    let mut front = Front::new();
    let slot = front.out(Order::ZERO);
    let back = front.inserted(slot, Order::ZERO);
    front.reported_early(slot, back, || read(front.swap, back));
    assert_read(front.swap, slot, back);
}

/// Hazard: a folio counts as read, and is freed, before the pages are requested that the cache does not have:
/// the device writes them to what is another owner's by then.
#[test]
fn a_folio_whose_parts_are_not_requested_yet_is_not_read() {
    let order = Order::new(2).unwrap();
    let mut front = Front::new();
    let slot = front.partly_out();
    let back = front.inserted(slot, order);
    let lock = front.swap.frames().folios().try_lock_folio(back).unwrap();
    let asked = front.reported_early(slot, back, || front.swap.io().read_folio(back));
    assert_eq!(asked, IoState::Begun);
    assert!(flags(front.swap, back).contains(FrameFlags::READING), "two pages are under way");
    front.report_parts();
    assert_eq!(front.swap.io().wait_read(back), Ok(()));
    drop(lock);

    let mut front = Front::new();
    let slot = front.partly_out();
    let back = front.inserted(slot, order);
    front.reported_early(slot, back, || read(front.swap, back));
    assert!(flags(front.swap, back).contains(UNDER_WAY), "two pages are under way");
    front.report_parts();
    assert!(!flags(front.swap, back).intersects(UNDER_WAY | FrameFlags::READ_FAILED));
    assert!(front.swap.frames().folios().try_lock_folio(back).is_some(), "its lock was released");
}
