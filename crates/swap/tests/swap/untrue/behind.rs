//! Such devices behind a compressed cache, which asks them for pages of its own accord.

use super::{Asked, Script, Told};
use crate::common::machine::{frames, get, run_on};
use crate::common::{Machine, Random};
use crate::pages::submit;
use quire_arch::{Order, PAGE_SIZE, Pfn, Platform};
use quire_frame::{Frames, PcpTechnique};
use quire_swap::{
    CompressedCache, DeviceError, DeviceFlags, DeviceMemory, Direction, PageIo, Submitted, SwapDevice,
};
use std::sync::Arc;

/// Pages that the cache has room for, if they cannot be compressed.
const ROOM: u64 = 16;

/// A cache with the device behind it.
struct Front {
    frames: Frames<Machine>,
    script: Arc<Script>,
    cache: CompressedCache<Machine, Told>,
    /// A page that cannot be compressed.
    page: Pfn,
}

impl Front {
    fn new() -> Self {
        run_on(0);
        let frames = frames(&[(0, 4096)], 1, PcpTechnique::All);
        let script = Arc::<Script>::default();
        let behind = Told(Arc::clone(&script), DeviceFlags::empty());
        let cache = CompressedCache::new(&frames, behind, ROOM * PAGE_SIZE).unwrap();
        let page = get(&frames, Order::ZERO);
        let mut random = Random(7);
        // SAFETY: the frame is the test's.
        unsafe { frames.platform().direct_map(page).cast().write([(); 512].map(|()| random.next())) };
        Self { frames, script, cache, page }
    }

    fn write(&self, slot: u64) -> Submitted {
        let io = PageIo { direction: Direction::Write, slot, pfn: self.page, pages: 1 };
        submit(&self.frames, &self.cache, io)
    }

    /// Whether the cache has the page of the slot.
    fn has(&self, slot: u64) -> bool {
        let io = PageIo { direction: Direction::Read, slot, pfn: self.page, pages: 1 };
        self.cache.cached(DeviceMemory::new(&self.frames), io) == 1
    }

    /// The device reports these as done; returns what the cache reports then.
    fn report(&self, reports: &[PageIo]) -> Vec<(PageIo, Result<(), DeviceError>)> {
        self.script.reports.lock().unwrap().extend(reports.iter().map(|&io| (io, Ok(()))));
        let mut all = Vec::new();
        self.cache.reap(DeviceMemory::new(&self.frames), &mut |io, result| all.push((io, result)));
        all
    }

    fn asked(&self) -> Vec<PageIo> {
        std::mem::take(&mut *self.script.requests.lock().unwrap())
    }

    /// Begins to read four pages, of which the cache has the first; with each of them.
    fn read_four(&self) -> (PageIo, [PageIo; 4]) {
        assert_eq!(self.write(8), Submitted::Done(Ok(())));
        let pfn = get(&self.frames, Order::new(2).unwrap());
        let whole = PageIo { direction: Direction::Read, slot: 8, pfn, pages: 4 };
        assert_eq!(submit(&self.frames, &self.cache, whole), Submitted::Begun);
        let page = |nth| PageIo { slot: 8 + nth, pfn: pfn.offset(nth), pages: 1, ..whole };
        (whole, [page(0), page(1), page(2), page(3)])
    }
}

/// Hazard: a folio of which the cache has some pages counts as read, and is freed, while the device still
/// writes the others.
#[test]
fn each_page_of_a_folio_that_is_read_in_parts_comes_once() {
    let front = Front::new();
    let (whole, [first, pages @ ..]) = front.read_four();
    assert_eq!(front.asked(), pages);
    assert_eq!(front.report(&[pages[0]; 3]), [], "two are under way");
    assert_eq!(front.report(&[first, whole, first]), [], "the device has neither");
    assert_eq!(front.report(&[pages[2], pages[2], pages[0]]), [], "one is under way");
    assert_eq!(front.report(&[pages[1]]), [(whole, Ok(()))]);
    front.cache.close(DeviceMemory::new(&front.frames));
}

/// Hazard: a device reports a page that waits for a place in its queue, and has the request for it when the
/// folio is freed.
#[test]
fn a_page_that_waits_to_be_requested_is_not_read() {
    let front = Front::new();
    *front.script.asked.lock().unwrap() = Asked::IsFull;
    let (whole, [_, pages @ ..]) = front.read_four();
    assert_eq!(front.asked(), pages[..1]);
    assert_eq!(front.report(&pages), [], "the device has none of them");
    *front.script.asked.lock().unwrap() = Asked::Begins;
    front.asked();
    assert_eq!(front.report(&[]), []);
    assert_eq!(front.asked(), pages);
    assert_eq!(front.report(&pages), [(whole, Ok(()))]);
    front.cache.close(DeviceMemory::new(&front.frames));
}

/// Hazard: the second report of a writeback ends another one, whose copy has the same frame by then: the
/// cache drops the only good page of that slot, and frees what the device reads.
#[test]
fn a_report_ends_no_writeback_of_another_slot() {
    let front = Front::new();
    // What bypasses the cache is of no interest.
    let copies = |asked: Vec<PageIo>| asked.into_iter().filter(|io| io.pfn != front.page).collect();
    let mut slots = 0..100;
    let mut next_copies = || -> Vec<PageIo> {
        let _ = front.write(slots.next().expect("the oldest pages are written back"));
        copies(front.asked())
    };
    let first = std::iter::repeat_with(&mut next_copies).find(|copies| !copies.is_empty()).unwrap();
    front.report(&first);
    assert!(first.iter().all(|io| !front.has(io.slot)), "they were written back");
    // One of their frames is taken for another copy.
    let same_frame = |new: PageIo| first.iter().find(|old| old.pfn == new.pfn).map(|&old| (old, new));
    let (old, new) =
        std::iter::repeat_with(next_copies).flatten().find_map(same_frame).expect("it has no end");
    assert_ne!(new.slot, old.slot);
    let written = front.cache.written_back();
    front.report(&[old, PageIo { pages: 2, ..new }, PageIo { direction: Direction::Read, ..new }]);
    assert!(front.has(new.slot), "the device has not written it");
    assert_eq!(front.cache.written_back(), written);
    front.report(&[new]);
    assert!(!front.has(new.slot));
    assert_eq!(front.cache.written_back(), written + 1);
}
